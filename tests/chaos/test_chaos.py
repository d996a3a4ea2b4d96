"""Whatever is killed, cut off, stopped or filled up: every step once, bit for bit, the cause named. The short chaos suite."""

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

from server.database.models import FINAL
from server.settings import run_folder
from tests.chaos.services import Missing, until
from tests.chaos.site import Site
from tests.chaos.storm import CONFIGS, Storm, table
from tests.chaos.verdict import Recorded, judge
from worker.spool import left_behind

INJECTIONS, RUNS = 8, 5
pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def storm(unavailable: Callable[[str], NoReturn]) -> Iterator[Storm]:
    """An installation of its own, and what its runs record when nothing disturbs them."""
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
    """A run whose worker has lost the database and spools: run, and last step stored before."""
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
        for worker in storm.site.workers:  # we stood still, and it had hardly anything left to record: another one
            worker.database.become("pass")


def test_a_storm_of_faults_costs_no_step_and_doubles_none(storm: Storm) -> None:
    storm.rage()
    report = f"CHAOS_SEED={storm.seed} repeats this\n{table(storm)}\n"
    print(report)
    assert len(storm.injections) >= INJECTIONS
    assert len(storm.verdicts) >= RUNS
    assert storm.problems == [], report + storm.site.logs()


def test_what_a_killed_trainer_left_on_disk_is_stored_by_its_worker(storm: Storm, site: Site) -> None:
    for _ in range(5):
        run_id, stored = _cut_off_with_a_spool(storm)
        for worker in site.workers:
            site.signal(site.trainers(worker), signal.SIGKILL)
        for worker in site.workers:
            worker.database.become("pass")
        found = _finishes_as_undisturbed(storm, run_id)
        given_back = next((t for t in found.transitions if t.status == "queued" and t.reason != "submitted"), None)
        # else its last record was on disk when it was killed, or its worker stood still for longer than a lease
        if given_back is not None and "lost contact" not in given_back.reason:
            break
    assert given_back is not None
    assert "SIGKILL" in given_back.reason
    assert given_back.step > stored, "the steps of the outage came from the spool"


def test_a_machine_that_loses_power_with_steps_on_its_disk_only_has_them_trained_again(storm: Storm, site: Site) -> None:
    run_id, _ = _cut_off_with_a_spool(storm)
    for worker in site.workers:
        site.lose_power(worker)  # before the database is back: nothing of its spool may get there
        worker.database.become("pass")
        site.start(worker)
    found = _finishes_as_undisturbed(storm, run_id)
    assert any("lost contact" in t.reason for t in found.transitions), [t.reason for t in found.transitions]


def test_without_redis_queued_runs_start_all_the_same(storm: Storm, site: Site) -> None:
    site.redis.kill(forget=True)
    try:
        _finishes_as_undisturbed(storm, site.submit(CONFIGS["finishes"]))
    finally:
        site.redis.start()


def test_a_full_disk_fails_the_run_by_name_and_it_goes_on_when_there_is_room(
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
            until("verdict", lambda run_id=run_id: Recorded.of(site.database, run_id).run.status in FINAL)
            if Recorded.of(site.database, run_id).run.status == "failed":
                break
            filler.unlink()  # it had written its last checkpoint before: another one
        assert Recorded.of(site.database, run_id).run.status_reason.startswith("disk full"), site.logs()
        filler.unlink()
        with site.client() as client:
            client.post(f"/api/runs/{run_id}/resume").raise_for_status()
        until("end", lambda: Recorded.of(site.database, run_id).run.status == "finished", 240)
        found, truth = Recorded.of(site.database, run_id), storm.truth["finishes"]
        assert (found.steps, found.values) == (truth.steps, truth.values)


def test_a_directory_that_cannot_be_written_fails_the_run_by_name(site: Site, unavailable: Callable[[str], NoReturn]) -> None:
    with _tiny(site.data_dir / "runs", unavailable, "ro,size=3m"):
        run_id = site.submit(CONFIGS["finishes"])
        until("verdict", lambda: Recorded.of(site.database, run_id).run.status == "failed", 150)
        assert Recorded.of(site.database, run_id).run.status_reason.startswith("not writable"), site.logs()


@contextlib.contextmanager
def _tiny(folder: Path, unavailable: Callable[[str], NoReturn], options: str = "size=3m") -> Iterator[None]:
    """A small file system of our own over `folder`."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        unavailable(f"no small file system could be mounted: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
