"""The verdict on a run whose training values are all finite: what its loss and its evaluations say, what its data and weights
did, which eigenvalues are outside the stability boundary, and why no state has overflowed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.stability import overflow_length
from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict import eigenvalues, facts, optimizer_facts
from stablessm_core.verdict.batches import changed_batches
from stablessm_core.verdict.evidence import evaluation_not_finite, overflow_budget
from stablessm_core.verdict.formats import near_one, number, ordinal, plural, power
from stablessm_core.verdict.inputs import Run, Scalars, Source
from stablessm_core.verdict.sentences import Said, joined, said, sentence
from stablessm_core.verdict.timeline import crossed, evaluated, event, reactions, rose
from stablessm_core.verdict.words import WHICH, against_best, eigenvalue_label, reserved

LAST_ROWS = 10  # the loss at the start and at the end is the median of this many rows, at most
WORSE = 3.0  # loss at the end divided by the loss at the start: at this ratio it ended far above its start
AS_CONSTANT = 0.97  # loss at the end divided by that of a constant prediction: from this share on, nothing was learned beyond it
JUDGED_FROM = 20  # minimum number of steps of a run that can have learned nothing
JUDGED_ROWS = 8  # minimum number of recorded rows of such a run
AS_HIGH = 0.3  # share of the last losses at or above the median of the first ones, from which on the loss hardly fell
MUCH_LOWER = 0.8  # loss at the end divided by that at the start: below it, the loss fell, however much it scatters
STILL = 0.25  # share of the eigenvalue weights that never moved, from which on the verdict says so
SEARCHED = 4 * facts.LOSS_TAIL  # number of last rows that are searched for a change of the data

Boundary = eigenvalues.Worst | None


@dataclass(frozen=True, eq=False)
class Ending:
    """What is known about a run whose numbers are finite. last: its last recorded step."""

    run: Run
    source: Source
    last: int

    @cached_property
    def ends(self) -> tuple[Scalars, Scalars] | None:
        """The first and the last rows, LAST_ROWS or a quarter of a shorter run; None if there are too few."""
        recorded = (self.last - self.run.first_step) // self.run.every + 1
        rows = min(LAST_ROWS, max(1, recorded // 4))
        if recorded < 2:
            return None
        begun = self.source.scalars(self.run.first_step, self.run.first_step + (rows - 1) * self.run.every)
        ended = self.source.scalars(self.last - (rows - 1) * self.run.every, self.last)
        return begun, ended

    @cached_property
    def losses(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The finite losses of the first and of the last rows; None if one of them has none."""
        if self.ends is None:
            return None
        begun, ended = (one.loss[np.isfinite(one.loss)] for one in self.ends)
        return (begun, ended) if len(begun) and len(ended) else None

    @cached_property
    def rows(self) -> int:
        return (self.last - self.run.first_step) // self.run.every + 1

    @property
    def is_long(self) -> bool:
        """Whether the run had time to learn something, and enough rows show it."""
        return self.last - self.run.first_step + 1 >= JUDGED_FROM and self.rows >= JUDGED_ROWS

    @cached_property
    def tail(self) -> Scalars:
        return self.source.scalars(max(self.run.first_step, self.last - SEARCHED * self.run.every), self.last)

    @cached_property
    def growth(self) -> facts.Growth | None:
        scalars = self.source.scalars(self.last - facts.LOSS_TAIL * self.run.every, self.last)
        return facts.loss_growth(self.source, scalars, self.last + 1)

    @cached_property
    def worst(self) -> Boundary:
        here = eigenvalues.worst_eigenvalue(self.run, self.source, self.last)
        if here is None and self.last > self.run.every:
            return eigenvalues.worst_eigenvalue(self.run, self.source, self.last - self.run.every)
        return here

    @cached_property
    def firsts(self) -> list[eigenvalues.Crossing]:
        of_layers = (eigenvalues.first_crossing(self.run, self.source, layer) for layer in self.run.layers)
        return sorted((one for one in of_layers if one is not None), key=lambda one: one.step)

    @cached_property
    def evaluated(self) -> tuple[int, float] | None:
        return facts.bad_evaluation(self.source)

    @property
    def still_with_gradient(self) -> tuple[int, int]:
        """How many recorded weights never moved although they have a gradient, and of how many."""
        return self._still[0], self._still[2]

    @property
    def still_without_gradient(self) -> tuple[int, int]:
        """How many recorded weights never moved and have a gradient of exactly 0, and of how many."""
        return self._still[1], self._still[2]

    @cached_property
    def _still(self) -> tuple[int, int, int]:
        run, pushed, without, of = self.run, 0, 0, 0
        frozen = run.reported is None and run.config["optimizer"].get("recurrent_lr") == 0
        if frozen or run.status not in FINAL or not self.is_long:
            return 0, 0, 0
        for layer in run.layers:
            first, last = (self.source.layer(layer.index, step, step) for step in (run.first_step, self.last))
            if not len(first) or not len(last) or first.weight is None or last.weight is None or last.ratio is None:
                continue
            still, ratio = first.weight[0] == last.weight[0], last.ratio[0]
            pushed += int((still & np.isfinite(ratio) & (ratio > 0)).sum())
            without += int((still & (ratio == 0)).sum())
            of += last.weight.shape[1]
        return pushed, without, of

    @property
    def constant_loss(self) -> float | None:
        """The loss of the best constant prediction, measured before the training; None if it is unknown."""
        known = ((self.run.environment or {}).get("data") or {}).get("constant_loss")
        return float(known) if isinstance(known, int | float) and math.isfinite(known) and known > 0 else None


def judge_finished(run: Run, source: Source, last: int) -> dict[str, Any]:
    """{sentences, events, evidence} of a run whose values up to step `last`, its last recorded one, are finite."""
    ending = Ending(run, source, last)
    worse = ended_above_start(ending)
    told = said(evaluation_lost(ending), worse, learned_nothing(ending) or loss_did_not_fall(ending))
    told += said(weights_never_moved(ending), gradients_are_zero(ending), data_changed(ending), rate_jumped(ending))
    if not worse and run.status not in FINAL:
        told += said(loss_is_high(ending))
    told += recurrence(ending)
    events = [crossed(run, one) for one in ending.firsts] + reactions(run) + evaluated(ending.evaluated)
    growth = ending.growth
    if growth is not None and growth.rose_at is not None:
        events.append(event(growth.rose_at, "loss_rose", rose(growth)))
    events.sort(key=lambda one: int(one["step"]))
    evidence = said(overflow_budget(run, ending.worst), evaluation_not_finite(ending.evaluated), losses_at_both_ends(ending))
    return {"sentences": told, "events": events, "evidence": [one.item for one in evidence]}


def begin(run: Run, last: int | None) -> str:
    """How the run stands, before a colon or as a sentence of its own."""
    match run.status:
        case "finished":
            return "Finished:"
        case "cancelled":
            return f"Cancelled at step {run.step:,}" + (":" if last is not None else ".")
        case "failed":
            why = f": {run.reason.rstrip('.')}." if run.reason else "."
            return f"Failed at step {run.step:,}{why}" + (f" At step {last:,}:" if last is not None else "")
    return "" if last is None else f"So far, at step {last:,}:"


def summary_of(start: str, sentences: list[Said]) -> str:
    """The sentences after a beginning such as "Finished:"."""
    text = joined(sentences)
    return f"{start} {text[:1].lower()}{text[1:]}".strip() if start.endswith(":") else f"{start} {text}".strip()


# ---- the loss ----


@sentence("eval/loss", holds="an evaluation gave a loss that is not finite, and every number of the training is finite")
def evaluation_lost(ending: Ending) -> str | None:
    bad = ending.evaluated
    if bad is None:
        return None
    what = "NaN" if math.isnan(bad[1]) else "infinite"
    every = "every recorded number" if ending.run.reported is not None else "every number"
    return f"The loss of the evaluation at step {bad[0]:,} is {what}, although {every} of the training is finite."


@sentence(
    names.TRAIN_LOSS,
    holds="the median of the last losses (10 rows, or a quarter of a shorter run) is above 3 x the first loss; if losses of the "
    "first rows are not all positive, above it by 2 x the larger of its size and their median distance from it",
)
def ended_above_start(ending: Ending) -> str | None:
    scale = _far_above(ending)
    if scale is None:
        return None
    start, end = scale
    times = (
        f", {number(end / start)} x its first value ({number(start)})" if start > 0 else f"; its first value was {number(start)}"
    )
    rows = 0 if ending.losses is None else len(ending.losses[1])
    what = f" is the median of its last {rows} recorded steps" if rows > 1 else f" at step {ending.last:,}"
    return f"The loss is far above its start: {number(end)}{what}{times}."


def _far_above(ending: Ending) -> tuple[float, float] | None:
    """(the first loss, the median of the last ones) if the loss ended far above its start."""
    if ending.losses is None:
        return None
    begun, ended = ending.losses
    start, end = float(begun[0]), float(np.median(ended))
    # losses around or below 0 are compared by their range
    scale = start if begun.min() > 0 else max(abs(start), float(np.median(np.abs(begun - start))))
    return (start, end) if end - start > (WORSE - 1) * scale else None


@sentence(names.TRAIN_LOSS, holds="the loss ended far above its start")
def losses_at_both_ends(ending: Ending) -> tuple[str, dict[str, float]] | None:
    both = _far_above(ending)
    if both is None:
        return None
    text = f"First recorded loss: {number(both[0])}. Median of the last recorded losses: {number(both[1])}."
    return text, {"loss": both[1], "loss_at_start": both[0]}


@sentence(
    names.TRAIN_LOSS, "environment.data.constant_loss",
    holds="at least 20 steps were trained and 8 rows recorded, and the median of the last losses is at least 0.97 x the loss "
    "of the best constant prediction, without being far above the start",
)  # fmt: skip
def learned_nothing(ending: Ending) -> str | None:
    constant = ending.constant_loss
    if constant is None or ending.losses is None or not ending.is_long or _far_above(ending):
        return None
    begun, ended = ending.losses
    end = float(np.median(ended))
    if not end >= AS_CONSTANT * constant:
        return None
    than = "no better than" if end >= constant else "about as good as"
    return (
        f"The model has learned nothing beyond a constant: its loss, {number(end)} at the end and "
        f"{number(float(np.median(begun)))} at the start (medians of {plural(len(ended), 'recorded step')}), is {than} that of "
        f"the best constant prediction ({number(constant)})."
    )


@sentence(
    names.TRAIN_LOSS,
    holds="at least 20 steps were trained and 8 rows recorded, the loss is not said to be that of a constant prediction, and "
    "the median of the last losses is below that of the first ones by at most 1 %, or by at most 5 % and half the range of the "
    "first ones, or by at most 20 % while 3 in 10 of the last losses are not below that median",
)  # fmt: skip
def loss_did_not_fall(ending: Ending) -> str | None:
    if ending.losses is None or not ending.is_long or _far_above(ending):
        return None
    begun, ended = ending.losses
    start, end = float(np.median(begun)), float(np.median(ended))
    spread = float(np.max(begun) - np.min(begun)) / 2
    as_high = float(np.mean(ended >= start)) >= AS_HIGH and end >= MUCH_LOWER * start > 0
    if end < start - max(0.01 * abs(start), min(spread, 0.05 * abs(start))) and not as_high:
        return None
    fell = "hardly fell" if end < start else "did not fall"
    return (
        f"The loss {fell}: its median was {number(start)} over the first {plural(len(begun), 'recorded step')} and "
        f"{number(end)} over the last {plural(len(ended), 'recorded step')}."
    )


@sentence(
    names.TRAIN_LOSS,
    holds="the run has not ended, its loss is not far above its start, and the last loss is at least 10 x its best",
)
def loss_is_high(ending: Ending) -> str | None:
    growth = ending.growth
    if growth is None or growth.rose_at is None:
        return None
    return f"The loss is {against_best(growth)}. It rose at step {growth.rose_at:,}."


# ---- weights, data and rates ----


@sentence(
    "ssm/{layer}/weight", "ssm/{layer}/grad_over_weight",
    holds="the run has ended after at least 20 steps and 8 recorded rows, it trains its eigenvalues, and at least a quarter "
    "of the recorded weights have a gradient at the last row and equal their value of the first row in every bit",
)  # fmt: skip
def weights_never_moved(ending: Ending) -> tuple[str, dict[str, Any]] | None:
    run, still, of = ending.run, *ending.still_with_gradient
    if not still or still < STILL * of:
        return None
    equal, have = ("equals", "it has a gradient") if still == 1 else ("equal", "they have gradients")
    whose = f"{still:,} of the {of:,} eigenvalue weights {equal}"
    if still == of:
        whose = f"All {of:,} eigenvalue weights equal" if of > 1 else "The only eigenvalue weight equals"
    values = "their values" if still > 1 else "its value"
    text = f"{whose} {values} of step {run.first_step:,} in every bit at step {ending.last:,}, although {have}."
    return text, {"still": still, "of": of}


@sentence(
    "ssm/{layer}/weight", "ssm/{layer}/grad_over_weight",
    holds="the run has ended after at least 20 steps and 8 recorded rows, it trains its eigenvalues, every recorded weight "
    "equals its value of the first row in every bit, and its gradient at the last row is exactly 0",
)  # fmt: skip
def gradients_are_zero(ending: Ending) -> tuple[str, dict[str, Any]] | None:
    zero, of = ending.still_without_gradient
    if not zero or zero < of:
        return None
    start = f"All {of:,} eigenvalue weights equal their values" if of > 1 else "The only eigenvalue weight equals its value"
    gradients, they = ("their gradients are", "they") if of > 1 else ("its gradient is", "it")
    began, ended = ending.run.first_step, ending.last
    text = f"{start} of step {began:,} in every bit at step {ended:,}: {gradients} exactly 0, so {they} never moved."
    return text, {"still": zero, "of": of}


@sentence(
    names.LARGEST_INPUT, names.LARGEST_TARGET,
    holds="of the last 4,096 rows, the largest number of each batch from this step on is at least 3 x that of every batch "
    "before, and their median is at least 10 x the median before, with 2 rows or more on both sides",
)  # fmt: skip
def data_changed(ending: Ending) -> str | None:
    change = changed_batches(ending.tail, ending.last)
    if change is None:
        return None
    part = WHICH[change.which].removeprefix("the ")
    return (
        f"The data changed at step {change.step:,}: since then the largest {part} of each recorded batch was at least "
        f"{number(change.smallest_after)}; before, it was at most {number(change.largest_before)}."
    )


@sentence(
    "optim/lr", names.TRAIN_LOSS,
    holds="the learning rate rose to at least 10 x every rate before, and the loss rose to 10 x its best at most 20 rows later",
)  # fmt: skip
def rate_jumped(ending: Ending) -> str | None:
    jump, growth = optimizer_facts.rate_jump(ending.tail, ending.last + 1), ending.growth
    if jump is None or growth is None or growth.rose_at is None:
        return None
    if not jump.step <= growth.rose_at <= jump.step + optimizer_facts.FIT_ROWS * ending.run.every:
        return None
    return (
        f"The learning rate jumped at step {jump.step:,}, from at most {number(jump.before)} to {number(jump.after)}, and the "
        f"loss rose at step {growth.rose_at:,}."
    )


# ---- the recurrence ----


def recurrence(ending: Ending) -> list[Said]:
    """Where the eigenvalues are, and why those outside the boundary did no harm."""
    return said(
        boundary_is_unknown(ending), outside_is_meant(ending), eigenvalues_inside(ending), eigenvalues_on_boundary(ending),
        had_been_outside(ending), eigenvalues_outside(ending), budget_is_spent(ending), sequences_are_short(ending),
    )  # fmt: skip


@sentence(
    "ssm/{layer}/boundary_distance", holds="our run recorded no distance at its end, and no layer is meant to exceed the boundary"
)
def boundary_is_unknown(ending: Ending) -> str | None:
    if ending.worst is not None or any(layer.may_exceed for layer in ending.run.layers):
        return None
    return (
        None if ending.run.reported is not None else "Whether its eigenvalues are inside the stability boundary is not recorded."
    )


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="no distance is recorded of a layer that must stay inside, and a layer has a form that bounds states by other means",
)
def outside_is_meant(ending: Ending) -> str | None:
    if ending.worst is not None or not any(layer.may_exceed for layer in ending.run.layers):
        return None
    return "Eigenvalues outside the stability boundary are meant in this model, and cannot make a state overflow."


@sentence(
    "ssm/{layer}/boundary_distance",
    holds="at the last recorded row, the distance 1 - |eigenvalue| of every recorded eigenvalue is above 0",
)
def eigenvalues_inside(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.distance > 0:
        return None
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    recorded = "recorded " if run.reported is not None or worst.known < run.eigenvalues else ""
    count = f"All {worst.known:,} {recorded}eigenvalues are" if worst.known > 1 else f"The only {recorded}eigenvalue is"
    nearest = f"; the nearest, {where}, is at distance" if worst.known > 1 else ", at distance"
    return f"{count} inside the stability boundary{reserved(run)}{nearest} {number(worst.distance)}."


@sentence(
    "ssm/{layer}/boundary_distance", holds="at the last recorded row, no recorded distance is below 0, and the smallest is 0"
)
def eigenvalues_on_boundary(ending: Ending) -> str | None:
    worst = ending.worst
    if worst is None or worst.distance != 0:
        return None
    where = eigenvalue_label(ending.run, worst.layer, worst.eigenvalue)
    some = f"{worst.on_boundary:,} of {worst.known:,} recorded eigenvalues are" if worst.on_boundary > 1 else f"{where} is"
    return (
        f"{some[:1].upper()}{some[1:]} exactly on the stability boundary: such a state does not decay. No recorded eigenvalue is "
        f"outside{reserved(ending.run)}."
    )


@sentence(
    "ssm/{layer}/boundary_distance", holds="an eigenvalue was outside the boundary at an earlier row, and none is at the last"
)
def had_been_outside(ending: Ending) -> str | None:
    if ending.worst is None or ending.worst.outside or not ending.firsts:
        return None
    return f"Some had been outside before, first at step {ending.firsts[0].step:,}{reserved(ending.run)}."


@sentence("ssm/{layer}/boundary_distance", holds="an eigenvalue is outside the boundary at the last recorded row")
def eigenvalues_outside(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside:
        return None
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    layer = worst.layers_outside[0] if len(worst.layers_outside) == 1 else worst.layer
    low, high = ending.source.steps_outside(layer, ending.last)
    many = f"{low:,}" if low == high else f"at least {low:,}"
    steps = "step" if many == "1" else "steps"
    recorded = steps if run.every == 1 else f"of the recorded steps (every {ordinal(run.every)})"
    of_layer = f" in layer {layer}" if len(worst.layers_outside) > 1 else ""
    count = f"{worst.outside:,}" if worst.known >= run.eigenvalues else f"At least {worst.outside:,}"
    first = f", first at step {ending.firsts[0].step:,}" if ending.firsts else ""
    size = worst.value if worst.value is not None else 1 - worst.distance
    total = f"{run.eigenvalues:,} eigenvalue{'' if run.eigenvalues == 1 else 's'}"
    boundary = f"outside the stability boundary{reserved(run)}"
    return (
        f"{count} of {total} {'is' if worst.outside == 1 else 'are'} {boundary}{first}: in {many} "
        f"{recorded}, at least one{of_layer} was. The furthest, {where}, is {near_one(size)}."
    )


@sentence(
    "ssm/{layer}/overflow_budget", holds="the overflow budget of the worst eigenvalue is at or above the limit of its layer"
)
def budget_is_spent(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside or worst.budget is None or worst.budget < run.limit_of(worst.layer):
        return None
    limit = number(run.limit_of(worst.layer))
    return (
        f"Its overflow budget is {number(worst.budget)}, at or above the limit of {limit}: with random inputs its state "
        "would overflow."
    )


@sentence(
    "ssm/{layer}/overflow_budget",
    holds="at the last recorded row an eigenvalue is outside the boundary, and the overflow budget of the worst one is below "
    "the limit of its layer",
)  # fmt: skip
def sequences_are_short(ending: Ending) -> str | None:
    worst, run = ending.worst, ending.run
    if worst is None or not worst.outside or worst.budget is None or run.length is None:
        return None
    limit = run.limit_of(worst.layer)
    if worst.budget >= limit:
        return None
    longest = overflow_length(worst.distance, limit)
    ends = "float32 ends at 3.4e38" if limit == 1 else f"{run.squares} can square numbers up to 1.8e19"
    would = f", but at length {math.ceil(longest):,} or more it would overflow" if math.isfinite(longest) else ""
    return f"It survived because sequences are short: {power(1 - worst.distance, run.length)}, and {ends}{would}."
