"""The evidence for a verdict: a list of sentences, each with the numbers that the sentence quotes, [{text, basis, ...numbers}].

basis: "measured" if the sentence states recorded values or results of the autopsy, "inferred" if it concludes from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.telemetry.stability import overflow_eigenvalue
from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.finding import Finding
from stablessm_core.verdict.formats import near_one, number, ordinal, plural, value_of
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.measured import FLOAT32_LARGEST, Autopsy, number_of
from stablessm_core.verdict.words import PASSES, WHICH, against_best, eigenvalue_label

Evidence = dict[str, Any]
BFLOAT16 = "bfloat16 has the range of float32: rounding to it makes no infinity. States and eigenvalues are float32."
CHANGES = {
    "unchanged": "unchanged",
    "recurrence_frozen": "with the recurrence frozen",
    "batch_left_out": "without the batch",
    "tenth_of_rate": "with a tenth of the learning rate",
    "other_map": "with another map",
    "scaled_norm": "with a norm that scales its input before it squares",
    "batches_scaled": "with every batch scaled to its usual size",
}


def item(text: str, /, *, basis: str = "measured", **numbers: Any) -> Evidence:
    return {"text": text, "basis": basis, **numbers}


def evidence(run: Run, found: Finding) -> list[Evidence]:
    """The evidence for the finding on a diverged run."""
    overflow = found.cause == "eigenvalue_overflow"
    items: list[Evidence] = []
    if found.autopsy is not None:
        items += autopsied(found.autopsy)
    if overflow:
        items += budget(run, found.worst)
        for one in dict.fromkeys(one for one in (found.crossing, *found.firsts) if one is not None):
            items += _crossing(run, one)
        if found.spike is not None and run.optimizer != "adamw":
            items.append(_spike(found.spike))
    items += _loss(run, found)
    if found.update is not None and found.cause in ("explosion", "lr_too_large", "bad_input", "unknown"):
        items.append(_update(run, found.update))
    if found.dt is not None and found.dt[1] != found.dt[0]:
        began, now, which = found.dt
        text = f"Largest step size dt: {number(began)} at the start, {number(now)} at step {found.step:,}."
        items.append(item(text, dt_at_start=began, dt=now, eigenvalue=which))
    items += _batch(found)
    if found.inherited is not None and found.cause != "bad_input":
        text = (
            f"Every state of layer {found.inherited} is NaN and none is infinite, so NaN reached this layer as its input; it did "
            "not begin there."
        )
        items.append(item(text, basis="inferred", layer=found.inherited))
    if not overflow and not found.flags:
        items += _recurrence(run, found)
    if found.cause == "precision" and found.half:
        count = len(set(found.scalars.loss.tolist()))
        text = f"All of the {count} different recorded losses are float16 numbers; of float32 numbers, one in 8,192 is."
        items.append(item(text, basis="inferred", losses=count))
    elif run.how.precision == "bfloat16":
        items.append(item(BFLOAT16, basis="inferred"))
    items += evaluation(found.evaluated)
    return items + _limits(run, found)


def autopsied(autopsy: Autopsy) -> list[Evidence]:
    """What the autopsy measured: the first number that is not finite, the same step in float64, and the counterfactuals."""
    items: list[Evidence] = []
    first = autopsy.first
    step = int(autopsy.findings["step"])
    if first is not None:
        text = _first(first, step)
        items.append(item(text, step=step, **{"pass": first["pass"], "module": first.get("module")}))
        if "norm" in str(first.get("operation")) and autopsy.input_of_first >= 1e18:
            text = "This norm squares its input. It is where the overflow shows, and not why the numbers were so large."
            items.append(item(text, basis="inferred"))
    repeat = autopsy.float64
    if repeat is not None:
        items.append(_repeated(autopsy, repeat, step))
    if (compared := autopsy.findings.get("gradient")) is not None:
        items.append(_gradient(compared))
    for change in CHANGES:
        if (one := autopsy.counterfactual(change)) is not None:
            items.append(_counterfactual(one))
    return items


def _first(first: Mapping[str, Any], step: int) -> str:
    """Where the first number that is not finite appeared, and what it was made from."""
    value, operation, where = first.get("value"), str(first.get("operation")), PASSES[str(first["pass"])]
    if operation == "batch":
        return f"The batch of step {step:,} held {value} before anything was computed."
    module = f" in {first['module']}" if first.get("module") and first["module"] != first["pass"] else ""
    given, before = number_of(first.get("largest_input")), number_of(first.get("largest_before"))
    made = "" if math.isnan(given) else f", from numbers up to {number(given)}"
    largest = "" if math.isnan(before) or before == given else f" The largest number before was {number(before)}."
    text = f"The first number that is not finite at step {step:,} is {value}, made by {operation}{module} ({where}){made}."
    return text + largest


def _repeated(autopsy: Autopsy, repeat: Mapping[str, Any], step: int) -> Evidence:
    largest = autopsy.largest
    narrow = repeat.get("narrow") or ()
    if repeat.get("finite"):
        text = f"In float64, step {step:,} is finite: its loss is {number(number_of(repeat.get('loss')))}"
        if largest > FLOAT32_LARGEST:
            text += f" and its largest number {number(largest)}, more than float32 can hold ({number(FLOAT32_LARGEST)})"
        elif not math.isnan(largest):
            text += f" and the largest result of a module {number(largest)}"
        text += "."
    else:
        text = f"In float64, step {step:,} is not finite either."
    if narrow:
        text += f" These operations did not compute in float64: {', '.join(map(str, list(narrow)[:3]))}."
    return item(text, step=step, finite=bool(repeat.get("finite")), largest=largest)


def _gradient(compared: Mapping[str, Any]) -> Evidence:
    step, norm, slope = int(compared["step"]), number_of(compared["norm"]), number_of(compared["slope"])
    says = "agrees with" if compared.get("agrees") else "disagrees with" if compared.get("agrees") is False else "may differ from"
    text = (
        f"The gradient of step {step:,} {says} the loss: its norm is {number(norm)}, and a small step along it changes the loss "
        f"by {number(slope)} per unit of distance. A right gradient has equal numbers."
    )
    return item(text, step=step, norm=norm, slope=slope)


def _counterfactual(one: Mapping[str, Any]) -> Evidence:
    how = CHANGES[str(one["change"])]
    if one["change"] == "batch_left_out":
        how += f" of step {int(one['from_step']) + 1:,}"
    ends = f"lives to step {int(one['step']):,}" if one["lives"] else f"dies at step {int(one['step']):,}"
    text = f"Trained again from step {int(one['from_step']):,} {how}, the run {ends}."
    return item(text, change=one["change"], lives=bool(one["lives"]), step=int(one["step"]), from_step=int(one["from_step"]))


def budget(run: Run, worst: eigenvalues.Worst | None) -> list[Evidence]:
    """The evidence about the overflow budget of the worst eigenvalue. Empty if every eigenvalue is inside the boundary."""
    if worst is None or worst.budget is None or run.length is None or worst.distance >= 0:
        return []
    size, limit = 1 - worst.distance, run.limit_of(worst.layer)
    text = (
        f"Overflow budget at step {worst.step:,}: {run.length} x ln {near_one(size)} / 88.72 = {number(worst.budget)}. At "
        f"{number(limit)}, where the eigenvalue is {number(overflow_eigenvalue(run.length, limit))}, float32 overflows."
    )
    numbers: Evidence = {"overflow_budget": worst.budget, "limit": limit, "length": run.length, "size": size}
    return [item(text, **numbers, outside=worst.outside, of=worst.known)]


def _crossing(run: Run, one: eigenvalues.Crossing) -> list[Evidence]:
    if one.before is None or one.distance_before is None:
        return []
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
    numbers: Evidence = {"step": one.before, "layer": one.layer, "eigenvalue": one.eigenvalue, "distance": one.distance_before}
    numbers |= {"slope": one.slope, "weight_step": one.weight_step, "lr": one.lr}
    return [item(text, basis=basis, **numbers, predicted_relative_step=one.predicted, relative_step=one.relative_step)]


def _spike(spike: eigenvalues.Spike) -> Evidence:
    if spike.growth < facts.SPIKE:
        text = (
            f"Its gradient did not spike: over the last {facts.SPIKE_ROWS} recorded steps |g| was at most {number(spike.size)}, "
            f"{number(spike.growth)} x the median before."
        )
    else:
        grown = "exactly 0 before" if math.isinf(spike.growth) else f"{number(spike.growth)} x the median before"
        at = "" if spike.value is None else f", with the eigenvalue at {near_one(spike.value)}"
        text = f"Its gradient at step {spike.step:,}: |g| {number(spike.size)}, {grown}{at}; |grad|/|w| {number(spike.ratio)}."
        if spike.zero_after:
            text += (
                f" In {_some_of(spike.zero_after, spike.rows_after)} after it the gradient was exactly 0, and the "
                "weight moved on by momentum alone: a ratio of 0 there does not mean calm."
            )
    return item(text, step=spike.step, gradient=spike.size, growth=spike.growth, ratio=spike.ratio)


def _some_of(count: int, of: int) -> str:
    return "the step" if of == 1 else f"{count} of the {plural(of, 'step')}"


def _loss(run: Run, found: Finding) -> list[Evidence]:
    growth = found.growth
    if growth is None:
        return []
    recorded = "recorded " if run.every > 1 else ""
    at = f", of step {growth.best_step:,}" if growth.times != 1 else ""
    passed = ""
    if growth.rose_at:
        passed = f" It passed {facts.ROSE:.0f} x its best at {recorded}step {growth.rose_at:,}."
        if growth.best <= 0:
            passed = f" It rose at {recorded}step {growth.rose_at:,}."
    text = f"Loss at {recorded}step {growth.step:,}: {number(growth.loss)}, {against_best(growth)}{at}.{passed}"
    if growth.times != 1 and growth.best <= 0:
        text = f"Loss at {recorded}step {growth.step:,}: {against_best(growth)}.{passed}"
    numbers: Evidence = {"loss": growth.loss, "best": growth.best, "times_best": growth.times, "passed_10_at": growth.rose_at}
    items = [item(text, **numbers)]
    if math.isfinite(growth.grad_growth) and math.isfinite(growth.grad_norm):
        text = (
            f"Norm of the whole gradient at {recorded}step {growth.step:,}: {number(growth.grad_norm)}, "
            f"{number(growth.grad_growth)} x its size at {recorded}step {growth.since:,}."
        )
        items.append(item(text, grad_norm=growth.grad_norm, growth=growth.grad_growth))
    return items


def _update(run: Run, update: float) -> Evidence:
    what = "the norm of the gradient" if run.optimizer != "adamw" else "the root of the number of weights"
    which = "The update before" if run.every == 1 else f"The updates since the last recorded step, {run.every} steps earlier,"
    text = f"{which} could move the weights by at most about {number(update)} x their norm (learning rate x {what})."
    return item(text, basis="inferred", update=update)


def _batch(found: Finding) -> list[Evidence]:
    bad = found.bad
    if bad is not None and bad.finite and bad.largest is not None:
        if bad.since is not None:
            ends = f"{number(bad.usual or 0.0)} at step {bad.since:,}, {number(bad.largest)} at step {found.step:,}"
            return [item(f"Largest number of {WHICH[bad.which]}: {ends}.", largest=bad.largest, first=bad.usual, step=bad.since)]
        usual = "; float32 cannot square it" if not bad.usual else f"; usual in this run: {number(bad.usual)}"
        text = f"Largest number of {WHICH[bad.which]} at step {bad.step:,}: {number(bad.largest)}{usual}."
        return [item(text, largest=bad.largest, usual=bad.usual, step=bad.step)]
    if found.flags is None:
        return []
    said = "held a number that is not finite" if found.flags else "held only finite numbers"
    return [item(f"The batch of step {found.step:,} {said}.", batch_nonfinite=found.flags)]


def _recurrence(run: Run, found: Finding) -> list[Evidence]:
    worst = found.worst
    if worst is None:
        return []
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    if not found.firsts and worst.distance >= 0:
        text = (
            f"No recorded eigenvalue was ever outside the boundary. The nearest at step {worst.step:,} was {where}, at distance "
            f"{number(worst.distance)}."
        )
    elif worst.distance >= 0:
        text = (
            f"At step {worst.step:,} every eigenvalue was inside the boundary. The nearest was {where}, at distance "
            f"{number(worst.distance)}."
        )
    else:
        limit = number(run.limit_of(worst.layer))
        spent = "" if worst.budget is None else f", with an overflow budget of {number(worst.budget)} (limit {limit})"
        text = f"Furthest outside the boundary at step {worst.step:,}: {where}, at {near_one(1 - worst.distance)}{spent}."
    numbers: Evidence = {"layer": worst.layer, "eigenvalue": worst.eigenvalue, "distance": worst.distance}
    return [item(text, **numbers, overflow_budget=worst.budget), *_parts_of_decay(found.moved, where)]


def _parts_of_decay(moved: eigenvalues.DecayChange | None, where: str) -> list[Evidence]:
    """The evidence about what changed the decay of an eigenvalue more: its weight, or the gate or step size that multiplies its
    rate."""
    if moved is None:
        return []
    parts = ((moved.weight, "weight"), (moved.step, moved.what))
    larger = max((abs(math.log(abs(part) or math.inf)), name) for part, name in parts)[1]
    text = (
        f"Since step {moved.since:,}, the decay -ln|lambda_bar| of {where} has changed to {number(moved.decay)} x its value: the "
        f"rate of its weight to {number(moved.weight)} x, its {moved.what} to {number(moved.step)} x. The {larger} moved it more."
    )
    numbers: Evidence = {"decay": moved.decay, "by_weight": moved.weight, f"by_{moved.what.replace(' ', '_')}": moved.step}
    return [item(text, **numbers)]


def evaluation(bad: tuple[int, float] | None) -> list[Evidence]:
    """The evidence about an evaluation whose loss was not finite."""
    if bad is None:
        return []
    return [item(f"The loss of the evaluation at step {bad[0]:,} was {value_of(bad[1])}.", step=bad[0], eval_loss=bad[1])]


def _limits(run: Run, found: Finding) -> list[Evidence]:
    """Sentences about gaps in the data."""
    said = []
    refused = None if run.autopsy is None else run.autopsy.get("refused")
    if refused:
        said.append(f"The autopsy has no result ({str(refused).rstrip('.')}). This verdict rests on the recorded numbers.")
    if run.every == 1 and run.recorded_every > 1:
        text = (
            f"Only every {ordinal(run.recorded_every)} step was recorded. The autopsy trained the steps from "
            f"{run.complete_from:,} on again and measured all of them."
        )
        said.append(text)
    if run.every > 1:
        said.append(
            f"Only every {ordinal(run.every)} step was recorded: relative steps and the exact step of a crossing are not known."
        )
    if any(layer.wide for layer in run.layers):
        said.append(
            "Of wide layers only the 16 most extreme eigenvalues of each step are recorded; their sign, gradient and weight step "
            "are not."
        )
    if found.flags is None:
        said.append("Whether the batch was finite was not recorded.")
    return [item(text, limit_of_data=True) for text in said]
