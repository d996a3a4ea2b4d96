"""Records for the sentences about causes that lie in the data, the loss, the backward pass, the arithmetic or the optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import How
from tests.core.verdict.examples import Record, example
from tests.core.verdict.findings import counterfactual, findings, first, gradient, modules
from tests.core.verdict.recorded import CALM, NAN, configured, run_of

UNKNOWN = [*CALM, NAN]
BROKEN = {"finite": False, "loss": NAN, "largest": 220.0, "narrow": [], "first_nonfinite": None}  # a step that fails in float64
DIED = counterfactual("unchanged", False, 7)  # the control
CONTINUOUS = Form.of_map("exp", "continuous")
HALVES = [float(np.float16(loss)) for loss in (0.9, 0.8, 0.7, 0.6, 0.55, 0.45, 0.35)]  # seven float16 numbers


# ---- the data ----


@example(said=2, near=0, text="The data: the target of step 7 held NaN or an infinity before anything was computed.")
def batch_held_no_number(flag: int) -> Record:
    return run_of(UNKNOWN, columns={"batch": [0] * 6 + [flag]})


@example(said=10, near=9.9, text="the batch of step 7 is far above usual. Its largest target is 10, 10 x the usual 1.")
def batch_far_above_usual(largest: float) -> Record:
    return run_of(UNKNOWN, largest=[1] * 6 + [largest])


@example(said=10.01, near=9.99, text="the largest target grew from batch to batch, from 1 at step 3 to 10 at the end")
def batches_grew(largest: float) -> Record:
    return run_of(UNKNOWN, largest=[1, 1, 1, 1.8, 3.2, 5.6, largest])


@example(said=40, near=39, text="all 40 targets of step 7 are the class that the loss leaves out")
def every_target_left_out(ignored: int) -> Record:
    autopsy = findings(7, first_nonfinite=first("loss", "nll_loss", ""))
    autopsy["batch"] |= {"classes": {"smallest": 0, "largest": 9, "ignored": ignored, "count": 40, "of": 10}}
    return run_of(UNKNOWN, autopsy=autopsy)


@example(
    said=10, near=9.9,
    text="The data changed at step 5: since then the largest target of each of 3 recorded batches was at least 10; before, it "
    "was at most 1.",
)  # fmt: skip
def every_batch_far_above(after: float) -> Record:
    return run_of([1, 0.9, 0.8, 0.7, 50, 1e4, NAN], largest=[1] * 4 + [after] * 3, name="sgd")


@example(
    said=12, near=13, text="The run lives if every batch has its usual size, and dies if only the batch of step 5 is left out"
)
def more_than_one_batch(dies_at: int) -> Record:
    left_out = counterfactual("batch_left_out", False, dies_at) | {"from_step": 4}
    trials = [DIED, counterfactual("batches_scaled", True), left_out]
    autopsy = findings(7, counterfactuals=trials, modules=modules(1e39))
    return run_of(UNKNOWN, autopsy=autopsy, largest=[1, 1, 1, 1, 30, 1, 1], name="sgd")


# ---- the backward pass ----


@example(
    said=0.56, near=0.55,
    text="at step 6: its norm is 0.56, but along it the loss changes by 0.5 per unit of distance.",
)  # fmt: skip
def gradient_disagrees(norm: float) -> Record:
    return run_of(UNKNOWN, autopsy=findings(7, gradient=gradient(6, norm, 0.5), modules=modules(1e39)), name="sgd")


@example(
    said=1.66,
    near=1.64,
    text="at step 6: its norm is 1.66, but without these kernels it is 1.5, and along it the loss changes by 1.52",
)
def gradient_differs(recorded: float) -> Record:
    wrong = gradient(6, 1.5, 1.52, recorded=recorded, differs="kernels")
    return run_of(UNKNOWN, autopsy=findings(7, gradient=wrong, modules=modules(1e39)), name="sgd")


@example(
    said=9.9e17, near=1e18, text="The backward pass of blocks.0.ssm made the first number that is not finite, at step 7: NaN"
)
def backward_of_a_layer(given: float) -> Record:
    made = first("backward", "aten.div", value="NaN", layer=0, largest_input=given)
    return run_of(UNKNOWN, autopsy=findings(7, first_nonfinite=made, float64=BROKEN))


# ---- half precision and arithmetic ----


@example(said=9.9e17, near=1e18, text="aten.sum (loss function) gave Infinity in float16, from numbers up to 9.9e17.")
def made_in_float16(given: float) -> Record:
    made = first("loss", "aten.sum", "", value="Infinity", dtype="float16", largest_input=given)
    return run_of(UNKNOWN, autopsy=findings(7, first_nonfinite=made))


@example(said=0.125, near=0.12, text="every recorded loss is a float16 number, and these end at 65,504.")
def losses_are_float16(loss: float) -> Record:
    return run_of([*HALVES, loss, NAN])


@example(said=0.125, near=0.12, text="different recorded losses are float16 numbers")
def count_of_float16_losses(loss: float) -> Record:
    return run_of([*HALVES, loss, NAN])


@example(said="float16", near="bfloat16", text="the run computes in float16, whose numbers end at 65,504.")
def run_is_float16(precision: str) -> Record:
    return run_of(UNKNOWN, reported=How(optimizer="adamw", precision=precision))


@example(said=9.9e17, near=1e18, text="No result of a module exceeds 9.9e17 there")
def finite_in_float64(largest: float) -> Record:
    return run_of(UNKNOWN, autopsy=findings(7, first_nonfinite=first("backward", "aten.mul"), modules=modules(largest)))


# ---- the loss ----


def onset(loss: float, again: float | None = None) -> dict[str, Any]:
    return {
        "step": 6, "loss": loss, "loss_before": 1.0, "loss_again": loss if again is None else again, "output": 1.0,
        "output_before": 1.0, "yardstick": 1.0, "yardstick_before": 1.0, "batch": None,
    }  # fmt: skip


@example(
    said=10.0, near=9.9,
    text="the loss went from 1 to 10, while the mean squared error of the same outputs and targets went from 1 to 1.",
)  # fmt: skip
def same_outputs_another_loss(loss: float) -> Record:
    return run_of(UNKNOWN, autopsy=findings(7, onset=onset(loss), modules=modules(1e39)))


@example(said=20.001, near=20.0, text="the loss function gave 20 and 20.001, so it keeps a state or draws random numbers.")
def loss_keeps_a_state(again: float) -> Record:
    return run_of(UNKNOWN, autopsy=findings(7, onset=onset(20.0, again), modules=modules(1e39)))


@example(
    said=9.9e17, near=1e18,
    text="The loss function made the first number that is not finite, at step 7: NaN in aten.log, from numbers up to 9.9e17.",
)  # fmt: skip
def loss_made_it(given: float) -> Record:
    made = first("loss", "aten.log", "", value="NaN", largest_input=given)
    return run_of(UNKNOWN, autopsy=findings(7, first_nonfinite=made, float64=BROKEN))


@example(said=-14.1, near=-13.9, text="from -1 at step 4 to -14.1 at step 7, more in each step.")
def loss_falls_without_bound(loss: float) -> Record:
    return run_of([1, 0.5, 0.2, -1, -3, -7, loss, NAN])


# ---- the form, the step size, the optimizer ----


@example(
    said=False,
    near=None,
    text="Layer 0 does not compute its recorded form: with the weights of step 7, an eigenvalue differs from the recorded one "
    "by 0.2 x its size.",
)
def layer_departs_from_its_form(agrees: bool | None) -> Record:
    checks = [{"layer": 0, "agrees": agrees, "error": 0.2, "reason": None}]
    return run_of(UNKNOWN, autopsy=findings(7, form=checks, modules=modules(1e39)))


@example(said=1e6, near=9.9e5, text="The step size dt ran away, from at most 1 at the start to 1e6")
def step_size_ran_away(dt: float) -> Record:
    return run_of(UNKNOWN, form=CONTINUOUS, dt=[1.0] * 6 + [dt])


@example(said=1e6, near=9.9e5, text="Largest step size dt: 1 at the start, 1e6 at step 7.")
def largest_step_sizes(dt: float) -> Record:
    return run_of(UNKNOWN, form=CONTINUOUS, dt=[1.0] * 6 + [dt])


@example(said=-1.21, near=-1.22, text="multiplies the eigenvalue weights of layer 0 by -1.1 in each step")
def weights_multiplied(factor: float) -> Record:
    """Weight decay 21 at rate 0.1 multiplies each weight by -1.1, and eigenvalue 1 has another factor."""
    config = configured(1, "sgd")
    config["optimizer"]["recurrent_weight_decay"] = 21.0
    weight, other = ([start * by**row for row in range(7)] for start, by in ((0.5, -1.1), (0.3, factor)))
    return run_of(UNKNOWN, eigenvalue=weight, other=other, config=config)


@example(said=1.0, near=0.99, text="The learning rate jumped at step 5, from at most 0.1 to 1, for 2 recorded steps.")
def learning_rate_jumped(rate: float) -> Record:
    return run_of([1, 0.9, 0.8, 0.7, 0.6, 50, NAN], columns={"lr": [0.1] * 4 + [rate] * 3})


@example(said=5.0, near=4.9, text="One update could change the weights by about 0.5 x their norm.")
def first_updates_were_fatal(norm: float) -> Record:
    return run_of([1, 0.9, NAN], grad_norm=[norm] * 3, columns={"weight_norm": [1.0] * 3}, name="sgd")


# ---- the model's forward pass ----


def in_a_logarithm(given: float, again: str | None) -> Record:
    """A logarithm that gave NaN. again: the operation that fails in float64."""
    made = first("forward", "aten.log", "blocks.0.mlp", value="NaN", largest_input=given)
    repeated = None if again is None else first("forward", again, "blocks.0.mlp")
    return run_of(UNKNOWN, autopsy=findings(7, first_nonfinite=made, float64=BROKEN | {"first_nonfinite": repeated}))


@example(said=9.9e17, near=1e18, text="at step 7: aten.log in blocks.0.mlp gave NaN from numbers up to 9.9e17.")
def forward_made_it(given: float) -> Record:
    return in_a_logarithm(given, None)


@example(said="aten.log", near="aten.sqrt", text="In float64 the same operation fails")
def precision_does_not_matter(again: str) -> Record:
    return in_a_logarithm(3.0, again)


@example(
    said=20.01, near=20.0, text="so the optimizer multiplies weights by -1 in each step, and without weight decay the run lives."
)
def lives_without_decay(decay: float) -> Record:
    config = configured(1, "adamw")
    config["optimizer"]["weight_decay"] = decay
    tried = [counterfactual("unchanged", False, 7), counterfactual("no_weight_decay", True)]
    return run_of(UNKNOWN, config=config, autopsy=findings(7, counterfactuals=tried, modules=modules(1e39)))


@example(said=6, near=7, text="Trained again from the same state, the unchanged run dies at step 6, not at step 7.")
def control_differs(died_at: int) -> Record:
    tried = [counterfactual("unchanged", False, died_at)]
    return run_of(UNKNOWN, autopsy=findings(7, counterfactuals=tried, modules=modules(1e39)))
