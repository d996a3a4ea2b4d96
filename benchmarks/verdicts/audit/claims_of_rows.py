"""Claims about recorded scalars: loss, gradient norm, learning rate, sizes of batches, evaluations."""

from __future__ import annotations

import math
import re

import numpy as np

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, says, step

CALM, ROSE = 3.0, 10.0
NOTHING = r"(?:infinite|NaN|no longer finite|not finite|minus infinite)"


def rose_at(context: Context, end: int) -> int | None:
    """The first of the last rows before `end` whose losses are all at least ROSE times the best loss so far."""
    rows = sorted(context.facts.finite_losses(end - 1).items())
    best, found = math.inf, None
    for s, value in rows:
        best = min(best, value)
        if best <= 0:
            return None
        found = (found or s) if value >= ROSE * best else None
    return found


def _last_row(context: Context, before: int | None = None) -> int:
    end = before or context.facts.died_at or 10**9
    rows = [s for s in context.facts.finite_losses(10**9) if s < end or context.facts.died_at is None]
    return max(rows)  # type: ignore[no-any-return]


def end_of(context: Context) -> int:
    return context.facts.died_at or context.facts.last + 1  # type: ignore[no-any-return]


def _times(context: Context, at: int, said: str, best: str) -> bool:
    facts = context.facts
    lowest = facts.best(at)
    return says(best, lowest) and says(said, facts.loss[at] / lowest)


def context_step(context: Context, match: re.Match[str]) -> int:
    """The step that the words before a claim name; else the last row with a finite loss."""
    named = re.findall(rf"(?:step|[Aa]t) {S}", match.string[: match.start()])
    steps = [step(one) for one in named if step(one) in context.facts.loss]
    if "one step earlier" in match.string[: match.start()]:
        return end_of(context) - 1
    return int(steps[-1] if steps else _last_row(context))


@claim(
    rf"[Tt]he loss gave no warning: one step earlier it was (?:only )?(?:{N} x its best \({N}\)|its best so far"
    rf"|about its best \({N}\))"
)
def the_loss_gave_no_warning(context: Context, match: re.Match[str]) -> bool:
    at, facts = end_of(context) - 1, context.facts
    ratio = facts.loss[at] / facts.best(at)
    if match[1]:
        return says(match[1], ratio) and says(match[2], facts.best(at)) and ratio < CALM
    return (says(match[3], facts.best(at)) and ratio < 1.01) if match[3] else ratio == 1


@claim(rf"{N} x its best \({N}\)")
def times_its_best(context: Context, match: re.Match[str]) -> bool:
    return _times(context, context_step(context, match), match[1], match[2])


@claim(rf"about its best \({N}\)")
def about_its_best(context: Context, match: re.Match[str]) -> bool:
    at = context_step(context, match)
    return says(match[1], context.facts.best(at)) and context.facts.loss[at] / context.facts.best(at) < 1.01


@claim(rf"{N} \(its best was {N}\)")
def with_its_best(context: Context, match: re.Match[str]) -> bool:
    at = context_step(context, match)
    return says(match[1], context.facts.loss[at]) and says(match[2], context.facts.best(at))


@claim(r"its best so far")
def best_so_far(context: Context, match: re.Match[str]) -> bool:
    at = context_step(context, match)
    return bool(context.facts.loss[at] <= context.facts.best(at))


@claim(rf"of step {S}(?=\.|,)")
def the_step_of_the_best(context: Context, match: re.Match[str]) -> bool | None:
    if "its best" not in match.string:
        return None
    at = step(match[1])
    return bool(context.facts.loss[at] == context.facts.best(_last_row(context)))


@claim(rf"(?:the|The) (?:whole )?training (?:was exploding|exploded)(?: from step {S} on)?")
def the_training_exploded(context: Context, match: re.Match[str]) -> bool:
    end, rose = end_of(context), rose_at(context, end_of(context))
    last = context.facts.finite_losses(end - 1)
    risen = bool(last) and max(last.values()) > 0 and last[max(last)] >= ROSE * min(last.values())
    if match[1] is None:
        return risen or min(last.values()) <= 0  # type: ignore[no-any-return]
    return step(match[1]) == rose or (min(last.values()) <= 0 and last[step(match[1])] > min(last.values()))


@claim(rf"[Ll]oss at (?:recorded )?step {S}: {N}")
def the_loss_at_a_step(context: Context, match: re.Match[str]) -> bool:
    return says(match[2], context.facts.loss[step(match[1])])


@claim(rf"[Ll]oss {N} at step {S}; best {N} at step {S}")
def loss_and_best(context: Context, match: re.Match[str]) -> bool:
    loss = context.facts.loss
    return (
        says(match[1], loss[step(match[2])])
        and says(match[3], loss[step(match[4])])
        and says(match[3], context.facts.best(10**9))
    )


@claim(rf"the loss of (?:step {S}|this step)(?:,)? (?:was )?{N}(?:,)?(?: is finite)?")
def the_loss_of_a_step(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1]) if match[1] else end_of(context)
    return says(match[2], context.facts.loss[at])


@claim(rf"It passed 10 x its best at (?:recorded )?step {S}|The loss passed 10 x its best \({N}\)")
def passed_ten_times_its_best(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1]) if match[1] else int(context.step or 0)
    rows = context.facts.finite_losses(at)
    best = min(rows.values())
    return rose_at(context, end_of(context)) == at and (match[2] is None or says(match[2], best))


@claim(rf"(?:The loss )?(?:rose|jumped)(?: in one step,)? (?:from|between) {N} to {N} at step {S}")
def jumped(context: Context, match: re.Match[str]) -> bool:
    loss, at = context.facts.loss, step(match[3])
    before = max(s for s in loss if s < at)
    return says(match[1], loss[before]) and says(match[2], loss[at])


@claim(rf"Between the recorded steps {S} and {S} the loss rose from {N} to {N}")
def rose_between(context: Context, match: re.Match[str]) -> bool:
    loss = context.facts.loss
    return says(match[3], loss[step(match[1])]) and says(match[4], loss[step(match[2])])


@claim(r"(?:although|and) the (?:update|updates) before (?:it )?(?:was|were) small|the updates were small")
def the_update_was_small(context: Context, match: re.Match[str]) -> bool | None:
    at = context_step(context, match)
    size = update_before(context, at)
    return None if size is None else size <= 0.1


def update_before(context: Context, at: int) -> float | None:
    """The size of the update before this step relative to the norm of all weights, as the optimizer allows it at most."""
    facts, own = context.facts, context.facts.config["optimizer"]
    rows = sorted(s for s in facts.lr if s < at)
    if not rows:
        return None
    last, gap = rows[-1], at - rows[-1]
    if own["name"] == "adamw":
        return float(gap * facts.lr[last] * math.sqrt(facts.parameters) / facts.weight_norm[last])
    norms = [facts.norm[s] for s in rows[-21:] if math.isfinite(facts.norm[s])]
    norm = min(max(norms, default=math.nan), own.get("grad_clip") or math.inf)
    return float(gap * facts.lr[last] * norm / (1 - own.get("momentum", 0.0)) / facts.weight_norm[last])


@claim(
    rf"(?:The update before|The updates since the last recorded step, {S} steps earlier,) could move the weights by "
    rf"at most about "
    rf"{N} x their norm \(learning rate x (?:the norm of the gradient|the root of the number of weights)\)"
)
def the_update_could_move(context: Context, match: re.Match[str]) -> bool | None:
    sizes = [update_before(context, at) for at in (end_of(context), rose_at(context, end_of(context)) or end_of(context))]
    known = [size for size in sizes if size is not None]
    return any(says(match[2], size, 2.0) for size in known) if known else None


@claim(rf"One update could change the weights by {N} x their norm")
def one_update_could_change(context: Context, match: re.Match[str]) -> bool | None:
    size = update_before(context, end_of(context))
    return None if size is None else says(match[1], size, 2.0)


@claim(rf"Norm of the whole gradient at (?:recorded )?step {S}: {N}, {N} x its size at (?:recorded )?step {S}")
def the_gradient_grew(context: Context, match: re.Match[str]) -> bool:
    norm = context.facts.norm
    now, then = norm[step(match[1])], norm[step(match[4])]
    return says(match[2], now) and says(match[3], now / then)


@claim(
    rf"(?:[Tt]he|[Ii]ts) norm (?:of the whole gradient |at step {S} )?was {N}, {N} x (its median before|the norm of all weights)"
    rf"(?:, at a usual loss of {N})?"
)
def a_kick(context: Context, match: re.Match[str]) -> bool:
    facts = context.facts
    at = step(match[1]) if match[1] else int(context.step or 0)
    usual = facts.weight_norm[at]
    if match[4] == "its median before":
        usual = float(np.nanmedian([facts.norm[s] for s in sorted(facts.norm) if s < at][-20:]))
    right = says(match[2], facts.norm[at]) and says(match[3], facts.norm[at] / usual)
    return right and (match[5] is None or (says(match[5], facts.loss[at]) and usual_loss(context, at)))


def usual_loss(context: Context, at: int) -> bool:
    """Whether the loss of this step was usual: below 3 times the median of the 50 rows before. In the first row nothing is."""
    before = [v for s, v in sorted(context.facts.finite_losses(at - 1).items())][-50:]
    if not before:
        return False
    level = float(np.median(before))
    scale = max(abs(level), 1.4826 * float(np.median(np.abs(np.array(before) - level))))
    return bool(context.facts.loss[at] <= level + (CALM - 1) * scale)


@claim(rf"[Tt]he (?:loss of the evaluation|evaluation's loss)(?: at step {S})? (?:is|was) (NaN|infinite|not finite)")
def the_evaluation(context: Context, match: re.Match[str]) -> bool:
    value = context.facts.evaluations[step(match[1]) if match[1] else int(context.step or 0)]
    return math.isnan(value) if match[2] == "NaN" else math.isinf(value) if match[2] == "infinite" else not math.isfinite(value)


@claim(r"although every number of the training is finite")
def the_training_is_finite(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    facts = context.facts
    return all(math.isfinite(v) for part in (facts.loss, facts.norm) for v in part.values())


@claim(
    rf"[Tt]he loss is far above its start: {N} at step {S}, {N} x its start \({N}\)|[Tt]he loss is far above its "
    rf"start: {N} at step {S}; it started at {N}"
)
def far_above_its_start(context: Context, match: re.Match[str]) -> bool:
    loss = context.facts.loss
    every = int(context.facts.config.get("telemetry", {}).get("every", 1))
    now, at, start = (match[1], match[2], match[4]) if match[1] else (match[5], match[6], match[7])
    rows = min(10, max(1, ((step(at) - 1) // every + 1) // 4))
    end = float(np.median([loss[s] for s in sorted(loss) if s <= step(at)][-rows:]))
    first = loss[min(loss)]
    return says(now, end) and says(start, first) and end > first and (match[3] is None or says(match[3], end / first))


@claim(rf"learning rate x weight decay is {N}, so each step multiplied the weights by {N}")
def the_decay_multiplies(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]
    product = max(context.facts.lr.values()) * own["weight_decay"]
    return says(match[1], product) and says(match[2], 1 - product)


@claim(rf"[Tt]he learning rate {N} is far too large")
def the_rate_is_too_large(context: Context, match: re.Match[str]) -> bool:
    return says(match[1], context.facts.lr[min(context.facts.lr)]) and "lr_too_large" in context.truth.causes


@claim(rf"in step {S} of the training")
def in_that_step_of_the_training(context: Context, match: re.Match[str]) -> bool:
    return step(match[1]) == end_of(context)


@claim(r"(?:No update had been made before)")
def no_update_before(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return end_of(context) == 1


@claim(
    rf"(?:[Tt]he loss|[\w.\[\]]+)(?: at (?:eigenvalue {S} of )?layer {S}(?: \([\w.]+\))?)? (?:was no longer finite"
    rf"|stopped being finite|became (?:NaN|-?Infinity|not finite|infinite|nan|-?inf))"
)
def stopped_being_finite(context: Context, match: re.Match[str]) -> bool:
    facts = context.facts
    after = re.match(rf" at step {S}", match.string[match.end() :])
    if after and match[0].lower().startswith("the loss") and step(after[1]) in facts.loss:
        return not math.isfinite(facts.loss[step(after[1])])
    named, tensor = match[0].split(" ")[0], facts.tensor or "loss"
    if facts.died_at is None:
        return False
    return tensor in (named, "loss", "gradient", "weight") or ("loss" in match[0] and tensor in ("", "loss"))


@claim(rf"(?:[Aa]t|of|in) step {S}(?=[,. ]|$)")
def a_step(context: Context, match: re.Match[str]) -> bool:
    return 0 <= step(match[1]) <= max(context.facts.last, context.facts.died_at or 0)  # type: ignore[no-any-return]
