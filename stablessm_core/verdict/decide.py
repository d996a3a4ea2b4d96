"""The decision list: finds the cause of a divergence in the recorded numbers. The first rule that matches decides.

The rules and their thresholds come from 2,703 short runs (docs/verdict.md states how often each rule was right). Under AdamW
the size of a step does not depend on the size of the gradient. So if an eigenvalue overflows, the optimizer's steps are the
reason. Under SGD the loss of the last finite row shows whether the recurrence diverged on its own or because the whole training
exploded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stablessm_core.verdict import facts
from stablessm_core.verdict.inputs import Layer, Run, Scalars, Source

OVERFLOWS = 0.95  # share of the budget limit at which a state counts as overflowed; every measured fatal row had at least 0.97
NEAR = 0.8  # like OVERFLOWS, for a layer with a non-finite state; below this share, the non-finite state has another cause
EXPLODED = 10.0  # last finite loss / best loss: at this ratio the whole training exploded; below CALM, only the recurrence did
EARLY = 3  # maximum number of trained steps of a run that diverged because of its first updates
JUMP = 1e3  # loss divided by the largest loss so far: a small update cannot cause such a jump in one step
LARGE_UPDATE = 0.5  # minimum size of a large update, as a share of the norm of all weights
GREW = 100.0  # step size dt divided by its initial value: at this ratio, dt has grown out of control


@dataclass(kw_only=True)
class Finding:
    """The facts that the recorded values of a diverged run show. layer, eigenvalue: the eigenvalue that caused the divergence
    and its layer, or None."""

    step: int
    tensor: str
    value: str | None
    cause: str = "unknown"
    thrown_by: str | None = None
    layer: Layer | None = None
    eigenvalue: int | None = None
    scalars: Scalars
    flags: int | None = None  # which part of the batch was not finite, as in `Scalars.batch`; None if this was not recorded
    state: bool = False  # True if a layer's state was not finite
    moved: facts.DecayChange | None = None  # how the decay of the worst eigenvalue changed
    worst: facts.Worst | None = None  # worst eigenvalue at the fatal step, or at the recorded step before the fatal step
    crossing: facts.Crossing | None = None  # the culprit's first crossing of the boundary; None without a culprit
    firsts: list[facts.Crossing] = field(default_factory=list)  # the first crossing of each layer, by step
    growth: facts.Growth | None = None
    spike: facts.Spike | None = None
    update: float | None = None
    dt: tuple[float, float, int] | None = None
    half: bool = False


def decide(run: Run, source: Source) -> Finding:
    """The finding on a diverged run. Raises ValueError if the run's numbers are finite."""
    fatal = run.fatal
    if fatal is None:
        raise ValueError("there is nothing to decide: the run's numbers are finite")
    step = int(fatal["step"])
    scalars = source.scalars(step - facts.LOSS_TAIL * run.every, step)
    found = Finding(step=step, tensor=str(fatal.get("tensor") or ""), value=fatal.get("value"), scalars=scalars)
    _collect_facts(run, source, found, fatal)
    for rule in (_bad_batch, _overflow, _half_precision, _step_size, _huge_batch, _explosion):
        if rule(run, source, found):
            break
    return found


def _collect_facts(run: Run, source: Source, found: Finding, fatal: dict[str, Any]) -> None:
    found.flags = _flags(found)
    kinds = [alert for alert in run.alerts if alert["step"] == found.step and alert["kind"] == "nonfinite_state"]
    found.state = found.tensor.endswith(".state") or bool(kinds)
    named = fatal.get("layer") if found.tensor.endswith(".state") else next((alert["layer"] for alert in kinds), None)
    found.worst = _worst_at_the_end(run, source, found.step)
    if named is None and found.worst is not None:
        named = found.worst.layer
    found.layer = next((layer for layer in run.layers if layer.index == named), None)
    if found.tensor.endswith(".state") and fatal.get("eigenvalue") is not None:
        found.eigenvalue = int(fatal["eigenvalue"])
    elif kinds and kinds[0]["eigenvalue"] is not None:
        found.eigenvalue = int(kinds[0]["eigenvalue"])
    elif found.worst is not None and found.worst.layer == named:
        found.eigenvalue = found.worst.eigenvalue
    firsts = [one for layer in run.layers if (one := facts.first_crossing(run, source, layer)) is not None]
    found.firsts = sorted(firsts, key=lambda one: one.step)
    found.moved = None if found.worst is None else facts.decay_change(run, source, found.worst)
    found.growth = facts.loss_growth(source, found.scalars, found.step)
    found.update = facts.update_size(run, found.scalars, found.step)
    found.half = facts.losses_are_float16(found.scalars, found.step)


def _flags(found: Finding) -> int | None:
    if found.tensor.startswith("batch."):
        return 2 if found.tensor.endswith("y") else 1
    if found.scalars.batch is None or not len(found.scalars) or found.scalars.step[-1] != found.step:
        return None
    flag = found.scalars.batch[-1]
    return None if np.isnan(flag) else int(flag)


def _worst_at_the_end(run: Run, source: Source, step: int) -> facts.Worst | None:
    here = facts.worst_eigenvalue(run, source, step)
    return here if here is not None else facts.worst_eigenvalue(run, source, step - run.every)


def _bad_batch(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    if found.flags:
        found.cause = "bad_input"
        found.layer = found.eigenvalue = None
    return bool(found.flags)


def _overflow(run: Run, source: Source, found: Finding) -> bool:
    """An eigenvalue is outside the boundary, and its powers over one sequence exceed the range of float32."""
    culprits = [layer for layer in run.layers if _overflows(run, source, layer, found)]
    if not culprits:
        return False
    found.layer = found.layer if found.layer in culprits else culprits[0]
    assert found.layer is not None
    own = facts.worst_eigenvalue(run, source, found.step, found.layer.index)
    if own is not None and (not found.state or found.eigenvalue is None or not _culprit_is_outside(source, found)):
        found.eigenvalue = own.eigenvalue
    found.worst = own or found.worst
    found.crossing = facts.first_crossing(run, source, found.layer, found.eigenvalue)
    found.cause = "eigenvalue_overflow"
    if found.eigenvalue is not None and not found.layer.wide:
        found.spike = facts.gradient_spike(source, found.layer, found.eigenvalue, found.step)
    times = 1.0 if found.growth is None else found.growth.times
    spiked = found.spike is not None and found.spike.growth >= facts.SPIKE
    if run.optimizer == "adamw":
        found.thrown_by = "optimizer_step"
    elif times >= EXPLODED:
        found.thrown_by = "explosion"
    elif times >= facts.CALM:
        found.thrown_by = "both"
    else:
        found.thrown_by = "gradient_spike" if spiked else "optimizer_step"
    return True


def _overflows(run: Run, source: Source, layer: Layer, found: Finding) -> bool:
    here = facts.worst_eigenvalue(run, source, found.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    if here.budget is None:
        return found.state and found.layer is layer
    return here.budget >= (NEAR if found.state and found.layer is layer else OVERFLOWS) * run.limit_of(layer.index)


def _culprit_is_outside(source: Source, found: Finding) -> bool:
    assert found.layer is not None
    assert found.eigenvalue is not None
    rows = source.layer(found.layer.index, found.step, found.step)
    return bool(len(rows)) and bool((rows.distance_of(found.eigenvalue) < 0).any())


def _half_precision(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The run computed in float16, according to its configuration or because all recorded losses are float16 numbers."""
    configured = str(run.config.get("train", {}).get("precision", "float32")) in ("float16", "half")
    if not (configured or found.half):
        return False
    found.cause = "precision"
    return True


def _huge_batch(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The loss jumped in a single step although the previous update was small, so only the batch can have caused the jump."""
    if run.every > 1 or _eigenvalue_contributed(run, found):
        return False
    if found.step == run.first_step == 1:
        found.cause = "bad_input"  # before any update, only the initial weights or the batch can be the cause
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


def _eigenvalue_contributed(run: Run, found: Finding) -> bool:
    """True if an eigenvalue outside the boundary may have contributed to the divergence."""
    worst = found.worst
    return worst is not None and worst.budget is not None and worst.budget >= 0.3 * run.limit_of(worst.layer)


def _small(update: float | None) -> bool:
    return update is not None and update <= facts.SMALL_UPDATE


def _step_size(run: Run, source: Source, found: Finding) -> bool:
    """In continuous time, a state overflowed although every eigenvalue is inside the boundary: dt has grown too large."""
    if found.layer is None or not found.layer.continuous or not found.state:
        return False
    if found.worst is not None and found.worst.outside:
        return False
    found.dt = facts.largest_step_sizes(run, source, found.layer, found.step)
    if found.dt is None or not (found.dt[1] >= GREW * found.dt[0] or not np.isfinite(found.dt[1])):
        return False
    found.cause, found.eigenvalue = "step_size", found.dt[2]
    return True


def _explosion(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """No eigenvalue made a state overflow. The first updates were fatal, or the loss rose far above its best."""
    if found.state and found.firsts and found.worst is not None and found.worst.outside:
        return False
    risen = found.growth is not None and found.growth.times >= facts.ROSE
    trained = found.step - run.first_step + 1
    large = found.update >= LARGE_UPDATE if found.update is not None else _lr(run, found) >= 1
    if 1 < trained <= EARLY and (risen or large) and not _eigenvalue_contributed(run, found):
        found.cause, found.layer, found.eigenvalue = "lr_too_large", None, None
        return True
    if risen:
        found.cause, found.layer, found.eigenvalue = "explosion", None, None
    return risen


def _lr(run: Run, found: Finding) -> float:
    return float(found.scalars.lr[0]) if len(found.scalars) else float(run.config["optimizer"]["lr"])
