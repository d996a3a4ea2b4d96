"""Early warnings are raised at the right step, no matter where flushes end, and only if something is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablessm_core.map import Array, Map, by_time
from stablessm_core.maps import MAPS
from stablessm_core.maps.tanh import TanhDiscrete
from stablessm_core.telemetry.detectors import Alert, Detectors, LayerRows, Rows, Setup, Values
from stablessm_core.telemetry.forms import Form

pytestmark = pytest.mark.slow

STEPS, WIDTH, LENGTH, LR = 300, 4, 100, 0.01
ADAMW = Setup(length=LENGTH, limits=(1.0, 1.0))
SGD = replace(ADAMW, optimizer="sgd")
SETTINGS = {"max_overflow_budget": 0.9, "max_loss_over_best": 30.0}


class History:
    """One layer whose eigenvalues follow from its weights. Initially w = .5, the gradient is 0 and every state is 1; tests change
    them. states: False if the layer records none."""

    def __init__(self, map_: str = "direct", *, time: str = "discrete", w: float = 0.5, states: bool = True) -> None:
        self.form = Form.of_map(map_, time)
        self.first_step, self.has_states = 1, states
        self.loss = np.ones(STEPS, np.float32)
        self.weight = np.full((STEPS, WIDTH), w, np.float32)
        self.gradient = np.zeros((STEPS, WIDTH), np.float32)
        self.state = np.ones((STEPS, WIDTH), np.float32)
        self.norm, self.weight_norm = np.ones(STEPS, np.float32), np.ones(STEPS, np.float32)

    def rows(self, first: int, last: int) -> Rows:
        at = slice(first, last)
        recorded = {"weight": self.weight[at]} | ({"dt": np.ones_like(self.weight[at])} if self.form.dt else {})
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(self.gradient[at] / self.weight[at])
        distance = self.form.derive("boundary_distance", recorded)
        state = Values(self.state[at] if self.has_states else self.state[at, :0])
        layer = LayerRows(0, "w", Values(ratio), Values(self.weight[at]), Values(distance), state, self.form, recorded)
        return Rows(
            first + self.first_step,
            self.loss[at],
            np.ones((last - first, 2), np.float32),
            [layer],
            lr=np.full(last - first, LR, np.float32),
            grad_norm=self.norm[at],
            weight_norm=self.weight_norm[at],
        )

    def alerts(self, setup: Setup, flush: int = 64) -> list[Alert]:
        """The alerts from flushes of this size, with a checkpoint between consecutive flushes."""
        found: list[Alert] = []
        state: dict[str, np.ndarray] = {}
        for first in range(0, STEPS, flush):
            detectors = Detectors(["w"], setup, **SETTINGS)
            detectors.restore(state)
            found += detectors.scan(self.rows(first, min(first + flush, STEPS)))
            state = detectors.state()
        return [alert for alert in found if alert.kind != "dead_eigenvalues" and alert.lasted == 1]


@pytest.fixture(params=[1, 7, 300], ids="flush={}".format)
def flush(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def largest(budget: float) -> float:
    """The state with this state budget."""
    return float(np.exp(budget * np.log(np.finfo(np.float32).max)))


def lambda_of(budget: float, length: int = LENGTH) -> float:
    return float(np.exp(budget * np.log(np.finfo(np.float32).max) / length))


def test_without_recorded_states_an_alert_reports_a_nearly_spent_overflow_budget_with_its_numbers(flush: int) -> None:
    history = History(states=False)
    history.weight[:, 2] = np.linspace(0.9, 3.0, STEPS)
    step = int(np.argmax(history.weight[:, 2] > lambda_of(0.9))) + 1
    crossing = int(np.argmax(history.weight[:, 2] > 1)) + 1
    unstable, near = history.alerts(ADAMW, flush)
    assert (unstable.kind, unstable.severity, unstable.step, unstable.eigenvalue) == (
        "unstable_eigenvalue",
        "warning",
        crossing,
        2,
    )
    left = int(np.ceil((lambda_of(1.0) - history.weight[crossing - 1, 2]) / LR))
    assert (
        f"of 1 at length 100; if every step moves its weight outward by 0.01, it reaches this limit after about {left:,} steps"
        in unstable.message
    )
    assert (near.kind, near.severity, near.step, near.eigenvalue) == ("overflow_near", "critical", step, 2)
    assert near.value == pytest.approx(0.9, abs=0.01)
    assert "overflow budget is 0.9" in near.message
    assert "of 1 at length 100 (|lambda_bar| is 2.22" in near.message
    assert "float32 overflows at 2.428), and the next step may bring it to 0.9" in near.message


def test_an_unbounded_activation_halves_the_limit(flush: int) -> None:
    history = History(states=False)
    history.weight[:, 1] = np.linspace(0.9, 3.0, STEPS)
    near = [a for a in history.alerts(replace(ADAMW, limits=(0.5,)), flush) if a.kind == "overflow_near"]
    assert [a.step for a in near] == [int(np.argmax(history.weight[:, 1] > lambda_of(0.45))) + 1]


def test_each_layer_has_its_own_limit() -> None:
    history = History(states=False)
    history.weight[:, 1] = np.linspace(0.9, 3.0, STEPS)
    (first,) = history.rows(0, STEPS).layers
    rows = replace(history.rows(0, STEPS), layers=[first, replace(first, layer=1)])
    found = Detectors(["w"], replace(ADAMW, limits=(1.0, 0.5)), **SETTINGS).scan(rows)
    near = [a for a in found if a.kind == "overflow_near" and a.lasted == 1]
    assert [(a.layer, a.step) for a in near] == [
        (layer, int(np.argmax(history.weight[:, 1] > lambda_of(0.9 * limit))) + 1) for layer, limit in ((1, 0.5), (0, 1.0))
    ]


@pytest.mark.parametrize("map_", ["direct", "exp"])
def test_a_recorded_state_near_the_limit_raises_an_alert_with_its_numbers_whatever_the_map(map_: str, flush: int) -> None:
    history = History(map_, w=-1.0 if map_ == "exp" else 0.5)
    history.state[150:, 3] = largest(0.59)  # too far from the limit for a prediction
    history.state[160:, 3] = largest(0.61)
    history.state[170:, 3] = largest(0.76)  # as much growth again gives 0.91
    history.state[180:, 3] = 1
    (alert,) = history.alerts(ADAMW, flush)
    assert (alert.kind, alert.severity, alert.step, alert.eigenvalue) == ("overflow_near", "critical", 171, 3)
    assert alert.value == pytest.approx(0.76)
    assert "its state is 1.92e+29, a state budget ln|h| / 88.72 of 0.76 of 1 (float32 overflows at 3.4e+38)" in alert.message
    assert "if it grows as in the last step, the next step brings it to 0.91" in alert.message
    halved = [a.step for a in history.alerts(replace(ADAMW, limits=(0.5,)), flush)]
    assert halved == [151], "a state of this size overflows where it is squared"


def test_recorded_states_count_for_more_than_the_budget_of_an_eigenvalue(flush: int) -> None:
    history = History(w=lambda_of(0.95))
    assert {a.kind for a in history.alerts(ADAMW, flush)} == {"unstable_eigenvalue"}


def test_adamw_moves_by_its_rate_only_in_its_first_steps() -> None:
    history = History(w=lambda_of(1.0) - 0.9 * LR)
    history.state[:] = largest(0.55)
    assert next((a.kind, a.step) for a in history.alerts(ADAMW)) == ("overflow_near", 1)
    history.first_step = 9
    assert {a.kind for a in history.alerts(ADAMW)} == {"unstable_eigenvalue"}
    near = [a for a in history.alerts(replace(ADAMW, recurrent=1e4)) if a.kind == "overflow_near"]
    assert [a.step for a in near] == [9], "a quarter of such a step is enough"


def test_states_that_a_layer_bounds_itself_are_not_predicted_from_its_eigenvalue() -> None:
    history = History(w=lambda_of(1.0) - 0.9 * LR)
    history.state[:] = largest(0.51)
    assert next(a.kind for a in history.alerts(ADAMW)) == "overflow_near"
    history.state[:] = largest(0.49)  # less than half of what the powers of the eigenvalue say
    assert {a.kind for a in history.alerts(ADAMW)} == {"unstable_eigenvalue"}


def test_a_gate_that_grows_fast_in_the_first_steps_raises_an_alert() -> None:
    form = replace(Form.of_map("direct", "continuous"), dt=None, gate=True)
    gate = np.float32([[0.1], [0.3], [0.9]])
    weight = np.full((3, 1), 0.3, np.float32)
    recorded = {"weight": weight, "gate_min": 0 * gate, "gate_mean": 0.1 * gate, "gate_max": gate}
    one = np.ones((3, 1), np.float32)
    distance = Values(form.derive("boundary_distance", recorded))
    layer = LayerRows(0, "w", Values(one), Values(weight), distance, Values(one), form, recorded)
    for first_step, expected in ((1, [3]), (7, [])):  # 0.9 grows to 2.7: the budget is 100 x 2.7 x 0.31 / 88.72 = 0.94 of 0.9
        rows = Rows(first_step, np.ones(3, np.float32), one, [layer], lr=np.full(3, LR, np.float32))
        for size in (1, 3):
            detectors, found = Detectors(["w"], replace(ADAMW, limits=(0.9,)), **SETTINGS), []
            for i in range(0, 3, size):
                found += detectors.scan(_part(rows, i, size))
            assert [a.step for a in found if a.kind == "overflow_near"] == expected


def _part(rows: Rows, first: int, size: int) -> Rows:
    at = slice(first, first + size)
    (layer,) = rows.layers
    parts = {name: Values(getattr(layer, name).values[at]) for name in ("ratio", "weight", "distance", "state")}
    recorded = {kind: values[at] for kind, values in (layer.recorded or {}).items()}
    assert rows.lr is not None
    return Rows(
        rows.first_step + first, rows.loss[at], rows.norms[at], [replace(layer, recorded=recorded, **parts)], lr=rows.lr[at]
    )


@pytest.mark.parametrize("clip", [None, 1e6, 1.0])
def test_under_sgd_one_gradient_spike_raises_an_alert_unless_gradients_are_clipped(flush: int, clip: float | None) -> None:
    history = History()
    history.gradient[120, 3] = history.norm[120] = 1000.0  # makes the next step 10
    history.weight_norm[:] = 66.0  # so that it is 0.15 of the norm of all weights
    found = history.alerts(replace(SGD, grad_clip=clip), flush)
    expected = [] if clip == 1.0 else [("overflow_near", 121, 3)]
    assert [(a.kind, a.step, a.eigenvalue) for a in found] == expected
    assert history.alerts(replace(ADAMW, grad_clip=clip), flush) == [], "AdamW normalises the spike, so no alert is expected"
    assert history.alerts(replace(SGD, recurrent=0.0), flush) == [], "a frozen recurrence does not move, so no alert is expected"
    history.weight_norm[:] = 67.0
    assert history.alerts(SGD, flush) == [], "so short a step mostly turns the eigenvalue back"


def test_a_step_of_sgd_that_is_longer_than_all_weights_is_an_explosion_whatever_the_loss(flush: int) -> None:
    history = History()
    history.norm[120], history.weight_norm[120] = 1000.0, 4.1  # a step of 10, 2.44 times as long
    assert history.alerts(SGD, flush) == []
    history.weight_norm[120] = 3.9
    (alert,) = history.alerts(SGD, flush)
    assert (alert.kind, alert.severity, alert.step) == ("training_explodes", "critical", 121)
    assert alert.value == pytest.approx(10 / 3.9)
    assert alert.message == (
        "the step of all weights is 2.56 times as long as the weights themselves: the learning rate is 0.01, the norm of the "
        "gradient is 1000"
    )
    for bounded in (ADAMW, replace(SGD, grad_clip=1e6)):
        assert history.alerts(bounded, flush) == []


def test_a_high_loss_under_sgd_becomes_critical_when_the_step_is_long_too(flush: int) -> None:
    history = History()
    history.loss[100:] = 1e3
    history.norm[100:] = 59.0
    (alert,) = history.alerts(SGD, flush)
    assert (alert.severity, alert.step) == ("warning", 101)
    assert alert.message.endswith("; the step is 0.59 times as long as all weights")
    history.norm[130] = 61.0
    history.norm[140] = 62.0
    found = history.alerts(SGD, flush)
    assert [(a.kind, a.severity, a.step) for a in found] == [
        ("training_explodes", "warning", 101),
        ("training_explodes", "critical", 131),
    ]


def test_with_momentum_the_previous_step_counts_even_if_the_gradient_is_0(flush: int) -> None:
    history = History()
    history.weight[50:, 0] = 1.6
    history.weight[51:, 0] = 2.2  # a further step of .6 x .9 would overflow
    assert [(a.kind, a.step) for a in history.alerts(SGD, flush)] == [("unstable_eigenvalue", 51)]
    near, unstable = history.alerts(replace(SGD, momentum=0.9), flush)
    assert "if every step moves its weight outward by 0.99, it reaches this limit after about 1 step" in unstable.message
    assert (near.kind, near.step) == ("overflow_near", 51)


@pytest.mark.parametrize(
    ("map_", "time", "w"), [("relu", "discrete", 0.0), ("exp", "discrete", -30.0), ("softplus", "continuous", -200.0)]
)
def test_eigenvalues_exactly_on_the_boundary_raise_no_alert(map_: str, time: str, w: float) -> None:
    history = History(map_, time=time, w=w)
    assert float(history.rows(0, 1).layers[0].distance.values.max()) == 0
    history.gradient[40] = 1e9
    for setup in (ADAMW, SGD, replace(SGD, momentum=0.9)):
        assert history.alerts(setup) == []


class Leaky(TanhDiscrete):
    """tanh, but 1.2 near w = 5, although the map declares that no weight reaches the boundary."""

    def f(self, w: Array) -> Array:
        return self.xp.where(self.xp.abs(w - 5) < 0.1, 1.2, super().f(w))

    def distance(self, w: Array) -> Array:
        return self.xp.where(self.xp.abs(w - 5) < 0.1, -0.2, super().distance(w))


def test_a_recorded_eigenvalue_outside_the_boundary_raises_alerts_whatever_its_map_declares(
    flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAPS, "leaky", Map("leaky", by_time(Leaky), guarded=True))
    history = History("leaky", states=False)
    assert history.alerts(ADAMW, flush) == []
    history.weight[200:, 1] = 5.0
    history.loss[220:] = 100.0
    found = history.alerts(replace(ADAMW, length=450), flush)
    assert {(a.kind, a.step, a.eigenvalue) for a in found} == {
        ("overflow_near", 201, 1),
        ("unstable_eigenvalue", 201, 1),
        ("training_explodes", 221, None),
    }
    near = next(a for a in found if a.kind == "overflow_near")
    assert near.value == pytest.approx(450 * np.log(1.2) / np.log(np.finfo(np.float32).max), rel=1e-4)


def test_no_warning_is_raised_after_numbers_are_already_non_finite() -> None:
    history = History()
    history.weight[100:, 0], history.state[100:, 0] = 3.0, np.inf
    history.loss[99:] = np.inf
    assert "overflow_near" not in {a.kind for a in history.alerts(ADAMW)}
    assert "training_explodes" not in {a.kind for a in history.alerts(SGD)}


def test_a_loss_of_many_times_its_usual_level_raises_a_critical_alert_under_sgd(flush: int) -> None:
    history = History()
    history.norm[:] = 61.0  # the steps are 0.61 times as long as all weights
    history.loss[:] = 0.1
    history.loss[0] = 1e9  # a high initial loss is not an explosion
    history.loss[200:] = 2.99
    assert history.alerts(SGD, flush) == []
    history.loss[222:] = 3.01
    (alert,) = history.alerts(SGD, flush)
    assert (alert.kind, alert.severity, alert.step, alert.layer) == ("training_explodes", "critical", 223, None)
    assert alert.value == pytest.approx(30.1, rel=1e-5)
    assert alert.message == (
        "loss is 3.01, 30.1 times its usual level of 0.1 (the lowest median of 16 steps so far); the step is 0.61 times as long "
        "as all weights"
    )


def test_the_noise_of_single_batches_raises_no_alert(flush: int) -> None:
    history = History()
    history.loss[:] = 0.1 * np.random.default_rng(5).lognormal(0, 0.7, STEPS)
    history.loss[24::25] = 0.1
    history.loss[::25] = 2.5  # one batch in 25 has 25 times the usual loss
    history.loss[1::25] = 0.001  # and one a hundredth of it
    for setup in (ADAMW, SGD):
        assert history.alerts(setup, flush) == []
    history.loss[150] = 9.1  # too high for a single batch
    assert [(a.kind, a.step) for a in history.alerts(SGD, flush)] == [("training_explodes", 151)]
    assert history.alerts(ADAMW, flush) == []


@pytest.mark.parametrize("setup", [ADAMW, replace(SGD, grad_clip=1.0)], ids=["adamw", "clipping"])
def test_a_high_loss_must_last_where_the_optimizer_bounds_every_step(setup: Setup, flush: int) -> None:
    history = History()
    history.loss[100:107] = 1e3  # falls again after 7 steps
    assert history.alerts(setup, flush) == []
    history.loss[150:] = 1e3
    (alert,) = history.alerts(setup, flush)
    assert (alert.kind, alert.severity, alert.step) == ("training_explodes", "warning", 158)
    history.weight[150:, 0] = 1.01  # an eigenvalue outside the boundary can make states explode in spite of the bound
    (alert,) = (a for a in history.alerts(setup, flush) if a.kind == "training_explodes")
    assert (alert.severity, alert.step) == ("warning", 151)


def test_a_loss_of_exactly_0_has_a_level_above_0(flush: int) -> None:
    history = History()
    history.loss[16:] = 0.0
    history.loss[60:] = 0.002
    assert history.alerts(SGD, flush) == []
    history.loss[100:] = 0.02
    assert [(a.kind, a.step) for a in history.alerts(SGD, flush)] == [("training_explodes", 101)]


@pytest.mark.parametrize("level", [-3.9, 0.0])
def test_a_negative_loss_can_explode_and_its_noise_cannot(level: float, flush: int) -> None:
    history = History()
    history.norm[:] = 61.0
    history.loss[:] = level + 0.1 * np.random.default_rng(6).standard_normal(STEPS)
    history.loss[:40] += np.linspace(4, 0, 40)  # the loss passes 0
    assert history.alerts(SGD, flush) == []
    history.loss[200:] += [5.0, 100.0, 4e4, *[np.inf] * (STEPS - 203)]
    found = [a for a in history.alerts(SGD, flush) if a.kind == "training_explodes"]
    assert [a.severity for a in found] == ["critical"]
    assert found[0].step in (201, 202, 203)
    assert "its usual level is" in found[0].message


@pytest.mark.parametrize("recorded", [True, False])
def test_a_wide_layer_raises_the_overflow_warning(recorded: bool) -> None:
    at = np.float32([[12_345, 7]])
    distance = np.float32([[-1.35, 0.1]])
    state = Values(np.float32([[2e35]]), np.float32([[4_321]])) if recorded else Values(np.empty((1, 0), np.float32))
    layer = LayerRows(1, "w", Values(np.ones((1, 2)), at), Values(np.ones((1, 2)), at), Values(distance, at), state)
    rows = Rows(8, np.ones(1, np.float32), np.ones((1, 2), np.float32), [layer], lr=np.float32([LR]))
    found = {a.kind: a for a in Detectors(["w"], ADAMW, **SETTINGS).scan(rows)}
    assert found["unstable_eigenvalue"].eigenvalue == 12_345
    assert found["overflow_near"].eigenvalue == (4_321 if recorded else 12_345)
