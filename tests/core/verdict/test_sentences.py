"""Each sentence says what the recorded numbers show, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stablessm_core import verdict
from stablessm_core.telemetry.forms import Form
from stablessm_core.verdict import judge
from stablessm_core.verdict.formats import near_one, number, power
from stablessm_core.verdict.memory_source import MemorySource
from tests.core.verdict.recorded import CALM, NAN, run_of

INF = float("inf")
LONG = [1.0 - 0.01 * i for i in range(40)]


def summary(*given: Any, **named: Any) -> str:
    return str(judge(*run_of(*given, **named))["summary"])


def test_an_eigenvalue_near_one_is_told_from_one() -> None:
    assert near_one(1.0047) == "1.0047"
    assert near_one(1.00000123) == "1.0000012"
    assert number(-0.0) == "0"
    assert power(1.0047, 100) == "|1.0047|^100 = 1.6"
    assert power(2.38342, 100) == "|2.3834|^100 = 5.2e37"


def test_the_state_overflows_and_not_the_power_if_the_power_still_fits() -> None:
    alert = {
        "kind": "nonfinite_state", "step": 7, "layer": 0, "eigenvalue": 0, "tensor": "blocks.0.ssm.state", "value": INF,
        "message": "layer 0, eigenvalue 0: state inf",
    }  # fmt: skip
    text = summary([*CALM, NAN], eigenvalue=[0.9, 0.9, 0.95, 1.2, 2.0, 2.3, 2.38342], alerts=[alert])
    assert (
        "|2.3834|^100 = 5.2e37, and with the inputs of 100 steps added up, the state exceeds the limit of float32, 3.4e38" in text
    )
    text = summary([*CALM, NAN], eigenvalue=[0.9, 0.9, 0.95, 1.2, 2.0, 2.3, 2.45], alerts=[alert])
    assert "|2.45|^100 = 8.3e38, and float32 ends at 3.4e38" in text


def test_with_gaps_in_the_record_no_sentence_is_about_the_step_before() -> None:
    found = judge(*run_of([*CALM, NAN], every=10, eigenvalue=[0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.45]))
    assert "At step 51, the last recorded one before, the loss was its best so far." in found["summary"]
    assert "was first recorded outside the stability boundary at step 31" in found["summary"]
    texts = [found["summary"], *(one["text"] for key in ("events", "evidence") for one in found[key])]
    assert not [text for text in texts if "gave no warning" in text or "one step earlier" in text or "The update before" in text]
    assert found["trouble"] == {"step": 21, "kind": "crossing", "shown": 31, "exact": False}


def test_losses_below_zero_are_not_divided() -> None:
    loss = [-3.0, -3.5, -3.9, -3.8, -3.93, -1.0, 40.0, 900.0, NAN]
    found = judge(*run_of(loss))
    assert found["cause"] == "explosion"
    assert "at step 8 the loss was 900 (its best was -3.93)" in found["summary"]
    assert not [one for one in found["evidence"] if "infinite" in one["text"]]
    healthy = judge(*run_of([-3.0, -3.5, -3.9, -3.8, -3.93, -3.7, NAN]))
    assert healthy["cause"] == "unknown"
    assert any("Loss at step 6: -3.7 (its best was -3.93)." in one["text"] for one in healthy["evidence"])


@pytest.mark.parametrize(
    ("end", "said"),
    [(7e31, "7e31 is the median of its last 10 recorded steps, 7e31 x its first value (1)."), (30.0, "30 is the median")],
)
def test_a_finished_run_whose_loss_ended_far_above_its_start_says_so_first(end: float, said: str) -> None:
    found = judge(*run_of([*LONG[:20], *[end] * 20]))
    assert found["summary"].startswith(f"Finished: the loss is far above its start: {said}")
    assert found["trouble"]["kind"] == "loss"
    assert judge(*run_of(LONG))["summary"].startswith("Finished: all 2 eigenvalues are inside the stability boundary;")


def test_a_single_large_loss_at_the_end_is_not_a_loss_far_above_the_start() -> None:
    assert "far above" not in summary([*LONG[:39], 50.0])


@pytest.mark.parametrize(("value", "said"), [(NAN, "NaN"), (INF, "infinite")])
def test_an_evaluation_that_is_not_finite_is_in_the_first_sentence(value: float, said: str) -> None:
    found = judge(*run_of(LONG, evaluated=([20, 40], [0.5, value])))
    assert found["summary"].startswith(f"Finished: the loss of the evaluation at step 40 is {said}")
    assert found["cause"] is None
    assert [one["step"] for one in found["events"] if one["kind"] == "nonfinite_evaluation"] == [40]
    assert [str(one["eval_loss"]) for one in found["evidence"] if "eval_loss" in one] == [str(value)]
    died = judge(*run_of([*CALM, NAN], evaluated=([4], [value])))
    assert died["events"][0]["step"] == 4


def test_eigenvalues_that_may_be_outside_the_boundary_are_not_unstable() -> None:
    softmax = Form("direct", "discrete", "none", bounded=False)
    found = judge(*run_of(LONG, eigenvalue=[1.5] * 40, form=softmax))
    assert found["unstable"] is None
    assert "are meant in this model" in found["summary"]
    assert judge(*run_of(LONG, eigenvalue=[1.5] * 40))["unstable"]["eigenvalues"] == 1


def test_a_model_with_one_eigenvalue_has_no_plural() -> None:
    run, source = run_of(LONG)
    rows = verdict.Rows.derived(
        Form.of_map("direct", "discrete"),
        source.rows.step,
        {"weight": np.linspace(0.8, 0.9, 40)[:, None], "grad_over_weight": np.ones((40, 1))},
    )
    layer = replace(run.layers[0], width=1)
    one = replace(run, layers=(layer,))
    text = judge(one, MemorySource(source.rows, {0: rows}))["summary"]
    assert text == "Finished: the only eigenvalue is inside the stability boundary, at distance 0.1."


def test_the_overflow_budget_of_an_eigenvalue_on_the_boundary_has_no_sign() -> None:
    found = judge(*run_of(LONG, eigenvalue=[0.9] * 39 + [1.0000001]))
    assert found["unstable"]["overflow_budget"] >= 0
    assert not str(found["unstable"]["overflow_budget"]).startswith("-")


def test_wide_layers_count_their_eigenvalues_with_at_least() -> None:
    from stablessm_core.verdict.eigenvalues import Crossing
    from stablessm_core.verdict.timeline import crossed

    run, _ = run_of(LONG)
    one = Crossing(layer=0, eigenvalue=7, step=5, value=None, distance=-0.2, outside=16, width=5000, wide=True, before=4)
    assert crossed(run, one)["text"] == "Eigenvalue 7 left the boundary, as did at least 15 of the other 4,999."
    exact = replace(one, outside=4, width=16, wide=False, value=1.183)
    assert crossed(run, exact)["text"] == "Eigenvalue 7 left the boundary (now 1.18), as did 3 of the other 15."


def test_what_the_trainer_did_is_in_the_timeline() -> None:
    alerts = [{"kind": kind, "step": 3 + i, "message": f"{kind} at this step"} for i, kind in enumerate(
        ("lr_lowered", "rolled_back", "stopped_early")
    )]  # fmt: skip
    found = judge(*run_of(LONG, alerts=alerts))
    assert [one["kind"] for one in found["events"]] == ["lr_lowered", "rolled_back", "stopped_early"]


def test_every_item_says_whether_it_was_measured_or_inferred() -> None:
    for found in (judge(*run_of([*CALM, 50.0, 1e9, NAN])), judge(*run_of(LONG, eigenvalue=[1.1] * 40))):
        assert {one["basis"] for key in ("events", "evidence") for one in found[key]} <= {"measured", "inferred"}
        assert found["evidence"]


def test_a_batch_flag_is_not_shown_as_a_value() -> None:
    run, source = run_of([*CALM, NAN])
    source = MemorySource(replace(source.rows, batch=np.array([0, 0, 0, 0, 0, 0, 2.0])), source.layers)
    run = replace(run, divergence={"step": 7, "layer": None, "eigenvalue": None, "tensor": "batch.y", "value": "2.0"})
    found = judge(run, source)
    assert found["summary"] == "The data: the target of step 7 held NaN or an infinity before anything was computed."
    assert not [one for key in ("events", "evidence") for one in found[key] if "2.0" in one["text"]]


def test_a_death_without_a_cause_offers_two_tests() -> None:
    found = judge(*run_of([*CALM, NAN]))
    assert found["cause"] == "unknown"
    assert [one["change"] for one in found["try"]] == [{"optimizer.recurrent_lr": 0}, {"optimizer.lr": 0.01}]


def test_without_the_size_of_the_batch_the_cause_is_open() -> None:
    run, source = run_of([*CALM, NAN], name="sgd")
    calm = replace(source.rows, weight_norm=np.full(7, 100.0))
    found = judge(run, MemorySource(calm, source.layers))
    assert (found["cause"], found["confidence"], found["runner_up"]) == ("unknown", "cannot_tell", "bad_input")
    assert "How large the numbers of the batch were is not recorded" in found["summary"]
    sized = judge(run, MemorySource(replace(calm, largest_target=np.full(7, 3.8)), source.layers))
    assert (sized["cause"], sized["runner_up"]) == ("unknown", "bad_loss")
    assert "The largest number of its batch was 3.8 (median of the batches before: 3.8)." in sized["summary"]


def test_the_advised_rate_covers_the_eigenvalue_that_steps_furthest() -> None:
    run, source = run_of([*CALM, NAN], eigenvalue=[0.5, 0.6, 0.8, 1.2, 2.0, 2.4, 2.45])
    weight = np.stack([source.layers[0].weight[:, 0], np.linspace(0.9, 0.99, 7)], 1)  # type: ignore[index]
    rows = verdict.Rows.derived(
        Form.of_map("direct", "discrete"), source.rows.step, {"weight": weight, "grad_over_weight": np.ones_like(weight)}
    )
    found = judge(run, MemorySource(source.rows, {0: rows}))
    (rate,) = [one["change"]["optimizer.recurrent_lr"] for one in found["try"] if one["change"].get("optimizer.recurrent_lr")]
    assert rate <= 0.1 * (1 - weight[5, 1]) / 0.1 + 1e-12, "also the other eigenvalue cannot cross in one step"


def test_clipping_is_not_advised_under_adamw() -> None:
    exploded = [*CALM, 50.0, 1e4, 1e9, NAN]
    assert not [one for one in judge(*run_of(exploded))["try"] if "optimizer.grad_clip" in one["change"]]
    assert [one for one in judge(*run_of(exploded, name="sgd"))["try"] if "optimizer.grad_clip" in one["change"]]


def test_a_rise_between_two_recorded_rows_is_no_proof_of_an_explosion() -> None:
    found = judge(*run_of([*CALM, 5e6, 1e9, NAN], every=10, name="sgd"))
    assert (found["cause"], found["confidence"], found["runner_up"]) == ("unknown", "cannot_tell", "explosion")
    assert "Between the recorded steps 51 and 61 the loss rose from 0.5 to 5e6; the steps between" in found["summary"]
    slow = judge(*run_of([*CALM, 5.0, 50.0, 500.0, 5e3, NAN], every=10, name="sgd"))
    assert (slow["cause"], slow["runner_up"]) == ("explosion", "bad_input")


@pytest.mark.parametrize("largest", [[3.8, 3.8e4], [3.8, 4.0, 3.8e4], [4.0, 3.8, 3.9, 3.7, 3.8e4]])
def test_a_bad_batch_is_found_among_few_steps(largest: list[float]) -> None:
    found = judge(*run_of([1.0] * (len(largest) - 1) + [NAN], largest=largest, name="sgd"))
    assert (found["cause"], found["confidence"]) == ("bad_input", "measured")


def test_under_adamw_a_large_batch_that_the_run_survived_is_not_the_cause() -> None:
    loss = [1.0, 0.9, 0.8, 90.0, 0.8, 0.7, 0.6, 0.5, NAN]
    crossing = [0.9, 0.9, 0.9, 0.9, 1.1, 1.5, 2.0, 2.3, 2.45]
    found = judge(*run_of(loss, largest=[1, 1.1, 1, 30, 1, 1.1, 1, 1, 1], eigenvalue=crossing))
    assert found["cause"] == "eigenvalue_overflow"
