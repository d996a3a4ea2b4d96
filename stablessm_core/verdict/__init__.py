"""What became of a run, and why: from recorded numbers to cause, words and what to try. Pure, torch-free."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.stability import overflow_length
from stablessm_core.verdict import facts
from stablessm_core.verdict.advice import advise, confirmation
from stablessm_core.verdict.decide import decide
from stablessm_core.verdict.evidence import evidence
from stablessm_core.verdict.finite import finite
from stablessm_core.verdict.record import Layer, Rows, Run, Scalars, Source
from stablessm_core.verdict.timeline import events
from stablessm_core.verdict.words import summary

CAUSES = ("eigenvalue_overflow", "explosion", "step_size", "bad_input", "precision", "lr_too_large", "unknown")
THROWN_BY = ("optimizer_step", "gradient_spike", "explosion", "both")

__all__ = ["CAUSES", "THROWN_BY", "Layer", "Rows", "Run", "Scalars", "Source", "confirmation", "judge", "unstable"]


def judge(run: Run, source: Source) -> dict[str, Any]:
    """The verdict: {cause, thrown_by, summary, culprit, events, evidence, try, unstable, confirmed}.

    cause: one of CAUSES, None where numbers are finite. thrown_by: of an eigenvalue that overflowed, one of THROWN_BY. culprit:
    {layer, eigenvalue} where one is named. events, evidence: each with its `text`. try: [{change, because}]. unstable: see
    there. confirmed: empty; who knows the run's forks fills it with `confirmation`s.
    """
    if run.fatal is None:
        alive = finite(run, source)
        step = alive.pop("step")
        found = {"cause": None, "thrown_by": None, "culprit": None, "try": [], **alive}
        return found | {"unstable": None if step is None else unstable(run, source, step), "confirmed": []}
    finding = decide(run, source)
    culprit = None
    if finding.layer is not None and finding.eigenvalue is not None:
        culprit = {"layer": finding.layer.index, "eigenvalue": finding.eigenvalue}
    return {
        "cause": finding.cause,
        "thrown_by": finding.thrown_by,
        "summary": summary(run, finding),
        "culprit": culprit,
        "events": events(run, finding),
        "evidence": evidence(run, finding),
        "try": advise(run, finding),
        "unstable": unstable(run, source, finding.step),
        "confirmed": [],
    }


def unstable(run: Run, source: Source, step: int) -> dict[str, Any] | None:
    """Of the row of this step, where eigenvalues are outside: how many of how many, how far, and at which length it overflows."""
    worst = facts.worst(run, source, step)
    if worst is None or not worst.outside:
        return None
    longest = overflow_length(worst.distance, run.limit)
    return {
        "eigenvalues": worst.outside,
        "of": run.eigenvalues,
        "worst_distance": worst.distance,
        "overflow_budget": worst.budget,
        "overflows_at_length": math.ceil(longest) if math.isfinite(longest) else None,
    }
