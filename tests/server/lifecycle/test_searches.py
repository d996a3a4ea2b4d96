"""A search's trials are stopped at rungs and when they become unstable, by one of any number of servers, and say why."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import select, update

from server.database.connection import Database
from server.database.models import Run, RungRow, SearchRow, Transition
from server.lifecycle import transitions as lifecycle
from server.lifecycle.searches import decide, decide_all, decisions_json
from server.lifecycle.sweep_submission import submit_sweep
from stablessm_core.spec.search import Search
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.series import EVAL, EVAL_LOSS, SCALARS, TRAIN_LOSS, scalar
from tests.server.http_service import BODY, application, client_of, error_of, settings
from tests.server.recording import claim, nonfinite, run_of
from tests.server.storing import store_catalogue, store_flush

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

RATES = {"optimizer.lr": {"distribution": "log_uniform", "low": 1e-4, "high": 0.1}}
HALVING = {"metric": "train/loss", "first_rung": 10, "factor": 3}
BASE = BODY | {"train": {"steps": 100}}


@pytest.fixture
def submitted(database: Database, tmp_path: Path) -> int:
    """A search of six trials."""
    return search(database, tmp_path)


def search(database: Database, folder: Path, base: Mapping[str, Any] = BASE, trials: int = 6, **halving: Any) -> int:
    asked = Search.model_validate({"space": RATES, "trials": trials, "halving": HALVING | halving})
    return submit_sweep(database, settings(database.url, folder), dict(base), search=asked)[0]


def train(database: Database, taken: lifecycle.Claim, loss: float, steps: int = 12, alerts: tuple[Alert, ...] = ()) -> None:
    """Record this loss for the next steps of the trial."""
    first = run_of(database, taken.run_id).step + 1
    values = np.full((1, steps), loss, np.float32)
    with database.write() as session:
        store_catalogue(session, taken.run_id, taken.attempt, [scalar(TRAIN_LOSS)])
        block = Block(SCALARS, 0, first, 1, values)
        store_flush(session, taken.run_id, taken.attempt, [block], list(alerts), first + steps - 1, 100.0)


def outcomes(database: Database, sweep_id: int = 1) -> dict[tuple[int, int], str]:
    with database.read() as session:
        return {(one["run_id"], one["rung"]): one["outcome"] for one in decisions_json(session, sweep_id)}


def test_trials_behind_at_a_rung_are_stopped_and_say_why(database: Database, submitted: int) -> None:
    taken = [claim(database) for _ in range(6)]
    for one, loss in zip(taken, (0.5, 0.1, 0.9, 0.4, 0.3, 0.2), strict=True):
        train(database, one, loss)
    made = decide(database, submitted)
    assert outcomes(database) == {
        (one.run_id, 1): "continued" if i in (1, 5) else "behind" for i, one in enumerate(taken)
    }  # the best third of six
    assert {one.run_id for one in made if one.stop} == {one.run_id for i, one in enumerate(taken) if i not in (1, 5)}
    worst = taken[2]
    why = "stopped by the search at rung 1: train/loss 0.9 is number 6 of 6 at step 10, where the best 2 continue"
    assert run_of(database, worst.run_id).cancel_requested
    with database.write() as session:  # the worker knows only that the run was cancelled
        lifecycle.finish(session, worst.run_id, worst.attempt, "cancelled", "cancelled")
    assert (run_of(database, worst.run_id).status, run_of(database, worst.run_id).status_reason) == ("cancelled", why)
    with database.read() as session:
        history = session.scalars(select(Transition.reason).where(Transition.run_id == worst.run_id)).all()
    assert history.count(why) == 2
    assert not run_of(database, taken[1].run_id).cancel_requested


def test_repeating_a_round_changes_nothing(database: Database, submitted: int) -> None:
    for loss in (0.1, 0.2, 0.3):
        train(database, claim(database), loss)
    assert len(decide(database, submitted)) == 3
    before = outcomes(database)
    assert [decide(database, submitted) for _ in range(3)] == [[], [], []]
    assert outcomes(database) == before


def test_a_trial_that_arrives_later_is_compared_with_those_before(database: Database, submitted: int) -> None:
    for loss, outcome in ((0.5, "continued"), (0.9, "behind"), (0.1, "continued"), (0.2, "continued"), (0.3, "behind")):
        taken = claim(database)
        train(database, taken, loss)
        decide_all(database)
        assert outcomes(database)[taken.run_id, 1] == outcome


def test_every_rung_is_judged_even_if_a_trial_passes_several_at_once(database: Database, submitted: int) -> None:
    taken = claim(database)
    train(database, taken, 0.5, steps=95)
    decide(database, submitted)
    assert outcomes(database) == {(taken.run_id, rung): "continued" for rung in (1, 2, 3)}  # steps 10, 30, 90


def test_larger_is_better_if_the_search_says_so(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, trials=2, mode="max")
    taken = [claim(database), claim(database)]
    for one, loss in zip(taken, (0.1, 0.2), strict=True):
        train(database, one, loss)
    decide(database, number)
    assert outcomes(database) == {(taken[0].run_id, 1): "behind", (taken[1].run_id, 1): "continued"}


def test_an_evaluation_decides_if_the_metric_is_one(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, BODY | {"train": {"steps": 100, "eval_every": 5}}, trials=2, metric="eval/loss")
    taken = [claim(database), claim(database)]
    for one in taken:
        train(database, one, 0.1)
    assert decide(database, number) == []  # the evaluations are not stored yet
    for one, loss in zip(taken, (0.7, 0.6), strict=True):
        with database.write() as session:
            store_catalogue(session, one.run_id, one.attempt, [scalar(EVAL_LOSS, EVAL)])
            blocks = [Block(EVAL, 0, 5, 5, np.array([[9.0, loss]], np.float32))]
            store_flush(session, one.run_id, one.attempt, blocks, [], 12, 100.0)
    decide(database, number)
    assert outcomes(database) == {(taken[0].run_id, 1): "behind", (taken[1].run_id, 1): "continued"}


def test_unstable_trials_are_stopped_at_any_step_and_count_as_the_worst(database: Database, submitted: int) -> None:
    budget, nan, loss_nan, gone, good, better = (claim(database) for _ in range(6))
    train(database, budget, 0.1, steps=3)
    with database.write() as session:
        session.execute(update(Run).where(Run.id == budget.run_id).values(overflow_budget=1.3))
    train(database, nan, 0.1, steps=3, alerts=(nonfinite(),))
    train(database, loss_nan, float("nan"))
    train(database, gone, 0.1, steps=3)
    with database.write() as session:
        lifecycle.finish(session, gone.run_id, gone.attempt, "diverged", "", None, {"step": 4})
    train(database, good, 0.8)
    train(database, better, 0.7)
    decide(database, submitted)
    unstable = {(one.run_id, 1): "unstable" for one in (budget, nan, loss_nan, gone)}
    assert outcomes(database) == unstable | {(good.run_id, 1): "continued", (better.run_id, 1): "continued"}
    reason = run_of(database, budget.run_id).status_reason
    assert reason == "stopped by the search as unstable: its overflow budget is 1.3, above the limit of 1"
    assert "it is NaN" in run_of(database, nan.run_id).status_reason
    assert "train/loss is not finite at step 10" in run_of(database, loss_nan.run_id).status_reason
    assert run_of(database, gone.run_id).status == "diverged"


def test_a_trial_whose_last_evaluation_is_not_finite_counts_as_the_worst(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, trials=2)
    lost, good = claim(database), claim(database)
    for taken, loss in ((lost, 0.1), (good, 0.9)):
        train(database, taken, loss, steps=100)
    with database.write() as session:
        lifecycle.finish(session, lost.run_id, lost.attempt, "finished", "", {"train_loss": 0.1, "eval_loss": "NaN"}, None)
    made = {one.run_id: one for one in decide(database, number)}
    assert (made[lost.run_id].outcome, made[lost.run_id].reason) == ("unstable", "its evaluation loss is NaN")
    assert outcomes(database)[good.run_id, 1] == "continued"


def test_a_trial_that_repairs_itself_by_a_rollback_is_not_stopped_for_a_nan(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, BODY | {"train": {"steps": 100, "on_nonfinite": "rollback"}}, trials=1)
    taken = claim(database)
    train(database, taken, 0.1, steps=3, alerts=(nonfinite(),))
    assert decide(database, number) == []
    assert not run_of(database, taken.run_id).cancel_requested


def test_without_a_limit_the_overflow_budget_stops_nothing(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, trials=1, max_overflow_budget=None)
    taken = claim(database)
    with database.write() as session:
        session.execute(update(Run).where(Run.id == taken.run_id).values(overflow_budget=1e9))
    assert decide(database, number) == []


def test_a_search_ends_with_its_last_run_and_a_resumed_trial_is_left_alone(database: Database, tmp_path: Path) -> None:
    number = search(database, tmp_path, trials=2)
    taken = [claim(database), claim(database)]
    for one, loss in zip(taken, (0.1, 0.9), strict=True):
        train(database, one, loss)
    decide_all(database)
    for one, status in zip(taken, ("finished", "cancelled"), strict=True):
        with database.write() as session:
            lifecycle.finish(session, one.run_id, one.attempt, status)
    decide_all(database)
    with database.read() as session:
        assert session.get_one(SearchRow, number).ended_at is not None
    with database.write() as session:
        lifecycle.resume_run(session, taken[1].run_id)
    again = claim(database)
    train(database, again, 0.9, steps=40)
    decide_all(database)
    assert not run_of(database, again.run_id).cancel_requested


def test_servers_that_decide_at_the_same_time_store_each_decision_once(database: Database, submitted: int) -> None:
    for loss in (0.5, 0.1, 0.9, 0.4, 0.3, 0.2):
        train(database, claim(database), loss)
    start, made = threading.Barrier(4), []

    def server() -> None:
        start.wait()
        made.extend(decide(database, submitted))

    servers = [threading.Thread(target=server) for _ in range(4)]
    for one in servers:
        one.start()
    for one in servers:
        one.join()
    assert len(made) == 6
    with database.read() as session:
        assert len(session.scalars(select(RungRow)).all()) == 6
        stopped = session.scalars(select(Transition.run_id).where(Transition.reason.startswith("stopped by"))).all()
    assert len(stopped) == len(set(stopped)) == 4


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def post(client: httpx.Client, search: dict[str, Any], **body: Any) -> httpx.Response:
    return client.post("/api/sweeps", json={"base": BASE, "search": search} | body)


def test_a_search_is_submitted_as_ordinary_runs_and_shown_with_its_decisions(client: httpx.Client, database: Database) -> None:
    asked = {"space": RATES, "trials": 4, "seed": 7, "halving": HALVING}
    made = post(client, asked, name="rates").json()
    assert (made["total"], made["search"]["seed"], made["grid"]) == (4, 7, {"optimizer.lr": []})
    again = post(client, asked).json()
    rates = [[run["config"]["optimizer"]["lr"] for run in one["runs"]] for one in (made, again)]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) == 4
    for loss in (0.1, 0.9):
        train(database, claim(database), loss)
    decide(database, made["id"])  # the server's own thread decides as well, and may have done so already
    deadline = time.monotonic() + 30
    while len(decisions := client.get("/api/sweeps/1").json()["decisions"]) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        decide(database, made["id"])
    assert [one["outcome"] for one in decisions] == ["continued", "behind"]
    page = client.get("/sweeps/1").text
    assert "Stopped behind" in page
    assert "train/loss 0.9 is number 2 of 2 at step 10" in page
    for path in ("/sweeps", "/compare?sweep=1", "/api/sweeps/1/grid", "/api/sweeps/1/table?format=csv",
                 "/api/sweeps/1/figures/sweep_final_loss"):  # fmt: skip
        assert client.get(path).is_success, path


@pytest.mark.parametrize(
    ("search", "field"),
    [
        ({"space": {"optimizer.lr": {"distribution": "log_uniform", "low": 0.1, "high": 0.01}}}, "search.space.optimizer.lr.low"),
        ({"space": {"optimizer.lr": {"distribution": "log_uniform", "low": 0, "high": 1}}}, "search.space.optimizer.lr.low"),
        ({"space": {"optimizer.lr": {"distribution": "normal"}}}, "search.space.optimizer.lr.distribution"),
        ({"space": {"optimizer.lr": {"low": 1}}}, "search.space.optimizer.lr.distribution"),
        ({"space": {"optimizer.rate": {"distribution": "uniform", "low": 0, "high": 1}}}, "search.space.optimizer.rate"),
        ({"space": RATES, "trials": 2001}, "search.trials"),
        ({"space": RATES, "halving": {"first_rung": 100}}, "search.halving.first_rung"),
        ({"space": RATES, "halving": {"first_rung": 50, "metric": "eval/loss"}}, "search.halving.first_rung"),
        ({"space": RATES, "halving": {"metric": "optim/lr"}}, "search.halving.metric"),
    ],
)
def test_an_invalid_search_is_refused_with_its_field(client: httpx.Client, search: dict[str, Any], field: str) -> None:
    assert error_of(post(client, search), 422)["field"] == field


def test_exactly_one_of_grid_and_search_is_needed(client: httpx.Client) -> None:
    for more in ({}, {"search": {"space": RATES}, "grid": {"train.seed": [1]}}):
        error = error_of(client.post("/api/sweeps", json={"base": BASE} | more), 422)
        assert (error["field"], error["message"]) == ("grid", "exactly one of grid and search is needed")
