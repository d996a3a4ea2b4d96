"""Early warnings are raised at the right step, no matter where flushes end, and only if something is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablessm_core.telemetry.detectors import Alert, Detectors, LayerRows, Rows, Setup, Values
from stablessm_core.telemetry.forms import Form

pytestmark = pytest.mark.slow

STEPS, WIDTH, LENGTH, LR = 300, 4, 100, 0.01
ADAMW = Setup(length=LENGTH, limits=(1.0, 1.0))
SGD = replace(ADAMW, optimizer="sgd")
SETTINGS = {"max_overflow_budget": 0.9, "max_loss_over_best": 30.0}


class History:
    """One layer whose eigenvalues follow from its weights. Initially w = .5 and the gradient is 0; tests change both."""

    def __init__(self, map_: str = "direct", *, time: str = "discrete", w: float = 0.5) -> None:
        self.form = Form.of_map(map_, time)
        self.loss = np.ones(STEPS, np.float32)
        self.weight = np.full((STEPS, WIDTH), w, np.float32)
        self.gradient = np.zeros((STEPS, WIDTH), np.float32)
        self.state = np.ones((STEPS, WIDTH), np.float32)
        self.norm = np.ones(STEPS, np.float32)

    def rows(self, first: int, last: int) -> Rows:
        at = slice(first, last)
        recorded = {"weight": self.weight[at]} | ({"dt": np.ones_like(self.weight[at])} if self.form.dt else {})
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(self.gradient[at] / self.weight[at])
        distance = self.form.derive("boundary_distance", recorded)
        layer = LayerRows(
            0, "w", Values(ratio), Values(self.weight[at]), Values(distance), Values(self.state[at]), self.form, recorded
        )
        norms = np.ones((last - first, 2), np.float32)
        return Rows(first + 1, self.loss[at], norms, [layer], lr=np.full(last - first, LR, np.float32), grad_norm=self.norm[at])

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


def lambda_of(budget: float, length: int = LENGTH) -> float:
    return float(np.exp(budget * np.log(np.finfo(np.float32).max) / length))


def test_an_alert_reports_a_nearly_spent_overflow_budget_with_its_numbers(flush: int) -> None:
    history = History()
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
    left = int((lambda_of(1.0) - history.weight[crossing - 1, 2]) / LR)
    assert f"of 1 at length 100; with weight steps of 0.01, it overflows after {left:,} steps or later" in unstable.message
    assert (near.kind, near.severity, near.step, near.eigenvalue) == ("overflow_near", "critical", step, 2)
    assert near.value == pytest.approx(0.9, abs=0.01)
    assert "overflow budget is 0.9" in near.message
    assert "of 1 at length 100 (|lambda_bar| is 2.22" in near.message
    assert "float32 overflows at 2.428), and the next step may bring it to 0.9" in near.message


def test_an_unbounded_activation_halves_the_limit(flush: int) -> None:
    history = History()
    history.weight[:, 1] = np.linspace(0.9, 3.0, STEPS)
    near = [a for a in history.alerts(replace(ADAMW, limits=(0.5,)), flush) if a.kind == "overflow_near"]
    assert [a.step for a in near] == [int(np.argmax(history.weight[:, 1] > lambda_of(0.45))) + 1]


def test_each_layer_has_its_own_limit() -> None:
    history = History()
    history.weight[:, 1] = np.linspace(0.9, 3.0, STEPS)
    (first,) = history.rows(0, STEPS).layers
    rows = replace(history.rows(0, STEPS), layers=[first, replace(first, layer=1)])
    found = Detectors(["w"], replace(ADAMW, limits=(1.0, 0.5)), **SETTINGS).scan(rows)
    near = [a for a in found if a.kind == "overflow_near" and a.lasted == 1]
    assert [(a.layer, a.step) for a in near] == [
        (layer, int(np.argmax(history.weight[:, 1] > lambda_of(0.9 * limit))) + 1) for layer, limit in ((1, 0.5), (0, 1.0))
    ]


@pytest.mark.parametrize("clip", [None, 1e6, 1.0])
def test_under_sgd_one_gradient_spike_raises_an_alert_unless_gradients_are_clipped(flush: int, clip: float | None) -> None:
    history = History()
    history.gradient[120, 3] = history.norm[120] = 1000.0  # makes the next step 10
    found = history.alerts(replace(SGD, grad_clip=clip), flush)
    expected = [] if clip == 1.0 else [("overflow_near", 121, 3)]
    assert [(a.kind, a.step, a.eigenvalue) for a in found] == expected
    assert history.alerts(replace(ADAMW, grad_clip=clip), flush) == [], "AdamW normalises the spike, so no alert is expected"
    assert history.alerts(replace(SGD, recurrent=0.0), flush) == [], "a frozen recurrence does not move, so no alert is expected"


def test_with_momentum_the_previous_step_counts_even_if_the_gradient_is_0(flush: int) -> None:
    history = History()
    history.weight[50:, 0] = 1.6
    history.weight[51:, 0] = 2.2  # a further step of .6 x .9 would overflow
    assert [(a.kind, a.step) for a in history.alerts(SGD, flush)] == [("unstable_eigenvalue", 51)]
    near, unstable = history.alerts(replace(SGD, momentum=0.9), flush)
    assert "with weight steps of 0.99, it overflows after 0 steps or later" in unstable.message
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


def test_no_warning_is_raised_after_numbers_are_already_non_finite() -> None:
    history = History()
    history.weight[100:, 0], history.state[100:, 0] = 3.0, np.inf
    history.loss[99:] = np.inf
    assert "overflow_near" not in {a.kind for a in history.alerts(ADAMW)}
    assert "training_explodes" not in {a.kind for a in history.alerts(SGD)}


def test_a_loss_of_many_times_its_usual_level_raises_a_critical_alert_under_sgd(flush: int) -> None:
    history = History()
    history.loss[:] = 0.1
    history.loss[0] = 1e9  # a high initial loss is not an explosion
    history.loss[200:] = 2.99
    assert history.alerts(SGD, flush) == []
    history.loss[222:] = 3.01
    (alert,) = history.alerts(SGD, flush)
    assert (alert.kind, alert.severity, alert.step, alert.layer) == ("training_explodes", "critical", 223, None)
    assert alert.value == pytest.approx(30.1, rel=1e-5)
    assert alert.message == "loss is 3.01, 30.1 times its usual level of 0.1 (the lowest median of 16 steps so far)"


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
    history.loss[:] = level + 0.1 * np.random.default_rng(6).standard_normal(STEPS)
    history.loss[:40] += np.linspace(4, 0, 40)  # the loss passes 0
    assert history.alerts(SGD, flush) == []
    history.loss[200:] += [5.0, 100.0, 4e4, *[np.inf] * (STEPS - 203)]
    found = [a for a in history.alerts(SGD, flush) if a.kind == "training_explodes"]
    assert [a.severity for a in found] == ["critical"]
    assert found[0].step in (201, 202, 203)
    assert "its usual level is" in found[0].message


def test_the_extremes_of_a_wide_layer_raise_the_overflow_warning() -> None:
    at = np.float32([[12_345, 7]])
    distance = np.float32([[-1.35, 0.1]])
    layer = LayerRows(1, "w", Values(np.ones((1, 2)), at), Values(np.ones((1, 2)), at), Values(distance, at), Values(at))
    rows = Rows(8, np.ones(1, np.float32), np.ones((1, 2), np.float32), [layer], lr=np.float32([LR]))
    found = {a.kind: a for a in Detectors(["w"], ADAMW, **SETTINGS).scan(rows)}
    assert found["overflow_near"].eigenvalue == found["unstable_eigenvalue"].eigenvalue == 12_345
