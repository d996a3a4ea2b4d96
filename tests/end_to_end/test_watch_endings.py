"""However a watched program ends, and whatever its server does, every step is stored once and the status is right.

Six ways to end, four conditions of the server, five programs each. A step counts if it was complete 0.3 s before the end.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import BlockRow, Run, Transition
from server.database.payloads import stored_numbers
from stablessm_core.report.link import Server
from stablessm_core.report.sync import SYNCED, run_files, sync_file
from stablessm_core.telemetry.series import SCALARS
from tests.chaos.proxy import Proxy
from tests.installation import Installation, hold_port

pytestmark = [pytest.mark.long, pytest.mark.spread, pytest.mark.timeout(900)]

TOKEN = "token-of-the-tests-0123456789"
ROUNDS = 5
COMPLETE = 0.3  # seconds before the end by which a step must be complete
EXIT_SECONDS = 5.0
START_SECONDS = 400.0  # of a server on a busy machine
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
UNSEEN = ("os._exit", "SIGKILL")  # ends of which the program itself hears nothing
# status, reason before " after step", and exit code
ENDS = {
    "exception": ("failed", "ValueError: the loop broke,", 1),
    "exit 3": ("failed", "exit code 3", 3),
    "Ctrl-C": ("cancelled", "Ctrl-C", -signal.SIGINT),
    "SIGTERM": ("cancelled", "SIGTERM", 128 + signal.SIGTERM),
    "os._exit": ("failed", "the process ended without a word", 0),
    "SIGKILL": ("failed", "the process ended without a word", -signal.SIGKILL),
}


@dataclass
class Ended:
    """A program that has ended. complete: its last step that was complete COMPLETE seconds before the end. begun: the last
    step that it may have taken. seconds: from the end of the loop to the end of the exit handlers."""

    name: str
    how: str
    complete: int
    begun: int
    seconds: float


@dataclass
class Site:
    """A server that may be killed and started again, a folder with the files of the runs, and the programs."""

    folder: Path
    url: str = ""
    late: float = 0.0  # the longest that this process was kept waiting by others: a busy machine delays the programs as well
    ended: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._held = hold_port()
        port = self._held.getsockname()[1]
        more = {
            "STABLESSM_TOKEN": TOKEN,
            "STABLESSM_RUNS_PER_MINUTE": "0",
            "STABLESSM_REPORTED_LEASE_SECONDS": "6",
        }
        self.installation = Installation(self.folder / "state", port, TOKEN, more)
        self.server: subprocess.Popen[bytes] | None = None
        self.url = self.installation.url
        self.database_url = f"sqlite:///{self.folder / 'stablessm.db'}"
        program = Path(__file__).with_name("watched_programs.py")
        self._programs = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=program.parents[2]
        )

    def serve(self, *, ready: bool = True) -> None:
        port = str(self.installation.port)
        self.server = self.installation.start("serve", "--port", port, "--database-url", self.database_url)
        if ready:
            self.wait_for_server()

    def wait_for_server(self) -> None:
        self.installation.wait("server", self._answers, START_SECONDS)

    def _answers(self) -> bool:
        with self.installation.client() as client:
            try:
                return client.get("/readyz").is_success
            except Exception:  # noqa: BLE001 - not yet
                return False

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        self.installation.processes.remove(self.server)

    def round(self, number: int, seconds: Callable[[], float], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run one program for each way to end, of random lengths from `seconds`."""
        programs = [
            {
                "name": f"{how} {number}",
                "how": how,
                "seconds": str(seconds()),
                "url": self.url,
                "token": TOKEN,
                "files": str(self.folder / "files"),
                "notes": str(self.folder / f"{how} {number}.notes"),
                "output": str(self.folder / f"{how} {number}.output"),
            }
            for how in ENDS
        ]
        stdin, stdout = self._programs.stdin, self._programs.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(programs) + "\n")
        stdin.flush()
        processes = dict(zip(ENDS, json.loads(stdout.readline()), strict=True))
        meanwhile()
        ends = self._send_signals(programs, processes)
        codes = json.loads(stdout.readline())
        for program, (code, gone) in zip(programs, codes, strict=True):
            how, notes = program["how"], read_notes(Path(program["notes"]))
            assert code == ENDS[how][2], Path(program["output"]).read_text()
            end = ends.get(how) or next(at for what, at in notes if what == "end")
            steps = [(int(what.removeprefix("step ")), at) for what, at in notes if what.startswith("step ")]
            closed = next((at for what, at in notes if what == "exit"), gone)
            complete = max((step for step, at in steps if at <= end - COMPLETE - self.late), default=0)
            begun = max((step for step, _ in steps), default=0) + 1
            assert complete, "the program did not train"
            self.ended.append(Ended(program["name"], how, complete, begun, closed - end))

    def _send_signals(self, programs: list[dict[str, str]], processes: dict[str, int]) -> dict[str, float]:
        """Send each signal when its program has said "end", and return when. Measures `late` on the way."""
        waiting = {p["how"]: Path(p["notes"]) for p in programs if p["how"] in SIGNALS}
        sent: dict[str, float] = {}
        deadline = time.monotonic() + 120
        while waiting:
            before = time.monotonic()
            assert before < deadline, f"{waiting} have not come to their end"
            time.sleep(0.01)
            self.late = max(self.late, time.monotonic() - before - 0.01)
            for how, notes in list(waiting.items()):
                if notes.exists() and "end " in notes.read_text():
                    time.sleep(random.random() * 0.03)  # at any moment of a step
                    sent[how] = time.monotonic()
                    subprocess.run(["kill", f"-{SIGNALS[how].value}", str(processes[how])], check=True)
                    del waiting[how]
        return sent

    def close(self) -> None:
        assert self._programs.stdin is not None
        self._programs.stdin.close()
        try:
            self._programs.wait(30)
        finally:
            self._programs.kill()
            self.installation.kill_all()
            self._held.close()


def read_notes(path: Path) -> list[tuple[str, float]]:
    return [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in path.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def stored(site: Site) -> Iterator[dict[str, Run]]:
    """The runs by name."""
    database = Database(site.database_url)
    try:
        with database.read() as session:
            yield {str(run.name): run for run in session.scalars(select(Run))}
    finally:
        database.close()


def losses(site: Site, run: Run) -> np.ndarray:
    """All stored losses in the order of their blocks; a step that is stored twice is here twice."""
    database = Database(site.database_url)
    try:
        with database.read() as session:
            of_run = select(BlockRow).where(BlockRow.run_id == run.id, BlockRow.group_name == SCALARS, BlockRow.level == 0)
            found = [stored_numbers(block)[0] for block in session.scalars(of_run.order_by(BlockRow.first_step))]
    finally:
        database.close()
    return np.concatenate(found) if found else np.empty(0, np.float32)


def check(site: Site, ended: Ended, run: Run) -> int:
    """Everything is stored once and the status is right. Returns the number of steps."""
    found = losses(site, run)
    steps = list(range(1, len(found) + 1))
    assert found.tolist() == steps, f"{ended}: {len(found)} losses are stored"
    assert ended.complete <= len(found) <= ended.begun, f"{ended}: {len(found)} steps are stored"
    status, reason, _ = ENDS[ended.how]
    assert (run.status, run.status_reason) == (status, f"{reason} after step {len(found):,}; 0 steps missing"), ended
    with site.installation.client() as client:
        metric: dict[str, Any] = client.get(f"/api/runs/{run.id}/series/a?max_points=100000").raise_for_status().json()
    assert metric["step"] == metric["value"], ended
    assert metric["step"] == list(range(1, len(metric["step"]) + 1)), ended
    assert ended.complete <= len(metric["step"]) <= ended.begun, ended
    return len(found)


def sync_all(site: Site, pattern: str = "*.ssmr") -> int:
    files = run_files(sorted((site.folder / "files").glob(pattern)))
    for file in files:
        done = sync_file(file, Server(site.installation.url, TOKEN))
        assert (done.refused, done.damaged) == (0, None)
    return len(files)


def judge(site: Site, condition: str, *, seen: bool) -> None:
    """Check every program before and after `sync`, and that a second `sync` changes nothing. seen: a server was there
    before."""
    for one in site.ended:
        assert one.seconds <= EXIT_SECONDS + site.late, one
    if seen:
        site.installation.wait("lost runs", lambda: unseen_runs_are_lost(site), 60)
    files = sync_all(site)
    with stored(site) as runs:
        assert len(runs) == len(site.ended) == len(ENDS) * ROUNDS
        steps = sum(check(site, one, runs[one.name]) for one in site.ended)
        before = transitions(site)
    sync_all(site, f"*.ssmr{SYNCED}")
    with stored(site) as runs:
        assert transitions(site) == before, "a second sync changes no status"
        for one in site.ended:
            check(site, one, runs[one.name])
    count = Counter(one.how for one in site.ended)
    longest = max(one.seconds for one in site.ended)
    print(
        f"\n{condition}: {dict(count)}; {steps:,} steps stored once, 0 lost; {files} files synced; longest exit {longest:.1f} s; "
    )


def transitions(site: Site) -> list[tuple[int, str, str]]:
    """Every change of a status so far."""
    database = Database(site.database_url)
    try:
        with database.read() as session:
            found = session.scalars(select(Transition).order_by(Transition.run_id, Transition.seq))
            return [(one.run_id, one.status, one.reason) for one in found]
    finally:
        database.close()


def unseen_runs_are_lost(site: Site) -> bool:
    with stored(site) as runs:
        unseen = [runs[one.name] for one in site.ended if one.how in UNSEEN and one.name in runs]  # some ended before the opening
        return all(run.status == "lost" for run in unseen)


def test_with_a_server(site: Site) -> None:
    site.serve()
    for number in range(ROUNDS):
        site.round(number, lambda: random.uniform(0.8, 2.5))
    with stored(site) as runs:
        for one in site.ended:
            if one.how not in UNSEEN:
                check(site, one, runs[one.name])
    assert len(list((site.folder / "files").iterdir())) == len(UNSEEN) * ROUNDS
    judge(site, "server up", seen=True)


def test_without_a_server(site: Site) -> None:
    for number in range(ROUNDS):
        site.round(number, lambda: random.uniform(0.8, 2.5))
    site.serve()
    judge(site, "server away", seen=False)


def test_while_the_server_is_restarted(site: Site) -> None:
    site.serve()

    def restart() -> None:
        time.sleep(random.uniform(0.8, 1.6))
        site.kill_server()
        site.serve(ready=False)

    for number in range(ROUNDS):
        site.round(number, lambda: random.uniform(1.0, 8.0), restart)
        site.wait_for_server()
    judge(site, "server restarted", seen=True)


def test_with_a_server_whose_answers_take_seconds(site: Site) -> None:
    site.serve()
    proxy = Proxy(("127.0.0.1", site.installation.port))
    proxy.become("delay", 1.0)
    site.url = f"http://127.0.0.1:{proxy.port}"
    try:
        for number in range(ROUNDS):
            site.round(number, lambda: random.uniform(1.0, 6.0))
    finally:
        proxy.close()
    judge(site, "server slow", seen=True)
