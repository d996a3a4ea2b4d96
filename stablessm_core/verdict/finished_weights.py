"""What the weights, the data and the learning rates of a run with finite numbers did."""

from __future__ import annotations

from typing import Any

from stablessm_core.telemetry import series as names
from stablessm_core.verdict import optimizer_facts
from stablessm_core.verdict.batches import changed_batches
from stablessm_core.verdict.ending import Ending
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.sentences import sentence
from stablessm_core.verdict.words import WHICH

STILL = 0.25  # share of the eigenvalue weights that never moved, from which on the verdict says so


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
