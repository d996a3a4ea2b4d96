"""What a cause consists of: its name and label, when it applies, what it says, and what it advises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.inputs import Layer
from stablessm_core.verdict.sentences import Said
from stablessm_core.verdict.timeline import Event
from stablessm_core.verdict.trouble import Trouble

CONFIDENCES = ("measured", "inferred", "cannot_tell")

Try = tuple[dict[str, Any], str]  # ({setting by dotted path: value}, why)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a cause concludes about a case.

    confidence: one of CONFIDENCES. layer, eigenvalue: the eigenvalue that is to blame, and its layer. thrown_by: what moved the
    eigenvalue across the boundary. runner_up: the name of the second cause that the data allow. about: what the cause found; only
    the cause's own functions read it.
    """

    confidence: str
    layer: Layer | None = None
    eigenvalue: int | None = None
    thrown_by: str | None = None
    runner_up: str | None = None
    about: Any = None


def nothing(_case: Case, _answer: Answer) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of a divergence.

    name: as in the API. label: after "cause:", such as "the data". find: what the cause concludes, or None where it does not
    apply or a trial contradicts it. summary, evidence: the sentences about it, in addition to those about every divergence.
    advice: changes of the configuration, the most promising first. tested_by: the change that tests this cause best, "recurrence"
    for frozen eigenvalues or "rate" for a lower learning rate; None if neither does. events: what happened, in addition to the
    events of every divergence. begins: where such a trouble begins. by_update: whether the update before the fatal row did it, so
    that a trial must begin before that update.
    """

    name: str
    label: str
    find: Callable[[Case], Answer | None]
    summary: Callable[[Case, Answer], list[Said]]
    evidence: Callable[[Case, Answer], list[Said]] = nothing
    advice: Callable[[Case, Answer], list[Try]] = nothing
    tested_by: Literal["recurrence", "rate"] | None = None
    events: Callable[[Case, Answer], list[Event]] = nothing
    begins: Callable[[Case, Answer], list[Trouble]] = nothing
    by_update: bool = False
