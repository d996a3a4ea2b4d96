"""The training process: imports torch, reports its capabilities, and trains the runs that the worker sends, one after another.
The same process does an autopsy if the worker sends one first (worker.autopsy_process).

After a run the process tells the worker whether it can train another run with the same bits as a fresh process
(worker.process_state). If it cannot, it exits. While it trains, its output goes to the log of the run.

The process itself renews the lease of its run and writes the telemetry, so both activities stop when the process ends. If its
worker ends, the process also ends, because of the parent-death signal and the closed pipe.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from server.database.connection import Database
from server.database.watchdog import guard
from server.lifecycle.event_wakeups import publisher
from server.logs import start_logging
from server.parent_death import die_with_parent
from worker.pipe import Message, Pipe
from worker.write_statistics import REPORT_SECONDS

if TYPE_CHECKING:
    from worker.attempt import Attempt

OOM_SCORE = 500  # OOM score: when memory runs out, the kernel kills training processes first, the server and the database last
FAILED = 1

log = logging.getLogger("worker.trainer")


def main() -> int:
    """The main program of a spawned process; returns its exit code. A forked process (worker.fork_server) begins at
    `train_runs`."""
    end, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent, signal.SIGKILL)  # called before anything that takes time
    return train_runs(Pipe(socket.socket(fileno=end)))


def train_runs(pipe: Pipe) -> int:
    """Get ready, report the capabilities, and train the runs that arrive. Returns the exit code."""
    _be_killed_first()
    faulthandler.enable()
    start_logging()
    # imported after die_with_parent, because importing torch and the trainer takes seconds
    from stablessm_core.training.environment import keep_freed_memory
    from worker.autopsy_process import do_autopsy
    from worker.capabilities import report, warm_up

    keep_freed_memory()
    warm_up()
    try:
        pipe.send({"capabilities": report()})
        assignment = pipe.receive()
    except (EOFError, OSError):
        return 0  # the worker stopped and never needed this process
    assert assignment is not None
    if "autopsy" in assignment:
        return do_autopsy(pipe, assignment["autopsy"])
    runs = _Runs(pipe, assignment["database_url"], assignment["broker_url"])
    while runs.train(assignment):
        assignment = runs.next(assignment)
    return runs.exit_code


class _Runs:
    """Trains runs one after another. Its connections to the database and to the broker serve all of them."""

    def __init__(self, pipe: Pipe, database_url: str, broker_url: str | None) -> None:
        from worker.process_state import ProcessState

        self.exit_code = FAILED
        self._pipe = pipe
        self._database = Database(database_url)
        guard(self._database)
        self._publish = publisher(self._database, broker_url)
        self._arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._attempt: Attempt | None = None  # the attempt in training
        self._trained = 0
        self._own_output = os.dup(1)
        threading.Thread(target=self._listen, name="worker-pipe", daemon=True).start()
        self._before = ProcessState.now()

    def next(self, ended: Message) -> Message:
        """Wait for the next run. If the worker ends, so does this process. ended: the run before.

        Runs of the same sizes use the same memory and the same data again. Otherwise the memory of the ended run is freed,
        because it would be recorded as that of the next run.
        """
        from stablessm_core.spec.data.files import forget_last
        from stablessm_core.training.environment import return_freed_memory

        gc.collect()
        assignment = self._arrived.get()
        if _sizes(assignment["config"]) != _sizes(ended["config"]):
            forget_last()
            return_freed_memory()
        return assignment

    def train(self, assignment: Message) -> bool:
        """Train one run, and report how it ended. True if the process can train another run."""
        from stablessm_core.spec.errors import ConfigError
        from worker.attempt import Attempt
        from worker.failures import describe_error, machine_fault, traceback_text
        from worker.process_state import why_unfit

        pipe = self._pipe
        try:
            _log_to(Path(assignment["log"]))
        except OSError as error:  # the data directory is not writable, so checkpoints and the spool could not be written
            fault = machine_fault(error, Path(assignment["data_dir"]))
            pipe.send({"event": "failed", "reason": describe_error(error), "fault": fault})
            return False
        start_logging(run=assignment["run_id"], attempt=assignment["attempt"])
        if self._trained:
            log.info("runs that this process has trained before: %d", self._trained)
        try:
            attempt = self._attempt = Attempt(assignment, self._database, self._publish)
        except ConfigError as error:
            log.error("run failed: %s", error)
            pipe.send({"event": "failed", "reason": f"this worker cannot train the run: {error}"})
            return False
        reports = _Reports(pipe, attempt)
        try:
            status = attempt.run(on_ready=lambda: pipe.send({"event": "training"}))
        except Exception as error:
            log.exception("run failed")
            fault = machine_fault(error, Path(assignment["data_dir"]))
            pipe.send({"event": "failed", "reason": describe_error(error), "fault": fault, "traceback": traceback_text(error)})
            attempt.save_records()
            reports.send()
            return False
        self._attempt = None
        attempt.close()
        reports.close()
        self._trained += 1
        unfit = why_unfit(attempt.config, assignment, status, self._trained, self._before)
        if unfit is not None:
            log.info("this process ends: %s", unfit)
            self.exit_code = 0
        self._log_to_own_output()
        pipe.send({"event": "ended", "status": status, "waits": unfit is None})
        return unfit is None

    def _log_to_own_output(self) -> None:
        """Send the output of this process to the worker again, so that the log of the ended run is complete."""
        start_logging()
        for standard, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            os.dup2(self._own_output, standard)

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.receive()
            except EOFError:
                os._exit(FAILED)  # the worker has ended, and nothing else would end this process
            assert message is not None
            if "stop" not in message:
                self._arrived.put(message)
            elif (attempt := self._attempt) is not None:
                attempt.request_stop(message["stop"], message.get("why", ""))


def _sizes(config: Message) -> tuple[Any, ...]:
    """The parts of a configuration that determine how much memory a run needs."""
    return config["task"], config["model"], config["train"]["batch_size"], config["optimizer"]["name"]


class _Reports(threading.Thread):
    """Reports the writes of an attempt to the worker, every REPORT_SECONDS and at the end."""

    def __init__(self, pipe: Pipe, attempt: Attempt) -> None:
        super().__init__(name="write-reports", daemon=True)
        self._pipe, self._attempt = pipe, attempt
        self._closed = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._closed.wait(REPORT_SECONDS):
            self.send()

    def send(self) -> None:
        try:
            self._pipe.send({"event": "writes", "numbers": self._attempt.writer.writes.numbers})
        except OSError:
            pass  # the worker has ended; the thread that reads the pipe ends this process

    def close(self) -> None:
        """Send the last report. No report follows it, because the worker would count it for the next run."""
        self._closed.set()
        self.join()
        self.send()


def _be_killed_first() -> None:
    if sys.platform == "linux":
        try:
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        except OSError as error:
            log.warning("the kernel will not prefer this process when memory runs out: %s", error)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    os.close(log_file)


def exit_process(status: int) -> NoReturn:
    """End the process at once: an interpreter that cleans up torch takes long to exit and can crash."""
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    exit_process(main())
