"""Two threads of the worker that do autopsies, each one at a time, in processes of their own: one does the autopsies of runs
that died, the other those that a user asked for.

An automatic autopsy must not slow down training. Its process has a low priority, is the first that the kernel kills when memory
runs out, and has limits for memory and time. It waits until no run trains on this worker and no run is queued, but at most
WAIT_SECONDS; then it runs beside training. The priority is NICE: on a core where a training thread computes all the time, such a
process gets a tenth of the time. With the lowest priority it would get nothing, and never end. If the run trained on a GPU, its
autopsy always waits until no run trains on this worker.

An autopsy that a user asked for starts at once, with the priority of training: it waits neither for training nor for automatic
autopsies. On a GPU it takes at most half of the memory that is free.

The autopsy of a run is done where its checkpoints are: on the machine that trained it, or on any machine if the checkpoint store
has them. Another machine takes it only after ELSEWHERE_SECONDS without a live worker on the machine that trained the run.

When the worker stops, the process is killed and the autopsy returns to the queue. The worker's death has the same result: another
worker misses the heartbeat. The second loss makes the autopsy `failed` (server.lifecycle.autopsies).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import CheckpointRow, Run, Worker
from server.lifecycle import autopsies
from server.lifecycle.autopsy_findings import check_findings
from server.lifecycle.event_wakeups import Publish
from server.lifecycle.verdicts import judge_one
from server.settings import Settings
from worker.chores import LOWEST_PRIORITY, Chore
from worker.exit_causes import describe_exit, kernel_memory_kills, one_line
from worker.pipe import Message
from worker.process_pool import ProcessPool
from worker.quarantine import Quarantine, available_memory
from worker.redaction import Redactor
from worker.training_process import TrainingProcess
from worker.writer import DATABASE_AWAY

POLL_SECONDS = 1.0
BEAT_SECONDS = 2.0
CHECK_SECONDS = 0.25  # time between two looks whether the worker stops, in seconds
WAIT_SECONDS = 120.0  # how long an autopsy waits for training to pause
ELSEWHERE_SECONDS = 600.0
WARM_SECONDS = 60.0
JUDGE_TRIES = 5
NICE = 10
CPU_SECONDS = 3600.0  # limit of the processor time of one autopsy
LONGEST_SECONDS = 14_400.0  # limit of the duration of one autopsy, which waits while others use the processor
MEMORY_BYTES = (1 << 30, 16 << 30)  # limits of the memory of one autopsy; between them, half of what is available
EXIT_SECONDS = 3.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerState:
    """What the thread needs to know about its worker. training: the number of runs in training. capabilities: None until they
    are known."""

    id: str
    host: str
    training: Callable[[], int]
    capabilities: Callable[[], Message | None]
    quarantine: Quarantine


class Autopsies(Chore):
    """One of the threads. `stop` ends it soon. asked: True for the one that does what users asked for."""

    def __init__(
        self, database: Database, settings: Settings, processes: ProcessPool, worker: WorkerState, publish: Publish,
        stop: threading.Event, *, asked: bool,
    ) -> None:  # fmt: skip
        name = "asked-autopsies" if asked else "autopsies"
        super().__init__(name, stop, delay=0.0, poll=POLL_SECONDS, niceness=0 if asked else LOWEST_PRIORITY)
        self._database, self._settings, self._processes, self._worker = database, settings, processes, worker
        self._publish, self._asked = publish, asked
        self._lost = autopsies.LostAutopsies(settings.lease_seconds)
        self._redactor = Redactor(settings.data_dir, settings.data_root)
        self._scratch = settings.data_dir / "autopsy" / ("asked" if asked else "automatic")

    def work(self) -> None:
        """Put lost autopsies back into the queue, and do the next autopsy."""
        if not self._asked:
            self._release_lost()
        if self._worker.quarantine.reason is not None or (known := self._worker.capabilities()) is None:
            return
        with self._database.read() as session:
            chosen = self._choose(session, known)
        if chosen is None:
            return
        if (process := self._processes.take_spare(WARM_SECONDS)) is None:
            return
        job = None
        try:
            with self._database.write() as session:
                job = autopsies.claim_autopsy(session, chosen, self._worker.id)
            if job is not None:
                self._do(job, process)
        finally:
            process.kill()
            process.end(EXIT_SECONDS)
            shutil.rmtree(self._scratch, ignore_errors=True)
            with contextlib.suppress(OSError):  # the other thread still uses the folder
                self._scratch.parent.rmdir()
            self._publish(chosen)

    def _release_lost(self) -> None:
        with self._database.read() as session:
            lost = self._lost.look(session)
        for run_id, owner, started_at in lost:
            reason = f"lost contact with {owner}: no heartbeat for {self._settings.lease_seconds:g} s"
            with self._database.write() as session:
                state = autopsies.release_autopsy(session, run_id, owner, started_at, reason, lost=True)
            if state is not None:
                log.warning("worker lost, the autopsy is %s now", state, extra={"run": run_id})
                self._publish(run_id)

    def _choose(self, session: Session, known: Message) -> int | None:
        """The run whose autopsy this worker does now; None if there is none."""
        waiting = autopsies.candidates(session, asked=self._asked)
        if not waiting:
            return None
        busy = self._worker.training() > 0 or session.scalar(select(exists().where(Run.status == "queued")))
        living = Worker.seen_at > time.time() - self._settings.lease_seconds
        hosts = list(session.scalars(select(Worker.host).where(living)))
        for one in waiting:
            waited = time.time() - one.requested_at
            if waited > autopsies.GIVE_UP_SECONDS:
                self._give_up(one.run_id)
            elif self._is_due(one, waited, busy=bool(busy)) and self._fits(session, one, waited, known, hosts):
                return int(one.run_id)
        return None

    def _is_due(self, one: autopsies.Candidate, waited: float, *, busy: bool) -> bool:
        if self._asked:
            return True
        if _needs_gpu(one):
            return self._worker.training() == 0
        return not busy or waited >= WAIT_SECONDS

    def _fits(self, session: Session, one: autopsies.Candidate, waited: float, known: Message, hosts: list[str]) -> bool:
        """True if this machine can repeat the run, or if no better machine will. hosts: the machine of each living worker."""
        has_device = not _needs_gpu(one) or "cuda" in known["devices"]
        has_task = one.config["task"]["name"] in known["tasks"]
        if has_device and has_task and self._has_state(session, one):
            return True
        alone = len(hosts) <= 1 and one.host == self._worker.host and has_device  # so the findings can only say what is missing
        return alone or (waited > ELSEWHERE_SECONDS and (one.host == self._worker.host or one.host not in hosts))

    def _has_state(self, session: Session, one: autopsies.Candidate) -> bool:
        run_ids = [one.run_id, *([one.forked_from] if one.forked_at_step else [])]
        chosen = select(CheckpointRow.path, CheckpointRow.stored_at).where(CheckpointRow.run_id.in_(run_ids))
        rows = session.execute(chosen).all()
        stored = self._settings.checkpoint_store is not None
        if any((stored and at is not None) or (self._settings.data_dir / path).is_file() for path, at in rows):
            return True
        return one.host in (self._worker.host, None)

    def _give_up(self, run_id: int) -> None:
        with self._database.write() as session:
            given_up = autopsies.give_up(session, run_id)
        if given_up:
            self._publish(run_id)

    def _do(self, job: autopsies.Job, process: TrainingProcess) -> None:
        log.info("autopsy of step %d begins", job.step, extra={"run": job.run_id})
        self._publish(job.run_id)
        memory_kills = kernel_memory_kills()
        if not job.asked:
            _lower_priority(process.pid)
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir(parents=True)
            process.pipe.send({"autopsy": self._assignment(job)})
            answer = self._follow(job, process)
        except (EOFError, OSError) as error:
            code = process.end(EXIT_SECONDS)
            out_of_memory = kernel_memory_kills() > memory_kills and code == -signal.SIGKILL
            output = "\n".join(map(self._redactor.redact_log_line, process.last_output().splitlines()))
            ended = isinstance(error, EOFError | ConnectionError)  # the pipe broke because the process ended
            reason = describe_exit(code, out_of_memory, output) if ended else str(error)
            self._release(job, self._redactor.redact(reason), lost=True)
            return
        if answer is None:
            return
        if answer["event"] == "failed":
            self._end(job, None, str(answer["reason"]))
            return
        try:
            findings = check_findings(self._redactor.redact_values(answer["findings"]))
        except ValidationError as error:
            self._end(job, None, f"its findings are not valid: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}")
            return
        self._end(job, findings, "")

    def _assignment(self, job: autopsies.Job) -> Message:
        least, most = MEMORY_BYTES
        settings = self._settings
        return {
            "run_id": job.run_id, "step": job.step, "database_url": settings.database_url, "data_dir": str(settings.data_dir),
            "data_root": str(settings.data_root), "checkpoint_store": settings.checkpoint_store, "scratch": str(self._scratch),
            "memory": min(most, max(least, available_memory() // 2)),
        }  # fmt: skip

    def _follow(self, job: autopsies.Job, process: TrainingProcess) -> Message | None:
        """The answer of the process; None if the autopsy ended otherwise. Raises EOFError if the process died."""
        begun, beat_at = time.monotonic(), 0.0
        while True:
            answer = process.pipe.receive(timeout=CHECK_SECONDS)
            if answer is not None:
                return answer
            now = time.monotonic()
            if self._stopping.is_set():
                process.kill()
                self._release(job, "its worker was asked to stop", lost=False)
                return None
            if now >= beat_at:
                beat_at = now + BEAT_SECONDS
                if not self._beat(job):
                    log.warning("another worker owns the autopsy, or the run was resumed or deleted", extra={"run": job.run_id})
                    return None
                if (why := _over_limit(process.pid, now - begun)) is not None:
                    process.kill()
                    self._end(job, None, why)
                    return None

    def _beat(self, job: autopsies.Job) -> bool:
        try:
            with self._database.write() as session:
                return autopsies.beat_autopsy(session, job)
        except DATABASE_AWAY as error:
            log.warning("no heartbeat of the autopsy, database away: %s", error.args[0], extra={"run": job.run_id})
            return True

    def _end(self, job: autopsies.Job, findings: dict[str, Any] | None, reason: str) -> None:
        reason = one_line(self._redactor.redact(reason))
        while True:
            try:
                with self._database.write() as session:
                    stored = autopsies.end_autopsy(session, job, findings=findings, reason=reason)
                break
            except DATABASE_AWAY as error:
                log.warning("the autopsy cannot be stored yet, database away: %s", error.args[0], extra={"run": job.run_id})
                if self._stopping.wait(1.0):
                    return  # another worker will miss the heartbeat and repeat the autopsy
        if not stored:
            return
        log.info("autopsy ended: %s", reason or (findings or {}).get("refused") or "done", extra={"run": job.run_id})
        self._publish(job.run_id)
        if findings is not None:
            self._judge(job.run_id)

    def _judge(self, run_id: int) -> None:
        """Judge the run again with the findings. On a busy machine this thread may pause for so long that the database ends its
        transaction. If every try fails, the server judges the run later."""
        for _ in range(JUDGE_TRIES):
            try:
                judge_one(self._database, run_id)
                return
            except DATABASE_AWAY as error:
                log.warning("no verdict yet, database away: %s", one_line(str(error.args[0])), extra={"run": run_id})
                if self._stopping.wait(1.0):
                    return

    def _release(self, job: autopsies.Job, reason: str, *, lost: bool) -> None:
        reason = one_line(reason)
        log.warning("autopsy not done: %s", reason, extra={"run": job.run_id})
        try:
            with self._database.write() as session:
                autopsies.release_autopsy(session, job.run_id, job.owner, job.started_at, reason, lost=lost)
        except DATABASE_AWAY as error:
            log.warning("the autopsy returns to the queue later, database away: %s", error.args[0], extra={"run": job.run_id})


def _lower_priority(pid: int) -> None:
    with contextlib.suppress(OSError):  # the process has ended
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it; the priority above still counts
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        with contextlib.suppress(OSError):  # processes of a session share a group, whose priority counts against other groups
            Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


def _needs_gpu(one: autopsies.Candidate) -> bool:
    return str((one.environment or {}).get("device", "cpu")).startswith("cuda")


def _over_limit(pid: int, seconds: float) -> str | None:
    """Why the process must be killed; None if it is within its limits."""
    if seconds > LONGEST_SECONDS:
        return f"it took more than {LONGEST_SECONDS / 3600:g} hours"
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no Linux, or the process has just ended
        return None
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return f"it used more than {CPU_SECONDS / 60:g} minutes of processor time" if used > CPU_SECONDS else None
