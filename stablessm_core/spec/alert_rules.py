"""Rules for alerts in the configuration of a run and in the request that opens a reported run."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from stablessm_core.spec.section import Section, Text
from stablessm_core.telemetry.limits import MAX_NAME, MAX_STEP
from stablessm_core.telemetry.rules import CONDITIONS, MAX_RULES, Rule, parse_condition


def _condition(text: str) -> str:
    parse_condition(text)
    return text.strip()


class AlertRule(Section):
    """An alert that is raised when a scalar meets a condition for some steps."""

    name: Annotated[Text, Field(min_length=1, max_length=MAX_NAME)] = Field(
        description="Name of a scalar, such as `train/loss` or a free metric. It may be recorded later or never."
    )
    condition: Annotated[Text, Field(min_length=1, max_length=60), AfterValidator(_condition)] = Field(
        description=f"When the rule holds: {CONDITIONS}. NaN meets no comparison."
    )
    steps: int = Field(1, ge=1, le=MAX_STEP, description="For how many training steps the condition must hold.")

    @property
    def rule(self) -> Rule:
        return Rule(self.name, self.condition, self.steps)


RuleList = Annotated[list[AlertRule], Field(max_length=MAX_RULES)]


class ReportedAlerts(Section):
    """The alerts of a reported run."""

    rules: RuleList = Field(default_factory=list, description="Your own alerts, each once its condition holds.")
