"""Claims that quote the autopsy. Trials are trained again by the audit, the float64 loss is computed again; what only instruments
can see is compared with the autopsy's own findings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, read, says, step
from benchmarks.verdicts.families.moments import is_active

SLACK = 3  # steps by which a fork may die earlier or later than the trial, because rounding differs
OF_WORDS = {
    "with the recurrence frozen": "recurrence_frozen", "with a tenth of the learning rate": "tenth_of_rate",
    "with another map": "other_map", "without the batch": "batch_left_out", "unchanged": "unchanged",
    "with every batch scaled to its usual size": "batches_scaled", "without weight decay": "no_weight_decay",
    "with a norm that scales its input before it squares": "scaled_norm",
    "with the learning rate that was usual before": "usual_rate",
}  # fmt: skip


def _trial(context: Context, words: str) -> Mapping[str, Any] | None:
    change = next((change for said, change in OF_WORDS.items() if said in words), None)
    return next((one for one in context.facts.findings.get("counterfactuals") or () if one["change"] == change), None)


def _as_trained(context: Context, one: Mapping[str, Any], lives: bool, at: int) -> bool | None:
    """Whether the trial ends as a fork does that the audit trains."""
    if one["lives"] != lives or int(one["step"]) != at:
        return False
    if not one["settings"] and one["change"] != "unchanged":
        return True
    if one.get("comparable") is False and context.where != "summary":
        return True  # what was measured, and what the verdict does not use
    again = context.facts.fork(one["settings"], int(one["from_step"]), int(one["until"]))
    if again is None:
        return True
    return again[0] == lives and (lives or abs(again[1] - at) <= SLACK)


def _faulty(context: Context, at: int) -> bool:
    """Whether the planted fault is active in this step."""
    config = context.facts.config
    for section in (config["task"], config["model"].get("layer")):
        if isinstance(section, Mapping) and section.get("fault", "none") != "none":
            return is_active(section["how"], at, section["at"], section["period"])
    return bool(config["task"].get("step") == at)


@claim(
    rf"[Tt]rained again from step {S} ([\w ]+?), the run (lives to|dies too, at|dies earlier, at|dies later, at|dies at) step {S}"
)
def a_trial(context: Context, match: re.Match[str]) -> bool | None:
    one = _trial(context, match[2])
    if one is None or int(one["from_step"]) != step(match[1]):
        return False if one is not None else None
    return _as_trained(context, one, match[3] == "lives to", step(match[4]))


@claim(rf"tried(?: as a test)?: from step {S} the run lives to step {S} with this change; it died at step {S}")
def tried(context: Context, match: re.Match[str]) -> bool | None:
    settings = context.item.get("change")
    for one in context.facts.findings.get("counterfactuals") or ():
        if one["settings"] == settings and one["lives"]:
            right = int(one["from_step"]) == step(match[1]) and int(one["step"]) == step(match[2])
            return (
                right and step(match[3]) == context.facts.died_at and _as_trained(context, one, True, step(match[2])) is not False
            )
    return False


@claim(r"a tenth of the rate was tried and died too")
def a_tenth_died(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return any(one["change"] == "tenth_of_rate" and one["lives"] is False for one in context.facts.findings["counterfactuals"])


@claim(rf"In float64, (?:the same )?step(?: {S})? is finite: its loss is {N}|in float64 the same step is finite, with loss {N}")
def finite_in_float64(context: Context, match: re.Match[str]) -> bool | None:
    said = match[2] or match[3]
    at = step(match[1]) if match[1] else int(context.facts.died_at or 0)
    repeat = context.facts.findings["float64"]
    own = context.facts.float64_loss(at)
    if own is not None and math.isfinite(own):
        return bool(repeat["finite"]) and (says(said, own, 3.0) or abs(float(repeat["loss"]) - own) <= 1e-3 * abs(own))
    return bool(repeat["finite"]) and says(said, float(repeat["loss"]))


@claim(rf"(?:In float64, step {S} is not finite either)")
def not_finite_in_float64(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.float64_loss(step(match[1]))
    return not context.facts.findings["float64"]["finite"] and (own is None or not math.isfinite(own) or own > 0)


@claim(rf"(?:and its largest number|and the largest result of a module|No result of a module exceeds) {N}(?: there)?")
def the_largest_result(context: Context, match: re.Match[str]) -> bool:
    findings = context.facts.findings
    known = [float(one["largest_float64"]) for one in findings["modules"] if one.get("largest_float64") is not None]
    known += [float(one["largest"]) for one in findings["modules"] if one.get("largest") is not None]
    return any(says(match[1], one) for one in [*known, float(findings["float64"]["largest"])])


@claim(
    rf"The first number that is not finite at step {S} is (NaN|Infinity|-Infinity), made by ([\w.:]*\w)(?: in ([\w.]*\w))? "
    rf"\(([\w' ]+)\)(?:, from numbers up to {N})?"
)
def the_first_nonfinite(context: Context, match: re.Match[str]) -> bool:
    first = context.facts.findings["first_nonfinite"]
    right = step(match[1]) == context.facts.died_at and match[2] == first["value"] and match[3] == first["operation"]
    return right and (match[6] is None or says(match[6], float(first["largest_input"])))


@claim(rf"The largest number before was {N}")
def the_largest_before(context: Context, match: re.Match[str]) -> bool:
    return says(match[1], float(context.facts.findings["first_nonfinite"]["largest_before"]))


@claim(rf"made the first number that is not finite, at step {S}: (NaN|Infinity|-Infinity) in ([\w.:]*\w)")
def made_the_first_nonfinite(context: Context, match: re.Match[str]) -> bool:
    first = context.facts.findings["first_nonfinite"]
    return step(match[1]) == context.facts.died_at and match[2] == first["value"] and match[3] == first["operation"]  # type: ignore[no-any-return]


@claim(
    rf"(?:In float64, the|The) gradient of step {S} (agrees with|disagrees with|may differ from) the loss: its norm "
    rf"is {N}, and (?:a small "
    rf"step along it changes the loss by|the loss changes by) {N} per unit of distance(?: along it)?"
)
def the_gradient_agrees(context: Context, match: re.Match[str]) -> bool:
    found, at = context.facts.findings["gradient"], step(match[1])
    right = says(match[3], float(found["norm"])) and says(match[4], float(found["slope"]))
    wrong = "wrong_gradient" in context.truth.causes and _faulty(context, at)
    if match[2] == "agrees with":
        recorded = context.facts.norm.get(at, math.nan)
        told = "The run recorded the norm" in context.whole
        same = told or not math.isfinite(recorded) or abs(recorded - float(found["norm"])) <= 0.1 * recorded
        return right and not wrong and same
    return right and (match[2] == "may differ from" or wrong)


@claim(rf"The run recorded the norm {N}")
def the_run_recorded_the_norm(context: Context, match: re.Match[str]) -> bool:
    return any(says(match[1], one) for one in context.facts.norm.values())


@claim(
    rf"Whether the gradient of step {S}, with norm {N}, is right could not be measured: the slopes of the loss over "
    rf"different distances "
    rf"along it disagree, or rounding hides them"
)
def the_gradient_is_not_proved(context: Context, match: re.Match[str]) -> bool:
    found = context.facts.findings["gradient"]
    return not found["converged"] and step(match[1]) == found["step"] and says(match[2], float(found["norm"]))


@claim(
    rf"[Tt]he backward pass(?: of [\w' .]+?)? gave a wrong gradient at step {S}: its norm is {N}, but (?:without these "
    rf"kernels it is {N}, and "
    rf")?along it the loss changes (?:only )?by {N} per unit of distance"
)
def the_loss_changes_less(context: Context, match: re.Match[str]) -> bool:
    found = context.facts.findings["gradient"]
    norms = [float(found[kind]) for kind in ("norm", "recorded", "repeated") if found.get(kind) is not None]
    slope = abs(float(found["slope"]))
    planted = "wrong_gradient" in context.truth.causes and _faulty(context, step(match[1]))
    return planted and any(says(match[2], one) for one in norms) and says(match[4].lstrip("-"), slope, 1.5)


@claim(r"In evaluation mode, norm and slope agree")
def right_in_evaluation(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return context.facts.findings["gradient"].get("differs") == "training_mode"  # type: ignore[no-any-return]


@claim(
    rf"[Tt]he backward pass of ([\w.]+) made the first number that is not finite, at step {S}: (NaN|Infinity"
    rf"|-Infinity) in ([\w.:]*\w)"
)
def the_backward_pass_of(context: Context, match: re.Match[str]) -> bool:
    first = context.facts.findings["first_nonfinite"]
    blamed = bool({"wrong_gradient", "bad_loss"} & set(context.truth.causes))
    return blamed and match[1] == first["module"] and match[3] == first["value"] and match[4] == first["operation"]


@claim(
    rf"The model's forward pass made the first number that is not finite, at step {S}: ([\w.:]*\w) in ([\w.' ]+?) gave "
    rf"(NaN|Infinity|-Infinity)(?: from numbers up to {N})?"
)
def the_forward_pass_made_it(context: Context, match: re.Match[str]) -> bool:
    first = context.facts.findings["first_nonfinite"]
    blamed = bool({"model_forward", "precision", "not_its_form", "arithmetic"} & set(context.truth.causes))
    right = step(match[1]) == context.facts.died_at and match[2] == first["operation"] and match[4] == first["value"]
    return blamed and right and (match[5] is None or says(match[5], float(first["largest_input"])))


@claim(r"In float64 the same operation fails, so its argument is at fault and not the precision")
def it_fails_in_float64(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    repeat, first = context.facts.findings["float64"], context.facts.findings["first_nonfinite"]
    same = (repeat["first_nonfinite"] or {}).get("operation") == first["operation"]
    return not repeat["finite"] and same and context.truth.causes != {"precision"}


@claim(rf"from numbers up to {N}(?=\.|, )|The loss itself was finite: {N}")
def from_numbers(context: Context, match: re.Match[str]) -> bool:
    if match[2]:
        return says(match[2], context.facts.loss[int(context.facts.died_at or 0)])
    return says(match[1], float(context.facts.findings["first_nonfinite"]["largest_input"]))


@claim(
    rf"Layer {S} does not compute its recorded form: with the weights of step {S}, an eigenvalue differs from the "
    rf"recorded one by {N} x its "
    rf"size|What is recorded as its eigenvalues is not what the layer does"
)
def not_its_form(context: Context, match: re.Match[str]) -> bool:
    if "not_its_form" in context.truth.causes or not match[1]:
        return match[1] is not None or "not_its_form" in context.truth.causes or _departs(context)
    return context.facts.form_error(step(match[1]), step(match[2])) > 0.005  # type: ignore[no-any-return]


def _departs(context: Context) -> bool:
    named = re.search(
        rf"Layer {S} does not compute its recorded form: with the weights of step {S}", str(context.verdict["summary"])
    )
    return named is not None and context.facts.form_error(step(named[1]), step(named[2])) > 0.005


@claim(rf"No result of a module exceeds {N} there, so float32 could hold each of them and its square")
def no_result_exceeds(context: Context, match: re.Match[str]) -> bool:
    modules = context.facts.findings["modules"]
    largest = [float(one["largest_float64"]) for one in modules if one.get("largest_float64") is not None]
    return says(match[1], max(largest)) and read(match[1]) ** 2 < 3.4e38


@claim(
    rf"at step {S}, ([\w.:]*\w)(?: (?:of|in) ([\w.]*\w))? \((?:forward pass|loss function|backward pass|optimizer's "
    rf"update)\) gave "
    rf"(NaN|Infinity|-Infinity)(?: in float16, from numbers up to {N})?"
)
def it_gave(context: Context, match: re.Match[str]) -> bool:
    first = context.facts.findings["first_nonfinite"]
    half = match[5] is None or (str(first.get("dtype")) == "float16" and says(match[5], float(first["largest_input"])))
    return step(match[1]) == context.facts.died_at and match[2] == first["operation"] and match[4] == first["value"] and half


@claim(rf"and its largest number more than {N}")
def a_bound(context: Context, match: re.Match[str]) -> bool:
    return float(context.facts.findings["float64"]["largest"]) >= read(match[1])


@claim(r"The trials cannot be compared with the run, so they say nothing about its cause: .*")
def trials_say_nothing(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    trials = context.facts.findings["counterfactuals"]
    return any(one.get("comparable") is False for one in trials)


@claim(r"The batch and the outputs of the model were finite and ordinary(?:, and so was the loss)?")
def ordinary(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    causes = set(context.truth.causes)
    return not causes & {"bad_input", "changed_data", "model_forward", "explosion", "eigenvalue_overflow"}


@claim(rf"The autopsy trained the steps from {S} on again and measured all of them")
def trained_again(context: Context, match: re.Match[str]) -> bool:
    return bool(context.facts.findings["replayed"]["steps"][0] <= step(match[1]))


@claim(
    rf"Trained again from the same state, the unchanged run dies at step {S}, not at step {S}|Its batches and random "
    rf"numbers were the same, "
    rf"so its loss function or its model keeps a state that no checkpoint holds|The loss keeps a state|The autopsy "
    rf"has no result \(.*\)"
)
def the_control_differs(context: Context, match: re.Match[str]) -> bool:
    if match[1]:
        return step(match[1]) != context.facts.died_at and step(match[2]) == context.facts.died_at  # type: ignore[no-any-return]
    return "The autopsy" in match[0] or context.facts.task_keeps_a_state


@claim(
    rf"The learning rate times the weight decay is {N}, so the optimizer multiplies weights by {N} in each step, and "
    rf"without weight decay the "
    rf"run lives"
)
def lives_without_decay(context: Context, match: re.Match[str]) -> bool:
    trials = context.facts.findings["counterfactuals"]
    own, rate = context.facts.config["optimizer"], max(context.facts.lr.values())
    recurrent = rate * (own.get("recurrent_lr") or own["lr"]) / own["lr"]
    products = (rate * own["weight_decay"], recurrent * (own.get("recurrent_weight_decay") or 0.0))
    return any(says(match[1], product) for product in products) and any(
        one["change"] == "no_weight_decay" and one["lives"] for one in trials
    )
