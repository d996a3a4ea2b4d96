"""With an autopsy, the cause rests on what was measured; without a usable one, on the records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stablessm_core.verdict import judge
from tests.core.verdict.findings import counterfactual, findings, first, gradient, modules
from tests.core.verdict.recorded import CALM, NAN, run_of

INF = float("inf")


def verdict_of(loss: Any, autopsy: dict[str, Any], **how: Any) -> dict[str, Any]:
    run, source = run_of(loss, autopsy=autopsy, **how)
    return judge(run, source)


OUTSIDE = [0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.42]
UNKNOWN = [*CALM, NAN]
FROZEN = {"optimizer__recurrent_lr": 0}


def told(found: dict[str, Any]) -> tuple[str, str, str | None]:
    return found["cause"], found["confidence"], found["runner_up"]


def test_a_state_that_only_float64_can_hold_overflowed_and_is_no_arithmetic() -> None:
    beyond = findings(
        7, first_nonfinite=first(layer=0, eigenvalue=0), modules=modules(1.38e39),
        counterfactuals=[counterfactual("unchanged", False, 7), counterfactual("recurrence_frozen", True, **FROZEN)],
    )  # fmt: skip
    found = verdict_of(UNKNOWN, beyond, eigenvalue=OUTSIDE)
    assert told(found) == ("eigenvalue_overflow", "measured", None)
    assert "Trained again from step 2 with the recurrence frozen, the run lives to step 200." in found["summary"]
    assert any("1.4e39, more than float32 can hold" in one["text"] for one in found["evidence"])


def test_a_number_that_float32_could_hold_is_arithmetic() -> None:
    found = verdict_of(UNKNOWN, findings(7, first_nonfinite=first("backward", "rwkv4_backward")))
    assert told(found) == ("arithmetic", "measured", None)
    assert "float32 could hold each of them and its square" in found["summary"]


def test_ordinary_numbers_are_no_arithmetic_if_the_loss_in_float64_is_another() -> None:
    other = findings(7, loss=0.5, first_nonfinite=first("backward", "rwkv4_backward"))
    other["float64"]["loss"] = 90.0
    assert verdict_of(UNKNOWN, other)["cause"] == "unknown"


@pytest.mark.parametrize("place", ["loss", "backward"])
def test_a_loss_that_makes_nan_from_ordinary_numbers_is_a_bad_loss(place: str) -> None:
    autopsy = findings(7, first_nonfinite=first(place, "aten.mul", "", value="NaN"))
    autopsy["float64"] = {"finite": False, "loss": NAN, "largest": 220.0, "narrow": [], "first_nonfinite": None}
    found = verdict_of(UNKNOWN, autopsy)
    assert told(found) == ("bad_loss", "measured", None)
    where = "loss function" if place == "loss" else "backward pass"
    assert found["summary"].startswith(f"The {where} made the first number that is not finite, at step 7: NaN in aten.mul")


def test_outputs_too_large_for_the_loss_are_no_bad_loss() -> None:
    autopsy = findings(
        7, first_nonfinite=first("loss", "mse_loss", "", value="Infinity", largest_input=1e25), modules=modules(1e25)
    )
    assert told(verdict_of([*CALM[:4], 1e6, 1e14, NAN], autopsy))[0] == "explosion"
    assert told(verdict_of(UNKNOWN, autopsy)) == ("unknown", "cannot_tell", "explosion")
    autopsy["counterfactuals"] = [counterfactual("tenth_of_rate", True)]
    assert told(verdict_of(UNKNOWN, autopsy))[:2] == ("explosion", "measured")


def test_a_batch_is_bad_only_if_it_was_measured() -> None:
    autopsy = findings(7, first_nonfinite=first("loss", "mse_loss", "", largest_input=1e30))
    autopsy["batch"] |= {"largest_target": 1e30}
    found = verdict_of(UNKNOWN, autopsy)
    assert told(found)[:2] == ("bad_input", "measured")
    assert "Its largest target is 1e30, 2.6e29 x the usual 3.8." in found["summary"]
    nan = findings(7)
    nan["batch"] |= {"nonfinite_input": 1, "nonfinite": 1}
    assert "the input of step 7 held NaN or an infinity" in verdict_of(UNKNOWN, nan)["summary"]


def test_a_large_batch_is_not_the_cause_if_the_run_dies_without_it() -> None:
    without = counterfactual("batch_left_out", False, 8)
    autopsy = findings(7, modules=modules(1e39), counterfactuals=[without])
    autopsy["batch"] |= {"largest_target": 60.0}
    assert verdict_of([*CALM[:4], 1e2, 1e6, NAN], autopsy)["cause"] == "bad_input", "another batch was left out"
    autopsy["counterfactuals"] = [without | {"from_step": 6}]
    assert verdict_of([*CALM[:4], 1e2, 1e6, NAN], autopsy)["cause"] == "explosion"
    autopsy["counterfactuals"] = [counterfactual("batch_left_out", True)]
    assert verdict_of([*CALM[:4], 1e2, 1e6, NAN], autopsy)["cause"] == "bad_input"


def test_where_the_death_shows_is_told_apart_from_why() -> None:
    norm = first("forward", "native_layer_norm", "blocks.0.mlp.norm", largest_input=6e19)
    found = verdict_of([*CALM[:4], 1e2, 1e6, NAN], findings(7, first_nonfinite=norm, modules=modules(6e19)))
    assert found["cause"] == "explosion"
    assert any("It is where the overflow shows, and not why" in one["text"] for one in found["evidence"])


def test_a_frozen_replay_decides_who_began_it() -> None:
    spiked = dict(loss=[*CALM[:5], 2.8, NAN], eigenvalue=OUTSIDE, name="sgd")  # noqa: C408
    assert verdict_of(autopsy={}, **spiked)["thrown_by"] == "both"
    lives = findings(7, modules=modules(1e39), counterfactuals=[counterfactual("recurrence_frozen", True, **FROZEN)])
    dies = findings(7, modules=modules(1e39), counterfactuals=[counterfactual("recurrence_frozen", False, 7, **FROZEN)])
    assert verdict_of(autopsy=lives, **spiked)["thrown_by"] == "optimizer_step"
    assert verdict_of(autopsy=dies, **spiked)["thrown_by"] == "explosion"


@pytest.mark.parametrize(
    "useless", [{"refused": "the task is not installed."}, {"bits_equal": False}, {"fatal": False}, {"step": 3}]
)
def test_an_autopsy_without_a_result_for_the_fatal_step_decides_nothing(useless: dict[str, Any]) -> None:
    autopsy = findings(7, first_nonfinite=first("backward")) | useless
    found = verdict_of(UNKNOWN, autopsy)
    assert told(found)[:2] == ("unknown", "cannot_tell")
    if "refused" in useless:
        text = "The autopsy has no result (the task is not installed). This verdict rests on the recorded numbers."
        assert text in [one["text"] for one in found["evidence"]]


def test_non_finite_findings_may_be_text() -> None:
    autopsy = findings(7, loss="NaN", first_nonfinite=first("backward", largest_input="12.0"))
    assert verdict_of(UNKNOWN, autopsy)["cause"] == "arithmetic"


def test_a_change_that_was_tried_comes_first_or_is_not_offered() -> None:
    tried = [
        counterfactual("unchanged", False, 7),
        counterfactual("recurrence_frozen", True, **FROZEN),
        counterfactual("tenth_of_rate", True, optimizer__lr=0.01),
        counterfactual("other_map", False, 9, model__reparameterization__name="best"),
    ]
    found = verdict_of(UNKNOWN, findings(7, modules=modules(1e39), counterfactuals=tried), eigenvalue=OUTSIDE)
    changes = [one["change"] for one in found["try"]]
    assert found["try"][0] == {
        "change": {"optimizer.lr": 0.01},
        "because": "tried: from step 2 the run lives to step 200 with this change; it died at step 7",
    }
    assert {"model.reparameterization.name": "best"} not in changes
    assert changes.count({"optimizer.recurrent_lr": 0}) == 1
    assert "tried as a test: from step 2 the run lives" in found["try"][-1]["because"]


def test_nan_from_a_lower_layer_does_not_blame_the_upper_one() -> None:
    run, source = run_of([*CALM, NAN], eigenvalue=[0.9, 0.9, 0.95, 1.2, 1.4, 1.5, 1.55])
    upper = replace(run.layers[0], index=1)
    source.layers[1] = source.layers[0]  # type: ignore[index]
    alert = {
        "kind": "nonfinite_state", "step": 7, "layer": 1, "eigenvalue": 0, "tensor": "blocks.1.ssm.state", "value": NAN,
        "message": "layer 1, eigenvalue 0: state nan, and 1 other",
    }  # fmt: skip
    config = run.config | {"model": {"layer": "stable_ssm", "n_layers": 2, "activation": "identity"}}
    end = {"step": 7, "layer": 1, "eigenvalue": 0, "tensor": "blocks.1.ssm.state", "value": "NaN"}
    both = replace(run, layers=(run.layers[0], upper), alerts=[alert], divergence=end, config=config)
    found = judge(both, source)
    assert found["culprit"] == {"layer": 0, "eigenvalue": 0}
    assert found["summary"].startswith("Eigenvalue 0 of layer 0 ")
    own = replace(both, alerts=[alert | {"value": INF, "message": "layer 1, eigenvalue 0: state inf"}])
    assert judge(own, source)["culprit"] == {"layer": 1, "eigenvalue": 0}


@pytest.mark.parametrize("factor", [3.0, 10.0, 999.997, 1e9])
def test_a_gradient_that_disagrees_with_its_loss_is_a_wrong_gradient_whatever_the_factor(factor: float) -> None:
    found = verdict_of(UNKNOWN, findings(7, gradient=gradient(6, 0.5 * factor, 0.5), modules=modules(1e39)), name="sgd")
    assert told(found)[:2] == ("wrong_gradient", "measured")
    assert f"wrong gradient at step 6: its norm is {0.5 * factor:.3g}" in found["summary"].replace(",", "") or factor > 1e3
    assert "along it the loss changes by 0.5 per unit of distance" in found["summary"]
    assert found["try"][0]["change"] == {"optimizer.grad_clip": 1.0}


def test_a_right_gradient_is_said_to_agree_and_is_not_accused() -> None:
    found = verdict_of(UNKNOWN, findings(7, gradient=gradient(6, 4e8, 4e8), modules=modules(1e39)), name="sgd")
    assert found["cause"] != "wrong_gradient"
    assert any(one["sentence"] == "gradient_agrees" for one in found["evidence"])


def test_a_slope_that_did_not_converge_proves_nothing() -> None:
    open_ = gradient(6, 4e8, 0.5, converged=False, agrees=None)
    found = verdict_of(UNKNOWN, findings(7, gradient=open_, modules=modules(1e39)), name="sgd")
    assert found["cause"] != "wrong_gradient"
    assert any(one["sentence"] == "gradient_not_proved" for one in found["evidence"])
    before = {"step": 6, "norm": 4e8, "slope": 0.5, "agrees": False}  # findings from before slopes had to converge
    assert verdict_of(UNKNOWN, findings(7, gradient=before, modules=modules(1e39)), name="sgd")["cause"] != "wrong_gradient"


def test_a_constant_factor_of_the_gradient_does_not_move_adamw() -> None:
    wrong = findings(7, gradient=gradient(6, 4e8, 0.5), modules=modules(1e39))
    assert verdict_of(UNKNOWN, wrong)["cause"] != "wrong_gradient"
    spiked = verdict_of(UNKNOWN, wrong, grad_norm=[1, 1, 1, 1, 1, 4e8, 1])
    assert spiked["cause"] == "wrong_gradient", "a single gradient far above usual does"


@pytest.mark.parametrize(("differs", "said"), [("kernels", "the run's compiled kernels"), ("training_mode", "training mode")])
def test_a_gradient_that_is_wrong_only_as_the_run_computed_it_is_the_finding(differs: str, said: str) -> None:
    wrong = gradient(6, 1.5, 1.5, recorded=737.0, differs=differs)
    found = verdict_of(UNKNOWN, findings(7, gradient=wrong, modules=modules(1e39)), name="sgd")
    assert told(found)[:2] == ("wrong_gradient", "measured")
    assert f"The backward pass of {said} gave a wrong gradient at step 6" in found["summary"]


@pytest.mark.parametrize(("lives", "cause"), [(True, "bad_input"), (False, "explosion")])
def test_a_large_batch_is_the_cause_only_if_the_run_lives_with_usual_batches(lives: bool, cause: str) -> None:
    tried = [counterfactual("unchanged", False, 9), counterfactual("batches_scaled", lives, 200 if lives else 9)]
    loss = [*CALM, 1e4, 1e8, NAN]
    found = verdict_of(
        loss, findings(9, counterfactuals=tried, modules=modules(1e39)), name="sgd", largest=[1, 1.1, 0.9, 1, 1, 1, 1e4, 1, 1]
    )
    assert found["cause"] == cause


def test_replayed_rows_show_what_was_not_recorded() -> None:
    """Recorded were the steps 1, 6 and 7; a batch of step 4 was far above usual."""
    sizes = [1.0, 1.1, 0.9, 1e4, 1.0, 1.1, 1.0]
    rows = {
        "steps": [1, 2, 3, 4, 5, 6, 7],
        "scalars": {
            "loss": [1.0, 0.9, 0.8, 1e8, 1e9, 1e10, NAN], "grad_norm": [1.0] * 7, "lr": [0.1] * 7, "batch": [0.0] * 7,
            "largest_target": sizes,
        },
        "layers": [{"layer": 0, "recorded": {"weight": [[0.9, 0.5]] * 7, "grad_over_weight": [[1.0, 1.0]] * 7}}],
    }  # fmt: skip
    autopsy = findings(7, replayed=rows, trouble={"step": 2, "kind": "loss"})
    run, source = run_of([1.0, 1e10, NAN], every=5, name="sgd", autopsy=autopsy, largest=[1.0, 1.1, 1.0])
    end = {"step": 7, "layer": None, "eigenvalue": None, "tensor": "loss", "value": "NaN"}
    scalars = replace(source.rows, step=np.array([1, 6, 7]))
    source = replace(source, rows=scalars, layers={0: replace(source.layers[0], step=scalars.step)})
    run = replace(run, divergence=end, step=7)
    found = judge(run, source)
    assert (found["cause"], found["confidence"]) == ("bad_input", "measured")
    assert "the batch of step 4 is far above usual" in found["summary"]
    assert found["trouble"] == {"step": 4, "kind": "batch", "shown": 4, "exact": True}
    assert any("The autopsy trained the steps from 1 on again" in one["text"] for one in found["evidence"])
    assert judge(replace(run, autopsy=None), source)["cause"] != "bad_input"


def test_batches_that_grow_are_the_data_although_the_run_dies_without_the_first_one() -> None:
    tried = [
        counterfactual("unchanged", False, 12), counterfactual("batches_scaled", True),
        counterfactual("batch_left_out", False, 12) | {"from_step": 5},
    ]  # fmt: skip
    loss = [*CALM, 3.0, 12.0, 50.0, 200.0, 900.0, NAN]
    sizes = [1, 1.1, 0.9, 1, 1.1, 1, 2, 4, 8, 16, 32, 64]
    autopsy = findings(12, counterfactuals=tried, modules=modules(1e39))
    found = verdict_of(loss, autopsy, largest=sizes, name="sgd")
    assert told(found)[:2] == ("bad_input", "measured")
    assert "the largest target grew from batch to batch" in found["summary"]
