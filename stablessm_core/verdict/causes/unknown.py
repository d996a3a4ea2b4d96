"""No cause applies: the verdict says what is known, and offers the two most informative tests."""

from __future__ import annotations

from stablessm_core.verdict.advice import tests_of_the_cause
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.causes.explosion import outside_without_overflow
from stablessm_core.verdict.causes.unknown_step import _end, _in_backward
from stablessm_core.verdict.measured import MODERATE
from stablessm_core.verdict.sentences import Said, said, sentence


def _find(case: Case) -> Answer:
    return Answer(confidence="cannot_tell", runner_up="explosion" if case.largest >= MODERATE else None)


@sentence("alerts", holds="no cause applies")
def cannot_tell(case: Case) -> str:
    return f"{_end(case)}{_in_backward(case)}. The recorded numbers cannot tell why."


@sentence("alerts", holds="another program reported the run, and what it recorded first is a weight or a gradient of a layer")
def order_is_no_proof(case: Case) -> str | None:
    if case.run.reported is None or case.fatal.get("layer") is None:
        return None
    return "Within a step, tensors are recorded in a fixed order: the first one on record need not be the first that failed."


@sentence("alerts", basis="inferred", holds="at the fatal step, every state of a layer is NaN, and none is infinite")
def came_from_below(case: Case) -> str | None:
    if case.inherited is None:
        return None
    return f"Every state of layer {case.inherited} is NaN, and none is infinite, so NaN came into its recurrence from elsewhere."


def _summary(case: Case, _answer: Answer) -> list[Said]:
    return said(cannot_tell(case), order_is_no_proof(case), came_from_below(case), outside_without_overflow(case))


CAUSE = Cause(
    name="unknown", label="cause unknown", find=_find, summary=_summary, advice=lambda case, _answer: tests_of_the_cause(case)
)
