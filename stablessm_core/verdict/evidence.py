"""The evidence for a verdict: a list of sentences, each with the numbers that the sentence quotes, [{text, ...numbers}]."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.telemetry.stability import overflow_eigenvalue
from stablessm_core.verdict import facts
from stablessm_core.verdict.decide import Finding
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.words import eigenvalue_label, number

Evidence = dict[str, Any]
BFLOAT16 = "bfloat16 has the range of float32: rounding to it makes no infinity. States and eigenvalues are float32."


def evidence(run: Run, found: Finding) -> list[Evidence]:
    """The evidence for the finding on a diverged run."""
    overflow = found.cause == "eigenvalue_overflow"
    items: list[Evidence] = []
    if overflow:
        items += budget(run, found.worst)
        for one in dict.fromkeys(one for one in (found.crossing, *found.firsts) if one is not None):
            items += _crossing(run, one)
        if found.spike is not None and run.optimizer != "adamw":
            items.append(_spike(found.spike))
    items += _loss(found.growth)
    if found.update is not None and found.cause in ("explosion", "lr_too_large", "bad_input", "unknown"):
        items.append(_update(run, found.update))
    if found.dt is not None:
        began, now, which = found.dt
        text = f"Largest step size dt: {number(began)} at the start, {number(now)} at step {found.step:,}."
        items.append({"text": text, "dt_at_start": began, "dt": now, "eigenvalue": which})
    if found.flags is not None:
        said = "held a number that is not finite" if found.flags else "was finite throughout"
        items.append({"text": f"The batch of step {found.step:,} {said}.", "batch_nonfinite": found.flags})
    if not overflow and not found.flags:
        items += _recurrence(run, found)
    if found.cause == "precision":
        count = len(set(found.scalars.loss.tolist()))
        text = f"All of the {count} different losses recorded are float16 numbers; of float32 numbers one in 8,192 is."
        items.append({"text": text, "losses": count})
    elif run.config.get("train", {}).get("precision") == "bfloat16":
        items.append({"text": BFLOAT16})
    return items + _limits(run, found)


def budget(run: Run, worst: facts.Worst | None) -> list[Evidence]:
    """The evidence about the overflow budget of the worst eigenvalue. Empty if every eigenvalue is inside the boundary."""
    if worst is None or worst.budget is None or run.length is None or worst.distance >= 0:
        return []
    size = 1 - worst.distance
    text = (
        f"Overflow budget {number(worst.budget)} at step {worst.step:,}: {run.length} ln {number(size)} / 88.72. float32 "
        f"overflows at {number(run.limit_of(worst.layer))}, that is at an absolute value of {number(overflow_eigenvalue(run.length, run.limit_of(worst.layer)))}."
    )
    numbers = {"overflow_budget": worst.budget, "limit": run.limit_of(worst.layer), "length": run.length, "size": size}
    return [{"text": text, **numbers, "outside": worst.outside, "of": worst.known}]


def _crossing(run: Run, one: facts.Crossing) -> list[Evidence]:
    if one.before is None or one.distance_before is None:
        return []
    where = eigenvalue_label(run, one.layer, one.eigenvalue, first=True)
    text = f"{where} at step {one.before:,}: distance to the boundary {number(one.distance_before)}"
    if one.slope is not None and one.weight_step is not None and one.predicted is not None and math.isfinite(one.slope):
        how = (
            "the learning rate"
            if run.optimizer == "adamw"
            else "learning rate times |g|" + (" plus momentum" * bool(run.momentum))
        )
        text += (
            f"; slope of the map R_f {number(one.slope)} times a weight step of {number(one.weight_step)} ({how}) lets one "
            f"expect a relative step of {number(one.predicted)}"
        )
    if one.relative_step is not None and math.isfinite(one.relative_step):
        text += f"; it was {number(one.relative_step)}, and at 1 a step may cross"
    numbers: Evidence = {"step": one.before, "layer": one.layer, "eigenvalue": one.eigenvalue, "distance": one.distance_before}
    numbers |= {"slope": one.slope, "weight_step": one.weight_step, "lr": one.lr}
    return [{"text": text + ".", **numbers, "predicted_relative_step": one.predicted, "relative_step": one.relative_step}]


def _spike(spike: facts.Spike) -> Evidence:
    if spike.growth < facts.SPIKE:
        text = (
            f"Its gradient did not spike: over the last {facts.SPIKE_ROWS} steps |g| was at most {number(spike.size)}, "
            f"{number(spike.growth)} times the median before."
        )
    else:
        grown = "exactly 0 before" if math.isinf(spike.growth) else f"{number(spike.growth)} times the median before"
        at = "" if spike.value is None else f", with the eigenvalue at {number(spike.value)}"
        text = f"Its gradient at step {spike.step:,}: |g| {number(spike.size)}, {grown}{at}; |grad|/|w| {number(spike.ratio)}."
        if spike.zero_after:
            text += (
                f" In {spike.zero_after} of the {spike.rows_after} steps after it the gradient was exactly 0 and the weight "
                "moved on by momentum alone: a ratio of 0 there is no sign of calm."
            )
    return {"text": text, "step": spike.step, "gradient": spike.size, "growth": spike.growth, "ratio": spike.ratio}


def _loss(growth: facts.Growth | None) -> list[Evidence]:
    if growth is None:
        return []
    best = f"{number(growth.times)} times its best ({number(growth.best)}, step {growth.best_step:,})"
    passed = f"; it passed {facts.ROSE:.0f} times its best at step {growth.rose_at:,}" if growth.rose_at else ""
    text = f"Loss {number(growth.loss)} at step {growth.step:,}, {'its best' if growth.times == 1 else best}{passed}."
    items = [{"text": text, "loss": growth.loss, "best": growth.best, "times_best": growth.times, "passed_10_at": growth.rose_at}]
    if math.isfinite(growth.grad_growth) and math.isfinite(growth.grad_norm):
        text = (
            f"Norm of the whole gradient {number(growth.grad_norm)} at step {growth.step:,}, {number(growth.grad_growth)} times "
            f"what it was at step {growth.since:,}."
        )
        items.append({"text": text, "grad_norm": growth.grad_norm, "growth": growth.grad_growth})
    return items


def _update(run: Run, update: float) -> Evidence:
    what = "the gradient's norm" if run.optimizer != "adamw" else "the root of the number of weights"
    text = f"The update before could move the weights by {number(update)} of their norm (learning rate times {what})."
    return {"text": text, "update": update}


def _recurrence(run: Run, found: Finding) -> list[Evidence]:
    worst = found.worst
    if worst is None:
        return []
    where = eigenvalue_label(run, worst.layer, worst.eigenvalue)
    if not found.firsts:
        text = f"No eigenvalue was ever outside; nearest at step {worst.step:,}: {where}, at distance {number(worst.distance)}."
    elif worst.distance >= 0:
        text = f"At step {worst.step:,} every eigenvalue was inside; nearest {where}, at distance {number(worst.distance)}."
    else:
        spent = "" if worst.budget is None else f", overflow budget {number(worst.budget)} of {number(run.limit_of(worst.layer))}"
        text = f"Furthest outside at step {worst.step:,}: {where}, absolute value {number(1 - worst.distance, 4)}{spent}."
    numbers = {"layer": worst.layer, "eigenvalue": worst.eigenvalue, "distance": worst.distance, "overflow_budget": worst.budget}
    return [{"text": text, **numbers}, *_parts_of_decay(found.moved, where)]


def _parts_of_decay(moved: facts.DecayChange | None, where: str) -> list[Evidence]:
    """The evidence about what changed the decay of an eigenvalue more: its weight, or the gate or step size that multiplies its
    rate."""
    if moved is None:
        return []
    parts = ((moved.weight, "weight"), (moved.step, moved.what))
    larger = max((abs(math.log(abs(part) or math.inf)), name) for part, name in parts)[1]
    text = (
        f"Since step {moved.since:,} the decay -ln|lambda_bar| of {where} is {number(moved.decay)} times what it was: the "
        f"rate of its weight {number(moved.weight)} times, its {moved.what} {number(moved.step)} times. It was the {larger} "
        "that moved it more."
    )
    return [{"text": text, "decay": moved.decay, "by_weight": moved.weight, f"by_{moved.what.replace(' ', '_')}": moved.step}]


def _limits(run: Run, found: Finding) -> list[Evidence]:
    """Sentences about gaps in the recorded data."""
    said = []
    if run.every > 1:
        said.append(f"Only every {run.every}th step was recorded: relative steps and the exact step of a crossing are not known.")
    if any(layer.wide for layer in run.layers):
        said.append(
            "Of wide layers only the 16 most extreme eigenvalues of each step are recorded; their sign, gradient and weight step "
            "are not."
        )
    if found.flags is None:
        said.append("Whether the batch was finite was not recorded.")
    return [{"text": text, "limit_of_data": True} for text in said]
