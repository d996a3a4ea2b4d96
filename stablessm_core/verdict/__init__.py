"""The verdict on a run: derives the cause, a summary and changes to try from the recorded values. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stablessm_core.verdict.advice import advise, confirmation
from stablessm_core.verdict.decide import decide
from stablessm_core.verdict.evidence import evidence
from stablessm_core.verdict.finite import judge_finite
from stablessm_core.verdict.inputs import Layer, Rows, Run, Scalars, Source
from stablessm_core.verdict.outside import unstable
from stablessm_core.verdict.replayed import completed
from stablessm_core.verdict.reported import judge_reported
from stablessm_core.verdict.timeline import events
from stablessm_core.verdict.trouble import Trouble, trouble_start
from stablessm_core.verdict.words import summary

CAUSES = (
    "eigenvalue_overflow", "explosion", "step_size", "bad_input", "bad_loss", "arithmetic", "precision", "lr_too_large",
    "unknown",
)  # fmt: skip
THROWN_BY = ("optimizer_step", "gradient_spike", "explosion", "both")
CONFIDENCES = ("measured", "inferred", "cannot_tell")

__all__ = [
    "CAUSES", "CONFIDENCES", "THROWN_BY", "Layer", "Rows", "Run", "Scalars", "Source", "Trouble", "confirmation", "judge",
    "trouble_start", "unstable",
]  # fmt: skip


def judge(run: Run, source: Source) -> dict[str, Any]:
    """The verdict: {cause, thrown_by, confidence, runner_up, summary, culprit, trouble, events, evidence, try, unstable,
    confirmed}.

    cause: one of CAUSES; None if every number of the training is finite. thrown_by: one of THROWN_BY if an eigenvalue
    overflowed. confidence: one of CONFIDENCES. "measured": the cause rests on the autopsy or on a record of the cause itself;
    "inferred": it follows from recorded numbers; "cannot_tell": the cause is unknown. None without a cause. runner_up: the second
    cause that the data allow, or None. culprit: {layer, eigenvalue} or None. trouble: {step, kind, shown, exact} as `Trouble`, or
    None. events, evidence: lists of items with a `text` and a `basis`. try: [{change, because}]. unstable: see `unstable`.
    confirmed: an empty list. The caller fills this list with the `confirmation`s from the run's forks.
    """
    if run.reported is not None:
        return judge_reported(run, source)
    run, source = completed(run, source)
    trouble = trouble_start(run, source)
    about: dict[str, Any] = {"trouble": None if trouble is None else asdict(trouble), "confirmed": []}
    if run.fatal is None:
        so_far = judge_finite(run, source)
        step = so_far.pop("step")
        found = {"cause": None, "thrown_by": None, "confidence": None, "runner_up": None, "culprit": None, "try": [], **so_far}
        return found | {"unstable": None if step is None else unstable(run, source, step)} | about
    finding = decide(run, source)
    culprit = None
    if finding.layer is not None and finding.eigenvalue is not None:
        culprit = {"layer": finding.layer.index, "eigenvalue": finding.eigenvalue}
    return {
        "cause": finding.cause,
        "thrown_by": finding.thrown_by,
        "confidence": finding.confidence,
        "runner_up": finding.runner_up,
        "summary": summary(run, finding),
        "culprit": culprit,
        "events": events(run, finding),
        "evidence": evidence(run, finding),
        "try": advise(run, finding),
        "unstable": unstable(run, source, finding.step),
        **about,
    }
