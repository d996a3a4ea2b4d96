"""Records for the sentences about runs whose numbers are finite: their losses, their data and their weights."""

from __future__ import annotations

from tests.core.verdict.examples import Record, example
from tests.core.verdict.recorded import CALM, NAN, run_of

HALF = 20  # rows


@example(said=NAN, near=0.5, text="The loss of the evaluation at step 6 is NaN, although every number of the training is finite.")
def evaluation_lost(loss: float) -> Record:
    return run_of(CALM, evaluated=([6], [loss]))


@example(
    said=3.1,
    near=3.0,
    text="The loss is far above its start: 3.1 is the median of its last 10 recorded steps, 3.1 x its first value (1).",
)
def ended_above_start(end: float) -> Record:
    return run_of([1.0] * HALF + [end] * HALF)


@example(said=3.1, near=3.0, text="First recorded loss: 1. Median of the last recorded losses: 3.1.")
def losses_at_both_ends(end: float) -> Record:
    return run_of([1.0] * HALF + [end] * HALF)


@example(
    said=0.97,
    near=0.96,
    text="its loss, 0.97 at the end and 1.2 at the start (medians of 10 recorded steps), is about as good as that of the best "
    "constant prediction (1).",
)
def learned_nothing(end: float) -> Record:
    about = {"data": {"kind": "regression", "length": 100, "constant_loss": 1.0}}
    return run_of([1.2] * HALF + [end] * HALF, environment=about)


@example(said=1.0, near=0.98, text="its median was 1 over the first 10 recorded steps and 1 over the last 10 recorded steps.")
def loss_did_not_fall(end: float) -> Record:
    return run_of([1.0] * HALF + [end] * HALF)


@example(said=5.0, near=4.9, text="The loss is 10 x its best (0.5). It rose at step 7.")
def loss_is_high(loss: float) -> Record:
    return run_of([2.0, 1.5, 1.0, 0.8, 0.6, 0.5, loss], status="running")


@example(
    said=0.9,
    near=0.901,
    text="1 of the 2 eigenvalue weights equals its value of step 1 in every bit at step 40, although it has a gradient.",
)
def weights_never_moved(last: float) -> Record:
    return run_of([1.0 - 0.01 * row for row in range(40)], eigenvalue=[0.9] * 39 + [last])


@example(
    said=0.0,
    near=0.1,
    text="All 2 eigenvalue weights equal their values of step 1 in every bit at step 40: their gradients are exactly 0, so "
    "they never moved.",
)
def gradients_are_zero(gradient: float) -> Record:
    ratio = [[0.0, 0.0]] * 39 + [[gradient, 0.0]]
    return run_of([1.0 - 0.01 * row for row in range(40)], eigenvalue=[0.9] * 40, other=[0.5] * 40, ratio=ratio)


@example(
    said=10, near=9.9,
    text="since then the largest target of each recorded batch was at least 10; before, it was at most 1.",
)  # fmt: skip
def data_changed(after: float) -> Record:
    return run_of(CALM, largest=[1] * 3 + [after] * 3)


@example(said=1.0, near=0.99, text="The learning rate jumped at step 4, from at most 0.1 to 1, and the loss rose at step 6.")
def rate_jumped(rate: float) -> Record:
    return run_of([1, 0.9, 0.8, 0.7, 0.6, 50, 60], columns={"lr": [0.1] * 3 + [rate] * 4})
