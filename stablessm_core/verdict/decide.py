"""The decision list: finds the cause of a divergence. The first rule that matches decides.

If an autopsy measured the fatal step, its rules come first, and its counterfactuals confirm or change what the rules for recorded
numbers say. Those rules and their thresholds come from 2,703 short runs (docs/verdict.md states how often each rule was right).
Under AdamW the size of a step does not depend on the size of the gradient. So if an eigenvalue overflows, the optimizer's steps
are the reason. Under SGD the loss of the last finite row shows whether the recurrence diverged on its own or because the whole
training exploded.
"""

from __future__ import annotations

import numpy as np

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.collected import collect
from stablessm_core.verdict.finding import Finding, contributes
from stablessm_core.verdict.inputs import Layer, Run, Source
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import CAST_TO_HALF, MODERATE
from stablessm_core.verdict.weighing import JUMP, name_runner_up, weigh

OVERFLOWS = 0.95  # share of the budget limit at which a state counts as overflowed; every measured fatal row had at least 0.97
NEAR = 0.8  # like OVERFLOWS, for a layer with a non-finite state; below this share, the non-finite state has another cause
EXPLODED = 10.0  # last finite loss / best loss: at this ratio the whole training exploded; below CALM, only the recurrence did
EARLY = 3  # maximum number of trained steps of a run that diverged because of its first updates
LEAP = 3.0  # overflow budget divided by that of the recorded row before: at this ratio an unrecorded step moved the eigenvalue
LARGE_UPDATE = 0.5  # minimum size of a large update, as a share of the norm of all weights
RAN_AWAY = 1e6  # like GREW, without a sign that a state became too large
GREW = 100.0  # step size dt divided by its initial value: at this ratio, dt has grown out of control


def decide(run: Run, source: Source) -> Finding:
    """The finding on a diverged run. Raises ValueError if the run's numbers are finite."""
    found = collect(run, source)
    for rule in RULES:
        if rule(run, source, found):
            break
    weigh(run, source, found)
    name_runner_up(run, found)
    return found


def _bad_batch(run: Run, source: Source, found: Finding) -> bool:
    """The batch held NaN or an infinity, or numbers far above usual. Both are read from records or from the autopsy."""
    bad = found.bad
    if bad is None:
        return False
    suspected = bad.finite and not found.lives("batches_scaled")
    if suspected and (_outside_before(run, source, bad.step) or _dies_without(found, bad.step)):
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "bad_input", "measured", None, None
    return True


def _dies_without(found: Finding, step: int) -> bool:
    """Whether the replay died in which every batch had its usual size, or that left out the batch of this step."""
    if found.lives("batches_scaled") is not None:
        return found.dies_soon("batches_scaled")
    one = None if found.autopsy is None else found.autopsy.counterfactual("batch_left_out")
    return one is not None and int(one["from_step"]) + 1 == step and found.dies_soon("batch_left_out")


def _outside_before(run: Run, source: Source, step: int) -> bool:
    """True if, before the update of this step, an eigenvalue was already so far outside that a state was about to overflow."""
    worst = eigenvalues.worst_eigenvalue(run, source, step)
    return worst is not None and worst.budget is not None and worst.budget >= NEAR * run.limit_of(worst.layer)


def _wrong_gradient(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The trouble began with a gradient that is far larger than the loss allows: the backward pass is wrong."""
    wrong = None if found.autopsy is None else found.autopsy.wrong_gradient
    if wrong is None or found.half or _is_half(run):
        return False
    # in the first step there is no usual gradient, and a gradient may be scaled on purpose
    if wrong.step == run.first_step and not wrong.norm >= facts.KICK * abs(wrong.slope):
        return False
    found.gradient = wrong
    found.cause, found.confidence, found.layer, found.eigenvalue = "bad_loss", "measured", None, None
    return True


def _half_measured(run: Run, source: Source, found: Finding) -> bool:
    """The first number that is not finite came from a number beyond float16 in an operation of the loss."""
    autopsy = found.autopsy
    if autopsy is None or autopsy.place != "loss" or not CAST_TO_HALF <= autopsy.input_of_first < MODERATE:
        return False
    cast = "copy" in str((autopsy.first or {}).get("operation")) or found.half
    return cast and _half_precision(run, source, found)


def _bad_loss(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The loss function or the backward pass made the number from ordinary numbers, in float64 too."""
    autopsy = found.autopsy
    if autopsy is None or autopsy.place not in ("loss", "backward") or found.half or _is_half(run):
        return False
    if not autopsy.input_of_first < MODERATE:  # also for NaN: nothing finite went into the operation
        ordinary = np.isnan(autopsy.input_of_first) and autopsy.largest < MODERATE
        if not ordinary:
            return False
    if autopsy.place == "backward" and (autopsy.float64 is None or autopsy.float64.get("finite")):
        return False
    if autopsy.place == "loss" and autopsy.fits_float32 and (autopsy.first or {}).get("module"):
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "bad_loss", "measured", None, None
    return True


def _arithmetic(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The step is finite in float64, and float32 can hold every true result: the precision or our own code broke it."""
    if found.autopsy is None or found.autopsy.first is None or not found.autopsy.fits_float32 or _is_half(run):
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "arithmetic", "measured", None, None
    return True


def _overflow(run: Run, source: Source, found: Finding) -> bool:
    """An eigenvalue is outside the boundary, and its powers over one sequence exceed the range of float32."""
    culprits = [layer for layer in run.layers if _overflows(run, source, layer, found)]
    if found.inherited is not None:
        culprits = [layer for layer in culprits if layer.index < found.inherited]
    if not culprits:
        return False
    named, of_state = found.measured_layer, found.layer
    found.layer = next(
        (layer for layer in culprits if layer.index == named), found.layer if found.layer in culprits else culprits[0]
    )
    assert found.layer is not None
    own = eigenvalues.worst_eigenvalue(run, source, found.step, found.layer.index)
    found.state = found.state and found.layer is of_state
    if own is not None and (not found.state or found.eigenvalue is None or not _is_outside(source, found, found.eigenvalue)):
        found.eigenvalue = own.eigenvalue
    largest = None if found.autopsy is None else found.autopsy.largest_state(found.layer.index)
    if largest is not None and not found.state and _is_outside(source, found, largest):
        found.eigenvalue = largest
    found.worst = own or found.worst
    found.crossing = eigenvalues.first_crossing(run, source, found.layer, found.eigenvalue)
    found.cause, found.confidence = "eigenvalue_overflow", "inferred"
    if found.eigenvalue is not None and not found.layer.wide:
        found.spike = eigenvalues.gradient_spike(source, found.layer, found.eigenvalue, found.step)
    found.reach = eigenvalues.largest_reach(run, source, found.step)
    times = 1.0 if found.growth is None else max(found.growth.times, _rise_in_fatal_step(found))
    if run.optimizer == "adamw":
        exploded = times >= EXPLODED and (found.dies_soon("recurrence_frozen") or _first_updates(run, found))
        found.thrown_by = "explosion" if exploded else "optimizer_step"
    elif times >= EXPLODED:
        found.thrown_by = "explosion"
    elif times >= CALM:
        found.thrown_by = "both"
    else:
        found.thrown_by = found.thrown_by_step
    return True


def _rise_in_fatal_step(found: Finding) -> float:
    """The loss of the fatal step divided by the best loss; 1 if it is not finite."""
    here = found.scalars.loss[(found.scalars.step == found.step) & np.isfinite(found.scalars.loss)]
    best = 0.0 if found.growth is None else found.growth.best
    return float(here[0]) / best if len(here) and best > 0 else 1.0


def _first_updates(run: Run, found: Finding) -> bool:
    """Whether the run died of its first updates, which could change the weights completely."""
    return found.step - run.first_step < EARLY and found.update is not None and found.update >= LARGE_UPDATE


def _overflows(run: Run, source: Source, layer: Layer, found: Finding) -> bool:
    here = eigenvalues.worst_eigenvalue(run, source, found.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    suspected = (found.state and found.layer is layer) or found.inherited is not None or found.measured_layer == layer.index
    if here.budget is None:
        return suspected
    return here.budget >= (NEAR if suspected else OVERFLOWS) * run.limit_of(layer.index)


def _is_outside(source: Source, found: Finding, eigenvalue: int) -> bool:
    """Whether this eigenvalue of the layer is outside the boundary at the fatal step."""
    assert found.layer is not None
    rows = source.layer(found.layer.index, found.step, found.step)
    return bool(len(rows)) and bool((rows.distance_of(eigenvalue) < 0).any())


def _half_precision(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The run computed in float16, according to its configuration or because all recorded losses are float16 numbers."""
    if not (_is_half(run) or found.half) or contributes(run, found.worst):
        return False
    found.cause, found.confidence = "precision", "inferred"
    return True


def _is_half(run: Run) -> bool:
    return run.how.precision in ("float16", "half")


def _jump(run: Run, source: Source, found: Finding) -> bool:
    """The loss jumped in a single step although the update before was small: no update can have done it. Which part of the step
    did it is not recorded."""
    rise = None if found.growth is None else found.growth.rose_at
    if run.every > 1 or contributes(run, eigenvalues.worst_eigenvalue(run, source, found.step if rise is None else rise)):
        return False
    if found.autopsy is not None and found.autopsy.largest >= MODERATE:
        return False  # the autopsy shows that the numbers had grown
    grown = found.growth
    if found.step == run.first_step == 1:
        found.jumped = True  # before any update, only the initial weights, the batch or the loss function can be the cause
    elif grown is None or (found.step - grown.step > 1 and grown.rose_at is None):
        return False
    elif grown.rose_at is None:
        found.jumped = grown.times < CALM and _small(found.update)
    else:
        update = facts.update_size(run, found.scalars, grown.rose_at)
        found.jumped = grown.record >= JUMP and grown.jump >= JUMP and _small(update)
        found.update = update if found.jumped else found.update
    if found.jumped:
        rose = grown is not None and grown.rose_at is not None
        found.runner_up = "bad_input" if found.sized is None else "bad_loss" if not rose else "explosion"
        found.layer = found.eigenvalue = None
    return found.jumped


def _unrecorded(run: Run, source: Source, found: Finding) -> bool:
    """The loss left its usual level between two recorded rows, or under SGD an eigenvalue crossed and overflowed between them:
    the steps that would show why are not recorded."""
    grown = found.growth
    if run.every == 1 or grown is None or (found.autopsy is not None and found.autopsy.largest >= MODERATE):
        return False
    rise = found.step if grown.rose_at is None else grown.rose_at
    before = found.scalars.step[found.scalars.step < rise]
    thrown = run.optimizer == "sgd" and contributes(run, found.worst)
    earlier = eigenvalues.worst_eigenvalue(run, source, int(before[-1])) if len(before) else None
    if not len(before) or (contributes(run, earlier) and not (thrown and _leapt(found.worst, earlier))):
        return False
    found.gap = thrown if grown.rose_at is None else grown.jump >= JUMP and not (contributes(run, found.worst) and not thrown)
    if found.gap:
        found.runner_up, found.layer, found.eigenvalue = "eigenvalue_overflow" if thrown else "explosion", None, None
    return found.gap


def _leapt(now: eigenvalues.Worst | None, before: eigenvalues.Worst | None) -> bool:
    """Whether the overflow budget grew LEAP-fold between two rows."""
    if now is None or before is None or now.budget is None or before.budget is None:
        return False
    return now.budget >= LEAP * before.budget


def _kicked(run: Run, source: Source, found: Finding) -> bool:
    """One gradient, far above usual at a usual loss, threw the weights."""
    found.kick = facts.gradient_kick(run, found.scalars, found.growth)
    if found.kick is None or contributes(run, eigenvalues.worst_eigenvalue(run, source, found.kick.step)):
        found.kick = None
        return False
    found.runner_up, found.layer, found.eigenvalue = "bad_loss", None, None
    return True


def _decayed(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The weight decay alone makes the weights grow: lr x weight_decay is above 2."""
    found.decay = facts.decay_growth(run, found.scalars, found.step)
    if found.decay is None:
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "lr_too_large", "inferred", None, None
    return True


def _small(update: float | None) -> bool:
    return update is not None and update <= facts.SMALL_UPDATE


def _step_size(run: Run, source: Source, found: Finding) -> bool:
    """In continuous time, a state overflowed although every eigenvalue is inside the boundary: dt has grown too large.

    If no state overflowed, a norm may have squared states that were too large. Then dt must have grown RAN_AWAY-fold, or the
    autopsy must show such numbers.
    """
    if found.layer is None or not found.layer.continuous:
        return False
    if found.worst is not None and found.worst.outside:
        return False
    found.dt = eigenvalues.largest_step_sizes(run, source, found.layer, found.step)
    large = found.state or (found.autopsy is not None and found.autopsy.largest >= MODERATE)
    least = GREW if large else RAN_AWAY
    if found.dt is None or (found.risen and not found.state):
        return False
    if np.isfinite(found.dt[1]) and not found.dt[1] >= least * found.dt[0]:
        return False
    found.cause, found.confidence, found.eigenvalue = "step_size", "inferred", found.dt[2]
    return True


def _explosion(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """No eigenvalue made a state overflow. The first updates were fatal, or the loss rose far above its best."""
    if found.state and found.firsts and found.worst is not None and found.worst.outside:
        return False
    trained = found.step - run.first_step + 1
    large = found.update >= LARGE_UPDATE if found.update is not None else _lr(run, found) >= 1
    if 1 < trained <= EARLY and run.every == 1 and (found.risen or large) and not contributes(run, found.worst):
        found.cause, found.confidence, found.layer, found.eigenvalue = "lr_too_large", "inferred", None, None
        return True
    if found.risen:
        found.cause, found.confidence, found.layer, found.eigenvalue = "explosion", "inferred", None, None
    return found.risen


def _outgrew(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The autopsy found true results that float32 cannot hold, or cannot square, although the loss had not risen."""
    if found.autopsy is None or not found.autopsy.largest >= MODERATE:
        return False
    if not (found.lives("tenth_of_rate")):
        found.runner_up = "explosion"
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "explosion", "measured", None, None
    return True


def _lr(run: Run, found: Finding) -> float:
    return float(found.scalars.lr[0]) if len(found.scalars) else float(run.config["optimizer"]["lr"])


# a measured cause before a cause that recorded numbers suggest
RULES = (
    _bad_batch, _wrong_gradient, _half_measured, _bad_loss, _arithmetic, _half_precision, _step_size, _kicked, _jump, _unrecorded,
    _overflow, _decayed, _explosion, _outgrew,
)  # fmt: skip
