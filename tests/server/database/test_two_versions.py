"""Two versions at once: during a migration, programs of the old schema submit, train and read concurrently with new ones."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from server.database.connection import Database
from server.database.models import BlockRow, Run
from server.lifecycle import transitions as lifecycle
from tests.server.old_code import submitted_by_old_code, trained_by_old_code
from tests.server.recording import CPU, Recording, submitted

pytestmark = [pytest.mark.both_engines, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]
RUNS = 12  # number of runs of each version
STEPS = 5
CONFIG: dict[str, Any] = {"task": {"name": "polynomial_memory"}, "train": {"steps": 3, "eval_every": 0}}


def test_old_and_new_programs_share_a_database_while_it_is_migrated(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate("0001")
    migrated, done, failures = threading.Event(), threading.Event(), []
    old: list[int] = []

    def repeat(work: Callable[[], object]) -> threading.Thread:
        def loop() -> None:
            own = 0
            try:
                while own < RUNS or not migrated.is_set():
                    own += work() is not None
                    # SQLite does not queue writers: a writer that never pauses would block the migration.
                    time.sleep(0.01)
            except Exception as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def train_old() -> None:
        while not done.is_set():
            if trained_by_old_code(database, STEPS) is None:
                time.sleep(0.005)

    writers = [repeat(lambda: old.append(submitted_by_old_code(database)) or 1)]
    trainer = threading.Thread(target=_collect(train_old, failures))
    trainer.start()
    _until(lambda: len(old) > 2)
    database.migrate()  # while both versions are running
    migrated.set()
    new = [submitted(database) for _ in range(RUNS)]
    claims = [claim for _ in range(RUNS) if (claim := _new_claim(database)) is not None]
    for claim in claims:
        Recording(database, claim, weird=False).write(STEPS)
        with database.write() as session:
            lifecycle.finish(session, claim.run_id, claim.attempt, "finished")
    for writer in writers:
        writer.join()
    _until(lambda: _unfinished(database) == 0 or bool(failures))
    done.set()
    trainer.join()
    assert failures == []
    with database.read() as session:
        runs = session.scalars(select(Run).order_by(Run.id)).all()
        raw = session.execute(
            text("SELECT run_id, count(*) FROM blocks WHERE level = 0 AND group_name = 'scalars' GROUP BY run_id")
        )
        blocks = {int(run): int(count) for run, count in raw}
    assert {run.id for run in runs} == {*old, *new}
    assert [(run.status, run.queue, run.needs_gpu, run.submitted_by, run.attempt) for run in runs] == [
        ("finished", "default", "", None, 1)
    ] * len(runs)
    by_new = {claim.run_id for claim in claims}
    assert blocks == {run.id: 1 if run.id in by_new else STEPS for run in runs}
    with database.read() as session:
        payloads = session.execute(select(BlockRow.first_step, BlockRow.payload).where(BlockRow.run_id == old[0])).all()
    assert old[0] in by_new or sorted(payloads) == [(step, bytes([0, step])) for step in range(1, STEPS + 1)]
    database.close()


def test_the_previous_and_the_current_release_serve_and_train_side_by_side(
    empty_postgres_url: str, tmp_path: Path, free_port: int, another_free_port: int
) -> None:
    previous = _previous_release(tmp_path / "previous")
    url, data = empty_postgres_url, tmp_path / "data"
    with _server(previous, url, data, free_port, migrate=True) as old, _client(old) as client:
        first = client.post("/api/runs", json=CONFIG).raise_for_status().json()["id"]
        with _worker(previous, url, data):
            _until(lambda: client.get(f"/api/runs/{first}").json()["status"] == "finished", 240)
            Database(url).migrate()  # the old server and the old worker keep running
            second = client.post("/api/runs", json=CONFIG).raise_for_status().json()["id"]
            _until(lambda: client.get(f"/api/runs/{second}").json()["status"] == "finished", 240)
        with _server(ROOT, url, data, another_free_port) as new, _client(new) as other:
            third = other.post("/api/runs", json=CONFIG).raise_for_status().json()["id"]
            fourth = client.post("/api/runs", json=CONFIG).raise_for_status().json()["id"]
            with _worker(ROOT, url, data):
                for run in (third, fourth):
                    _until(lambda run=run: client.get(f"/api/runs/{run}").json()["status"] == "finished", 240)
            series = [
                [
                    asker.get(f"/api/runs/{run}/series/train/loss").raise_for_status().text
                    for run in (first, second, third, fourth)
                ]
                for asker in (client, other)
            ]
            assert series[0] == series[1]
            assert len(other.get("/api/runs").json()["runs"]) == len(client.get("/api/runs").json()["runs"]) == 4


def test_a_rolling_upgrade_from_the_last_release_trains_every_run_to_its_end_exactly_once(
    empty_postgres_url: str, tmp_path: Path, free_port: int, another_free_port: int
) -> None:
    """The documented order: migrate, workers, servers. One run begins on the old worker and ends on the new worker."""
    previous = _last_release(tmp_path / "previous")
    url, data = empty_postgres_url, tmp_path / "data"
    with _server(previous, url, data, free_port, migrate=True) as old, _client(old) as client, ExitStack() as later:
        with _worker(previous, url, data):
            runs = [_submit(client, CONFIG)]
            _until(lambda: _ended(client, runs[0]), 240)
            Database(url).migrate()
            runs += [_submit(client, CONFIG | {"train": LONG})]
            _until(lambda: _row(client, runs[1])["step"] > 0, 240)
            later.enter_context(_worker(ROOT, url, data))
            runs += [_submit(client, CONFIG)]
        # the old worker has written a checkpoint and has returned its run to the queue
        _until(lambda: _ended(client, runs[1]) and _ended(client, runs[2]), 240)
        other = later.enter_context(_client(later.enter_context(_server(ROOT, url, data, another_free_port))))
        runs += [_submit(client, CONFIG), _submit(other, CONFIG)]
        _until(lambda: _ended(other, runs[3]) and _ended(other, runs[4]), 240)
        rows = [_row(other, run) for run in runs]
        assert [(row["status"], row["attempt"], row["step"]) for row in rows] == [
            ("finished", 2, LONG["steps"]) if run == runs[1] else ("finished", 1, 3) for run in runs
        ]
        for run in runs:
            loss = _loss(other, run)
            assert loss["step"] == list(range(1, _row(other, run)["step"] + 1)), "no step is lost or doubled"
            if run != runs[1]:  # the releases round differently: the last one had no compiled kernels
                assert loss["value"] == pytest.approx(_loss(other, runs[0])["value"], rel=1e-4)
            assert loss == _loss(client, run), "the old server reads what the new worker has written"
        assert _loss(other, runs[3]) == _loss(other, runs[4]), "the same release trains the same numbers"
        assert len(other.get("/api/runs").json()["runs"]) == len(set(runs)) == 5


def _ended(client: httpx.Client, run: int) -> bool:
    return _row(client, run)["status"] not in ("queued", "running")


LONG = {"steps": 300, "eval_every": 0}


def _submit(client: httpx.Client, config: dict[str, Any]) -> int:
    return int(client.post("/api/runs", json=config).raise_for_status().json()["id"])


def _row(client: httpx.Client, run: int) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/runs/{run}").raise_for_status().json()
    return found


def _loss(client: httpx.Client, run: int) -> dict[str, Any]:
    """Every recorded step of the loss and its values."""
    answer = client.get(f"/api/runs/{run}/series/train/loss", params={"max_points": 5000}).raise_for_status().json()
    return {name: answer[name] for name in ("step", "value")}


def _client(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers=_BEARER, timeout=60)


_BEARER = {"Authorization": "Bearer a-token-of-sixteen-and-more"}


def _last_release(folder: Path) -> Path:
    """Unpack the source of the release that the changelog names last: the commit that gave the program its version."""
    version = re.search(r"^## (\d\S+) - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    found = _git("log", f'-S__version__ = "{version[1]}"', "--format=%H", "--reverse", "--", "stablessm_core/__init__.py")
    return _unpacked(folder, found[0] if found else "nothing", version[1])


def _previous_release(folder: Path) -> Path:
    """Unpack the source of the last commit before the change that brought the newest schema. Commits of its last ten minutes
    count as parts of this change, and a part alone may not run."""
    newest = max((ROOT / "migrations" / "versions").glob("0*.py"))
    added = _git("log", "--diff-filter=A", "--format=%H %ct", "-1", "--", str(newest.relative_to(ROOT)))
    before = _git("rev-list", "--first-parent", "-1", f"--before={int(added[1]) - 600}", added[0]) if added else []
    return _unpacked(folder, before[0] if before else "nothing", newest.name)


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.split()


def _unpacked(folder: Path, commit: str, what: str) -> Path:
    """Unpack the source of a commit. Skips the test if this checkout lacks its history."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not reach back before {what}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    # Python would import the absent packages from this checkout.
    if absent := {"server", "worker", "stablessm_core", "migrations"} - set(os.listdir(folder)):
        pytest.skip(f"the history of this checkout has no whole program before {what}: {', '.join(sorted(absent))} missing")
    return folder


@contextmanager
def _process(source: Path, data: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    data.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(source), "STABLESSM_TOKEN": _BEARER["Authorization"].split()[1]}
    with (data.parent / f"{source.name}.log").open("ab") as log:
        command = [sys.executable, "-P", "-m", *arguments, "--data-dir", str(data)]
        process = subprocess.Popen(command, cwd=source, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(90)


@contextmanager
def _server(source: Path, url: str, data: Path, port: int, *, migrate: bool = False) -> Iterator[str]:
    if migrate:
        with _process(source, data, "server", "migrate", "--database-url", url) as process:
            assert process.wait(120) == 0, (data.parent / f"{source.name}.log").read_text()
    with _process(source, data, "server", "serve", "--database-url", url, "--port", str(port)) as process:
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None, (data.parent / f"{source.name}.log").read_text()
            try:
                return httpx.get(f"{address}/healthz", timeout=30).status_code == 200
            except httpx.TransportError:
                return False

        _until(answers, 120)
        yield address


@contextmanager
def _worker(source: Path, url: str, data: Path) -> Iterator[None]:
    with _process(source, data, "worker", "--database-url", url):
        yield


def _collect(work: Callable[[], None], failures: list[Exception]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    return run


def _new_claim(database: Database) -> lifecycle.Claim | None:
    with database.write() as session:
        return lifecycle.claim(session, "new", CPU)


def _unfinished(database: Database) -> int:
    with database.read() as session:
        return int(session.scalar(text("SELECT count(*) FROM runs WHERE status <> 'finished'")) or 0)


def _until(ask: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.02)
