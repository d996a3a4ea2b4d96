"""The evidence that every verdict on a divergence lists, whatever its cause: what the autopsy measured, the loss, the batch, the
eigenvalues, and what the records cannot show. The causes add their own sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.autopsy.changes import CHANGES
from stablessm_core.telemetry import series as names
from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.case import SOON, Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.causes.eigenvalue_overflow import overflow_budget
from stablessm_core.verdict.formats import bounded, near_one, number, ordinal, plural, value_of
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.measured import FLOAT32_LARGEST, MODERATE, PASSES, SAME_NORM, Autopsy, number_of
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import WHICH, against_best, eigenvalue_label, reserved

Numbers = dict[str, Any]
FAILS_TO_SQUARE = 1e18
ALIKE = 0.01  # difference up to which the logarithms of two factors count as the same


def evidence(case: Case, cause: Cause, answer: Answer) -> list[Said]:
    """The evidence for the verdict on a diverged run."""
    items = autopsied(case)
    items += cause.evidence(case, answer)
    items += said(loss_at_the_end(case), norm_of_gradient(case), size_of_update(case))
    items += said(largest_of_bad_batch(case), flag_of_batch(case), nan_from_below(case))
    if not case.flags and not any(one.sentence == "overflow_budget" for one in items):
        items += said(nearest_eigenvalue(case), furthest_eigenvalue(case), parts_of_decay(case))
    items += said(extreme_weight(case))
    items += said(range_of_bfloat16(case.run), evaluation_not_finite(case.evaluated))
    return items + limits_of_data(case)


# ---- what the autopsy measured ----


def autopsied(case: Case) -> list[Said]:
    autopsy = case.autopsy
    if autopsy is None:
        return []
    items = said(first_number_not_finite(autopsy), norm_squares(autopsy), step_in_float64(autopsy))
    items += said(gradient_agrees(autopsy), gradient_not_proved(autopsy), training_keeps_a_state(autopsy))
    tried = (autopsy.counterfactual(change) for change in CHANGES)
    items += said(*(trial(autopsy, one) for one in tried if one is not None), trials_not_comparable(autopsy))
    return items


@sentence("autopsy.first_nonfinite", holds="the autopsy found the first result that is not finite")
def first_number_not_finite(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    first, step = autopsy.first, int(autopsy.findings["step"])
    if first is None:
        return None
    value, operation, where = first.get("value"), str(first.get("operation")), PASSES[str(first["pass"])]
    if operation == "batch":
        return f"The batch of step {step:,} held {value} before anything was computed.", {"step": step, "pass": first["pass"]}
    module = f" in {first['module']}" if first.get("module") and first["module"] != first["pass"] else ""
    given, before = number_of(first.get("largest_input")), number_of(first.get("largest_before"))
    made = "" if math.isnan(given) else f", from numbers up to {number(given)}"
    largest = "" if math.isnan(before) or before == given else f" The largest number before was {number(before)}."
    text = (
        f"The first number that is not finite at step {step:,} is {value}, made by {operation}{module} ({where}){made}.{largest}"
    )
    return text, {"step": step, "pass": first["pass"], "module": first.get("module")}


@sentence("autopsy.first_nonfinite", basis="inferred", holds="a norm made the number from inputs of 1e18 or more")
def norm_squares(autopsy: Autopsy) -> str | None:
    if "norm" not in str((autopsy.first or {}).get("operation")) or not autopsy.input_of_first >= FAILS_TO_SQUARE:
        return None
    return "This norm squares its input. It is where the overflow shows, and not why the numbers were so large."


@sentence("autopsy.float64", holds="the autopsy repeated the step in float64")
def step_in_float64(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    repeat, step, largest = autopsy.float64, int(autopsy.findings["step"]), autopsy.largest
    if repeat is None:
        return None
    if repeat.get("finite"):
        text = f"In float64, step {step:,} is finite: its loss is {number(number_of(repeat.get('loss')))}"
        if largest > FLOAT32_LARGEST:
            text += f" and its largest number {bounded(largest)}, more than float32 can hold ({number(FLOAT32_LARGEST)})"
        elif not math.isnan(largest):
            text += f" and the largest result of a module {number(largest)}"
        text += "."
    else:
        text = f"In float64, step {step:,} is not finite either."
    narrow = repeat.get("narrow") or ()
    if narrow:
        text += f" These operations did not compute in float64: {', '.join(map(str, list(narrow)[:3]))}."
    return text, {"step": step, "finite": bool(repeat.get("finite")), "largest": largest}


@sentence(
    "autopsy.gradient",
    holds="in float64, the slope of the loss along the gradient converged, and equals the norm of the gradient within a "
    "twentieth",
)  # fmt: skip
def gradient_agrees(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    one = autopsy.findings.get("gradient") or {}
    if not autopsy.gradient_agrees:
        return None
    step, norm, slope, recorded = int(one["step"]), *(number_of(one.get(name)) for name in ("norm", "slope", "recorded"))
    other = f" The run recorded the norm {number(recorded)}." if abs(recorded - norm) > SAME_NORM * norm else ""
    text = (
        f"In float64, the gradient of step {step:,} agrees with the loss: its norm is {number(norm)}, and the loss changes by "
        f"{number(slope)} per unit of distance along it.{other}"
    )
    return text, {"step": step, "norm": norm, "slope": slope}


@sentence(
    "autopsy.gradient",
    holds="the slope of the loss along the gradient did not converge, so the gradient was neither confirmed nor refuted",
)
def gradient_not_proved(autopsy: Autopsy) -> tuple[str, Numbers] | None:
    one = autopsy.findings.get("gradient") or {}
    if not one or one.get("converged") or "converged" not in one:
        return None
    step, norm = int(one["step"]), number_of(one["norm"])
    text = (
        f"Whether the gradient of step {step:,}, with norm {number(norm)}, is right could not be measured: the slopes of the "
        "loss over different distances along it disagree, or rounding hides them."
    )
    return text, {"step": step, "norm": norm}


@sentence("autopsy.hidden_state", holds="the task gave two answers to the same question")
def training_keeps_a_state(autopsy: Autopsy) -> str | None:
    state = autopsy.findings.get("hidden_state")
    return str(state) if state else None


@sentence(
    "autopsy.counterfactuals", holds="the trial ended, and the trials can be compared with the run, or it is the unchanged one"
)
def trial(autopsy: Autopsy, one: Mapping[str, Any]) -> tuple[str, Numbers] | None:
    if not autopsy.comparable and one["change"] != "unchanged":
        return None
    how = CHANGES[str(one["change"])].how
    if one["change"] == "batch_left_out":
        how += f" of step {int(one['from_step']) + 1:,}"
    ends = f"lives to step {int(one['step']):,}" if one["lives"] else f"dies at step {int(one['step']):,}"
    text = f"Trained again from step {int(one['from_step']):,} {how}, the run {ends}."
    numbers = {"change": one["change"], "lives": bool(one["lives"]), "step": int(one["step"])}
    return text, numbers | {"from_step": int(one["from_step"])}


@sentence(
    "autopsy.counterfactuals", holds="the unchanged control did not die at the fatal step, or a milder trial died before it"
)
def trials_not_comparable(autopsy: Autopsy) -> str | None:
    if autopsy.comparable or not autopsy.findings.get("counterfactuals"):
        return None
    return (
        "The trials cannot be compared with the run, so they say nothing about its cause: the unchanged one did not die at its "
        "fatal step, or a trial that could only help died before it. The task or its loss may keep a state."
    )


@sentence(
    "autopsy.counterfactuals",
    holds="the run was trained again with a frozen recurrence, and the trials can be compared; it dies too if at most "
    "5 steps after the run",
)
def frozen_trial(case: Case) -> str | None:
    """What the trial with a frozen recurrence showed, for the summary of a cause that it can test."""
    one = None if case.autopsy is None else case.autopsy.counterfactual("recurrence_frozen")
    lives = case.lives("recurrence_frozen")
    if one is None or lives is None:
        return None
    start, ends = f"Trained again from step {int(one['from_step']):,} with the recurrence frozen,", int(one["step"])
    if lives:
        return f"{start} the run lives to step {ends:,}."
    if ends > case.step + SOON:
        return f"{start} the run dies later, at step {ends:,}."
    return f"{start} the run dies too, at step {ends:,}."


# ---- what was recorded ----


@sentence(names.TRAIN_LOSS, holds="a finite loss is recorded before the end")
def loss_at_the_end(case: Case) -> tuple[str, Numbers] | None:
    growth = case.growth
    if growth is None:
        return None
    recorded = "recorded " if case.run.every > 1 else ""
    at = f", of step {growth.best_step:,}" if growth.times != 1 else ""
    passed = ""
    if growth.rose_at:
        passed = f" It passed {facts.ROSE:.0f} x its best at {recorded}step {growth.rose_at:,}."
        if growth.best <= 0:
            passed = f" It rose at {recorded}step {growth.rose_at:,}."
    text = f"Loss at {recorded}step {growth.step:,}: {number(growth.loss)}, {against_best(growth)}{at}.{passed}"
    if growth.times != 1 and growth.best <= 0:
        text = f"Loss at {recorded}step {growth.step:,}: {against_best(growth)}.{passed}"
    return text, {"loss": growth.loss, "best": growth.best, "times_best": growth.times, "passed_10_at": growth.rose_at}


@sentence(names.GRAD_NORM, holds="the norm of the gradient is recorded at the end and at an earlier row, and both are finite")
def norm_of_gradient(case: Case) -> tuple[str, Numbers] | None:
    growth = case.growth
    if growth is None or not math.isfinite(growth.grad_growth) or not math.isfinite(growth.grad_norm):
        return None
    recorded = "recorded " if case.run.every > 1 else ""
    text = (
        f"Norm of the whole gradient at {recorded}step {growth.step:,}: {number(growth.grad_norm)}, "
        f"{number(growth.grad_growth)} x its size at {recorded}step {growth.since:,}."
    )
    return text, {"grad_norm": growth.grad_norm, "growth": growth.grad_growth}


@sentence(
    names.LR, names.GRAD_NORM, names.WEIGHT_NORM, basis="inferred",
    holds="the optimizer is SGD or AdamW, and of the row before, the rate, the norm of all weights and the norm of the "
    "gradient (for AdamW, the number of weights) are known",
)  # fmt: skip
def size_of_update(case: Case) -> tuple[str, Numbers] | None:
    run, update = case.run, case.update
    if update is None:
        return None
    what = "the root of the number of weights"
    if run.optimizer == "sgd":
        what = (
            "the largest norm of the last gradients"
            + ", clipped," * bool(run.grad_clip)
            + " / (1 - momentum)" * bool(run.momentum)
        )
    last = int(case.scalars.step[case.scalars.step < case.step][-1])
    which = "The update before" if case.step - last == 1 else f"The updates since step {last:,}"
    text = f"{which} could move the weights by about {number(update)} x their norm (learning rate x {what})."
    return text, {"update": update}


@sentence(
    names.LARGEST_INPUT,
    names.LARGEST_TARGET,
    "autopsy.batch",
    holds="a finite batch was far above usual (as for the data as a cause), or the batches grew up to the last one",
)
def largest_of_bad_batch(case: Case) -> tuple[str, Numbers] | None:
    bad = case.bad
    if bad is None or not bad.finite or bad.largest is None:
        return None
    if bad.since is not None:
        ends = f"{number(bad.usual or 0.0)} at step {bad.since:,}, {number(bad.largest)} at step {case.step:,}"
        text = f"Largest number of {WHICH[bad.which]}: {ends}."
        return text, {"largest": bad.largest, "first": bad.usual, "step": bad.since}
    usual = f"; compared with {bad.against}" if bad.usual and bad.few else ""
    usual = f"; usual in this run: {number(bad.usual)}" if bad.usual and not bad.few else usual
    text = f"Largest number of {WHICH[bad.which]} at step {bad.step:,}: {number(bad.largest)}{usual}."
    return text, {"largest": bad.largest, "usual": bad.usual, "step": bad.step}


@sentence(
    names.BATCH_NONFINITE,
    "autopsy.batch",
    holds="whether the numbers of the fatal batch were finite is known, and no finite batch was far above usual",
)
def flag_of_batch(case: Case) -> tuple[str, Numbers] | None:
    if case.flags is None or (case.bad is not None and case.bad.finite):
        return None
    how = "held a number that is not finite" if case.flags else "held only finite numbers"
    return f"The batch of step {case.step:,} {how}.", {"batch_nonfinite": case.flags}


@sentence(
    "alerts", basis="inferred", holds="at the fatal step, every state of a layer is NaN, and every number of the batch is finite"
)
def nan_from_below(case: Case) -> tuple[str, Numbers] | None:
    if case.inherited is None or case.flags:
        return None
    text = (
        f"Every state of layer {case.inherited} is NaN and none is infinite. An overflow begins with single infinite states, "
        "so NaN came into this recurrence from elsewhere."
    )
    return text, {"layer": case.inherited}


@sentence("ssm/{layer}/boundary_distance", holds="at the fatal row, or the recorded row before, no recorded distance is below 0")
def nearest_eigenvalue(case: Case) -> tuple[str, Numbers] | None:
    worst = case.worst
    if worst is None or worst.distance < 0:
        return None
    where = eigenvalue_label(case.run, worst.layer, worst.eigenvalue)
    at = f"at distance {number(worst.distance)}" if worst.distance > 0 else "exactly on it, so it does not decay"
    begins = f"At step {worst.step:,} no recorded eigenvalue was outside the boundary{reserved(case.run)}."
    if not case.firsts:
        begins = f"No recorded eigenvalue was ever outside the boundary{reserved(case.run)}."
    text = f"{begins} The nearest at step {worst.step:,} was {where}, {at}."
    return text, {**_place(worst), "overflow_budget": worst.budget}


@sentence("ssm/{layer}/boundary_distance", holds="at the fatal row, or the recorded row before, a recorded distance is below 0")
def furthest_eigenvalue(case: Case) -> tuple[str, Numbers] | None:
    worst = case.worst
    if worst is None or worst.distance >= 0:
        return None
    where = eigenvalue_label(case.run, worst.layer, worst.eigenvalue)
    limit = number(case.run.limit_of(worst.layer))
    spent = "" if worst.budget is None else f", with an overflow budget of {number(worst.budget)} (limit {limit})"
    text = f"Furthest outside the boundary at step {worst.step:,}: {where}, at {near_one(1 - worst.distance)}{spent}."
    return text, {**_place(worst), "overflow_budget": worst.budget}


def _place(worst: eigenvalues.Worst) -> Numbers:
    return {"layer": worst.layer, "eigenvalue": worst.eigenvalue, "distance": worst.distance}


@sentence("ssm/{layer}/weight", holds="an eigenvalue weight recorded at the fatal step or the row before is 1e18 or more")
def extreme_weight(case: Case) -> tuple[str, Numbers] | None:
    one = eigenvalues.large_weight(case.run, case.source, case.step, MODERATE)
    if one is None:
        return None
    where = eigenvalue_label(case.run, one.layer, one.eigenvalue)
    text = (
        f"The weight of {where} is {number(one.weight)} at step {one.step:,}: float32 cannot square such a number and add it up."
    )
    return text, {"step": one.step, "layer": one.layer, "eigenvalue": one.eigenvalue, "weight": one.weight}


@sentence(
    "ssm/{layer}/weight", "ssm/{layer}/gate_mean", "ssm/{layer}/dt",
    holds="the decay of the worst eigenvalue is a rate times a step size or gate, and both are recorded at the start and at "
    "the end; which moved it more is said if their logarithms differ by more than 1 %",
)  # fmt: skip
def parts_of_decay(case: Case) -> tuple[str, Numbers] | None:
    moved, worst = case.decay_change, case.worst
    if moved is None or worst is None or not 0 < moved.decay < MODERATE or not min(abs(moved.weight), abs(moved.step)) > 0:
        return None
    where = eigenvalue_label(case.run, worst.layer, worst.eigenvalue)
    by_weight, by_step = (abs(math.log(abs(part))) for part in (moved.weight, moved.step))
    more = f" The {'weight' if by_weight > by_step else moved.what} moved it more."
    if math.isclose(by_weight, by_step, rel_tol=ALIKE, abs_tol=ALIKE):
        more = ""
    text = (
        f"Since step {moved.since:,}, the decay -ln|lambda_bar| of {where} has changed to {number(moved.decay)} x its value: the "
        f"rate of its weight to {number(moved.weight)} x, its {moved.what} to {number(moved.step)} x.{more}"
    )
    return text, {"decay": moved.decay, "by_weight": moved.weight, f"by_{moved.what.replace(' ', '_')}": moved.step}


@sentence("eval/loss", holds="an evaluation gave a loss that is not finite")
def evaluation_not_finite(bad: tuple[int, float] | None) -> tuple[str, Numbers] | None:
    if bad is None:
        return None
    return f"The loss of the evaluation at step {bad[0]:,} was {value_of(bad[1])}.", {"step": bad[0], "eval_loss": bad[1]}


@sentence("train.precision", basis="inferred", holds="the run computes in bfloat16")
def range_of_bfloat16(run: Run) -> str | None:
    if run.how.precision != "bfloat16":
        return None
    ours = " States and eigenvalues are float32." if run.reported is None else ""
    return (
        f"bfloat16 numbers end at 3.39e38, almost where float32 ends: rounding to them makes no infinity of a number below.{ours}"
    )


# ---- what the records cannot show ----


def limits_of_data(case: Case) -> list[Said]:
    run = case.run
    return said(autopsy_refused(run), steps_measured_again(run), steps_missing(run), only_extremes(run), batch_flag_missing(case))


@sentence("autopsy", holds="the autopsy has no result")
def autopsy_refused(run: Run) -> tuple[str, Numbers] | None:
    refused = None if run.autopsy is None else run.autopsy.get("refused")
    if not refused:
        return None
    text = f"The autopsy has no result ({str(refused).rstrip('.')}). This verdict rests on the recorded numbers."
    return text, {"limit_of_data": True}


@sentence("telemetry.every", "autopsy.replayed", holds="the run recorded every n-th step, and the autopsy measured those between")
def steps_measured_again(run: Run) -> tuple[str, Numbers] | None:
    if run.complete_from is None or run.recorded_every == 1:
        return None
    text = (
        f"Only every {ordinal(run.recorded_every)} step was recorded. The autopsy trained the steps from {run.complete_from:,} "
        "on again and measured all of them."
    )
    return text, {"limit_of_data": True}


@sentence("telemetry.every", holds="the run recorded every n-th step, and nobody measured those between")
def steps_missing(run: Run) -> tuple[str, Numbers] | None:
    if run.every == 1:
        return None
    text = f"Only every {ordinal(run.every)} step was recorded: relative steps and the exact step of a crossing are not known."
    return text, {"limit_of_data": True}


@sentence(
    "ssm/{layer}/boundary_distance_smallest", holds="a layer is so wide that only its most extreme eigenvalues are recorded"
)
def only_extremes(run: Run) -> tuple[str, Numbers] | None:
    if not any(layer.wide for layer in run.layers):
        return None
    text = (
        f"Of wide layers only the {plural(16, 'most extreme eigenvalue')} of each step are recorded; their sign, gradient and "
        "weight step are not."
    )
    return text, {"limit_of_data": True}


@sentence(names.BATCH_NONFINITE, holds="whether the fatal batch was finite was neither recorded nor measured")
def batch_flag_missing(case: Case) -> tuple[str, Numbers] | None:
    if case.flags is not None:
        return None
    return "Whether the batch was finite was not recorded.", {"limit_of_data": True}


__all__ = ["autopsied", "evaluation_not_finite", "evidence", "frozen_trial", "limits_of_data", "overflow_budget"]
