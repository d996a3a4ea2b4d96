"""Alert rules: conditions, for how many steps they must hold, and when a rule may fire again."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.rules import Rule, Rules, RuleState, parse_condition
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.watch.recorder import Recorder

NAN, INF = math.nan, math.inf


def fired(rule: Rule, points: list[tuple[int, float]], pieces: int = 1) -> list[int]:
    """The steps of the alerts, if the points arrive in this many pieces."""
    state, found = RuleState(), []
    for piece in np.array_split(np.array(points, np.float64), pieces):
        state, alerts = rule.judge(state, piece[:, 0].astype(np.int64), piece[:, 1].astype(np.float32))
        found += [alert.step for alert in alerts]
    return found


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("> 5", [False, False, False, True, False]),
        (">=5", [False, True, False, True, False]),
        ("< -1e-3", [True, False, False, False, False]),
        ("<= 5.", [True, True, False, False, False]),
        (" nonfinite ", [False, False, True, True, False]),
    ],
)
def test_a_condition_compares_each_value(condition: str, met: list[bool]) -> None:
    values = np.array([-1, 5, NAN, INF, 5.0 if "=" not in condition and condition != "> 5" else NAN], np.float32)
    holds = parse_condition(condition)(values)
    assert holds[:4].tolist() == met[:4]


@pytest.mark.parametrize("text", ["", "5", "> ", "== 5", "> five", "> nan", "> 1e999", "nonfinite 3", "> 5; DROP", "!= 1"])
def test_a_condition_that_does_not_parse_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"condition is .*allowed: a comparison with a number, such as '> 5'"):
        parse_condition(text)


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_a_rule_fires_once_when_its_condition_has_held_for_its_steps(pieces: int) -> None:
    points = [(step, 9.0 if step >= 10 else 0.0) for step in range(1, 400)]
    assert fired(Rule("a", "> 5", 100), points, pieces) == [109]
    assert fired(Rule("a", "> 5"), points, pieces) == [10]


@pytest.mark.parametrize("pieces", [1, 5])
def test_a_rule_fires_again_only_after_the_condition_failed_for_a_hundred_steps(pieces: int) -> None:
    held = [*range(10, 20), *range(60, 70), *range(200, 210)]
    points = [(step, 9.0 if step in held else 0.0) for step in range(1, 300)]
    assert fired(Rule("a", "> 5"), points, pieces) == [10, 200]


def test_a_sparse_metric_that_keeps_its_condition_is_one_alert() -> None:
    assert fired(Rule("a", "> 5", 1000), [(500 * i, 9.0) for i in range(1, 20)]) == [1500]
    assert fired(Rule("a", "> 5"), [(500, 9.0), (1000, 1.0), (1500, 9.0)]) == [500, 1500]


def test_a_break_restarts_the_count_and_older_points_do_not_count() -> None:
    rule = Rule("a", "< 1", 5)
    assert fired(rule, [(s, 0.0 if s != 4 else 2.0) for s in range(1, 12)]) == [9]
    state, _ = rule.judge(RuleState(), np.arange(1, 5), np.zeros(4, np.float32))
    state, alerts = rule.judge(state, np.arange(1, 5), np.zeros(4, np.float32))
    assert (alerts, state) == ([], RuleState(1, 4, False, 4))


def test_many_breaks_are_judged_at_once_and_raise_at_most_as_many_alerts_as_asked() -> None:
    values, rule = np.tile(np.array([9, 0], np.float32), 1 << 17), Rule("a", "> 5")
    started = time.process_time()
    for stride, expected in ((1, [0]), (100, list(range(0, 2000, 200)))):
        steps = stride * np.arange(len(values))
        _, alerts = rule.judge(RuleState(), steps, values, most=10)
        assert [alert.step for alert in alerts] == expected
    assert time.process_time() - started < 0.5, "a loop over all points takes over 2 s"


def test_the_alert_names_scalar_value_step_and_rule() -> None:
    _, (alert,) = Rule("val/loss", "> 5", 3).judge(RuleState(), np.array([1, 2, 3]), np.array([6, 7, 8], np.float32))
    assert (alert.kind, alert.severity, alert.series, alert.step, alert.value) == ("rule", "warning", "val/loss", 3, 8.0)
    assert alert.message == ("val/loss is 8 at step 3: your rule '> 5 for 3 steps' holds at every recorded step from 1 on")


def test_deleted_steps_are_forgotten() -> None:
    assert RuleState(50, 80, True, 90).before(60) == RuleState(50, 59, True, 59)
    assert RuleState(50, 80, False, 90).before(40) == RuleState(-1, 39, False, 39)
    assert RuleState(50, 80, False, 90).before(100) == RuleState(50, 80, False, 90)


def test_the_state_of_the_rules_survives_a_checkpoint() -> None:
    rules, later = (Rules([Rule("a", "> 5", 100), Rule("b", "nonfinite")]) for _ in range(2))
    rules.read(np.arange(1, 61), {"a": np.full(60, 9.0, np.float32)})
    later.restore(rules.state())
    (alert,) = later.read(np.arange(61, 121), {"a": np.full(60, 9.0, np.float32)})
    assert alert.step == 100


def test_the_recorder_judges_every_step_and_logged_values() -> None:
    import torch

    sink = MemorySink()
    catalogue = [SeriesSpec("train/loss", "scalars", 1, "", ""), SeriesSpec("eval/loss", "eval", 1, "", "")]
    rules = Rules([Rule("train/loss", "> 2", 3), Rule("eval/loss", "nonfinite"), Rule("never/there", "> 0")])
    recorder = Recorder(catalogue, sink, layout=[("train/loss", 1)], every=10, rules=rules)
    for step in range(1, 51):
        recorder.record(step, torch.tensor([3.0 if 22 <= step <= 26 else 1.0]))
    recorder.log(50, "eval", {"eval/loss": NAN})
    assert recorder.close()
    assert [(a.series, a.step) for a in sink.alerts] == [("train/loss", 24), ("eval/loss", 50)]
    assert all(isinstance(block, Block) for block in sink.blocks)


@pytest.mark.parametrize(
    ("rule", "field", "allowed"),
    [
        ({"name": "train/loss", "condition": "about 5"}, "alerts.rules.0.condition", "'nonfinite'"),
        ({"name": "", "condition": "> 5"}, "alerts.rules.0.name", "1"),
        ({"name": "a", "condition": "> 5", "steps": 0}, "alerts.rules.0.steps", "1"),
        ({"name": "a"}, "alerts.rules.0.condition", ""),
    ],
)
def test_a_wrong_rule_of_a_configuration_is_one_error(rule: dict[str, object], field: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"task": {"name": "polynomial_memory"}, "alerts": {"rules": [rule]}})
    assert field in str(error.value)
    assert allowed in str(error.value)


def test_a_rule_may_name_a_scalar_that_nobody_records() -> None:
    rule = {"name": "val/later", "condition": "> 5", "steps": 10}
    config = parse_config({"task": {"name": "polynomial_memory"}, "alerts": {"rules": [rule]}})
    assert config.model_dump(mode="json")["alerts"]["rules"] == [rule]
