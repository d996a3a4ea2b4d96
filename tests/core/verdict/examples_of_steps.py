"""Records for the sentences about explosions, single steps, unknown causes and reported runs."""

from __future__ import annotations

from typing import Any

from stablessm_core.telemetry.how import How
from tests.core.verdict.examples import Record, example
from tests.core.verdict.findings import counterfactual, findings, modules
from tests.core.verdict.recorded import CALM, NAN, run_of

UNKNOWN = [*CALM, NAN]
REPORTED = How(optimizer="adamw")


def heavy(rows: int) -> dict[str, Any]:
    """Weights so large that an update hardly changes them."""
    return {"weight_norm": [100.0] * rows}


# ---- a single step ----


@example(said=1000, near=999, text="its norm at step 6 was 1,000, 1,000 x its median before, while the loss was 0.5")
def gradient_threw_the_weights(norm: float) -> Record:
    return run_of(UNKNOWN, grad_norm=[1.0] * 5 + [norm, 1.0], name="sgd")


@example(said=1000, near=999, text="already had the norm 1,000, 1,000 x the norm of all weights.")
def first_gradient_threw_the_weights(norm: float) -> Record:
    return run_of([1, NAN], grad_norm=[norm, 1.0], columns={"weight_norm": [1.0] * 2}, name="sgd")


@example(
    said=1000,
    near=999,
    text="The loss jumped in one step, from 0.5 to 1,000 at step 7, although the update before it was small, about 0.001 x the "
    "norm",
)
def loss_jumped(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], columns=heavy(8), name="sgd")


@example(said=[NAN], near=[1.0, NAN], text="The loss stopped being finite at step 1. No update had been made before.")
def no_update_before(loss: list[float]) -> Record:
    return run_of(loss, columns=heavy(len(loss)), name="sgd")


@example(
    said=1.49,
    near=1.5,
    text="One step earlier the loss was 2.98 x its best (0.5), and the update between was small, about 0.001 x the norm",
)
def calm_before(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], columns=heavy(8), name="sgd")


@example(said=4.9, near=5.0, text="At the recorded step before, 61, the loss was 9.8 x its best (0.5)")
def ended_between_rows(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], every=10, eigenvalue=[0.9] * 7 + [2.0], name="sgd")


@example(said=500, near=499, text="Between the recorded steps 51 and 61 the loss rose from 0.5 to 500")
def rose_between_rows(loss: float) -> Record:
    return run_of([*CALM, loss, NAN], every=10, name="sgd")


@example(said=9.9, near=10, text="The largest number of its batch was 9.9 (median of the batches before: 1).")
def batch_is_known(largest: float) -> Record:
    return run_of(UNKNOWN, largest=[1] * 6 + [largest], columns=heavy(7), name="sgd")


@example(said=NAN, near=1, text="How large the numbers of the batch were is not recorded")
def batch_is_unknown(largest: float) -> Record:
    return run_of(UNKNOWN, largest=[1] * 6 + [largest], columns=heavy(7), name="sgd")


# ---- an explosion ----


@example(said=5.0, near=4.9, text="exploded from step 7 on: at step 7 the loss was 10 x its best (0.5), and at step 8 the loss")
def training_exploded(loss: float) -> Record:
    return run_of([*CALM, loss, NAN])


@example(said=None, near=findings(8), text="the learning rate was too large, the gradient was wrong or the loss")
def rows_fit_three_causes(autopsy: object) -> Record:
    return run_of([*CALM, 5.0, NAN], autopsy=autopsy)


@example(said=1e18, near=9.9e17, text="at step 7 they reached 1e18. The squares of 341 such numbers, added, exceed float32.")
def numbers_exploded(largest: float) -> Record:
    trials = [counterfactual("unchanged", False, 7), counterfactual("tenth_of_rate", True)]
    return run_of(UNKNOWN, autopsy=findings(7, modules=modules(largest), counterfactuals=trials))


@example(
    said=1.01, near=0.99, text="An eigenvalue was outside the stability boundary, first at step 6, but at step 8 none was far"
)
def outside_without_overflow(value: float) -> Record:
    return run_of([*CALM, 5.0, NAN], eigenvalue=[0.9] * 5 + [value] * 3)


@example(said=0.99, near=1.01, text="No recorded eigenvalue was ever outside the stability boundary.")
def never_outside(value: float) -> Record:
    return run_of([*CALM, 5.0, NAN], eigenvalue=[0.9] * 5 + [value] * 3)


# ---- unknown ----


@example(said=4.9, near=5.0, text="The loss stopped being finite at step 8. The recorded numbers cannot tell why.")
def cannot_tell(loss: float) -> Record:
    return run_of([*CALM, loss, NAN])


@example(said=0, near=None, text="Within a step, tensors are recorded in a fixed order")
def order_is_no_proof(layer: int | None) -> Record:
    end = {"step": 7, "layer": layer, "eigenvalue": None, "tensor": "weight", "value": "NaN"}
    return run_of(UNKNOWN, reported=REPORTED, divergence=end)


@example(said=" and 1 other", near="", text="Every state of layer 0 is NaN")
def came_from_below(others: str) -> Record:
    return nan_states(others)


def nan_states(others: str) -> Record:
    """A run whose layer had NaN as the state of eigenvalue 0. others: how many other states were not finite, in the alert."""
    alert = {
        "kind": "nonfinite_state", "step": 7, "layer": 0, "eigenvalue": 0, "tensor": "blocks.0.ssm.state", "value": NAN,
        "message": f"layer 0, eigenvalue 0: state nan,{others}",
    }  # fmt: skip
    return run_of(UNKNOWN, alerts=[alert])


# ---- a run of another program ----


@example(said=NAN, near=0.5, text="The loss of step 7, the last recorded one, is NaN.")
def last_loss_not_finite(loss: float) -> Record:
    alert = {
        "kind": "nonfinite_state", "step": 4, "layer": 0, "eigenvalue": 0, "tensor": "state", "value": "NaN", "message": "",
    }  # fmt: skip
    return run_of([*CALM, loss], reported=REPORTED, divergence=None, alerts=[alert], status="running")
