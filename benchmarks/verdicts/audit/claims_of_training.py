"""Claims about the whole training: sizes of updates, rates, decays, changes of the data and of the loss, and nothing learned."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.claims_of_batches import usual_batch
from benchmarks.verdicts.audit.claims_of_rows import end_of, rose_at, update_before
from benchmarks.verdicts.audit.numbers import N, S, read, says, step

LASTING = 3.0  # by which factor lastingly larger batches are larger at least


def _sizes_of_updates(context: Context) -> Iterator[float]:
    """The sizes of the updates before the end and before the rise, with the largest gradient of the last ones or the last."""
    end = end_of(context)
    for at in {end, end + 1, rose_at(context, end) or end}:
        size = update_before(context, at)
        if size is not None:
            yield size


@claim(
    rf"(?:The update before|The updates since step {S}) could move the weights by about {N} x their norm \(learning "
    rf"rate x (?:the "
    rf"largest norm of the last gradients(?:, clipped,?)?|the norm of the gradient|the root of the number of weights"
    rf"|the clipped norm[\w ]*)"
    rf"(?: / \(1 - momentum\))?\)"
)
@claim(rf"the update (?:between|before it) was small, about {N} x the norm of all weights")
@claim(rf"One update could change the weights by about {N} x their norm")
def the_size_of_an_update(context: Context, match: re.Match[str]) -> bool | None:
    said = match[match.lastindex or 1]
    small = "small" in match[0]
    sizes = [one for one in _sizes_of_updates(context) if math.isfinite(one)]
    if not sizes:
        return None
    right = any(says(said, one, 2.0) or abs(read(said) - one) <= 0.05 * one for one in sizes)
    return right and (not small or read(said) <= 0.1)


@claim(r"The training was already exploding then")
def already_exploding(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    rose = rose_at(context, end_of(context))
    return rose is not None and context.step is not None and context.step >= rose


@claim(rf"the whole training exploded: its loss reached {N} x its best \({N}\)")
def the_loss_reached(context: Context, match: re.Match[str]) -> bool:
    facts = context.facts
    return any(says(match[2], facts.best(s)) and says(match[1], v / facts.best(s)) for s, v in facts.finite_losses(10**9).items())


@claim(rf"The loss was {N} x its best \({N}\)")
def the_loss_was(context: Context, match: re.Match[str]) -> bool:
    last = max(context.facts.finite_losses(end_of(context) - 1))
    best = context.facts.best(last)
    return says(match[2], best) and says(match[1], context.facts.loss[last] / best)


@claim(rf"The largest number of its batch was {N}(?: \(median of the batches before: {N}\))?")
def the_largest_with_its_median(context: Context, match: re.Match[str]) -> bool:
    at = end_of(context)
    sizes = [one for one in context.facts.sizes[at] if math.isfinite(one)]
    right = says(match[1], max(sizes))
    if not match[2]:
        return right
    part = context.facts.sizes[at].index(max(sizes))
    before = [pair[part] for s, pair in context.facts.sizes.items() if s < at and math.isfinite(pair[part])]
    return right and abs(read(match[2]) - float(np.median(before))) <= 0.35 * float(np.median(before))


@claim(rf"\(median before: {N}\)")
def the_median_of_the_loss(context: Context, match: re.Match[str]) -> bool:
    named = re.search(rf"norm at step {S} was", context.whole)
    at = step(named[1]) if named else end_of(context)
    losses = [v for s, v in sorted(context.facts.finite_losses(at - 1).items())][-50:]
    return says(match[1], float(np.median(losses)), 2.0)


@claim(rf"while the loss was {N}")
def while_the_loss_was(context: Context, match: re.Match[str]) -> bool:
    named = re.search(rf"norm at step {S} was", context.whole)
    return named is not None and says(match[1], context.facts.loss[step(named[1])])


@claim(
    rf"The gradient of the first recorded step, {S}, already had the norm {N}, {N} x the norm of all weights|whose norm was {N}"
)
def the_first_gradient(context: Context, match: re.Match[str]) -> bool:
    norm = context.facts.norm
    if match[4]:
        return any(says(match[4], one) for one in norm.values())
    at = step(match[1])
    return says(match[2], norm[at]) and says(match[3], norm[at] / context.facts.weight_norm[at], 2.0)


@claim(rf"First recorded loss: {N}|Median of the last recorded losses: {N}")
def both_ends(context: Context, match: re.Match[str]) -> bool:
    losses = list(context.facts.finite_losses(10**9).values())
    if match[1]:
        return says(match[1], losses[0])
    return says(match[2], float(np.median(losses[-_tail(losses) :])))


def _tail(losses: list[float]) -> int:
    return min(10, max(1, len(losses) // 4))


@claim(
    rf"[Tt]he loss is far above its start: {N} (?:is the median of its last {S} recorded steps|at step {S})(?:, {N} "
    rf"x its first value \({N}\)|; its first value was {N})"
)
def far_above(context: Context, match: re.Match[str]) -> bool:
    losses = list(context.facts.finite_losses(10**9).values())
    rows = step(match[2]) if match[2] else 1
    end, first = float(np.median(losses[-rows:])), losses[0]
    ratio = match[4] is None or says(match[4], end / first, 1.5)
    return says(match[1], end) and says(match[5] or match[6], first) and ratio and end > 2 * first


@claim(
    rf"the model has learned nothing beyond a constant: its loss, {N} at the end and {N} at the start \(medians of {S} recorded "
    rf"steps?\), is (?:no better than|about as good as) that of the best constant prediction \({N}\)"
)
@claim(
    rf"The model has learned nothing beyond a constant: its loss, {N} at the end and {N} at the start \(medians of {S} recorded "
    rf"steps?\), is (?:no better than|about as good as) that of the best constant prediction \({N}\)"
)
def learned_nothing(context: Context, match: re.Match[str]) -> bool:
    rows, constant, known = step(match[3]), read(match[4]), context.facts.constant_loss
    recorded = [value for _, value in sorted(context.facts.loss.items())]
    finite = [value for value in recorded if math.isfinite(value)]
    ends = [float(np.nanmedian(recorded[-more:])) for more in range(rows, rows + 4)] + [float(np.median(finite[-rows:]))]
    starts = [float(np.nanmedian(recorded[:more])) for more in range(rows, rows + 4)] + [float(np.median(finite[:rows]))]
    fits = known is None or abs(constant - known) <= 0.25 * known
    right = any(says(match[1], one) for one in ends) and any(says(match[2], one) for one in starts)
    return right and read(match[1]) >= 0.96 * constant and fits


@claim(
    rf"[Tt]he loss (hardly fell|did not fall): its median was {N} over the first {S} recorded steps? and {N} over the last {S} "
    rf"recorded steps?"
)
def the_loss_did_not_fall(context: Context, match: re.Match[str]) -> bool:
    losses = list(context.facts.finite_losses(10**9).values())
    start, end = float(np.median(losses[: step(match[3])])), float(np.median(losses[-step(match[5]) :]))
    scatters = np.mean(np.array(losses[-step(match[5]) :]) >= start) >= 0.3 and end >= 0.8 * start
    return says(match[2], start) and says(match[4], end) and (end >= 0.9 * start - 1e-12 or bool(scatters))


@claim(
    rf"(?:All {S}|{S} of the {S}|[Aa]ll {S}|The only) eigenvalue weights? equals? (?:their values?|its value) of "
    rf"step {S} in every bit "
    rf"at step {S}(?:, although (?:they have gradients|it has a gradient)|: (?:their gradients are|its gradient is) exactly 0, "
    rf"so (?:they|it) never moved)"
)
def weights_did_not_move(context: Context, match: re.Match[str]) -> bool:
    still = of = 0
    for layer in context.facts.layers.values():
        if layer.weight is not None:
            still += int((layer.weight[0] == layer.weight[-1]).sum())
            of += layer.weight.shape[1]
    return still >= step(match[2] or match[1] or match[4] or "1") and 4 * still >= of


@claim(
    rf"[Tt]he data changed at step {S}: since then the largest (input|target) of each(?: of {S})? recorded "
    rf"batch(?:es)? was at least {N}; "
    rf"before, it was at most {N}"
)
def the_data_changed(context: Context, match: re.Match[str]) -> bool:
    at, part = step(match[1]), 0 if match[2] == "input" else 1
    known = [s for s in context.facts.loss if s in context.facts.sizes]
    since = [context.facts.sizes[s][part] for s in known if s >= at and math.isfinite(context.facts.sizes[s][part])]
    before = [context.facts.sizes[s][part] for s in known if s < at and math.isfinite(context.facts.sizes[s][part])]
    smallest, largest = min(since), max(before)
    return says(match[4], smallest) and says(match[5], largest) and smallest >= LASTING * largest


@claim(
    rf"[Tt]he data: from step {S} on, more than one batch is far above usual|and dies if only the batch of step {S} "
    rf"is left out"
)
def more_than_one_batch(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1] or match[2])
    return sum(usual_batch(context, s) is False for s in context.facts.sizes if s >= at) > 1


@claim(r"The run lives if every batch has its usual size")
def lives_with_usual_batches(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    trials = context.facts.findings["counterfactuals"]
    return any(one["change"] == "batches_scaled" and one["lives"] for one in trials)


@claim(rf"The data: all {S} targets of step {S} are the class that the loss leaves out|The data: all {S} targets of step {S} are")
def every_target_left_out(context: Context, match: re.Match[str]) -> bool:
    at = step(match[2] or match[4])
    task, config = context.facts.task_and_config
    y = task.batch(at, config.train.batch_size, config.train.seed, "cpu")[1]
    return bool((y == -100).all()) and y.numel() == step(match[1] or match[3])


@claim(
    rf"[Tt]he learning rate (?:jumped at step {S}, from at most|rose from at most) {N} to {N}(?:, for {S} recorded steps?)?"
    rf"(?:, and the loss rose at step {S})?"
)
def the_rate_jumped(context: Context, match: re.Match[str]) -> bool:
    lr = context.facts.lr
    if match[1]:
        before = max(v for s, v in lr.items() if s < step(match[1]))
        right = says(match[2], before) and says(match[3], lr[step(match[1])]) and lr[step(match[1])] >= 2 * before
        return right and (match[5] is None or step(match[5]) in context.facts.loss)
    return any(says(match[2], v) for v in lr.values()) and any(says(match[3], v) for v in lr.values())


@claim(
    rf"The optimizer itself multiplies (?:all|the eigenvalue) weights(?: of layer \d+)? by {N} in each step, because the "
    rf"(?:learning|recurrent) rate times the weight decay is {N}"
)
def the_optimizer_multiplies(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]
    lr = max(context.facts.lr.values())
    products = [lr * own["weight_decay"], lr * (own.get("recurrent_lr") or own["lr"]) / own["lr"] * own["recurrent_weight_decay"]]
    return any(says(match[2], one) and says(match[1], 1 - one) for one in products)


@claim(
    rf"Each step multiplied the eigenvalue weights of layer {S} by (?:the same factor, "
    rf")?{N}(?: in each step|, as a "
    rf"weight decay does)?"
)
def the_weights_were_multiplied(context: Context, match: re.Match[str]) -> bool:
    weight = context.facts.layers[step(match[1])].weight
    assert weight is not None
    with np.errstate(all="ignore"):
        factors = weight[1:] / weight[:-1]
    return any(
        abs(float(np.nanmedian(row)) - read(match[2])) <= 0.1 * abs(read(match[2])) for row in factors if np.isfinite(row).any()
    )


@claim(rf"[Tt]heir norm (?:rose|went) from {N} at step {S} to {N} at step {S}(?:, by {N} x [\w ]*)?")
def their_norm_rose(context: Context, match: re.Match[str]) -> bool:
    norms = [context.facts.weight_norm]
    for layer in context.facts.layers.values():
        if layer.weight is not None:
            with np.errstate(all="ignore"):
                size = np.sqrt((layer.weight.astype(np.float64) ** 2).sum(axis=1))
            norms.append(dict(zip(layer.step.tolist(), size.tolist(), strict=True)))
    began, ends = step(match[2]), step(match[4])
    return any(says(match[1], one.get(began, math.nan), 1.5) and says(match[3], one.get(ends, math.nan), 1.5) for one in norms)


@claim(
    rf"The loss function changed at step {S}: the loss went from {N} to {N}, while the ([\w ]+) of the same outputs "
    rf"and targets went "
    rf"from {N} to {N}"
)
def the_loss_function_changed(context: Context, match: re.Match[str]) -> bool:
    loss, at = context.facts.loss, step(match[1])
    before = max(s for s in loss if s < at)
    right = says(match[2], loss[before], 2.0) and says(match[3], loss[at], 2.0)
    return right and bool({"changed_loss", "bad_loss"} & set(context.truth.causes))


@claim(
    rf"Asked twice about the outputs of step {S}, the loss function gave [\w.,-]+ and [\w.,-]+, so it keeps a state "
    rf"or draws random "
    rf"numbers|The task or its loss function keeps a hidden state: asked again for the loss of step {S}, with the "
    rf"same outputs and "
    rf"targets, it answered [\w.,+-]+ instead of [\w.,+-]*\w"
)
def it_keeps_a_state(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return context.facts.task_keeps_a_state  # type: ignore[no-any-return]


@claim(
    rf"The loss fell without a bound: from {N} at step {S} to {N} at step {S}, more in each (?:recorded )?step"
    rf"|Training follows a loss "
    rf"that falls without a bound until numbers overflow"
)
def the_loss_fell(context: Context, match: re.Match[str]) -> bool:
    if not match[1]:
        return True
    loss, began, ends = context.facts.loss, step(match[2]), step(match[4])
    falls = np.diff([v for s, v in sorted(loss.items()) if began <= s <= ends])
    return says(match[1], loss[began]) and says(match[3], loss[ends]) and bool((falls < 0).all())


@claim(rf"The loss rose, too: at step {S} it was {N} x its best \({N}\)(?:, and at step {S} it was {N})?")
def the_loss_rose_too(context: Context, match: re.Match[str]) -> bool:
    loss, at = context.facts.loss, step(match[1])
    best = context.facts.best(at)
    return says(match[3], best) and says(match[2], loss[at] / best) and (not match[4] or says(match[5], loss[step(match[4])]))


@claim(rf"By then the loss was {N} x its best \({N}\)")
def by_then(context: Context, match: re.Match[str]) -> bool:
    rows = context.facts.finite_losses(end_of(context))
    return any(says(match[2], context.facts.best(s)) and says(match[1], v / context.facts.best(s)) for s, v in rows.items())


@claim(
    r"clipping bounds what the loss of step \d[\d,]* can do, until the loss function is right|The task or its loss "
    r"may keep a state"
)
def advice_about_the_loss(context: Context, match: re.Match[str]) -> bool:
    return match[0].startswith("clipping") or context.facts.task_keeps_a_state


@claim(r"and the mean over no targets is 0 / 0")
def mean_of_nothing(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(rf"(?:At step {S}, )?the last recorded one before|At the recorded step before, {S}")
def the_row_before(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1] or match[2]) if match[1] or match[2] else None
    return at is None or at == max(s for s in context.facts.finite_losses(end_of(context) - 1))


@claim(rf"The loss rose, too: at step {S} it was its best so far(?:, and at step {S} it was {N})?")
def it_rose_from_its_best(context: Context, match: re.Match[str]) -> bool:
    loss = context.facts.loss
    return loss[step(match[1])] <= context.facts.best(step(match[1])) and (not match[2] or says(match[3], loss[step(match[2])]))


@claim(rf"^It rose at step {S}")
def it_rose_at(context: Context, match: re.Match[str]) -> bool:
    return rose_at(context, end_of(context)) == step(match[1])


@claim(rf"The squares of {S} such numbers, added, exceed float32")
def the_squares(context: Context, match: re.Match[str]) -> bool:
    named = re.search(rf"they reached {N}", str(context.verdict["summary"]))
    return named is not None and step(match[1]) * read(named[1]) ** 2 > 3.2e38


@claim(rf"at or above the limit of {N}")
def above_the_limit(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return read(match[1]) in (0.5, 1.0)
