"""Forks with a real worker: a replay has the bits of its original, and a frozen recurrence survives where the original died."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.database.connection import Database
from server.database.models import Run
from server.keep.deletion import purge
from server.keep.trash import move_to_trash
from server.lifecycle.checkpoints import checkpoints_json
from server.lifecycle.forking import died_at, fork_run, forks_json, trouble_of
from server.lifecycle.transitions import Fork, submit
from server.series.reading import read_series
from server.settings import Settings
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings
from tests.worker.station import Station

pytestmark = pytest.mark.slow

FATAL, PARTED = 15, 10
DYING: dict[str, Any] = {  # `direct` with steps that are many times larger than the distance to the boundary
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"d_model": 16, "d_state": 8, "reparameterization": {"name": "direct"}},
    "optimizer": {"lr": 0.3},
    "train": {"steps": 40, "batch_size": 16, "eval_every": 0, "checkpoint_every": 10, "device": "cpu"},
}
Forks = tuple[Station, Settings, Run]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("state")
    settings = Settings(data_dir=folder)
    station = Station(Database(settings.database_url), folder)
    station.database.migrate()
    station.start("--slots", "2")
    original = station.until_ended(station.submit(DYING))
    assert (original.status, original.divergence and original.divergence["step"]) == ("diverged", FATAL), original.status_reason
    yield station, settings, original
    station.close()


def made(forks: Forks, from_step: int | None = None, **changes: Any) -> int:
    station, settings, original = forks
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return fork_run(station.database, settings, original.id, from_step=from_step, changes=named)


def weights(station: Station, run_id: int) -> tuple[list[int], np.ndarray]:
    with station.database.read() as session:
        data = read_series(session, run_id, "ssm/0/weight")
    assert data.value is not None
    return data.step.tolist(), data.value


def told(station: Station, run: Run) -> dict[int, tuple[str, str]]:
    """The outcome and the text of each fork of the run."""
    with station.database.read() as session:
        listed = forks_json(session, run, trouble_of(session, run))
    return {fork["id"]: (fork["outcome"], fork["text"]) for fork in listed}


def test_forks_continue_from_a_checkpoint_and_show_the_cause_of_the_divergence(forks: Forks) -> None:
    station, _, original = forks
    replay, frozen, other = (
        made(forks, PARTED),
        made(forks, PARTED, optimizer__recurrent_lr=0),
        made(forks, model__reparameterization__name="best"),
    )
    ended = {run_id: station.until_ended(run_id) for run_id in (replay, frozen, other)}
    assert [run.status for run in ended.values()] == ["diverged", "finished", "finished"], [
        r.status_reason for r in ended.values()
    ]

    steps, losses = station.losses(original.id)
    # The replay's losses equal the original's bit for bit, under the same step numbers.
    assert station.losses(replay) == (steps[PARTED:], losses[4 * PARTED :])
    assert ended[replay].divergence == original.divergence
    assert ended[replay].environment is not None
    assert ended[replay].environment["fork"] == {"at_step": PARTED, "changed": "nothing (a replay)", "moments": "kept"}

    rows, frozen_weights = weights(station, frozen)
    assert rows == list(range(PARTED + 1, 41))
    assert (frozen_weights == frozen_weights[0]).all()
    assert (frozen_weights[0] == weights(station, original.id)[1][PARTED]).all()
    # At step 10, some eigenvalues are outside the stability boundary, so without a given step a fork begins earlier.
    assert ended[other].forked_at_step == 0
    assert ended[frozen].step == 40
    with station.database.read() as session:
        assert died_at(session, station.run(original.id)) == FATAL
    outcomes = told(station, original)
    assert {fork: outcome for fork, (outcome, _) in outcomes.items()} == {replay: "dies", frozen: "lives", other: "lives"}
    assert outcomes[other][1].startswith("From step 0 with reparameterization best, it lives")
    assert "this does not show whether the change would have helped" in outcomes[replay][1]


def test_the_freeze_test_gives_the_same_answer_however_often_the_run_saved_checkpoints(forks: Forks) -> None:
    station, settings, _ = forks
    answers: dict[int, str] = {}
    for every in (1, 10):
        config = with_settings(DYING, {"model.activation": "gelu", "optimizer.lr": 0.1, "train.checkpoint_every": every})
        original = station.until_ended(station.submit(config))
        assert original.divergence is not None
        own = (station, settings, original)
        with station.database.read() as session:
            trouble = trouble_of(session, original)
            saved = [one["step"] for one in checkpoints_json(session, original.id, settings)]
        assert trouble is not None
        frozen, late = made(own, optimizer__recurrent_lr=0), made(own, max(saved), optimizer__recurrent_lr=0)
        began = station.until_ended(frozen).forked_at_step
        assert began == max((step for step in saved if step < trouble.step), default=0)
        station.until_ended(late)
        answers[every] = told(station, original)[frozen][0]
        outcome, text = told(station, original)[late]
        assert max(saved) < trouble.step or outcome == "lives" or "this does not show" in text
    assert answers[1] == answers[10] != "open"


def test_a_fork_whose_checkpoint_is_missing_fails_with_a_clear_reason(forks: Forks) -> None:
    station, settings, original = forks
    folder = settings.data_dir / "runs" / str(original.id)
    shutil.move(folder, kept := Path(f"{folder}-kept"))
    try:
        with station.database.write() as session:
            orphan = submit(session, parse_config(DYING), fork=Fork(original.id, PARTED, {})).id
        failed = station.until_ended(orphan)
    finally:
        shutil.move(kept, folder)
    assert failed.status == "failed"
    said = f"the checkpoint of step {PARTED} of run {original.id}, from which this fork begins, is not available on this machine"
    assert failed.status_reason.startswith(said)
    with station.database.write() as session:
        move_to_trash(session, original.id, by="a test")
    purge(station.database, None, original.id)
    with station.database.write() as session:
        orphan = submit(session, parse_config(DYING), fork=Fork(original.id, PARTED, {})).id
    failed = station.until_ended(orphan)
    assert "no longer exists: run 1 was deleted" in failed.status_reason
