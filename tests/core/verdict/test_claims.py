"""No sentence of the verdict claims more than its record shows: each test is a record about which a sentence could be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stablessm_core.verdict import judge
from stablessm_core.verdict.memory_source import between
from tests.core.verdict import examples_of_causes, examples_of_eigenvalues, examples_of_evidence
from tests.core.verdict.examples import texts
from tests.core.verdict.findings import counterfactual, findings, first, gradient, modules
from tests.core.verdict.recorded import CALM, NAN, configured, run_of

UNKNOWN = [*CALM, NAN]
OUTSIDE = [0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.42]


def test_a_norm_with_an_unknown_input_is_not_said_to_overflow() -> None:
    assert "norm_squares" not in texts(examples_of_evidence.norm_squares(None))


# ---- the data and the loss ----


def test_a_batch_above_1e18_is_not_far_above_usual_batches_that_are_as_large() -> None:
    found = texts(run_of(UNKNOWN, largest=[9e17] * 6 + [1e18]))
    assert "far above usual" not in found["batch_far_above_usual"]
    assert "Its largest target is 1e18, and float32 cannot hold the sum of 341 such squares." in found["batch_far_above_usual"]


def test_numbers_that_grew_with_a_break_are_told_from_the_beginning_of_their_growth() -> None:
    sizes = [1.0] * 5 + [1.25**row for row in range(1, 21)]
    sizes[-2], sizes[-3] = sizes[-3], sizes[-2]
    found = texts(run_of([1.0] * 24 + [NAN], largest=sizes, name="adamw"))["batches_grew"]
    assert "grew in nearly every batch, from 1.25 at step 6 to 86.7 at the end" in found


def test_a_fall_is_told_from_the_first_loss_below_zero() -> None:
    found = texts(run_of([1, 1, 5, -1, -3, -51, NAN]))["loss_falls_without_bound"]
    assert "from -1 at step 4 to -51 at step 6, more in each step" in found, "from 5 to -1 it fell by more than from -1 to -3"


def test_two_losses_that_differ_by_rounding_show_no_state() -> None:
    assert "loss_keeps_a_state" not in texts(examples_of_causes.loss_keeps_a_state(20.000001))


def test_only_finite_losses_before_the_end_are_counted_as_float16_numbers() -> None:
    text = texts(examples_of_causes.count_of_float16_losses(0.125))["count_of_float16_losses"]
    assert text.startswith("All of the 8 different recorded losses are float16 numbers")


# ---- the gradient ----


def test_a_gradient_that_is_wrong_in_training_mode_is_compared_with_the_slope_of_training_mode() -> None:
    wrong = gradient(6, 737.0, 1.5, differs="training_mode")
    found = texts(run_of(UNKNOWN, autopsy=findings(7, gradient=wrong, modules=modules(1e39)), name="sgd"))["gradient_differs"]
    assert "its norm is 737, but along it the loss changes by 1.5 per unit of distance. In evaluation mode" in found


def test_the_sign_of_a_slope_is_told() -> None:
    wrong = findings(7, gradient=gradient(6, 1.5, -1.5), modules=modules(1e39))
    assert "along it the loss changes by -1.5" in texts(run_of(UNKNOWN, autopsy=wrong, name="sgd"))["gradient_disagrees"]


def test_a_right_gradient_in_float64_is_not_said_to_be_that_of_the_run() -> None:
    right = gradient(6, 0.5, 0.5, recorded=3.0, repeated=3.0, differs="precision")
    found = texts(examples_of_evidence.autopsied(gradient=right))["gradient_agrees"]
    assert found.startswith("In float64, the gradient of step 6 agrees with the loss")
    assert found.endswith("The run recorded the norm 3.")


# ---- trials ----


def test_trials_that_cannot_be_compared_are_not_quoted() -> None:
    trials = [counterfactual("unchanged", False, 8), counterfactual("tenth_of_rate", True)]
    found = texts(examples_of_evidence.autopsied(counterfactuals=trials))
    assert found["trial"] == "Trained again from step 2 unchanged, the run dies at step 8."


def test_trials_of_which_one_died_before_the_control_are_not_said_to_be_unlike_the_run() -> None:
    trials = [
        counterfactual("unchanged", False, 7) | {"comparable": False},
        counterfactual("tenth_of_rate", False, 5) | {"comparable": False},
    ]
    found = texts(examples_of_evidence.autopsied(counterfactuals=trials))
    assert "did not repeat the run" not in found["trials_not_comparable"]


# ---- eigenvalues ----


def test_a_spike_under_an_optimizer_whose_steps_may_not_grow_with_it_is_not_said_to_have_caused_a_crossing() -> None:
    how = examples_of_causes.How(optimizer="muon", length=100)
    found = texts(run_of(UNKNOWN, eigenvalue=OUTSIDE, ratio=[1, 1, 20, 1, 1, 1, 1], reported=how))["gradient_spiked"]
    assert "pushed it out" not in found


def test_a_spike_after_the_crossing_is_not_said_to_have_caused_it() -> None:
    found = texts(run_of(UNKNOWN, eigenvalue=OUTSIDE, ratio=[1, 1, 1, 20, 1, 1, 1], name="sgd"))["gradient_spiked"]
    assert "pushed it out" not in found
    assert found.startswith("Its gradient spiked: ")


def test_a_budget_far_below_its_limit_is_not_said_to_exceed_float32() -> None:
    trials = [counterfactual("unchanged", False, 7), counterfactual("recurrence_frozen", True)]
    lived = findings(7, modules=modules(1e39), counterfactuals=trials)
    far_below = [0.9, 0.9, 0.95, 1.2, 1.3, 1.32, examples_of_eigenvalues.size(0.4)]
    found = texts(run_of(UNKNOWN, eigenvalue=far_below, autopsy=lived))["eigenvalue_overflowed"]
    assert found.endswith(": |1.426|^100 = 2.6e15.")


def test_a_loss_that_rose_only_in_the_fatal_step_is_quoted_from_there() -> None:
    end = {"step": 7, "layer": None, "eigenvalue": None, "tensor": "encoder.weight.grad", "value": "NaN"}
    found = texts(run_of([*CALM, 2.0], eigenvalue=OUTSIDE, name="sgd", divergence=end, status="diverged"))["either_began_it"]
    assert found.startswith("By then the loss was 4 x its best (0.5): ")


def test_the_type_of_the_states_of_another_program_is_not_told() -> None:
    how = examples_of_causes.How(optimizer="adamw", precision="bfloat16")
    assert "States" not in texts(run_of(UNKNOWN, reported=how))["range_of_bfloat16"]


def test_a_step_size_that_was_not_recorded_at_the_start_is_not_quoted() -> None:
    run_, source = run_of(UNKNOWN, form=examples_of_causes.CONTINUOUS, dt=[1.0] * 6 + [float("inf")])
    found = texts((run_, replace(source, layers={0: between(source.layers[0], 5, 7)})))
    assert "not a number" not in found["step_size_ran_away"]
    assert "largest_step_sizes" not in found


def test_nothing_is_said_to_have_moved_a_decay_more_if_both_parts_moved_it_alike() -> None:
    assert "moved it more" not in texts(examples_of_evidence.parts_of_decay(0.1))["parts_of_decay"]


# ---- causes that a record contradicts ----


def test_a_learning_rate_whose_updates_were_small_is_not_called_far_too_large() -> None:
    run_, source = run_of([1, 50, NAN], columns={"weight_norm": [10.0] * 3}, name="sgd")
    assert "first_updates_were_fatal" not in texts((run_, source))
    lighter = replace(source, rows=replace(source.rows, weight_norm=source.rows.weight_norm / 100))
    assert "first_updates_were_fatal" in texts((run_, lighter))


def test_an_unknown_learning_rate_is_not_called_far_too_large() -> None:
    how = examples_of_causes.How(optimizer="sgd")
    assert "first_updates_were_fatal" not in texts(run_of([1, 50, NAN], columns={"lr": [NAN] * 3}, reported=how))


def test_a_logarithm_that_fails_in_float64_too_is_not_blamed_on_float16() -> None:
    made, again = (first("forward", "aten.log", "blocks.0.mlp", value="NaN", dtype=kind) for kind in ("float16", "float64"))
    autopsy = findings(7, first_nonfinite=made, float64=examples_of_causes.BROKEN | {"first_nonfinite": again})
    assert "made_in_float16" not in texts(run_of(UNKNOWN, autopsy=autopsy))
    cast = findings(7, first_nonfinite=made, float64=examples_of_causes.BROKEN | {"first_nonfinite": made})
    assert "made_in_float16" in texts(run_of(UNKNOWN, autopsy=cast)), (
        "a layer that casts to float16 does so in the repetition, too"
    )


def test_losses_in_bfloat16_are_not_taken_for_float16_numbers() -> None:
    eighth_bits = [1 + row / 128 for row in range(9)]
    assert "losses_are_float16" not in texts(run_of([*eighth_bits, NAN]))


# ---- endings ----


def test_the_loss_far_above_its_start_is_the_median_of_the_last_rows_and_says_so() -> None:
    found = texts(run_of([1.0] * 30 + [4.0, 5.0] * 5))["ended_above_start"]
    assert "4.5 is the median of its last 10 recorded steps" in found


def test_a_loss_that_fell_less_than_it_scatters_is_not_said_to_have_risen() -> None:
    assert texts(run_of([1.1, 0.9] * 10 + [0.995] * 20))["loss_did_not_fall"].startswith("The loss hardly fell:")


def test_a_loss_that_scatters_hardly_fell_if_the_last_losses_are_often_as_high_as_the_first() -> None:
    scattered = [1.0, 1.4, 0.8, 1.2, 0.6] * 4
    assert "loss_did_not_fall" in texts(run_of([*scattered, *(0.9 * loss for loss in scattered)]))
    assert "loss_did_not_fall" not in texts(run_of([*scattered, *(0.7 * loss for loss in scattered)]))


def test_a_loss_below_zero_that_stayed_where_it_was_did_not_fall() -> None:
    assert texts(run_of([-1.1, -0.9] * 20))["loss_did_not_fall"].startswith("The loss did not fall: its median was -1 ")


def test_an_eigenvalue_without_a_recorded_distance_is_not_said_to_be_inside() -> None:
    found = texts(run_of(CALM, other=[0.5] * 5 + [NAN]))["eigenvalues_inside"]
    assert found == "The only recorded eigenvalue is inside the stability boundary, at distance 0.1."


def test_the_size_of_an_update_is_told_only_for_optimizers_whose_formula_is_known() -> None:
    run_, source = examples_of_evidence.size_of_update(4.0)
    lion = replace(run_, reported=examples_of_causes.How(optimizer="lion", lr="recorded"))
    assert "size_of_update" not in texts((lion, source))


def test_no_update_is_called_small_under_an_optimizer_whose_formula_is_not_known() -> None:
    run_, source = run_of(UNKNOWN, columns={"weight_norm": [100.0] * 7}, reported=examples_of_causes.How(optimizer="lion"))
    assert "calm_before" not in texts((run_, source))
    assert "calm_before" in texts((replace(run_, reported=examples_of_causes.How(optimizer="sgd")), source))


def test_the_growth_of_all_weights_is_not_told_as_the_factor_of_the_optimizer() -> None:
    config = configured(1, "adamw")
    config["optimizer"]["weight_decay"] = 30.0  # at rate 0.1, each step multiplies the weights by -2
    norms = [1.5**row for row in range(7)]
    found = texts(run_of(UNKNOWN, columns={"weight_norm": norms}, config=config))["weights_multiplied"]
    assert found.startswith("The optimizer itself multiplies all weights by -2 in each step, ")
    assert "Their norm rose from 1 at step 1 to 7.59 at step 6, by 1.5 x per step." in found


def test_weights_that_grow_alike_under_an_unknown_decay_are_no_proof_of_one() -> None:
    weight, other = ([start * 1.1**row for row in range(7)] for start in (0.5, 0.3))
    verdict = judge(*run_of(UNKNOWN, eigenvalue=weight, other=other, reported=examples_of_causes.How(optimizer="sgd")))
    assert [one["basis"] for one in verdict["sentences"] if one["sentence"] == "weights_multiplied"] == ["inferred"]


def test_a_batch_that_nobody_measured_is_not_said_to_be_finite() -> None:
    run_, source = run_of(UNKNOWN, columns={"batch": [0] * 7}, autopsy=findings(7, batch=None, modules=modules(1e39)))
    found = texts((run_, replace(source, rows=replace(source.rows, batch=None))))
    assert "flag_of_batch" not in found
    assert "batch_flag_missing" in found


def test_an_eigenvalue_far_outside_is_measured_to_overflow_only_if_a_state_did() -> None:
    alert = {
        "kind": "nonfinite_state", "step": 7, "layer": 0, "eigenvalue": 0, "tensor": "blocks.0.ssm.state", "value": float("inf"),
        "message": "layer 0, eigenvalue 0: state inf",
    }  # fmt: skip
    for alerts, basis in (([], "inferred"), ([alert], "measured")):
        verdict = judge(*run_of(UNKNOWN, eigenvalue=OUTSIDE, alerts=alerts))
        assert [one["basis"] for one in verdict["sentences"] if one["sentence"] == "eigenvalue_overflowed"] == [basis]


def test_a_single_low_loss_is_no_level_from_which_the_training_exploded() -> None:
    assert judge(*run_of([1.0, 1.0, 0.01, 1.0, 1.0, 1.0, 1.0, NAN]))["cause"] == "unknown"
    assert judge(*run_of([1.0, 1.0, 0.5, 1.0, 1.0, 5.0, 50.0, NAN]))["cause"] == "explosion"


@pytest.mark.parametrize(("frozen_lives", "confidence"), [(True, "inferred"), (False, "measured")])
def test_an_explosion_is_not_measured_if_the_run_lives_with_frozen_eigenvalues(frozen_lives: bool, confidence: str) -> None:
    tried = [
        counterfactual("unchanged", False, 9), counterfactual("tenth_of_rate", True),
        counterfactual("recurrence_frozen", frozen_lives, 200 if frozen_lives else 9),
    ]  # fmt: skip
    autopsy = findings(9, modules=modules(1e39), counterfactuals=tried)
    found = judge(*run_of([*CALM, 1e4, 1e8, NAN], autopsy=autopsy, name="sgd"))
    assert (found["cause"], found["confidence"]) == ("explosion", confidence)


def test_steps_of_adam_do_not_grow_with_a_gradient_in_loops_of_others_either() -> None:
    crossing = [0.9, 0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.42]
    for optimizer, thrown_by in (("adam", "optimizer_step"), ("sgd", "both")):
        found = judge(
            *run_of([*CALM, 2.0, NAN], eigenvalue=crossing, reported=examples_of_causes.How(optimizer=optimizer, length=100))
        )
        assert (found["cause"], found["thrown_by"]) == ("eigenvalue_overflow", thrown_by)


def test_an_update_that_is_large_for_the_eigenvalues_is_not_called_small() -> None:
    for rate, cause in ((None, True), (20.0, False)):
        config = configured(1, "adamw")
        config["optimizer"]["recurrent_lr"] = rate
        columns = {"weight_norm": [1000.0] * 7}
        found = judge(*run_of([*CALM, NAN], columns=columns, config=config, environment={"parameters": 100}))
        assert ("calm_before" in [one["sentence"] for one in found["sentences"]]) == cause


# ---- what an autopsy did not measure ----


RISEN = [*CALM, 6.0, 60.0, 600.0, NAN]


def test_an_explosion_is_only_concluded_if_the_autopsy_measured_the_gradient_or_a_tenth_of_the_rate() -> None:
    bare = findings(10, modules=modules(1e39), first_nonfinite=first("backward", "mul", "decoder"))
    found = judge(*run_of(RISEN, autopsy=bare, name="sgd"))
    assert (found["cause"], found["confidence"]) == ("explosion", "cannot_tell")
    assert "cannot tell whether the learning rate was too large" in found["summary"]
    proved = bare | {"gradient": gradient(9, 40.0, 40.0)}
    found = judge(*run_of(RISEN, autopsy=proved, name="sgd"))
    assert found["confidence"] != "cannot_tell"
    assert "cannot tell" not in found["summary"]


@pytest.mark.parametrize(("grad_norm", "said"), [(0.1, True), (100.0, False)])
def test_an_infinity_of_the_forward_pass_is_not_blamed_on_it_after_a_large_update(grad_norm: float, said: bool) -> None:
    made = first("forward", "aten.exp", "blocks.0.mlp", value="Infinity", largest_input=191.0)
    dies = [counterfactual(change, False, 7) for change in ("unchanged", "tenth_of_rate", "recurrence_frozen")]
    columns = {"weight_norm": [10.0] * 7, "grad_norm": [grad_norm] * 7}
    record = run_of(
        UNKNOWN,
        columns=columns,
        name="sgd",
        autopsy=findings(7, first_nonfinite=made, counterfactuals=dies, float64=examples_of_causes.BROKEN),
    )
    assert ("forward_made_it" in texts(record)) is said


def test_a_frozen_recurrence_that_lives_does_not_excuse_an_explosion_under_sgd() -> None:
    tried = [counterfactual("unchanged", False, 7), counterfactual("recurrence_frozen", True)]
    for last, thrown_by in ((0.55, "optimizer_step"), (60.0, "explosion")):
        losses = [*CALM[:-1], last, NAN]
        found = judge(
            *run_of(losses, eigenvalue=OUTSIDE, name="sgd", autopsy=findings(7, counterfactuals=tried, modules=modules(1e39)))
        )
        assert (found["cause"], found["thrown_by"]) == ("eigenvalue_overflow", thrown_by)


def test_step_sizes_that_a_frozen_run_does_without_explain_a_loss_that_rose_under_adamw() -> None:
    tried = [counterfactual("unchanged", False, 10), counterfactual("recurrence_frozen", True)]
    of = {"form": examples_of_causes.CONTINUOUS, "dt": [1.0] * 8 + [1e3, 1e5]}
    found = judge(*run_of(RISEN, autopsy=findings(10, counterfactuals=tried, modules=modules(1e20)), **of))
    assert (found["cause"], found["confidence"]) == ("step_size", "measured")
    dead = [counterfactual("unchanged", False, 10), counterfactual("recurrence_frozen", False, 10)]
    assert judge(*run_of(RISEN, autopsy=findings(10, counterfactuals=dead, modules=modules(1e20)), **of))["cause"] != "step_size"
