"""Records for the sentences that list the evidence of any divergence, and what the records cannot show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stablessm_core.verdict import Layer
from tests.core.verdict.examples import Record, example
from tests.core.verdict.examples_of_causes import CONTINUOUS, DIED, UNKNOWN
from tests.core.verdict.examples_of_steps import nan_states
from tests.core.verdict.findings import counterfactual, findings, first, gradient, modules
from tests.core.verdict.recorded import CALM, FORM, NAN, configured, run_of

INF = float("inf")


def autopsied(**changes: Any) -> Record:
    """A run with an autopsy that saw large numbers."""
    return run_of(UNKNOWN, autopsy=findings(7, **({"modules": modules(1e39)} | changes)))


# ---- what the autopsy measured ----


@example(
    said=first(), near=None,
    text="The first number that is not finite at step 7 is -Infinity, made by scan_states in blocks.0.ssm (forward pass), from "
    "numbers up to 12. The largest number before was 220.",
)  # fmt: skip
def first_number_not_finite(one: dict[str, Any] | None) -> Record:
    return autopsied(first_nonfinite=one)


@example(said=1e18, near=9.9e17, text="This norm squares its input. It is where the overflow shows")
def norm_squares(given: float | None) -> Record:
    return autopsied(first_nonfinite=first("forward", "native_layer_norm", "blocks.0.mlp.norm", largest_input=given))


@example(
    said={"finite": True, "loss": 0.5, "largest": 1e39}, near=None,
    text="In float64, step 7 is finite: its loss is 0.5 and its largest number 1e39, more than float32 can hold (3.4e38).",
)  # fmt: skip
def step_in_float64(repeat: dict[str, Any] | None) -> Record:
    return autopsied(float64=repeat)


@example(said=0.52, near=0.53, text="agrees with the loss: its norm is 0.52, and the loss changes by 0.5 per unit of distance")
def gradient_agrees(norm: float) -> Record:
    return autopsied(gradient=gradient(6, norm, 0.5))


@example(said=False, near=True, text="Whether the gradient of step 6, with norm 0.52, is right could not be measured")
def gradient_not_proved(converged: bool) -> Record:
    return autopsied(gradient=gradient(6, 0.52, 0.5, converged=converged))


@example(said="The loss keeps a state.", near=None, text="The loss keeps a state.")
def training_keeps_a_state(state: str | None) -> Record:
    return autopsied(hidden_state=state)


@example(
    said=True, near=False, text="Trained again from step 2 with a tenth of the learning rate, the run lives to step 200."
)  # fmt: skip
def trial(comparable: bool) -> Record:
    return autopsied(counterfactuals=[counterfactual("tenth_of_rate", True) | {"comparable": comparable}])


@example(said=8, near=7, text="so they say nothing about its cause")
def trials_not_comparable(step: int) -> Record:
    return autopsied(counterfactuals=[counterfactual("unchanged", False, step), counterfactual("tenth_of_rate", True)])


@example(said=True, near=False, text="Trained again from step 2 with the recurrence frozen, the run dies too, at step 12.")
def frozen_trial(comparable: bool) -> Record:
    trials = [DIED, counterfactual("recurrence_frozen", False, 12) | {"comparable": comparable}]
    return run_of([*CALM[:5], 50.0, NAN], autopsy=findings(7, modules=modules(1e39), counterfactuals=trials))


# ---- what was recorded ----


@example(said=1.0, near=NAN, text="Loss at step 1: 1, its best so far.")
def loss_at_the_end(loss: float) -> Record:
    return run_of([loss, NAN])


@example(said=2.0, near=INF, text="Norm of the whole gradient at step 6: 2, 2 x its size at step 1.")
def norm_of_gradient(norm: float) -> Record:
    return run_of(UNKNOWN, grad_norm=[1.0] * 5 + [norm, 1.0])


@example(said=4.0, near=NAN, text="could move the weights by about 0.025 x their norm")
def size_of_update(norm: float) -> Record:
    return run_of([*CALM, 5.0, NAN], columns={"weight_norm": [norm] * 8}, name="sgd")


@example(said=10, near=9.9, text="Largest number of the target at step 7: 10; usual in this run: 1.")
def largest_of_bad_batch(largest: float) -> Record:
    return run_of(UNKNOWN, largest=[1] * 6 + [largest])


@example(said=0, near=NAN, text="The batch of step 7 held only finite numbers.")
def flag_of_batch(flag: float) -> Record:
    return run_of(UNKNOWN, columns={"batch": [0] * 6 + [flag]})


@example(said=NAN, near=0, text="Whether the batch was finite was not recorded.")
def batch_flag_missing(flag: float) -> Record:
    return run_of(UNKNOWN, columns={"batch": [0] * 6 + [flag]})


@example(said=" and 1 other", near="", text="Every state of layer 0 is NaN and none is infinite")
def nan_from_below(others: str) -> Record:
    return nan_states(others)


@example(said=1.0, near=1.01, text="The nearest at step 7 was eigenvalue 0, exactly on it, so it does not decay.")
def nearest_eigenvalue(value: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[0.9] * 6 + [value])


@example(
    said=1.01, near=1.0, text="Furthest outside the boundary at step 7: eigenvalue 0, at 1.01, with an overflow budget of 0.0112"
)
def furthest_eigenvalue(value: float) -> Record:
    return run_of(UNKNOWN, eigenvalue=[0.9] * 6 + [value])


@example(said=0.2, near=NAN, text="has changed to 0.5 x its value: the rate of its weight to 1 x, its step size to 0.5 x.")
def parts_of_decay(dt: float) -> Record:
    return run_of(UNKNOWN, form=CONTINUOUS, eigenvalue=[0.3] * 7, dt=[dt] + [0.1] * 6)


@example(said=NAN, near=0.5, text="The loss of the evaluation at step 4 was NaN.")
def evaluation_not_finite(loss: float) -> Record:
    return run_of(UNKNOWN, evaluated=([4], [loss]))


@example(said="bfloat16", near="float32", text="bfloat16 numbers end at 3.39e38")
def range_of_bfloat16(precision: str) -> Record:
    config = configured(1, "adamw")
    config["train"]["precision"] = precision
    return run_of(UNKNOWN, config=config)


# ---- what the records cannot show ----


@example(said="the task is not installed.", near=None, text="The autopsy has no result (the task is not installed).")
def autopsy_refused(refused: str | None) -> Record:
    return autopsied(refused=refused)


@example(said=3, near=2, text="Only every 5th step was recorded. The autopsy trained the steps from 3 on again")
def steps_measured_again(trouble: int) -> Record:
    """The steps 1, 6 and 7 were recorded, and the autopsy replayed those from 3 on. trouble: the step before which it began."""
    rows = {
        "steps": [3, 4, 5, 6, 7],
        "scalars": {"loss": [0.8, 0.7, 0.6, 0.5, NAN], "grad_norm": [1.0] * 5, "lr": [0.1] * 5, "batch": [0.0] * 5},
        "layers": [{"layer": 0, "recorded": {"weight": [[0.9, 0.5]] * 5, "grad_over_weight": [[1.0, 1.0]] * 5}}],
    }  # fmt: skip
    autopsy = findings(7, replayed=rows, trouble={"step": trouble, "kind": "fatal"}, modules=modules(1e39))
    run, source = run_of([1.0, 0.5, NAN], every=5, autopsy=autopsy)
    scalars = replace(source.rows, step=np.array([1, 6, 7]))
    source = replace(source, rows=scalars, layers={0: replace(source.layers[0], step=scalars.step)})
    return replace(
        run, divergence={"step": 7, "layer": None, "eigenvalue": None, "tensor": "loss", "value": "NaN"}, step=7
    ), source


@example(said=2, near=1, text="Only every 2nd step was recorded")
def steps_missing(every: int) -> Record:
    return run_of(UNKNOWN, every=every)


@example(said=True, near=False, text="Of wide layers only the 16 most extreme eigenvalues of each step are recorded")
def only_extremes(wide: bool) -> Record:
    return run_of(UNKNOWN, layers=(Layer(0, 2, FORM, wide=wide),))


@example(said=1e18, near=9.9e17, text="The weight of eigenvalue 1 is 1e18 at step 7")
def extreme_weight(weight: float) -> Record:
    return run_of([*CALM, NAN], other=[0.5] * 6 + [weight])
