"""Lets the autopsy's counterfactuals confirm or change the cause that the records suggest, and names the second cause."""

from __future__ import annotations

from stablessm_core.verdict import eigenvalues
from stablessm_core.verdict.finding import Finding, contributes
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.measured import MODERATE

JUMP = 1e3  # loss divided by the largest loss so far: a small update cannot cause such a jump in one step


def weigh(run: Run, source: Source, found: Finding) -> None:
    """Let the autopsy's counterfactuals confirm or change a cause that the records suggest."""
    autopsy = found.autopsy
    if autopsy is None or found.cause in ("bad_input", "bad_loss", "arithmetic", "precision") or found.kick is not None:
        return
    frozen = found.lives("recurrence_frozen")
    if _hidden_between_rows(run, found):
        found.runner_up, found.cause, found.thrown_by, found.confidence = found.cause, "unknown", None, "cannot_tell"
        found.layer, found.eigenvalue, found.gap = None, None, True
        return
    if found.cause == "eigenvalue_overflow":
        assert found.layer is not None
        if frozen and found.thrown_by in ("explosion", "both"):
            found.thrown_by = found.thrown_by_step
        if found.dies_soon("recurrence_frozen") and found.thrown_by == "both":
            found.thrown_by = "explosion"
        at_layer = found.measured_layer == found.layer.index and not autopsy.fits_float32
        bystander = found.dies_soon("recurrence_frozen")
        found.confidence = "measured" if frozen or (at_layer and not bystander) else found.confidence
        if bystander:
            found.runner_up = "explosion"
            found.confidence = "measured" if found.thrown_by == "explosion" else "inferred"
        return
    if frozen and found.firsts and contributes(run, found.worst) and found.worst is not None:
        found.layer = next(layer for layer in run.layers if found.worst is not None and layer.index == found.worst.layer)
        found.eigenvalue = found.worst.eigenvalue
        found.crossing = eigenvalues.first_crossing(run, source, found.layer, found.eigenvalue)
        found.cause, found.confidence, found.thrown_by = "eigenvalue_overflow", "measured", "optimizer_step"
        return
    tenth = found.lives("tenth_of_rate")
    deciding = {
        "explosion": found.dies_soon("recurrence_frozen") or (autopsy.largest >= MODERATE and not frozen),
        "lr_too_large": tenth,
        "step_size": frozen or found.measured_layer is not None,
    }
    if deciding.get(found.cause):
        found.confidence = "measured"


def _hidden_between_rows(run: Run, found: Finding) -> bool:
    """Whether the numbers left their usual level between two recorded rows, and no change that the autopsy tried saved the run:
    what happened in the steps that are not recorded is unknown."""
    if run.every == 1 or found.cause not in ("explosion", "eigenvalue_overflow"):
        return False
    grown = found.growth
    at_once = grown is None or grown.rose_at is None or grown.jump >= JUMP
    return at_once and all(found.dies_soon(change) for change in ("recurrence_frozen", "tenth_of_rate", "batch_left_out"))


def name_runner_up(run: Run, found: Finding) -> None:
    """The second cause that the data allow, unless a rule has named it."""
    second = found.runner_up
    if second is None and found.cause == "eigenvalue_overflow" and found.thrown_by in ("explosion", "both"):
        second = "explosion"
    elif second is None and found.cause == "explosion" and (found.lives("batch_left_out") or run.every > 1):
        second = "bad_input"
    elif second is None and found.cause == "explosion":
        second = "eigenvalue_overflow" if contributes(run, found.worst) else "lr_too_large"
    elif second is None and found.risen and found.cause in ("lr_too_large", "precision"):
        second = "explosion"
    if found.confidence == "measured" and found.cause == "eigenvalue_overflow" and found.lives("recurrence_frozen"):
        second = None
    if second == "lr_too_large" and found.lives("tenth_of_rate") is False:
        second = None
    found.runner_up = second
