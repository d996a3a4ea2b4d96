"""An eigenvalue is outside the stability boundary, and its powers over one sequence exceed the range of float32.

Thresholds and the rules for what moved the eigenvalue come from 2,703 short runs. Under AdamW the size of a step does not
depend on the size of the gradient, so the optimizer's steps moved it. Under SGD the loss of the last finite row shows whether
the recurrence diverged on its own or the whole training exploded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablessm_core.maps import MAPS
from stablessm_core.telemetry import stability
from stablessm_core.telemetry.stability import overflow_eigenvalue
from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.advice import CLIP, STABLE_MAPS, against_explosion, freeze, round_down
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.causes.explosion import rows_fit_three_causes
from stablessm_core.verdict.causes.lr_too_large import EARLY, large_first_updates
from stablessm_core.verdict.formats import near_one, number, plural, power
from stablessm_core.verdict.inputs import Layer, Run
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import FLOAT32_LARGEST
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.timeline import Event, crossed, event
from stablessm_core.verdict.trouble import Trouble, update_before
from stablessm_core.verdict.words import against_best, eigenvalue_label, tensor_label

OVERFLOWS = 0.95  # share of the budget limit at which a state counts as overflowed; every measured fatal row had at least 0.97
NEAR = 0.8  # the same for a layer with a non-finite state; below this share, the state has another cause
EXPLODED = 10.0  # last finite loss / best loss: at this ratio the whole training exploded; below CALM, only the recurrence did


@dataclass(frozen=True)
class Overflow:
    """The eigenvalue that overflowed. state: whether its own state was not finite. spike: of its gradient."""

    layer: Layer
    eigenvalue: int | None
    worst: eigenvalues.Worst | None
    state: bool
    crossing: eigenvalues.Crossing | None
    spike: eigenvalues.Spike | None

    @property
    def spiked(self) -> bool:
        return self.spike is not None and self.spike.growth >= facts.SPIKE


def _find(case: Case) -> Answer | None:
    one = _overflow(case)
    if one is None:
        return None
    frozen = case.lives("recurrence_frozen")
    dies_too = case.dies_soon("recurrence_frozen") and _began_before(case, one)
    thrown_by = _thrown_by(case, one)
    if thrown_by not in ("explosion", "both") and dies_too and _dies_no_later(case):
        return None  # the eigenvalues are not needed for this death
    if thrown_by in ("explosion", "both") and dies_too and case.risen:
        return None  # the explosion needs no eigenvalue
    second = None if thrown_by not in ("explosion", "both") else "explosion"
    confidence = "cannot_tell" if thrown_by == "explosion" and not case.is_tested else "inferred"
    if frozen and _recurrence_began_it(case, thrown_by):
        thrown_by = "gradient_spike" if one.spiked else "optimizer_step"
    if dies_too:
        if thrown_by not in ("explosion", "both"):
            second = "explosion"  # the trial speaks against the recurrence alone
        else:
            thrown_by, confidence = "explosion", "measured"
    at_layer = case.measured_layer == one.layer.index and case.autopsy is not None and not case.autopsy.fits_float32
    if frozen or (at_layer and not dies_too):
        confidence, second = "measured", None if frozen else second
    return Answer(
        confidence=confidence, layer=one.layer, eigenvalue=one.eigenvalue, thrown_by=thrown_by, runner_up=second, about=one
    )


def _recurrence_began_it(case: Case, thrown_by: str) -> bool:
    """Whether a trial that lives with a frozen recurrence also tells what moved the eigenvalue. Where a loss of 10 x its best had
    made every gradient large, the trial only tells that the eigenvalue was needed."""
    if thrown_by not in ("explosion", "both"):
        return False
    return case.run.bounded_steps or case.growth is None or case.growth.times < EXPLODED


def _began_before(case: Case, one: Overflow) -> bool:
    """Whether the trial with a frozen recurrence began before the update that moved the eigenvalue across the boundary. A trial
    that begins later keeps the eigenvalue outside, and says nothing."""
    trial = None if case.autopsy is None else case.autopsy.counterfactual("recurrence_frozen")
    if trial is None or one.crossing is None:
        return trial is not None
    return int(trial["from_step"]) + 1 < one.crossing.step


def _dies_no_later(case: Case) -> bool:
    trial = None if case.autopsy is None else case.autopsy.counterfactual("recurrence_frozen")
    return trial is not None and int(trial["step"]) <= case.step


def _overflow(case: Case) -> Overflow | None:
    layers = [layer for layer in case.run.layers if _overflows(case, layer)]
    if case.inherited is not None:
        layers = [layer for layer in layers if layer.index < case.inherited]
    if not layers and case.lives("recurrence_frozen") and case.contributes(case.worst) and case.worst is not None:
        layers = [layer for layer in case.run.layers if layer.index == case.worst.layer]  # the trial says that it was this one
    if not layers:
        return None
    usual = case.layer if case.layer in layers else layers[0]
    layer = next((layer for layer in layers if layer.index == case.measured_layer), usual)
    assert layer is not None
    own = eigenvalues.worst_eigenvalue(case.run, case.source, case.step, layer.index)
    state = case.state and layer is case.layer
    eigenvalue = case.eigenvalue
    if own is not None and (not state or eigenvalue is None or not _is_outside(case, layer, eigenvalue)):
        eigenvalue = own.eigenvalue
    largest = None if case.autopsy is None else case.autopsy.largest_state(layer.index)
    if largest is not None and not state and _is_outside(case, layer, largest):
        eigenvalue = largest
    spike = None
    if eigenvalue is not None and not layer.wide:
        spike = eigenvalues.gradient_spike(case.source, layer, eigenvalue, case.step)
    crossing = eigenvalues.first_crossing(case.run, case.source, layer, eigenvalue)
    return Overflow(layer, eigenvalue, own or case.worst, state, crossing, spike)


def _overflows(case: Case, layer: Layer) -> bool:
    here = eigenvalues.worst_eigenvalue(case.run, case.source, case.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    suspected = (case.state and case.layer is layer) or case.inherited is not None or case.measured_layer == layer.index
    if here.budget is None:
        return suspected
    return here.budget >= (NEAR if suspected else OVERFLOWS) * case.run.limit_of(layer.index)


def _is_outside(case: Case, layer: Layer, eigenvalue: int) -> bool:
    rows = case.source.layer(layer.index, case.step, case.step)
    return bool(len(rows)) and bool((rows.distance_of(eigenvalue) < 0).any())


def _thrown_by(case: Case, one: Overflow) -> str:
    """What moved the eigenvalue across the boundary, by the records."""
    times = 1.0 if case.growth is None else max(case.growth.times, _rise_in_fatal_step(case))
    if times >= EXPLODED and not case.risen and _rise_in_fatal_step(case) < EXPLODED:
        times = CALM  # ten times a single low loss, but not far above usual
    if case.run.bounded_steps:
        first_updates = case.step - case.run.first_step < EARLY and case.update is not None and large_first_updates(case)
        exploded = times >= EXPLODED and ((case.dies_soon("recurrence_frozen") and _began_before(case, one)) or first_updates)
        return "explosion" if exploded else "optimizer_step"
    if times >= EXPLODED:
        return "explosion"
    if times >= CALM:
        return "both"
    return "gradient_spike" if one.spiked else "optimizer_step"


def _rise_in_fatal_step(case: Case) -> float:
    """The loss of the fatal step divided by the best loss; 1 if it is not finite."""
    best = 0.0 if case.growth is None else case.growth.best
    return case.fatal_loss / best if case.fatal_loss is not None and best > 0 else 1.0


# ---- the summary ----


@sentence(
    "ssm/{layer}/boundary_distance", "alerts", "autopsy.float64",
    holds="the eigenvalue is outside the boundary at the fatal step, with at least 95 % of the budget limit of its layer (80 "
    "% if a state of this layer was not finite, 30 % if the run lives with a frozen recurrence); from 80 % on, the added "
    "inputs are said to exceed float32",
)  # fmt: skip
def eigenvalue_overflowed(case: Case, one: Overflow) -> tuple[str, dict[str, Any]]:
    where = eigenvalue_label(case.run, one.layer.index, one.eigenvalue, first=True)
    since = one.crossing
    if since is None or one.eigenvalue != since.eigenvalue:
        outside = "was outside the stability boundary"
    elif since.before is None and since.step <= case.run.first_step:
        outside = "was outside the stability boundary from the start"
    elif not since.exact:
        outside = f"was first recorded outside the stability boundary at step {since.step:,}"
    elif since.step < case.step:
        outside = f"first left the stability boundary at step {since.step:,}"
    else:
        outside = "left the stability boundary in the update of the step before"
    end = "its state overflowed" if one.state else f"{tensor_label(case, first=False)} stopped being finite"
    text = f"{where} {outside}, and at step {case.step:,} {end}{_growth(case, one)}."
    known = (one.state or case.measured_layer == one.layer.index) and not case.run.is_assumed(one.layer.index)
    return text, {} if known else {"basis": "inferred"}


def _growth(case: Case, one: Overflow) -> str:
    """The power of the eigenvalue over one sequence, and the limit of float32 that it exceeds."""
    run, worst = case.run, one.worst
    size = None if worst is None else 1 - worst.distance
    if not size or not run.length or size <= 1 or worst is None:
        return ""
    budget = run.length * math.log(size) if worst.budget is None else worst.budget * math.log(FLOAT32_LARGEST)
    squared = not one.state and run.limit_of(one.layer.index) < 1
    limit = math.sqrt(FLOAT32_LARGEST) if squared else FLOAT32_LARGEST
    grown = f": {power(size, run.length)}"
    over = budget > math.log(limit)
    if budget < NEAR * math.log(limit):
        return grown  # only a trial says that it was this eigenvalue
    if squared and over:
        return f"{grown}, and {run.squares} squares its input, which float32 can do up to {number(limit)}"
    if squared:
        return (
            f"{grown}, and with the inputs of {run.length} steps added up, {run.squares} squares more than the {number(limit)} "
            "that float32 can square"
        )
    if over:
        return f"{grown}, and float32 ends at {number(limit)}"
    return f"{grown}, and with the inputs of {run.length} steps added up, the state exceeds the limit of float32, {number(limit)}"


@sentence("train/loss", holds="the run was thrown by an explosion, and the last finite loss was at least 10 x its best")
def exploding_training(case: Case, answer: Answer) -> str | None:
    growth = case.growth
    if answer.thrown_by != "explosion" or growth is None or not case.risen:
        return None
    since = f" from step {growth.rose_at:,} on" if growth.rose_at else ""
    return f"The whole training was exploding{since}: at step {growth.step:,} the loss was {against_best(growth)}."


@sentence(
    "train/loss",
    holds="the run was thrown by an explosion, and the loss rose to 10 x its best only in the fatal step; or, if a trial with a "
    "frozen recurrence dies too, to 3 x",
)  # fmt: skip
def loss_rose_too(case: Case, answer: Answer) -> str | None:
    growth = case.growth
    if answer.thrown_by != "explosion" or case.risen or growth is None:
        return None
    end = "" if case.fatal_loss is None else f", and at step {case.step:,} it was {number(case.fatal_loss)}"
    return f"The loss rose, too: at step {growth.step:,} it was {against_best(growth)}{end}."


@sentence(
    "train/loss", basis="inferred",
    holds="under SGD, the largest of the last finite losses was 3 to 10 x the best, or at least 10 x it without twice its usual "
    "level",
)  # fmt: skip
def either_began_it(case: Case, answer: Answer) -> str | None:
    if answer.thrown_by != "both" or case.growth is None:
        return None
    reached = against_best(case.growth)
    if case.growth.times < CALM:  # it rose in the fatal step
        reached = f"{number(_rise_in_fatal_step(case))} x its best ({number(case.growth.best)})"
    return (
        f"By then the loss was {reached}: recorded numbers cannot tell whether the recurrence or the training as a whole "
        "began it."
    )


@sentence(
    "ssm/{layer}/grad_over_weight", "ssm/{layer}/weight",
    holds="not under AdamW, the eigenvalue's |g| rose to at least 10 x its median of the 20 rows before, within the last 20 "
    "rows; it is said to have pushed the eigenvalue out only under SGD, and if that was before the first row outside the "
    "boundary",
)  # fmt: skip
def gradient_spiked(case: Case, answer: Answer) -> str | None:
    spike, crossing = answer.about.spike, answer.about.crossing
    if answer.thrown_by != "gradient_spike" or spike is None or spike.growth < facts.SPIKE:
        return None
    before = crossing is not None and spike.step < crossing.step and case.run.optimizer == "sgd"
    start = "A spike of its gradient pushed it out" if before else "Its gradient spiked"
    grown = f"to {number(spike.size)}, {number(spike.growth)} x its median before,"
    if math.isinf(spike.growth):
        grown = f"from exactly 0 to {number(spike.size)}"
    return f"{start}: |g| rose {grown} at step {spike.step:,}."


@sentence(
    "ssm/{layer}/relative_step",
    holds="the length of the step that crossed is recorded, and is at least the distance that the eigenvalue had; the "
    "optimizer's steps are blamed (AdamW, or SGD at a loss below 3 x its best without a spike, or the run lives with a frozen "
    "recurrence)",
)  # fmt: skip
def one_step_crossed(case: Case, answer: Answer) -> str | None:
    one = answer.about.crossing
    if answer.thrown_by != "optimizer_step" or one is None or not _covers_the_distance(one):
        return None
    name = case.run.optimizer_label or "optimizer"
    return f"One {name} step pushed it across: the step was {number(one.relative_step)} times as long as the remaining distance."


def _covers_the_distance(one: eigenvalues.Crossing) -> bool:
    """Whether the recorded step of the eigenvalue is long enough for the crossing."""
    return one.relative_step is not None and 1 <= one.relative_step < math.inf


@sentence(
    "ssm/{layer}/boundary_distance", basis="inferred",
    holds="the eigenvalue was inside at an earlier recorded row, the optimizer's steps are blamed, and no single step is "
    "recorded that was as long as the distance",
)  # fmt: skip
def steps_crossed(case: Case, answer: Answer) -> str | None:
    one = answer.about.crossing
    if answer.thrown_by != "optimizer_step" or one is None or (one.before is None and one.step <= case.run.first_step):
        return None
    if _covers_the_distance(one):
        return None
    name = case.run.optimizer_label
    return f"{name}'s steps pushed it across." if name else "The optimizer's steps pushed it across."


@sentence(
    "train/loss",
    holds="every step is recorded, an optimizer's step or a spike is blamed, and the loss of the step before the "
    "end was below 3 x its best",
)
def no_warning(case: Case, answer: Answer) -> str | None:
    growth = case.growth
    if answer.thrown_by not in ("optimizer_step", "gradient_spike") or growth is None or case.run.every > 1:
        return None
    if growth.times >= CALM or case.step - growth.step != 1:
        return None
    only = "" if growth.times == 1 else "only "
    return f"The loss gave no warning: one step earlier it was {only}{against_best(growth)}."


@sentence(
    "train/loss", holds="not every step is recorded, an optimizer's step or a spike is blamed, and an earlier loss is known"
)
def last_recorded_loss(case: Case, answer: Answer) -> str | None:
    growth = case.growth
    if answer.thrown_by not in ("optimizer_step", "gradient_spike") or growth is None or case.run.every == 1:
        return None
    return f"At step {growth.step:,}, the last recorded one before, the loss was {against_best(growth)}."


def _summary(case: Case, answer: Answer) -> list[Said]:
    return said(
        eigenvalue_overflowed(case, answer.about),
        exploding_training(case, answer), loss_rose_too(case, answer), either_began_it(case, answer),
        gradient_spiked(case, answer), one_step_crossed(case, answer), steps_crossed(case, answer),
        no_warning(case, answer), last_recorded_loss(case, answer),
        rows_fit_three_causes(case) if answer.thrown_by == "explosion" else None,
    )  # fmt: skip


# ---- the evidence ----


@sentence(
    "ssm/{layer}/boundary_distance", holds="an eigenvalue is outside the boundary, and the length of the sequences is known"
)
def overflow_budget(run: Run, worst: eigenvalues.Worst | None) -> tuple[str, dict[str, float | int]] | None:
    """The overflow budget of the worst eigenvalue."""
    if worst is None or worst.budget is None or run.length is None or worst.distance >= 0:
        return None
    size, limit = 1 - worst.distance, run.limit_of(worst.layer)
    assumed = ", if the assumed map is right" if run.is_assumed(worst.layer) else ""
    text = (
        f"Overflow budget at step {worst.step:,}{assumed}: {run.length} x ln {near_one(size)} / 88.72 = {number(worst.budget)}."
    )
    text += f" At {number(limit)}, where the eigenvalue is {number(overflow_eigenvalue(run.length, limit))}, float32 overflows."
    numbers = {"overflow_budget": worst.budget, "limit": limit, "length": run.length, "size": size}
    return text, numbers | {"outside": worst.outside, "of": worst.known}


@sentence(
    "ssm/{layer}/weight", "ssm/{layer}/boundary_distance", "optim/lr", "ssm/{layer}/grad_over_weight",
    holds="the eigenvalue crossed the boundary, and the recorded row before shows the distance that it had",
)  # fmt: skip
def crossing_step(run: Run, one: eigenvalues.Crossing) -> tuple[str, dict[str, float | int | str | None]] | None:
    if one.before is None or one.distance_before is None:
        return None
    where = eigenvalue_label(run, one.layer, one.eigenvalue, first=True)
    text = f"{where} at step {one.before:,}: distance to the boundary {number(one.distance_before)}."
    basis = "measured"
    if one.slope is not None and one.weight_step is not None and one.predicted is not None and math.isfinite(one.slope):
        how = "learning rate"
        if run.optimizer != "adamw":
            how = "learning rate x |g|" + " plus momentum" * bool(run.momentum)
        basis = "inferred"
        text += (
            f" Expected step: {number(one.predicted)} x this distance (map slope R_f {number(one.slope)} x {how} "
            f"{number(one.weight_step)})."
        )
    if one.relative_step is not None and math.isfinite(one.relative_step):
        text += f" Measured: {number(one.relative_step)} x. Anything above 1 can cross."
    numbers: dict[str, float | int | str | None] = {
        "step": one.before,
        "layer": one.layer,
        "eigenvalue": one.eigenvalue,
        "distance": one.distance_before,
    }
    numbers |= {"slope": one.slope, "weight_step": one.weight_step, "lr": one.lr, "basis": basis}
    return text, numbers | {"predicted_relative_step": one.predicted, "relative_step": one.relative_step}


@sentence(
    "ssm/{layer}/grad_over_weight",
    "ssm/{layer}/weight",
    holds="not under AdamW; |g| rose to at least 10 x its median of the 20 rows before, within the last 20 rows",
)
def spike_of_gradient(spike: eigenvalues.Spike) -> tuple[str, dict[str, float | int]] | None:
    if spike.growth < facts.SPIKE:
        return None
    grown = "exactly 0 before" if math.isinf(spike.growth) else f"{number(spike.growth)} x the median before"
    at = "" if spike.value is None else f", with the eigenvalue at {near_one(spike.value)}"
    text = f"Its gradient at step {spike.step:,}: |g| {number(spike.size)}, {grown}{at}; |grad|/|w| {number(spike.ratio)}."
    if spike.zero_after:
        many = "the step" if spike.rows_after == 1 else f"{spike.zero_after} of the {plural(spike.rows_after, 'step')}"
        text += f" In {many} after it the gradient was exactly 0: a ratio of 0 there does not mean that the weight rested."
    return text, {"step": spike.step, "gradient": spike.size, "growth": spike.growth, "ratio": spike.ratio}


@sentence(
    "ssm/{layer}/grad_over_weight",
    "ssm/{layer}/weight",
    holds="not under AdamW; over the last 20 rows, |g| stayed below 10 x its median of the 20 rows before its largest value",
)
def no_spike_of_gradient(spike: eigenvalues.Spike) -> tuple[str, dict[str, float | int]] | None:
    if spike.growth >= facts.SPIKE:
        return None
    text = (
        f"Its gradient did not spike: over the last recorded steps, {facts.SPIKE_ROWS} at most, |g| was at most "
        f"{number(spike.size)}, {number(spike.growth)} x the median before."
    )
    return text, {"step": spike.step, "gradient": spike.size, "growth": spike.growth, "ratio": spike.ratio}


def _evidence(case: Case, answer: Answer) -> list[Said]:
    one: Overflow = answer.about
    crossings = dict.fromkeys(crossing for crossing in (one.crossing, *case.firsts) if crossing is not None)
    spikes: list[Said | None] = []
    if one.spike is not None and not case.run.bounded_steps:
        spikes = [spike_of_gradient(one.spike), no_spike_of_gradient(one.spike)]
    return said(overflow_budget(case.run, one.worst), *(crossing_step(case.run, crossing) for crossing in crossings), *spikes)


# ---- the advice ----


def _advice(case: Case, answer: Answer) -> list[Try]:
    run, one = case.run, answer.about
    if answer.thrown_by == "explosion":
        return against_explosion(case)
    tries: list[Try] = []
    form = one.layer.form
    if form is not None:
        others = [name for name in STABLE_MAPS if name != form.map and form.time in MAPS[name].forms]
        why = "this map keeps every eigenvalue inside the boundary, whatever the optimizer does"
        tries += [({"model.reparameterization.name": name}, why) for name in others[:1]]
    reach = eigenvalues.largest_reach(run, case.source, case.step)
    predicted = None if one.crossing is None else one.crossing.predicted
    furthest = max((x for x in (reach, predicted) if x is not None), default=math.nan)
    if math.isfinite(furthest) and furthest >= 1 and run.optimizer == "adamw":  # under SGD the gradient grows with the explosion
        own = run.recurrent_lr
        slower = round_down(own / furthest)
        why = (
            f"at a recurrent rate of {number(own)} one step could cover up to {number(furthest)} x the distance to the "
            f"boundary; at {number(slower)} no eigenvalue could have reached it in one step"
        )
        tries.append(({"optimizer.recurrent_lr": slower}, why))
    if answer.thrown_by in ("gradient_spike", "both") and one.spiked and not run.grad_clip:
        tries.append((dict(CLIP), f"clipping bounds a spike like the one of {number(one.spike.size)} at step {one.spike.step:,}"))
    if answer.thrown_by == "both":
        tries += against_explosion(case)
    return [*tries, freeze("if the run lives with frozen eigenvalues, the recurrence was the cause")]


def _events(case: Case, answer: Answer) -> list[Event]:
    """The crossing of the eigenvalue, and a spike of its gradient. There is no spike under AdamW: its steps do not grow with the
    gradient, so a spike would explain nothing."""
    one: Overflow = answer.about
    events = [] if one.crossing is None or one.crossing in case.firsts else [crossed(case.run, one.crossing)]
    spike = one.spike
    if spike is None or not one.spiked or case.run.bounded_steps:
        return events
    grown = "" if math.isinf(spike.growth) else f", {number(spike.growth)} x its median before"
    label = eigenvalue_label(case.run, one.layer.index, one.eigenvalue, first=True)
    text = f"{label}: |g| {number(spike.size)}{grown}."
    return [*events, event(spike.step, "gradient_spike", text, one.layer.index, one.eigenvalue)]


def _begins(case: Case, answer: Answer) -> list[Trouble]:
    """The row after the last good row of the guilty layer: its eigenvalue was inside the boundary, and no other eigenvalue of
    the layer used more than half of its overflow budget."""
    run, source, layer, end = case.run, case.source, answer.layer, case.step
    if layer is None:
        return []
    low = end - min(facts.LOSS_TAIL, max(1, eigenvalues.ROWS_OF_LAYER // max(1, layer.width))) * run.every
    rows = source.layer(layer.index, max(1, low), end)
    only = None if layer.wide else answer.eigenvalue
    outside = (rows.distance < 0).any(axis=1) if only is None else rows.distance_of(only) < 0
    if only is not None and run.length is not None:
        outside = outside | (stability.overflow_budget(run.length, rows.distance) > run.limit_of(layer.index) / 2).any(axis=1)
    inside = np.flatnonzero(~outside)
    if len(inside) and inside[-1] + 1 < len(rows):
        return [update_before(run, "crossing", rows.step, int(inside[-1]) + 1)]
    shown = source.first_outside(layer.index, only)
    if shown is None:
        return []
    before = source.layer(layer.index, shown - 2 * run.recorded_every, shown).step
    return [update_before(run, "crossing", before, len(before) - 1)] if len(before) else []


CAUSE = Cause(
    name="eigenvalue_overflow",
    label="an unstable eigenvalue overflowed",
    find=_find,
    summary=_summary,
    evidence=_evidence,
    advice=_advice,
    tested_by="recurrence",
    events=_events,
    begins=_begins,
)
