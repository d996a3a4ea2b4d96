"""The only aggregation rule, on planted results: a group that loses its hard runs never looks better because of it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import pytest
from sqlalchemy import case, select

from server.compare.aggregation import STABLE, UNSTABLE, End, Outcome, end_of, paired, ranks, spread, summary
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle.run_fields import FINITE, LOST
from tests.server.recording import submitted


def cells(*ends: tuple[Outcome, float | None]) -> dict[Hashable, End]:
    return {i: End(outcome, loss) for i, (outcome, loss) in enumerate(ends)}


def test_a_group_that_loses_its_hardest_runs_does_not_rank_first() -> None:
    survivor = cells(("stable", 0.10), ("stable", 0.30), ("stable", 0.90))
    crasher = cells(("stable", 0.09), ("stable", 0.29), ("lost", math.nan))
    crossing = cells(("stable", 0.01), ("unstable", 0.01), ("unstable", 0.01))
    untried = cells(("stable", 0.01), ("open", None), ("open", None))
    sums = [summary(group.values()) for group in (crasher, survivor, crossing, untried)]
    assert sums[0].loss.mean is not None
    assert sums[1].loss.mean is not None
    assert sums[0].loss.mean < sums[1].loss.mean, "the test needs a group whose mean would be lowest without its lost run"
    assert ranks(sums) == [3, 1, 2, 4]
    found = paired(survivor, crasher)
    assert (found.of, found.pairs, found.only_reference, found.only_this, found.lower) == (3, 2, 1, 0, 2)
    assert found.median == pytest.approx(-0.01)


def test_lost_and_open_runs_never_contribute_to_the_loss_statistics() -> None:
    ends = [
        End("stable", 1.0),
        End("unstable", 2.0),
        End("unknown", 4.0),
        End("lost", 1e-9),
        End("lost", math.inf),
        End("open", 1e-9),
    ]
    of = summary(ends)
    assert (of.total, of.finite, of.stable, of.unstable, of.unknown, of.lost, of.open) == (6, 3, 1, 1, 1, 2, 1)
    assert (of.loss.median, of.loss.min, of.loss.max, of.loss.q25, of.loss.q75) == (2, 1, 4, 1.5, 3)
    assert of.outcome == "lost"
    assert summary([]).outcome == "open"
    assert summary([End("stable", 1), End("unstable", 1)]).outcome == "unstable"
    assert summary([End("lost", 0.5)]).loss.median is None


def test_groups_are_paired_over_settings_that_both_groups_finished() -> None:
    a = {("lr", 1): End("stable", 1.0), ("lr", 2): End("lost", None), ("lr", 3): End("open", None), "mine": End("stable", 0.0)}
    b = {
        ("lr", 1): End("unstable", 1.5),
        ("lr", 2): End("stable", 0.1),
        ("lr", 3): End("stable", 0.1),
        "yours": End("stable", 9.0),
    }
    found = paired(a, b)
    assert (found.of, found.pairs, found.median, found.unmatched) == (3, 1, 0.5, 2)
    assert (found.only_this, found.only_reference, found.higher, found.lower) == (1, 0, 1, 0)


def test_the_spread_of_an_infinite_value_is_nan_and_of_no_values_none() -> None:
    assert math.isnan(spread([1.0, math.inf]).median or 0)
    assert spread([]).median is None
    assert (spread([3.0]).median, spread([3.0]).std) == (3.0, None)


INSIDE: dict[str, Any] = {"nearest_distance": 0.01}
OUTSIDE: dict[str, Any] = {"nearest_distance": -0.1, "judged_at": 1.0, "unstable": {"eigenvalues": 1}}
RUNS: list[tuple[str, Any, dict[str, Any], Outcome]] = [
    ("finished", 0.5, INSIDE, "stable"),
    ("finished", 0.5, INSIDE | {"nearest_distance": 0.0}, "stable"),
    ("finished", 0.5, OUTSIDE, "unstable"),
    ("finished", 0.5, {"nearest_distance": -0.1, "judged_at": 1.0}, "stable"),  # left the stable region and returned
    ("finished", 0.5, {"nearest_distance": -0.1}, "unknown"),
    ("finished", 0.5, {"judged_at": 1.0}, "unknown"),  # no eigenvalues were recorded
    ("finished", "NaN", INSIDE, "lost"),
    ("finished", "-Infinity", INSIDE, "lost"),
    ("finished", None, INSIDE, "lost"),
    ("diverged", 0.5, INSIDE, "lost"),
    ("cancelled", 0.5, INSIDE, "lost"),
    ("failed", None, {}, "lost"),
    ("finished", 0.5, INSIDE | {"result": {"train_loss": 0.5, "eval_loss": "NaN"}}, "lost"),
    ("finished", 0.5, INSIDE | {"result": {"train_loss": 0.5, "eval_loss": "Infinity"}}, "lost"),
    ("finished", 0.5, INSIDE | {"result": {"train_loss": 0.5, "eval_loss": 0.4}}, "stable"),
    ("finished", 0.5, INSIDE | {"result": {"train_loss": 0.5, "eval_loss": None}}, "stable"),
    ("running", 0.5, INSIDE, "open"),
    ("queued", None, {}, "open"),
]


def test_sql_and_python_give_a_run_the_same_outcome(database: Database) -> None:
    for status, loss, more, _ in RUNS:
        run_id = submitted(database)
        with database.write() as session:
            run = session.get_one(Run, run_id)
            run.status, run.result = status, None if loss is None else {"train_loss": loss}
            for name, value in more.items():
                setattr(run, name, value)
    with database.read() as session:
        sums = [case((condition, 1), else_=0) for condition in (FINITE, STABLE, UNSTABLE, LOST)]
        found = session.execute(select(Run, *sums).order_by(Run.id)).all()
        ends = [end_of(run) for run, *_ in found]
    assert [end.outcome for end in ends] == [expected for *_, expected in RUNS]
    for end, (_, *in_sql) in zip(ends, found, strict=True):
        expected = (end.finite, end.outcome == "stable", end.outcome == "unstable", end.outcome == "lost")
        assert in_sql == list(map(int, expected))
