"""The decision list: finds the cause of a divergence. The first rule that matches decides.

If an autopsy measured the fatal step, its rules come first, and its counterfactuals confirm or change what the rules for recorded
numbers say. Those rules and their thresholds come from 2,703 short runs (docs/verdict.md states how often each rule was right).
Under AdamW the size of a step does not depend on the size of the gradient. So if an eigenvalue overflows, the optimizer's steps
are the reason. Under SGD the loss of the last finite row shows whether the recurrence diverged on its own or because the whole
training exploded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stablessm_core.verdict import facts
from stablessm_core.verdict.batches import BadBatch, bad_batch
from stablessm_core.verdict.inputs import Layer, Run, Scalars, Source
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import CAST_TO_HALF, MODERATE, Autopsy, autopsy_of, number_of

OVERFLOWS = 0.95  # share of the budget limit at which a state counts as overflowed; every measured fatal row had at least 0.97
NEAR = 0.8  # like OVERFLOWS, for a layer with a non-finite state; below this share, the non-finite state has another cause
EXPLODED = 10.0  # last finite loss / best loss: at this ratio the whole training exploded; below CALM, only the recurrence did
EARLY = 3  # maximum number of trained steps of a run that diverged because of its first updates
SOON = 5  # maximum number of steps by which a changed replay may diverge later and still have the same cause
JUMP = 1e3  # loss divided by the largest loss so far: a small update cannot cause such a jump in one step
LARGE_UPDATE = 0.5  # minimum size of a large update, as a share of the norm of all weights
GREW = 100.0  # step size dt divided by its initial value: at this ratio, dt has grown out of control


@dataclass(kw_only=True)
class Finding:
    """What is known about a diverged run, and what follows from it. layer, eigenvalue: the eigenvalue that caused the divergence
    and its layer, or None. confidence: "measured", "inferred" or "cannot_tell". runner_up: the second cause that the data allow.
    """

    step: int
    tensor: str
    value: str | None
    cause: str = "unknown"
    thrown_by: str | None = None
    confidence: str = "cannot_tell"
    runner_up: str | None = None
    layer: Layer | None = None
    eigenvalue: int | None = None
    scalars: Scalars
    autopsy: Autopsy | None = None
    flags: int | None = None  # which part of the batch was not finite, as in `Scalars.batch`; None if this was not recorded
    sized: float | None = None  # the largest number of the fatal step's batch; None if unknown
    bad: BadBatch | None = None
    state: bool = False  # True if a layer's state was not finite, and the layer did not get NaN from a lower layer
    inherited: int | None = None  # the layer in which every state was NaN: it got NaN as its input
    moved: facts.DecayChange | None = None  # how the decay of the worst eigenvalue changed
    worst: facts.Worst | None = None  # worst eigenvalue at the fatal step, or at the recorded step before the fatal step
    crossing: facts.Crossing | None = None  # the culprit's first crossing of the boundary; None without a culprit
    firsts: list[facts.Crossing] = field(default_factory=list)  # the first crossing of each layer, by step
    growth: facts.Growth | None = None
    spike: facts.Spike | None = None
    kick: facts.Kick | None = None
    decay: tuple[float, float, float] | None = None  # see `facts.decay_growth`
    reach: float | None = None  # see `facts.largest_reach`
    gap: bool = False  # True if the loss rose far above usual between two recorded rows
    jumped: bool = False  # True if the loss jumped in one step although the update before was small
    update: float | None = None
    dt: tuple[float, float, int] | None = None
    half: bool = False
    evaluated: tuple[int, float] | None = None  # the first evaluation whose loss was not finite

    @property
    def risen(self) -> bool:
        return self.growth is not None and self.growth.times >= facts.ROSE

    def lives(self, change: str) -> bool | None:
        """Whether the autopsy's replay with this change lived; None without a result."""
        return None if self.autopsy is None else self.autopsy.lives(change)

    def dies_soon(self, change: str) -> bool:
        """Whether the replay with this change died, at most SOON steps after the run."""
        one = None if self.autopsy is None else self.autopsy.counterfactual(change)
        return one is not None and self.lives(change) is False and int(one["step"]) <= self.step + SOON


def decide(run: Run, source: Source) -> Finding:
    """The finding on a diverged run. Raises ValueError if the run's numbers are finite."""
    fatal = run.fatal
    if fatal is None:
        raise ValueError("there is nothing to decide: the run's numbers are finite")
    step = int(fatal["step"])
    scalars = source.scalars(step - facts.LOSS_TAIL * run.every, step)
    found = Finding(
        step=step, tensor=str(fatal.get("tensor") or ""), value=fatal.get("value"), scalars=scalars,
        autopsy=autopsy_of(run.autopsy, step),
    )  # fmt: skip
    _collect_facts(run, source, found, fatal)
    for rule in RULES:
        if rule(run, source, found):
            break
    _weigh(run, source, found)
    _name_runner_up(run, found)
    return found


def _collect_facts(run: Run, source: Source, found: Finding, fatal: dict[str, Any]) -> None:
    found.bad = bad_batch(run, found.scalars, found.step)
    measured = None if found.autopsy is None else found.autopsy.bad_batch
    if measured is not None and (found.bad is None or found.bad.usual is None):
        found.bad = measured
    found.flags, found.sized = _flags(found), _sized(found)
    if found.flags and found.bad is None:
        found.bad = BadBatch(step=found.step, which=found.flags, finite=False)
    kinds = [alert for alert in run.alerts if alert["step"] == found.step and alert["kind"] == "nonfinite_state"]
    found.state = found.tensor.endswith(".state") or bool(kinds)
    named = fatal.get("layer") if found.tensor.endswith(".state") else next((alert["layer"] for alert in kinds), None)
    found.worst = _worst_at_the_end(run, source, found.step)
    if kinds and _inherited(run, kinds[0]):
        found.inherited, found.state, named = int(kinds[0]["layer"]), False, None
    own = found.state
    if named is None and found.worst is not None:
        named = found.worst.layer
    found.layer = next((layer for layer in run.layers if layer.index == named), None)
    if own and found.tensor.endswith(".state") and fatal.get("eigenvalue") is not None:
        found.eigenvalue = int(fatal["eigenvalue"])
    elif own and kinds and kinds[0]["eigenvalue"] is not None:
        found.eigenvalue = int(kinds[0]["eigenvalue"])
    elif found.worst is not None and found.worst.layer == named:
        found.eigenvalue = found.worst.eigenvalue
    firsts = [one for layer in run.layers if (one := facts.first_crossing(run, source, layer)) is not None]
    found.firsts = sorted(firsts, key=lambda one: one.step)
    found.moved = None if found.worst is None else facts.decay_change(run, source, found.worst)
    found.growth = facts.loss_growth(source, found.scalars, found.step)
    found.update = facts.update_size(run, found.scalars, found.step)
    found.half = facts.losses_are_float16(found.scalars, found.step)
    found.evaluated = facts.bad_evaluation(source, found.step)


def _flags(found: Finding) -> int | None:
    measured = None if found.autopsy is None else found.autopsy.bad_batch
    if measured is not None and not measured.finite:
        return measured.which
    if found.tensor.startswith("batch."):
        return 2 if found.tensor.endswith("y") else 1
    if found.scalars.batch is None or not len(found.scalars) or found.scalars.step[-1] != found.step:
        return 0 if found.autopsy is not None else None
    flag = found.scalars.batch[-1]
    return None if np.isnan(flag) else int(flag)


def _sized(found: Finding) -> float | None:
    if found.autopsy is not None:
        sizes = [number_of((found.autopsy.findings.get("batch") or {}).get(f"largest_{part}")) for part in ("input", "target")]
    elif len(found.scalars) and found.scalars.step[-1] == found.step:
        columns = (found.scalars.largest_input, found.scalars.largest_target)
        sizes = [float(column[-1]) for column in columns if column is not None]
    else:
        return None
    known = [size for size in sizes if np.isfinite(size)]
    return max(known) if known else None


def _inherited(run: Run, alert: Mapping[str, Any]) -> bool:
    """True if the state alert says that every state of the layer is NaN. An overflow makes single states infinite; a NaN in the
    layer's input makes all of them NaN."""
    layer = next((layer for layer in run.layers if layer.index == alert["layer"]), None)
    others = re.search(r"and (\d+) other", str(alert["message"]))
    if layer is None or layer.wide or layer.width < 2 or others is None:
        return False
    return bool(np.isnan(number_of(alert["value"]))) and int(others[1]) + 1 == layer.width


def _worst_at_the_end(run: Run, source: Source, step: int) -> facts.Worst | None:
    here = facts.worst_eigenvalue(run, source, step)
    return here if here is not None else facts.worst_eigenvalue(run, source, step - run.every)


def _bad_batch(run: Run, source: Source, found: Finding) -> bool:
    """The batch held NaN or an infinity, or numbers far above usual. Both are read from records or from the autopsy."""
    bad = found.bad
    if bad is None or (bad.finite and (_outside_before(run, source, bad.step) or _dies_without(found, bad.step))):
        return False
    found.cause, found.confidence, found.layer, found.eigenvalue = "bad_input", "measured", None, None
    return True


def _dies_without(found: Finding, step: int) -> bool:
    """Whether the replay died that left out the batch of this step, and not another one."""
    one = None if found.autopsy is None else found.autopsy.counterfactual("batch_left_out")
    return one is not None and int(one["from_step"]) + 1 == step and found.dies_soon("batch_left_out")


def _outside_before(run: Run, source: Source, step: int) -> bool:
    """True if, before the update of this step, an eigenvalue was already so far outside that a state was about to overflow."""
    worst = facts.worst_eigenvalue(run, source, step)
    return worst is not None and worst.budget is not None and worst.budget >= NEAR * run.limit_of(worst.layer)


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
    named = _measured_layer(found)
    found.layer = next(
        (layer for layer in culprits if layer.index == named), found.layer if found.layer in culprits else culprits[0]
    )
    assert found.layer is not None
    own = facts.worst_eigenvalue(run, source, found.step, found.layer.index)
    if own is not None and (not found.state or found.eigenvalue is None or not _culprit_is_outside(source, found)):
        found.eigenvalue = own.eigenvalue
    found.worst = own or found.worst
    found.crossing = facts.first_crossing(run, source, found.layer, found.eigenvalue)
    found.cause, found.confidence = "eigenvalue_overflow", "inferred"
    if found.eigenvalue is not None and not found.layer.wide:
        found.spike = facts.gradient_spike(source, found.layer, found.eigenvalue, found.step)
    found.reach = facts.largest_reach(run, source, found.step)
    times = 1.0 if found.growth is None else found.growth.times
    if run.optimizer == "adamw":
        found.thrown_by = "optimizer_step"
    elif times >= EXPLODED:
        found.thrown_by = "explosion"
    elif times >= CALM:
        found.thrown_by = "both"
    else:
        found.thrown_by = _by_step(found)
    return True


def _by_step(found: Finding) -> str:
    spiked = found.spike is not None and found.spike.growth >= facts.SPIKE
    return "gradient_spike" if spiked else "optimizer_step"


def _measured_layer(found: Finding) -> int | None:
    """The layer in whose forward pass the first number that is not finite appeared."""
    first = None if found.autopsy is None else found.autopsy.first
    layer = first.get("layer") if first is not None and found.autopsy is not None and found.autopsy.place == "forward" else None
    return None if layer is None else int(layer)


def _overflows(run: Run, source: Source, layer: Layer, found: Finding) -> bool:
    here = facts.worst_eigenvalue(run, source, found.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    suspected = (found.state and found.layer is layer) or found.inherited is not None or _measured_layer(found) == layer.index
    if here.budget is None:
        return suspected
    return here.budget >= (NEAR if suspected else OVERFLOWS) * run.limit_of(layer.index)


def _culprit_is_outside(source: Source, found: Finding) -> bool:
    assert found.layer is not None
    assert found.eigenvalue is not None
    rows = source.layer(found.layer.index, found.step, found.step)
    return bool(len(rows)) and bool((rows.distance_of(found.eigenvalue) < 0).any())


def _half_precision(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """The run computed in float16, according to its configuration or because all recorded losses are float16 numbers."""
    if not (_is_half(run) or found.half) or _eigenvalue_contributed(run, found):
        return False
    found.cause, found.confidence = "precision", "inferred"
    return True


def _is_half(run: Run) -> bool:
    return str(run.config.get("train", {}).get("precision", "float32")) in ("float16", "half")


def _jump(run: Run, source: Source, found: Finding) -> bool:
    """The loss jumped in a single step although the update before was small: no update can have done it. Which part of the step
    did it is not recorded."""
    rise = None if found.growth is None else found.growth.rose_at
    if run.every > 1 or _contributes(run, facts.worst_eigenvalue(run, source, found.step if rise is None else rise)):
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
    if not len(before) or _contributes(run, facts.worst_eigenvalue(run, source, int(before[-1]))):
        return False
    thrown = run.optimizer == "sgd" and _eigenvalue_contributed(run, found)
    found.gap = (
        thrown if grown.rose_at is None else grown.jump >= JUMP and not (_eigenvalue_contributed(run, found) and not thrown)
    )
    if found.gap:
        found.runner_up, found.layer, found.eigenvalue = "eigenvalue_overflow" if thrown else "explosion", None, None
    return found.gap


def _kicked(run: Run, source: Source, found: Finding) -> bool:
    """One gradient, far above usual at a usual loss, threw the weights."""
    found.kick = facts.gradient_kick(run, found.scalars, found.growth)
    if found.kick is None or _contributes(run, facts.worst_eigenvalue(run, source, found.kick.step)):
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


def _eigenvalue_contributed(run: Run, found: Finding) -> bool:
    """True if an eigenvalue outside the boundary may have contributed to the divergence."""
    return _contributes(run, found.worst)


def _contributes(run: Run, worst: facts.Worst | None) -> bool:
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
    found.cause, found.confidence, found.eigenvalue = "step_size", "inferred", found.dt[2]
    return True


def _explosion(run: Run, source: Source, found: Finding) -> bool:  # noqa: ARG001
    """No eigenvalue made a state overflow. The first updates were fatal, or the loss rose far above its best."""
    if found.state and found.firsts and found.worst is not None and found.worst.outside:
        return False
    trained = found.step - run.first_step + 1
    large = found.update >= LARGE_UPDATE if found.update is not None else _lr(run, found) >= 1
    if 1 < trained <= EARLY and run.every == 1 and (found.risen or large) and not _eigenvalue_contributed(run, found):
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


def _weigh(run: Run, source: Source, found: Finding) -> None:
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
            found.thrown_by = _by_step(found)
        if found.dies_soon("recurrence_frozen") and found.thrown_by == "both":
            found.thrown_by = "explosion"
        at_layer = _measured_layer(found) == found.layer.index and not autopsy.fits_float32
        bystander = found.dies_soon("recurrence_frozen")
        found.confidence = "measured" if frozen or (at_layer and not bystander) else found.confidence
        if bystander:
            found.runner_up = "explosion"
            found.confidence = "measured" if found.thrown_by == "explosion" else "inferred"
        return
    if frozen and found.firsts and _eigenvalue_contributed(run, found) and found.worst is not None:
        found.layer = next(layer for layer in run.layers if found.worst is not None and layer.index == found.worst.layer)
        found.eigenvalue = found.worst.eigenvalue
        found.crossing = facts.first_crossing(run, source, found.layer, found.eigenvalue)
        found.cause, found.confidence, found.thrown_by = "eigenvalue_overflow", "measured", "optimizer_step"
        return
    tenth = found.lives("tenth_of_rate")
    deciding = {
        "explosion": found.dies_soon("recurrence_frozen") or (autopsy.largest >= MODERATE and not frozen),
        "lr_too_large": tenth,
        "step_size": frozen or _measured_layer(found) is not None,
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


def _name_runner_up(run: Run, found: Finding) -> None:
    """The second cause that the data allow, unless a rule has named it."""
    second = found.runner_up
    if second is None and found.cause == "eigenvalue_overflow" and found.thrown_by in ("explosion", "both"):
        second = "explosion"
    elif second is None and found.cause == "explosion" and (found.lives("batch_left_out") or run.every > 1):
        second = "bad_input"
    elif second is None and found.cause == "explosion":
        second = "eigenvalue_overflow" if _eigenvalue_contributed(run, found) else "lr_too_large"
    elif second is None and found.risen and found.cause in ("lr_too_large", "precision"):
        second = "explosion"
    if found.confidence == "measured" and found.cause == "eigenvalue_overflow" and found.lives("recurrence_frozen"):
        second = None
    if second == "lr_too_large" and found.lives("tenth_of_rate") is False:
        second = None
    found.runner_up = second


# a measured cause before a cause that recorded numbers suggest
RULES = (
    _bad_batch, _half_measured, _bad_loss, _arithmetic, _half_precision, _kicked, _jump, _unrecorded, _overflow, _step_size,
    _decayed, _explosion, _outgrew,
)  # fmt: skip
