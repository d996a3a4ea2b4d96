"""The decision list: which cause the recorded numbers of a diverged run show. The first rule that matches decides.

The rules and their cuts are measured on 2,703 short runs (docs/verdict.md says how often each was right there). Under AdamW the
size of a step does not follow the gradient, so an eigenvalue that overflows was thrown by the optimizer's steps; under SGD the
loss of the last finite row says whether the recurrence threw itself, or was taken along when the whole training exploded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stablessm_core.verdict import facts
from stablessm_core.verdict.record import Layer, Run, Scalars, Source

OVERFLOWS = 0.95  # of the budget at which float32 overflows: measured, every death had 0.97 or more in its fatal row
NEAR = 0.8  # the same where the layer's state is what overflowed; below it another thing must have
TOOK_ALONG = 10.0  # loss over best in the last finite row: below CALM the recurrence, from here on the whole training
EARLY = 3  # steps: at the third at the latest the first updates were fatal
JUMP = 1e3  # times the largest loss so far, in one step and with small updates: nothing the model did makes that
LARGE_UPDATE = 0.5  # of the weights' norm
GREW = 100.0  # a step size dt that has run away


@dataclass(kw_only=True)
class Finding:
    """What was found of a diverged run. `layer`, `eigenvalue`: the culprit, where there is one."""

    step: int
    tensor: str
    value: str | None
    cause: str = "unknown"
    thrown_by: str | None = None
    rule: str = ""
    layer: Layer | None = None
    eigenvalue: int | None = None
    scalars: Scalars
    flags: int | None = None  # what of the batch was not finite, as the series says; None: not recorded
    state: bool = False
    moved: facts.Moved | None = None  # how the worst eigenvalue came where it is
    worst: facts.Worst | None = None  # of the fatal row, or the last one that shows distances
    crossing: facts.Crossing | None = None  # of the culprit, else the first of all layers
    firsts: list[facts.Crossing] = field(default_factory=list)  # the first of each layer that has one, by step
    growth: facts.Growth | None = None
    spike: facts.Spike | None = None
    update: float | None = None
    dt: tuple[float, float, int] | None = None
    half: bool = False


def decide(run: Run, source: Source) -> Finding:
    """Raises ValueError for a run whose numbers are finite."""
    fatal = run.fatal
    if fatal is None:
        raise ValueError("nothing is to be decided: the run's numbers are finite")
    step = int(fatal["step"])
    scalars = source.scalars(step - facts.LOSS_TAIL * run.every, step)
    found = Finding(step=step, tensor=str(fatal.get("tensor") or ""), value=fatal.get("value"), scalars=scalars)
    _look(run, source, found, fatal)
    for rule in (_bad_batch, _overflow, _half_precision, _step_size, _huge_batch, _explosion):
        if rule(run, source, found):
            found.rule = rule.__name__.strip("_")
            return found
    return found


def _look(run: Run, source: Source, found: Finding, fatal: dict[str, Any]) -> None:
    found.flags = _flags(found)
    kinds = [alert for alert in run.alerts if alert["step"] == found.step and alert["kind"] == "nonfinite_state"]
    found.state = found.tensor.endswith(".state") or bool(kinds)
    named = fatal.get("layer") if found.tensor.endswith(".state") else next((alert["layer"] for alert in kinds), None)
    found.worst = _fatal_row(run, source, found.step)
    if named is None and found.worst is not None:
        named = found.worst.layer
    found.layer = next((layer for layer in run.layers if layer.index == named), None)
    if found.tensor.endswith(".state") and fatal.get("eigenvalue") is not None:
        found.eigenvalue = int(fatal["eigenvalue"])
    elif kinds and kinds[0]["eigenvalue"] is not None:
        found.eigenvalue = int(kinds[0]["eigenvalue"])
    elif found.worst is not None and found.worst.layer == named:
        found.eigenvalue = found.worst.eigenvalue
    firsts = [one for layer in run.layers if (one := facts.crossing(run, source, layer)) is not None]
    found.firsts = sorted(firsts, key=lambda one: one.step)
    found.crossing = found.firsts[0] if found.firsts else None
    found.moved = None if found.worst is None else facts.moved(run, source, found.worst)
    found.growth = facts.growth(source, found.scalars, found.step)
    found.update = facts.update_size(run, found.scalars, found.step)
    found.half = facts.in_half_precision(found.scalars, found.step)


def _flags(found: Finding) -> int | None:
    if found.tensor.startswith("batch."):
        return 2 if found.tensor.endswith("y") else 1
    if found.scalars.batch is None or not len(found.scalars) or found.scalars.step[-1] != found.step:
        return None
    flag = found.scalars.batch[-1]
    return None if np.isnan(flag) else int(flag)


def _fatal_row(run: Run, source: Source, step: int) -> facts.Worst | None:
    here = facts.worst(run, source, step)
    return here if here is not None else facts.worst(run, source, step - run.every)


def _bad_batch(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    if found.flags:
        found.cause = "bad_input"
        found.layer = found.eigenvalue = None
    return bool(found.flags)


def _overflow(run: Run, source: Source, found: Finding) -> bool:
    """An eigenvalue outside whose powers, over one sequence, are beyond float32."""
    culprits = [layer for layer in run.layers if _is_spent(run, source, layer, found)]
    if not culprits:
        return False
    found.layer = found.layer if found.layer in culprits else culprits[0]
    assert found.layer is not None
    own = facts.worst(run, source, found.step, found.layer.index)
    if own is not None and (not found.state or found.eigenvalue is None or not _outside(source, found)):
        found.eigenvalue = own.eigenvalue
    found.worst = own or found.worst
    found.crossing = facts.crossing(run, source, found.layer, found.eigenvalue) or found.crossing
    found.cause = "eigenvalue_overflow"
    if found.eigenvalue is not None and not found.layer.wide:
        found.spike = facts.spike(source, found.layer, found.eigenvalue, found.step)
    times = 1.0 if found.growth is None else found.growth.times
    spiked = found.spike is not None and found.spike.growth >= facts.SPIKE
    if run.optimizer == "adamw":
        found.thrown_by = "optimizer_step"
    elif times >= TOOK_ALONG:
        found.thrown_by = "explosion"
    elif times >= facts.CALM:
        found.thrown_by = "both"
    else:
        found.thrown_by = "gradient_spike" if spiked else "optimizer_step"
    return True


def _is_spent(run: Run, source: Source, layer: Layer, found: Finding) -> bool:
    here = facts.worst(run, source, found.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    if here.budget is None:
        return found.state and found.layer is layer
    return here.budget >= (NEAR if found.state and found.layer is layer else OVERFLOWS) * run.limit


def _outside(source: Source, found: Finding) -> bool:
    assert found.layer is not None
    assert found.eigenvalue is not None
    rows = source.layer(found.layer.index, found.step, found.step)
    return bool(len(rows)) and bool((rows.distance_of(found.eigenvalue) < 0).any())


def _half_precision(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """Losses that are float16 numbers, and ended where float32 still has room."""
    configured = str(run.config.get("train", {}).get("precision", "float32")) in ("float16", "half")
    if not (configured or found.half):
        return False
    found.cause = "precision"
    return True


def _huge_batch(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The loss left everything known in a single step, though the update before it was small: only the batch was another one."""
    if run.every > 1 or _strained(run, found):
        return False
    if found.step == run.first_step == 1:
        found.cause = "bad_input"  # no update has been made: initial weights and the batch, nothing else
        return True
    grown = found.growth
    if grown is None or (found.step - grown.step > 1 and grown.rose_at is None):
        return False
    if grown.rose_at is None:
        calm = grown.times < facts.CALM and _small(found.update)
        found.cause = "bad_input" if calm else found.cause
        return calm
    update = facts.update_size(run, found.scalars, grown.rose_at)
    if grown.record >= JUMP and grown.jump >= JUMP and _small(update):
        found.update, found.cause = update, "bad_input"
        return True
    return False


def _strained(run: Run, found: Finding) -> bool:
    """Whether an eigenvalue outside could have had a part in it."""
    budget = None if found.worst is None else found.worst.budget
    return budget is not None and budget >= 0.3 * run.limit


def _small(update: float | None) -> bool:
    return update is not None and update <= facts.SMALL_UPDATE


def _step_size(run: Run, source: Source, found: Finding) -> bool:
    """Continuous time: a state that overflows with every eigenvalue inside, where dt has run away."""
    if found.layer is None or not found.layer.continuous or not found.state:
        return False
    if found.worst is not None and found.worst.outside:
        return False
    found.dt = facts.step_sizes(run, source, found.layer, found.step)
    if found.dt is None or not (found.dt[1] >= GREW * found.dt[0] or not np.isfinite(found.dt[1])):
        return False
    found.cause, found.eigenvalue = "step_size", found.dt[2]
    return True


def _explosion(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """No state overflowed outside: either the first updates were fatal, or the loss had left what training had reached."""
    if found.state and found.firsts and found.worst is not None and found.worst.outside:
        return False
    risen = found.growth is not None and found.growth.times >= facts.ROSE
    trained = found.step - run.first_step + 1
    large = found.update >= LARGE_UPDATE if found.update is not None else _lr(run, found) >= 1
    if 1 < trained <= EARLY and (risen or large) and not _strained(run, found):
        found.cause, found.layer, found.eigenvalue = "lr_too_large", None, None
        return True
    if risen:
        found.cause, found.layer, found.eigenvalue = "explosion", None, None
    return risen


def _lr(run: Run, found: Finding) -> float:
    return float(found.scalars.lr[0]) if len(found.scalars) else float(run.config["optimizer"]["lr"])
