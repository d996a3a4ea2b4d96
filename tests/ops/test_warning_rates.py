"""The rates in docs/warnings.md are computed as the page describes."""

from __future__ import annotations

from benchmarks.warnings.rates import curve, rates, share
from benchmarks.warnings.reading import Record


def run(died: bool, steps: int, alerts: list[int], loss: float = 1.0) -> Record:
    told = [("training_explodes", "critical", step) for step in alerts]
    end = "diverged" if died else "finished"
    return Record("stable_ssm", "wider", "sgd", "best", 0.1, 10, "continue", end, steps, None, told, {"loss over best": loss})


def test_only_alerts_before_the_fatal_step_count_and_alerts_in_finished_runs_are_false() -> None:
    runs = [run(True, 9, [4, 7]), run(True, 9, [9]), run(True, 9, []), run(False, 300, [20, 150]), run(False, 700, [])]
    found = rates(runs, lambda r: r.warned)
    assert (found.caught, found.missed, found.false, found.lived) == (1, 2, 1, 2)
    assert (found.leads, found.false_alarms, found.healthy_steps) == ([5], 2, 1000)
    assert found.precision.startswith("0.50 [")
    assert found.recall.startswith("0.33 [")
    assert found.false_per_1000.startswith("2.00 [")


def test_a_share_is_given_with_its_wilson_interval_and_counts() -> None:
    assert share(7, 10) == "0.70 [0.40, 0.89] (7/10)"
    assert share(0, 20) == "0.00 [0.00, 0.16] (0/20)"
    assert share(0, 0) == ""


def test_a_curve_has_one_point_per_distinct_value_in_descending_order() -> None:
    runs = [run(True, 9, [], 50.0), run(False, 9, [], 40.0), run(True, 9, [], 40.0), run(False, 9, [], 2.0)]
    assert curve(runs, "loss over best") == [(50.0, 0.5, 1.0), (40.0, 1.0, 2 / 3), (2.0, 1.0, 0.5)]
