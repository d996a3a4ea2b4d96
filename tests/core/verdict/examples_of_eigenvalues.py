"""Records for the sentences about an eigenvalue that overflowed, and about eigenvalues of finished runs."""

from __future__ import annotations

import math

from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.stability import LN_LARGEST
from tests.core.verdict.examples import Record, example
from tests.core.verdict.recorded import CALM, NAN, run_of

UNKNOWN = [*CALM, NAN]
OUTSIDE = [0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.42]
LENGTH = 100


def size(share: float) -> float:
    """The eigenvalue that has used this share of its overflow budget."""
    return math.exp(LN_LARGEST * share / LENGTH)


# ---- an eigenvalue overflowed ----


@example(said=0.951, near=0.949, text="Eigenvalue 0 first left the stability boundary at step 4, and at step 7 the loss stopped")
def eigenvalue_overflowed(share: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[*OUTSIDE[:6], size(share)])


@example(said=5.0, near=4.9, text="The whole training was exploding from step 7 on: at step 7 the loss was 10 x its best (0.5).")
def exploding_training(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], eigenvalue=[0.9, *OUTSIDE], name="sgd")


@example(said=5.0, near=4.9, text="The loss rose, too: at step 6 it was its best so far, and at step 7 it was 5.")
def loss_rose_too(loss: float) -> Record:
    """The loss of the fatal step is finite, and a gradient is not."""
    end = {"step": 7, "layer": None, "eigenvalue": None, "tensor": "encoder.weight.grad", "value": "NaN"}
    return run_of([*CALM, loss], eigenvalue=OUTSIDE, name="sgd", divergence=end, status="diverged")


@example(said=1.5, near=1.49, text="the loss was 3 x its best (0.5): recorded numbers cannot tell")
def either_began_it(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], eigenvalue=[0.9, *OUTSIDE], name="sgd")


def spiked(ratio: float) -> Record:
    """|g| is 0.9 in the first two steps, and 0.95 x ratio in the step before the eigenvalue leaves the boundary."""
    return run_of(UNKNOWN, eigenvalue=OUTSIDE, ratio=[1, 1, ratio, 1, 1, 1, 1], name="sgd")


@example(said=9.48, near=9.46, text="A spike of its gradient pushed it out: |g| rose to 9.01, 10 x its median before, at step 3.")
def gradient_spiked(ratio: float) -> Record:
    return spiked(ratio)


@example(said=9.48, near=9.46, text="Its gradient at step 3: |g| 9.01, 10 x the median before")
def spike_of_gradient(ratio: float) -> Record:
    return spiked(ratio)


@example(said=9.46, near=9.48, text="|g| was at most 8.99, 9.99 x the median before.")
def no_spike_of_gradient(ratio: float) -> Record:
    return spiked(ratio)


@example(said=0.95, near=1.0, text="One AdamW step pushed it across: the step was 5 times as long as the remaining distance.")
def one_step_crossed(before: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[0.9, 0.9, before, *OUTSIDE[3:]])


@example(said=1.0, near=0.95, text="AdamW's steps pushed it across.")
def steps_crossed(before: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[0.9, 0.9, before, *OUTSIDE[3:]])


@example(said=1.49, near=1.5, text="The loss gave no warning: one step earlier it was only 2.98 x its best (0.5).")
def no_warning(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], eigenvalue=[0.9, *OUTSIDE])


@example(said=2, near=1, text="At step 11, the last recorded one before, the loss was its best so far.")
def last_recorded_loss(every: int) -> Record:
    return run_of(UNKNOWN, eigenvalue=OUTSIDE, every=every)


@example(said=0.99, near=1.01, text="Eigenvalue 0 at step 1: distance to the boundary 0.01.")
def crossing_step(before: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[before, 1.2, 1.5, 2.0, 2.3, 2.4, 2.42])


# ---- a finished run ----


def ending_at(*values: float) -> Record:
    """A finished run, with the last values of eigenvalue 0."""
    return run_of(CALM, eigenvalue=[0.9] * (len(CALM) - len(values)) + [*values])


@example(
    said=1.01, near=1.0, text="Overflow budget at step 6: 100 x ln 1.01 / 88.72 = 0.0112. At 1, where the eigenvalue is 2.43"
)
def overflow_budget(value: float) -> Record:
    return ending_at(value)


@example(
    said=0.99,
    near=1.0,
    text="All 2 eigenvalues are inside the stability boundary; the nearest, eigenvalue 0, is at distance 0.01.",
)
def eigenvalues_inside(value: float) -> Record:
    return ending_at(value)


@example(said=1.0, near=0.999, text="Eigenvalue 0 is exactly on the stability boundary: such a state does not decay.")
def eigenvalues_on_boundary(value: float) -> Record:
    return ending_at(value)


@example(said=1.01, near=1.0, text="Some had been outside before, first at step 4.")
def had_been_outside(value: float) -> Record:
    return ending_at(value, 0.9, 0.9)


@example(
    said=1.01,
    near=1.0,
    text="1 of 2 eigenvalues is outside the stability boundary, first at step 6: in 1 step, at least one was.",
)
def eigenvalues_outside(value: float) -> Record:
    return ending_at(value)


@example(said=1.001, near=0.999, text="Its overflow budget is 1, at or above the limit of 1")
def budget_is_spent(share: float) -> Record:
    return ending_at(size(share))


@example(
    said=0.999, near=1.001, text="It survived because sequences are short: |2.4262|^100 = 3.1e38, and float32 ends at 3.4e38"
)
def sequences_are_short(share: float) -> Record:
    return ending_at(size(share))


@example(said=False, near=True, text="Eigenvalues outside the stability boundary are meant in this model")
def outside_is_meant(bounded: bool) -> Record:
    return run_of(CALM, eigenvalue=[1.5] * 6, form=Form("direct", "discrete", "none", bounded=bounded))


@example(said=0, near=1, text="is not recorded.")
def boundary_is_unknown(layers: int) -> Record:
    run, source = run_of(CALM)
    return run_of(CALM, layers=run.layers[:layers])[0], source
