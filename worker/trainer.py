"""The training process: imports torch, reports its capabilities, waits for one run, trains it, stores its data, and exits. The
same process does an autopsy if the worker sends one (worker.autopsy_process).

The process itself renews the lease of its run and writes the telemetry, so both activities stop when the process ends. If its
worker ends, the process also ends, because of the parent-death signal and the closed pipe.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from server.logs import start_logging
from server.parent_death import die_with_parent
from worker.pipe import Pipe
from worker.write_statistics import REPORT_SECONDS

if TYPE_CHECKING:
    from worker.attempt import Attempt

OOM_SCORE = 500  # OOM score: when memory runs out, the kernel kills training processes first, the server and the database last
FAILED = 1

log = logging.getLogger("worker.trainer")


def main() -> int:
    """The main program of a spawned process; returns its exit code. A forked process (worker.fork_server) begins at
    `train_one`."""
    end, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent, signal.SIGKILL)  # called before anything that takes time
    return train_one(Pipe(socket.socket(fileno=end)))


def train_one(pipe: Pipe) -> int:
    """Get ready, report the capabilities, wait for one run and train it. Returns the exit code."""
    _be_killed_first()
    faulthandler.enable()
    start_logging()
    # imported after die_with_parent, because importing torch and the trainer takes seconds
    from stablessm_core.spec.errors import ConfigError
    from stablessm_core.training.environment import keep_freed_memory
    from worker.attempt import Attempt
    from worker.autopsy_process import do_autopsy
    from worker.capabilities import report, warm_up
    from worker.failures import describe_error, machine_fault, traceback_text

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
    try:
        _log_to(Path(assignment["log"]))
    except OSError as error:  # the data directory is not writable, so checkpoints and the spool could not be written
        fault = machine_fault(error, Path(assignment["data_dir"]))
        pipe.send({"event": "failed", "reason": describe_error(error), "fault": fault})
        return FAILED
    start_logging(run=assignment["run_id"], attempt=assignment["attempt"])
    try:
        attempt = Attempt(assignment)
    except ConfigError as error:
        log.error("run failed: %s", error)
        pipe.send({"event": "failed", "reason": f"this worker cannot train the run: {error}"})
        return FAILED
    threading.Thread(target=_listen, args=(pipe, attempt), name="worker-pipe", daemon=True).start()
    threading.Thread(target=_keep_reporting, args=(pipe, attempt), name="write-reports", daemon=True).start()
    try:
        status = attempt.run(on_ready=lambda: pipe.send({"event": "training"}))
    except Exception as error:
        log.exception("run failed")
        fault = machine_fault(error, Path(assignment["data_dir"]))
        pipe.send({"event": "failed", "reason": describe_error(error), "fault": fault, "traceback": traceback_text(error)})
        attempt.save_records()
        _report_writes(pipe, attempt)
        return FAILED
    _report_writes(pipe, attempt)
    pipe.send({"event": "ended", "status": status})
    return 0


def _listen(pipe: Pipe, attempt: Attempt) -> None:
    while True:
        try:
            message = pipe.receive()
        except EOFError:
            os._exit(FAILED)  # the worker has ended, and nothing else would end this process
        if message is not None:
            attempt.request_stop(message["stop"], message.get("why", ""))


def _keep_reporting(pipe: Pipe, attempt: Attempt) -> None:
    while True:
        time.sleep(REPORT_SECONDS)
        _report_writes(pipe, attempt)


def _report_writes(pipe: Pipe, attempt: Attempt) -> None:
    try:
        pipe.send({"event": "writes", "numbers": attempt.writer.writes.numbers})
    except OSError:
        pass  # the worker has ended; the thread that reads the pipe ends this process


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
