"""Claims about batches: what they held, how large their numbers were, and whether they were usual."""

from __future__ import annotations

import math
import re

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.claims_of_rows import context_step, end_of, usual_loss
from benchmarks.verdicts.audit.numbers import N, S, read, says, step


def usual_batch(context: Context, at: int) -> bool | None:
    """Whether the batch was usual. Classes and tokens have no size, so the classes are looked at: not one may be ignored."""
    sizes, known = context.facts.sizes[at], False
    for part in (0, 1):
        usual = context.facts.usual_size(at, part)
        if math.isfinite(usual):
            known = True
            if not usual / 10 <= sizes[part] <= 10 * usual:
                return False
    causes = context.truth.causes
    if {"bad_input", "changed_data"} & set(causes) and context.truth.step in (None, at):
        return False
    return True if known else None


@claim(rf"[Tt]he loss and the batch of (?:this step|step {S}) were usual")
def loss_and_batch_were_usual(context: Context, match: re.Match[str]) -> bool | None:
    at = step(match[1]) if match[1] else context_step(context, match)
    named = re.search(rf"at step {S}", context.whole)
    at = step(named[1]) if named and not match[1] else at
    return usual_loss(context, at) and usual_batch(context, at)


@claim(r"Until then the loss was usual")
def the_loss_was_usual(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    rows = sorted(context.facts.finite_losses(end_of(context) - 1))
    return usual_loss(context, rows[-1]) if len(rows) > 1 else True


@claim(
    rf"the largest number of its batch was {N}(, usual in this run)?|The largest number of its batch was {N}(, usual "
    rf"in this run)?"
)
def the_largest_of_its_batch(context: Context, match: re.Match[str]) -> bool | None:
    at = end_of(context)
    known = [one for one in context.facts.sizes[at] if math.isfinite(one)]
    right = says(match[1] or match[3], max(known))
    return right and (usual_batch(context, at) is not False if match[2] or match[4] else True)


@claim(rf"[Tt]he batch of step {S} is far above usual\. Its largest (input|target) is {N}, {N} x the usual {N}")
def a_far_batch(context: Context, match: re.Match[str]) -> bool:
    at, part = step(match[1]), 0 if match[2] == "input" else 1
    size, usual = context.facts.sizes[at][part], context.facts.usual_size(at, part)
    return says(match[3], size) and _roughly(read(match[5]), usual) and says(match[4], size / read(match[5]), 3.0)


@claim(rf"[Ii]ts largest (input|target) is {N}, {N} x the median of the other recorded batches, {N}")
@claim(rf"[Tt]he largest number of the (input|target) was {N}, {N} x the median of the other recorded batches, {N}")
def far_above_the_other_batches(context: Context, match: re.Match[str]) -> bool:
    part = 1 if match[1] == "target" else 0
    known = _was_recorded(context, match[2], part) and _among_recorded(context, match[4], part)
    return known and says(match[3], read(match[2]) / read(match[4]), 3.0)


@claim(rf"Largest number of the (input|target) at step {S}: {N}; compared with the median of the other recorded batches, {N}")
def compared_with_the_other_batches(context: Context, match: re.Match[str]) -> bool:
    part = 1 if match[1] == "target" else 0
    return _was_recorded(context, match[3], part) and _among_recorded(context, match[4], part)


def _was_recorded(context: Context, said: str, part: int) -> bool:
    return any(says(said, pair[part]) for pair in context.facts.sizes.values())


def _among_recorded(context: Context, said: str, part: int) -> bool:
    """Whether the number lies among the sizes of the batches, which a recording of every n-th step knows in part."""
    sizes = [pair[part] for pair in context.facts.sizes.values() if math.isfinite(pair[part])]
    return any(says(said, size) for size in sizes) or min(sizes) <= read(said) <= max(sizes)


@claim(rf"Its largest (input|target) is {N}, {N} x the usual {N}")
def the_largest_of_a_far_batch(context: Context, match: re.Match[str]) -> bool | None:
    named = re.search(rf"the batch of step {S} is far above usual", context.whole)
    if named is None:
        return None
    at, part = step(named[1]), 0 if match[1] == "input" else 1
    size, usual = context.facts.sizes[at][part], context.facts.usual_size(at, part)
    return says(match[2], size) and _roughly(read(match[4]), usual) and says(match[3], size / read(match[4]), 3.0)


@claim(rf"[Tt]he batch of step {S} is far above usual")
def the_batch_is_far_above_usual(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1])
    pairs = zip(context.facts.sizes[at], (context.facts.usual_size(at, part) for part in (0, 1)), strict=True)
    return any(size >= 3 * usual for size, usual in pairs if math.isfinite(usual))


def _roughly(said: float, usual: float) -> bool:
    """Whether a stated usual size is about the median, which depends on the rows that were looked at."""
    return 0.4 * usual <= said <= 2.5 * usual


@claim(rf"Largest number of (the input|the target|input and target) at step {S}: {N}; usual in this run: {N}")
def a_recorded_far_batch(context: Context, match: re.Match[str]) -> bool:
    part = 1 if match[1] == "the target" else 0
    at = step(match[2])
    return says(match[3], context.facts.sizes[at][part]) and _roughly(read(match[4]), context.facts.usual_size(at, part))


@claim(rf"The largest number of (the input|the target) was {N}(?:, {N} x the usual {N})?")
def an_event_of_a_far_batch(context: Context, match: re.Match[str]) -> bool:
    part, at = 1 if match[1] == "the target" else 0, int(context.step or 0)
    right = says(match[2], context.facts.sizes[at][part])
    return right and (match[4] is None or _roughly(read(match[4]), context.facts.usual_size(at, part)))


@claim(rf"(the input|the target|input and target) of step {S} held NaN or an infinity before anything was computed")
def the_batch_was_not_finite(context: Context, match: re.Match[str]) -> bool:
    x, y = context.facts.sizes[step(match[2])]
    return {"the input": math.isinf(x), "the target": math.isinf(y)}.get(match[1], math.isinf(x) and math.isinf(y))


@claim(rf"(?:The batch of step {S}|The input|The target|Input and target) held (only finite numbers|a number that is not finite)")
def the_batch_held(context: Context, match: re.Match[str]) -> bool:
    at = step(match[1]) if match[1] else int(context.step or end_of(context))
    bad = any(math.isinf(one) for one in context.facts.sizes[at])
    return bad == (match[2] != "only finite numbers")


@claim(
    rf"the largest (input|target) grew from batch to batch, from {N} at step {S} to {N} at the end|From here on, "
    rf"(?:the input|the "
    rf"target) grew from batch to batch, up to {N}|Largest number of (the input|the target): {N} at step {S}, {N} at step {S}"
)
def the_batches_grew(context: Context, match: re.Match[str]) -> bool | None:
    sizes = context.facts.sizes
    if match[1]:
        part, began, ends = 0 if match[1] == "input" else 1, step(match[3]), end_of(context)
        return says(match[2], sizes[began][part]) and any(says(match[4], sizes[s][part]) for s in (ends, ends - 1) if s in sizes)
    if match[5]:
        return any(says(match[5], one, 1.5) for s in sizes for one in sizes[s] if math.isfinite(one))
    part = 0 if match[6] == "the input" else 1
    return says(match[7], sizes[step(match[8])][part]) and says(match[9], sizes[step(match[10])][part])
