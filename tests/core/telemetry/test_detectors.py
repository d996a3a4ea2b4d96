"""Detectors report the exact step, layer, eigenvalue and tensor once per episode, no matter where flushes end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablessm_core.spec.config import Alerts
from stablessm_core.telemetry.detectors import KINDS, REARM_STEPS, Alert, Detectors, LayerRows, Rows, Values
from stablessm_core.telemetry.detectors.dead_eigenvalues import DEAD_STEPS
from stablessm_core.telemetry.detectors.episodes import without_alerts
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.sink import Flush, MemorySink

PARAMETERS = ["encoder.weight", "blocks.0.ssm.w", "blocks.1.ssm.w"]
STEPS, WIDTH = 600, 5


class History:
    """A healthy run of two layers. A test plants a fault and then feeds the run to the detectors in flushes of any size."""

    def __init__(self) -> None:
        self.loss = np.ones(STEPS, np.float32)
        self.norms = np.ones((STEPS, 6), np.float32)
        self.ratio = np.full((2, STEPS, WIDTH), 0.5, np.float32)
        self.weight = np.full((2, STEPS, WIDTH), 0.3, np.float32)
        self.distance = np.full((2, STEPS, WIDTH), 0.2, np.float32)
        self.state = np.ones((2, STEPS, WIDTH), np.float32)

    def rows(self, first: int, last: int) -> Rows:
        at = slice(first, last)
        layers = [
            LayerRows(
                i,
                f"blocks.{i}.ssm.w",
                Values(self.ratio[i, at]),
                Values(self.weight[i, at]),
                Values(self.distance[i, at]),
                Values(self.state[i, at]),
            )
            for i in range(2)
        ]
        return Rows(first + 1, self.loss[at], self.norms[at], layers)

    def alerts(self, flush: int = 64, **thresholds: float) -> list[Alert]:
        return [alert for alert in self.sent(flush, **thresholds) if alert.lasted == 1]

    def sent(self, flush: int = 64, **thresholds: float) -> list[Alert]:
        """The alerts, and the alerts that extend them, in the order in which they are sent."""
        detectors = Detectors(PARAMETERS, **thresholds)
        found: list[Alert] = []
        for first in range(0, STEPS, flush):
            found += detectors.scan(self.rows(first, min(first + flush, STEPS)))
        return found + detectors.durations()


@pytest.fixture(params=[1, 64, 600], ids="flush={}".format)
def flush(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_healthy_run_raises_no_alert(flush: int) -> None:
    assert History().alerts(flush, max_grad_over_weight=1e4, min_boundary_distance=1e-4) == []


def test_an_alert_reports_a_nonfinite_loss_with_its_value(flush: int) -> None:
    history = History()
    history.loss[99:] = np.nan
    (alert,) = history.alerts(flush)
    assert (alert.kind, alert.severity, alert.step, alert.tensor, alert.series) == (
        "nonfinite_loss",
        "critical",
        100,
        "loss",
        "train/loss",
    )
    assert np.isnan(alert.value or 0)


def test_an_alert_for_a_nonfinite_eigenvalue_gradient_names_the_eigenvalue(flush: int) -> None:
    history = History()
    history.norms[49:, 5] = np.inf
    history.ratio[1, 49:, 3] = np.inf
    (alert,) = history.alerts(flush)
    assert (alert.kind, alert.step, alert.layer, alert.eigenvalue) == ("nonfinite_gradient", 50, 1, 3)
    assert (alert.tensor, alert.value, alert.series) == ("blocks.1.ssm.w.grad", np.inf, "ssm/1/grad_over_weight")


def test_an_alert_for_another_nonfinite_gradient_names_its_tensor() -> None:
    history = History()
    history.norms[9, 3] = np.nan
    (alert,) = history.alerts()
    assert (alert.kind, alert.step, alert.layer, alert.tensor) == ("nonfinite_gradient", 10, None, "encoder.weight.grad")


def test_an_alert_for_a_nonfinite_weight_names_the_weight(flush: int) -> None:
    history = History()
    history.norms[9:, 1] = np.nan
    history.weight[0, 9:, 2] = history.distance[0, 9:, 2] = np.nan
    (alert,) = history.alerts(flush)
    assert (alert.kind, alert.step, alert.layer, alert.eigenvalue, alert.tensor) == (
        "nonfinite_weight",
        10,
        0,
        2,
        "blocks.0.ssm.w",
    )


def test_an_alert_for_overflowing_states_names_the_eigenvalue_furthest_beyond_the_boundary(flush: int) -> None:
    history = History()
    history.state[1, 300:, [1, 2, 4]] = np.inf
    history.distance[1, :, 2] = -0.3
    found = [a for a in history.alerts(flush) if a.kind == "nonfinite_state"]
    assert [(a.step, a.layer, a.eigenvalue, a.value) for a in found] == [(301, 1, 2, np.inf)]
    assert "the same holds for 2 of the other 4 eigenvalues" in found[0].message


def test_first_nonfinite_returns_the_earliest_row_with_any_nonfinite_number() -> None:
    history, detectors = History(), Detectors(PARAMETERS)
    assert detectors.first_nonfinite(history.rows(0, STEPS)) is None
    history.loss[200], history.norms[190, 4], history.state[0, 180, 0] = np.nan, np.inf, np.nan
    assert detectors.first_nonfinite(history.rows(0, STEPS)) == 180
    assert detectors.first_nonfinite(history.rows(185, STEPS)) == 5
    assert len(history.rows(0, STEPS).cut(3).layers[1].state.values) == 3


def test_alerts_of_one_step_list_causes_before_consequences() -> None:
    history = History()
    history.loss[4] = history.norms[4, 1] = history.norms[4, 4] = history.state[0, 4, 0] = np.nan
    history.weight[0, 4, 0] = history.ratio[0, 4, 0] = np.nan
    kinds = [a.kind for a in history.alerts()]
    assert kinds == ["nonfinite_weight", "nonfinite_state", "nonfinite_loss", "nonfinite_gradient"]


def test_an_alert_for_large_ratios_names_the_largest_ratio_and_counts_the_others(flush: int) -> None:
    history = History()
    history.ratio[0, 120, [0, 3, 4]] = [2e4, 5e4, 3e4]
    (alert,) = history.alerts(flush, max_grad_over_weight=1e4)
    assert (alert.kind, alert.severity, alert.step, alert.layer, alert.eigenvalue, alert.value) == (
        "grad_over_weight",
        "warning",
        121,
        0,
        3,
        5e4,
    )
    assert alert.message == (
        "layer 0, eigenvalue 3: gradient is 5e+04 times the weight, above the threshold of 10,000 times; the same holds for 2 of "
        "the other 4 eigenvalues"
    )


def test_a_weight_of_exactly_zero_raises_no_alert_because_its_ratio_is_undefined() -> None:
    history = History()
    history.ratio[0, 10, 1], history.ratio[1, 10, 1] = np.inf, np.nan
    assert history.alerts(max_grad_over_weight=1e4) == []
    history.ratio[0, 10, 2] = 2e4
    (alert,) = history.alerts(max_grad_over_weight=1e4)
    assert (alert.layer, alert.eigenvalue, alert.value) == (0, 2, 2e4)


def test_an_episode_raises_one_alert_and_a_new_episode_needs_a_quiet_period_first(flush: int) -> None:
    history = History()
    history.ratio[0, 50:100, 0] = 9e9
    history.ratio[0, 100 + REARM_STEPS - 1, 0] = 9e9  # too early for a new episode
    later = 100 + 2 * REARM_STEPS + 5
    history.ratio[0, later : later + 2, 0] = 9e9
    history.ratio[1, 60, 0] = 9e9  # another layer is a separate episode
    history.ratio[0, later + 150 :, 1] = 9e9  # another eigenvalue
    found = history.alerts(flush, max_grad_over_weight=1e4)
    assert [(a.step, a.layer, a.eigenvalue) for a in found] == [(51, 0, 0), (61, 1, 0), (later + 151, 0, 1)]


def test_later_episodes_of_the_same_eigenvalue_extend_its_alert(flush: int) -> None:
    history = History()
    history.ratio[0, 50:100, 0] = 9e9
    history.ratio[0, 300:302, 0] = 9e9
    sink = MemorySink()
    sink.write(Flush([], history.sent(flush, max_grad_over_weight=1e4), STEPS, None))
    (alert,) = sink.alerts
    assert (alert.step, alert.lasted) == (51, 52)
    assert alert.message.endswith("; this was so on 52 of the steps from step 51 to step 302")


def test_an_alert_that_lasts_is_sent_again_when_its_number_of_steps_doubles_and_at_the_end(flush: int) -> None:
    history = History()
    history.ratio[0, 50:200, 0] = 9e9
    sent = history.sent(flush, max_grad_over_weight=1e4)
    assert [(a.step, a.lasted) for a in sent] == [(51, n) for n in (1, 16, 32, 64, 128, 150)]
    assert sent[2].message == sent[0].message + "; this lasted from step 51 to step 82"


def test_a_critical_alert_is_raised_again_by_a_later_episode(flush: int) -> None:
    history = History()
    history.loss[[50, 300]] = np.nan
    assert [(a.kind, a.step) for a in history.alerts(flush)] == [("nonfinite_loss", 51), ("nonfinite_loss", 301)]


def test_a_fork_does_not_extend_the_alerts_of_its_original() -> None:
    history = History()
    history.ratio[0, 50:500, 0] = 9e9
    original = Detectors(PARAMETERS, max_grad_over_weight=1e4)
    original.scan(history.rows(0, 100))
    fork = Detectors(PARAMETERS, max_grad_over_weight=1e4)
    fork.restore(without_alerts(original.state()))
    assert fork.scan(history.rows(100, STEPS)) == fork.durations() == []


def test_eigenvalues_raise_alerts_close_to_the_boundary_and_beyond_the_boundary(flush: int) -> None:
    history = History()
    history.distance[0, 30:, 1] = 5e-5
    history.distance[0, 45:, 1] = -1e-3
    history.distance[1, 100:109, 1] = history.distance[1, 110:119, 1] = 5e-5  # passes by in 9 steps
    found = history.alerts(flush, min_boundary_distance=1e-4)
    assert [(a.kind, a.severity, a.step, a.eigenvalue) for a in found] == [
        ("boundary_distance", "warning", 40, 1),
        ("unstable_eigenvalue", "warning", 46, 1),
    ]
    assert found[0].message == (
        "layer 0, eigenvalue 1: distance to the stability boundary is 5e-05, and has been below the threshold of 0.0001 for 10 "
        "steps"
    )
    assert found[1].message == ("layer 0, eigenvalue 1: outside the stability boundary: |lambda_bar| is 1.001, above 1")
    assert found[1].value == pytest.approx(-1e-3)


def test_an_eigenvalue_on_the_boundary_is_not_unstable_and_thresholds_can_be_disabled() -> None:
    history = History()
    history.distance[1, 3:, 2] = 0.0  # as with relu, and with exp and softplus where float32 rounds to 1
    history.ratio[0, 3, 2] = 1e30
    assert history.alerts(min_boundary_distance=1e-4) == []


def test_fast_oscillations_that_the_bilinear_rule_moves_to_the_boundary_raise_no_alert() -> None:
    form = Form("exp", "continuous", "bilinear", dt="dt", phase="imaginary")
    weight = np.log(np.float32([[0.5, 0.5, 1e-4]]))  # logarithms of the rates; the last rate decays slowly
    recorded = {"weight": weight, "dt": np.full_like(weight, 0.1), "phase_weight": np.float32([[1300.0, 1.0, 1.0]])}
    distance = form.derive("boundary_distance", recorded)
    assert (distance < 1e-4).tolist() == [[True, False, True]]
    values = [Values(v) for v in (np.ones_like(weight), weight, distance, np.ones_like(weight))]
    rows = Rows(1, np.ones(1, np.float32), np.ones((1, 2), np.float32), [LayerRows(0, "w", *values, form, recorded)])
    (alert,) = Detectors(["w"], min_boundary_distance=1e-4).scan(_repeated(rows, 10))
    assert (alert.kind, alert.eigenvalue, "other" in alert.message) == ("boundary_distance", 2, False)


def _repeated(rows: Rows, times: int) -> Rows:
    """Rows that repeat a single row."""

    def of(values: Values) -> Values:
        return Values(np.repeat(values.values, times, axis=0))

    (layer,) = rows.layers
    assert layer.recorded is not None
    recorded = {kind: np.repeat(values, times, axis=0) for kind, values in layer.recorded.items()}
    values = {name: of(getattr(layer, name)) for name in ("ratio", "weight", "distance", "state")}
    layer = replace(layer, **values, recorded=recorded)
    return Rows(1, np.repeat(rows.loss, times), np.repeat(rows.norms, times, axis=0), [layer])


def test_eigenvalues_with_zero_gradient_for_many_steps_are_dead(flush: int) -> None:
    history = History()
    history.ratio[1, 70:, 2] = 0.0
    history.ratio[1, 90 : 90 + DEAD_STEPS - 1, 4] = 0.0  # one step fewer than counts as dead
    (alert,) = history.alerts(flush)
    assert (alert.kind, alert.step, alert.layer, alert.eigenvalue) == ("dead_eigenvalues", 70 + DEAD_STEPS, 1, 2)


def test_alerts_of_a_wide_layer_name_the_eigenvalue_and_not_the_column() -> None:
    ratio = Values(np.float32([[7e5, 1.0]]), np.float32([[50_001, 3]]))
    at = np.float32([[9, 12_345]])
    layer = LayerRows(2, "w", ratio, Values(np.ones((1, 2)), at), Values(np.float32([[-0.5, 0.1]]), at), ratio)
    rows = Rows(8, np.ones(1, np.float32), np.ones((1, 2), np.float32), [layer])
    found = Detectors(["w"], max_grad_over_weight=1e4).scan(rows)
    assert [(a.kind, a.step, a.eigenvalue) for a in found] == [("grad_over_weight", 8, 50_001), ("unstable_eigenvalue", 8, 9)]


def test_weights_near_the_end_of_float32_raise_alerts_and_no_warning_of_numpy(flush: int) -> None:
    history = History()
    history.weight[1] = 1e36
    history.ratio[1, 50:, 3] = 2e6
    kinds = {(alert.kind, alert.eigenvalue) for alert in history.alerts(flush, max_grad_over_weight=1e4) if alert.layer == 1}
    assert ("grad_over_weight", 3) in kinds


def test_a_gradient_that_is_large_only_relative_to_one_small_weight_raises_no_alert(flush: int) -> None:
    history = History()
    history.weight[1, :, 3] = 1e-9  # of weights of .3
    history.ratio[1, 50:, 3] = 2e6
    assert history.alerts(flush, max_grad_over_weight=1e4) == []
    history.ratio[1, 200:, 3] = 3.1e12  # a gradient of 3,100 is also 10,000 times as large as the others
    (alert,) = history.alerts(flush, max_grad_over_weight=1e4)
    assert (alert.kind, alert.step, alert.layer, alert.eigenvalue) == ("grad_over_weight", 201, 1, 3)


def test_detectors_restored_from_a_checkpoint_raise_the_same_alerts_as_uninterrupted_detectors(flush: int) -> None:
    history = History()
    history.ratio[0, 50:400, 2] = 0.0  # dead from step 150 on, as one episode
    history.ratio[1, 30:300] = 1e6
    thresholds = {"max_grad_over_weight": 1e4}
    found: list[Alert] = []
    state: dict[str, np.ndarray] = {}
    for first in range(0, STEPS, flush):
        detectors = Detectors(PARAMETERS, **thresholds)
        detectors.restore(state)
        found += detectors.scan(history.rows(first, min(first + flush, STEPS)))
        state = detectors.state()
    assert {alert.kind for alert in found} == {"dead_eigenvalues", "grad_over_weight"}
    assert found + detectors.durations() == history.sent(flush, **thresholds)


def test_episodes_stored_by_an_older_version_continue_after_a_resume() -> None:
    history = History()
    history.ratio[1, 70:, 2] = 0.0
    detectors = Detectors(PARAMETERS)
    detectors.scan(history.rows(0, 90))
    state = detectors.state()
    older = {key.replace("memory/dead_eigenvalues", "zeros"): array for key, array in state.items()}
    assert older.keys() != state.keys()
    resumed = Detectors(PARAMETERS)
    resumed.restore(older)
    assert [a.step for a in resumed.scan(history.rows(90, STEPS)) if a.lasted == 1] == [70 + DEAD_STEPS]


def test_an_episode_stored_only_by_its_last_step_raises_no_second_alert() -> None:
    history = History()
    history.ratio[1, 30:300, 2] = 9e9
    resumed = Detectors(PARAMETERS, max_grad_over_weight=1e4)
    resumed.restore({"last/grad_over_weight/1": np.array([90])})
    assert resumed.scan(history.rows(90, STEPS)) == resumed.durations() == []


def test_an_unknown_alert_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_distance.*min_boundary_distance"):
        Detectors(PARAMETERS, min_distance=1.0)


def test_every_alert_kind_has_an_explanation_and_every_setting_is_a_configuration_field() -> None:
    assert {name: kind.name for name, kind in KINDS.items()} == {name: name for name in KINDS}
    assert all(kind.meaning.endswith(".") for kind in KINDS.values())
    assert list(Alerts.model_fields) == [*(kind.setting for kind in KINDS.values() if kind.setting), "rules"]
    assert {name for name, kind in KINDS.items() if kind.detect is None} == {
        "nonfinite_evaluation", "no_progress", "rolled_back", "lr_lowered", "stopped_early", "worker_lost", "trainer_crashed",
        "spool_full", "worker_unfit", "rule", "reported", "recording_changed",
    }  # fmt: skip


def test_a_nonfinite_batch_raises_an_alert_instead_of_the_tensors_that_it_made_nonfinite() -> None:
    history = History()
    history.loss[20] = history.norms[20, 3] = history.state[0, 20, 4] = np.nan
    flags = np.zeros(STEPS, np.float32)
    flags[20] = 3
    blamed = Detectors(PARAMETERS).scan(replace(history.rows(0, STEPS), batch=flags))
    assert [(a.kind, a.step, a.tensor, a.eigenvalue) for a in blamed] == [("nonfinite_batch", 21, "batch.x", None)]
    assert "input and target of step 21" in blamed[0].message
    assert "nonfinite_state" in {a.kind for a in Detectors(PARAMETERS).scan(history.rows(0, STEPS))}
