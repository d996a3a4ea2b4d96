"""Forks over REST: choice of the checkpoint, allowed changes, early refusals, and lists of a run's forks and siblings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import update

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.series.recording import store_checkpoint
from server.settings import run_folder
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import TRAIN_LOSS, layer_catalogue, scalar
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import claim, run_of, submitted
from tests.server.storing import store_catalogue, store_flush

pytestmark = pytest.mark.slow

DIRECT = {"name": "direct run", "model__reparameterization__name": "direct", "train__steps": 100}
FATAL = 58


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database.url, tmp_path)) as client:
        yield client


def diverged(database: Database, data_dir: Path, *, weight: float = 0.5, crosses: int | None = None) -> int:
    """A run that recorded every step, wrote checkpoints at steps 20 and 40, and diverged at the step FATAL.

    crosses: the first step with eigenvalue 1 outside the boundary, at 3, where it overflows. None: the eigenvalue is `weight` at
    every step.
    """
    submitted(database, **DIRECT)
    run = claim(database)
    catalogue = [scalar(TRAIN_LOSS), *layer_catalogue(0, 2, Form.of_map("direct", "discrete"))]
    steps = np.arange(1, FATAL + 1)
    outside = steps >= (FATAL + 1 if crosses is None else crosses)
    weights = np.stack([np.full(FATAL, 0.5), np.where(outside, 3.0, weight)])
    rows = np.concatenate([np.ones((2, FATAL)), weights]).astype(np.float32)
    with database.write() as session:
        store_catalogue(session, run.run_id, run.attempt, catalogue)
        blocks = [Block("scalars", 0, 1, 1, np.ones((1, FATAL), np.float32)), Block("ssm/0", 0, 1, 1, rows)]
        store_flush(session, run.run_id, run.attempt, blocks, [], FATAL, 50.0)
        for step in (20, 40):
            path = f"runs/{run.run_id}/checkpoints/attempt-1/step-{step:010d}.safetensors"
            (file := data_dir / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"%d" % step)
            store_checkpoint(session, run.run_id, 1, step, path, hashlib.sha256(b"%d" % step).hexdigest())
        fatal = {"step": FATAL, "layer": 0, "eigenvalue": 1, "tensor": "ssm.state"}
        lifecycle.finish(session, run.run_id, run.attempt, "diverged", "inf", {"train_loss": 1.0}, fatal)
    return run.run_id


def fork(client: httpx.Client, run: int, changes: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/runs/{run}/fork", json={"changes": changes, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_fork_starts_at_the_last_good_checkpoint_and_lists_its_changes(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    made = fork(client, run, {"optimizer.lr": 0.001, "train.batch_size": 128}, priority=3)
    assert (made["forked_from"], made["forked_at_step"], made["fork_changes"]) == (run, 40, {"optimizer.lr": 0.001})
    assert (made["status"], made["step"], made["steps"], made["priority"]) == ("queued", 40, 100, 3)
    assert (made["name"], made["cloned_from"], made["sweep_id"]) == ("direct run | lr 0.001", None, None)
    # A fork of a fork, from the initial weights.
    assert fork(client, made["id"], {}, from_step=0)["name"] == "direct run | replay"
    taken = claim(database)
    assert taken.origin is not None
    assert (taken.run_id, taken.origin.parent, taken.origin.step, taken.checkpoints) == (made["id"], run, 40, ())
    assert taken.origin.checkpoint is not None
    assert taken.origin.checkpoint.sha256 == hashlib.sha256(b"40").hexdigest()
    assert run_of(database, made["id"]).step == 40

    found = client.get("/api/runs", params={"q": f"forked_from={run}"}).json()["runs"]
    assert [one["id"] for one in found] == [made["id"]]
    listed = client.get(f"/api/runs/{run}/forks").json()
    assert listed["died_at"] == FATAL
    (one,) = listed["forks"]
    assert (one["id"], one["from_step"], one["said"], one["outcome"]) == (made["id"], 40, "lr 0.001", "open")
    assert one["text"] == f"From step 40 with lr 0.001, it is running at step 40 (the original died at step {FATAL})."
    assert one["compare_url"].startswith(f"/compare?runs={run},{made['id']}")


@pytest.mark.parametrize(("crosses", "begins", "preceding"), [(31, 20, [20]), (21, 0, []), (41, 20, [20]), (42, 40, [40, 20])])
def test_a_fork_starts_before_the_trouble_and_each_checkpoint_says_whether_it_precedes_the_trouble(
    client: httpx.Client, database: Database, tmp_path: Path, crosses: int, begins: int, preceding: list[int]
) -> None:
    run = diverged(database, tmp_path / "state", crosses=crosses)
    listed = client.get(f"/api/runs/{run}/forks").json()
    # the update of the step before moved the eigenvalue across, so that step is the first that a fork has to repeat
    assert (listed["trouble"], listed["fork_from"]) == ({"step": crosses - 1, "kind": "crossing"}, begins)
    assert fork(client, run, {"optimizer.recurrent_lr": 0})["forked_at_step"] == begins
    found = client.get(f"/api/runs/{run}/checkpoints").json()["checkpoints"]
    assert [one["step"] for one in found if one["before_trouble"]] == preceding
    assert [one["step"] for one in found] == [40, 20]
    assert fork(client, run, {}, from_step=40)["forked_at_step"] == 40


def test_a_run_without_trouble_has_no_checkpoint_before_the_trouble(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(status="finished", divergence=None))
    listed = client.get(f"/api/runs/{run}/forks").json()
    assert (listed["trouble"], listed["fork_from"]) == (None, 40)
    found = client.get(f"/api/runs/{run}/checkpoints").json()["checkpoints"]
    assert [one["before_trouble"] for one in found] == [None, None]


def test_a_fork_can_start_at_a_named_checkpoint_or_at_the_initial_weights(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    assert fork(client, run, {}, from_step=20)["forked_at_step"] == 20
    assert fork(client, run, {}, from_step=0)["step"] == 0
    error = error_of(client.post(f"/api/runs/{run}/fork", json={"from_step": 30}), 422)
    assert (error["field"], error["allowed"]) == ("from_step", "0, 20, 40")
    error = error_of(client.post(f"/api/runs/{run}/fork", json={"from_step": 40, "changes": {"train.steps": 40}}), 422)
    assert (error["field"], error["allowed"]) == ("changes.train.steps", "more than 40")
    # 20 is the last checkpoint that leaves steps to train.
    assert fork(client, run, {"train.steps": 40})["forked_at_step"] == 20


def test_a_fork_does_not_start_at_a_checkpoint_whose_file_is_missing(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    (run_folder(tmp_path / "state", run) / "checkpoints/attempt-1/step-0000000040.safetensors").unlink()
    answer = client.post(f"/api/runs/{run}/fork", json={"from_step": 40})
    # With PostgreSQL, workers may be on other machines, and the server does not know their disks.
    if database.path is None:
        assert answer.status_code == 201
        return
    error = error_of(answer, 422)
    assert "neither on this machine nor in a checkpoint store" in error["message"]
    assert error["allowed"] == "0, 20"
    assert fork(client, run, {})["forked_at_step"] == 20


def test_changes_that_a_fork_cannot_make_are_refused(client: httpx.Client, database: Database, tmp_path: Path) -> None:
    run = diverged(database, tmp_path / "state", weight=1.0203)
    for changes, field in (
        ({"model.d_state": 8}, "model.d_state"),
        ({"train.seed": 1}, "train.seed"),
        ({"optimizer.lr": -1}, "optimizer.lr"),
        ({"optimizer.nothing": 1}, "optimizer.nothing"),
    ):
        error = error_of(client.post(f"/api/runs/{run}/fork", json={"changes": changes}), 422)
        assert error["field"] == field
    best = {"model.reparameterization.name": "best"}
    error = error_of(client.post(f"/api/runs/{run}/fork", json={"changes": best, "from_step": 40}), 422)
    assert error["field"] == "changes.model.reparameterization.name"
    assert "eigenvalue 1 of layer 0 is 1.02" in error["message"]
    assert "reaches [-1, 1)" in error["message"]
    # Step 0 is the last checkpoint whose eigenvalues `best` can all reach.
    assert fork(client, run, best)["forked_at_step"] == 0
    error_of(client.post("/api/runs/99/fork"), 404)


def test_siblings_differ_only_in_map_rate_and_seed_and_survivors_come_first(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    fork(client, run, {})
    for changes in (
        {"train__seed": 1},
        {"optimizer__lr": 0.001},
        {"model__d_state": 8},
        {"train__steps": 99},
        {"model__dropout": 0.5},
    ):
        submitted(database, **DIRECT | changes)
    claim(database)  # claims the fork, which is not a sibling
    claim(database)
    other = claim(database)
    with database.write() as session:
        lifecycle.finish(session, other.run_id, 1, "finished", "", {"train_loss": 0.25})
    found = client.get(f"/api/runs/{run}/siblings").json()["siblings"]
    assert [(one["differs"], one["survived"]) for one in found] == [({"optimizer.lr": 0.001}, True), ({"train.seed": 1}, False)]
    assert (found[0]["said"], found[0]["loss"], found[0]["status"]) == ("lr 0.001", 0.25, "finished")


def test_resuming_a_diverged_run_warns_that_the_same_numbers_repeat(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    run = diverged(database, tmp_path / "state")
    assert "repeats the same numbers" in client.post(f"/api/runs/{run}/resume").json()["status_reason"]
