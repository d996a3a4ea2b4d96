"""The short chaos suite: whatever fails, each run records every step once, bit for bit, and the cause is reported."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from server.settings import run_folder
from stablessm_core.report.outbox import left_behind
from stablessm_core.telemetry.statuses import FINAL
from tests.chaos.services import Missing, until
from tests.chaos.site import Site
from tests.chaos.storm import CONFIGS, Storm, table
from tests.chaos.verdict import Recorded, history, judge

INJECTIONS, RUNS = 8, 5
pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def storm(unavailable: Callable[[str], NoReturn]) -> Iterator[Storm]:
    """A separate installation, and the records of its undisturbed runs."""
    with tempfile.TemporaryDirectory(
        prefix="stablessm-chaos-", ignore_cleanup_errors=True
    ) as folder:  # also user postgres reads it
        try:
            site = Site(Path(folder), workers=2, lease=6)
        except Missing as missing:
            unavailable(str(missing))
        try:
            site.open()
            seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
            storm = Storm(site, seed, INJECTIONS, RUNS, pause=1.0)
            storm.learn_the_truth()
            yield storm
        except TimeoutError as error:
            pytest.fail(f"{error}\n{site.logs()}", pytrace=False)
        finally:
            site.close()


@pytest.fixture
def site(storm: Storm) -> Iterator[Site]:
    yield storm.site
    for proxy in storm.site.proxies:
        proxy.become("pass")


def _finishes_as_undisturbed(storm: Storm, run_id: int) -> Recorded:
    until(f"end of run {run_id}", lambda: Recorded.of(storm.site.database, run_id).run.status == "finished", 240)
    found = Recorded.of(storm.site.database, run_id)
    verdict = judge(found, storm.truth["finishes"])
    assert (verdict.lost, verdict.doubled, verdict.problems) == (0, 0, []), storm.site.logs()
    return found


def _trains(site: Site, run_id: int, step: int) -> None:
    until(f"step {step} of run {run_id}", lambda: Recorded.of(site.database, run_id).run.step >= step, 150)


def _cut_off_with_a_spool(storm: Storm) -> tuple[int, int]:
    """(run, last stored step) of a run whose worker has lost the database and writes to its spool."""
    while True:
        run_id = storm.site.submit(CONFIGS["finishes"])
        _trains(storm.site, run_id, 60)
        for worker in storm.site.workers:
            worker.database.become("refuse")
        run = Recorded.of(storm.site.database, run_id).run
        spool = run_folder(storm.site.data_dir, run_id) / "spool" / f"attempt-{run.attempt}"
        with contextlib.suppress(TimeoutError):
            until("records on disk", lambda spool=spool: len(list(left_behind(spool))) >= 6, 20)
            return run_id, run.step
        # This process was paused, and the run had hardly any steps left to record: try another run.
        for worker in storm.site.workers:
            worker.database.become("pass")


def test_random_faults_lose_and_duplicate_no_training_step(storm: Storm) -> None:
    storm.rage()
    report = f"CHAOS_SEED={storm.seed} repeats this\n{table(storm)}\n"
    print(report)
    assert len(storm.injections) >= INJECTIONS
    assert len(storm.verdicts) >= RUNS
    assert storm.problems == [], report + storm.site.logs()


def test_a_worker_stores_the_steps_that_its_killed_training_process_left_on_disk(storm: Storm, site: Site) -> None:
    for _ in range(5):
        run_id, stored = _cut_off_with_a_spool(storm)
        for worker in site.workers:
            site.signal(site.trainers(worker), signal.SIGKILL)
        for worker in site.workers:
            worker.database.become("pass")
        found = _finishes_as_undisturbed(storm, run_id)
        given_back = next((t for t in found.transitions if t.status == "queued" and t.reason != "submitted"), None)
        # Otherwise every record was already stored at the kill, or the worker was paused for longer than a lease: try again.
        if given_back is not None and "lost contact" not in given_back.reason:
            break
    assert given_back is not None
    assert "SIGKILL" in given_back.reason
    assert given_back.step > stored, "the worker must have stored the steps of the outage from the spool"


def test_steps_that_only_existed_on_a_machine_that_lost_power_are_trained_again(storm: Storm, site: Site) -> None:
    run_id, _ = _cut_off_with_a_spool(storm)
    for worker in site.workers:
        site.lose_power(worker)  # before the database is back, so that no record of the spool reaches it
        worker.database.become("pass")
        site.start(worker)
    found = _finishes_as_undisturbed(storm, run_id)
    assert any("lost contact" in t.reason for t in found.transitions), [t.reason for t in found.transitions]


def test_queued_runs_start_without_redis(storm: Storm, site: Site) -> None:
    site.redis.kill(forget=True)
    try:
        _finishes_as_undisturbed(storm, site.submit(CONFIGS["finishes"]))
    finally:
        site.redis.start()


def test_a_full_disk_returns_the_run_to_the_queue_and_it_is_trained_completely_when_there_is_room(
    storm: Storm, site: Site, unavailable: Callable[[str], NoReturn]
) -> None:
    runs = site.data_dir / "runs"
    with _tiny(runs, unavailable):
        filler = runs / "filler"
        for _ in range(5):
            run_id = site.submit(CONFIGS["finishes"])
            _trains(site, run_id, 60)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 14))
            until("verdict", lambda run_id=run_id: Recorded.of(site.database, run_id).run.status in ("queued", *FINAL))
            if Recorded.of(site.database, run_id).run.status != "finished":
                break
            filler.unlink()  # the run had already written its last checkpoint: try another run
        given_back = Recorded.of(site.database, run_id)
        assert any(t.status == "queued" and t.reason.startswith("disk full") for t in given_back.transitions), site.logs()
        assert [alert.kind for alert in given_back.alerts if alert.severity == "critical"][-1] == "worker_unfit"
        filler.unlink()
        until("end", lambda: Recorded.of(site.database, run_id).run.status == "finished", 240)
        found, truth = Recorded.of(site.database, run_id), storm.truth["finishes"]
        assert (found.steps, found.values) == (truth.steps, truth.values)
        assert (found.run.workers_lost, history(found)) == (0, [])


def test_a_run_waits_while_the_run_directory_is_read_only(
    storm: Storm, site: Site, unavailable: Callable[[str], NoReturn]
) -> None:
    with _tiny(site.data_dir / "runs", unavailable, "ro,size=3m"):
        run_id = site.submit(CONFIGS["finishes"])

        def returned() -> bool:
            return any(t.reason.startswith("not writable") for t in Recorded.of(site.database, run_id).transitions)

        until("the return to the queue", returned, 150)
        assert Recorded.of(site.database, run_id).run.status in ("queued", "running"), site.logs()
    _finishes_as_undisturbed(storm, run_id)


@contextlib.contextmanager
def _tiny(folder: Path, unavailable: Callable[[str], NoReturn], options: str = "size=3m") -> Iterator[None]:
    """Mounts a small tmpfs over `folder`."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        unavailable(f"no small file system could be mounted: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
