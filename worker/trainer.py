"""The training process: imports torch, reports what it can do, waits for one run, trains it, stores it, and exits.

It keeps its own lease alive and writes its own telemetry, so a run whose process is gone is silent at once, and a run whose
worker is gone ends with it: by the parent's death signal, and by the end of the line to it.
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
from worker.exit_causes import of_exception, of_trace
from worker.pipe import Pipe
from worker.write_statistics import REPORT_SECONDS

if TYPE_CHECKING:
    from worker.attempt import Attempt

OOM_SCORE = 500  # memory runs out: the kernel takes the training first, the server and the database last
FAILED = 1

log = logging.getLogger("worker.trainer")


def main() -> int:
    """Of a spawned process; a forked one (worker.fork_server) begins at `train_one`."""
    end, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent, signal.SIGKILL)  # before anything that takes time
    return train_one(Pipe(socket.socket(fileno=end)))


def train_one(pipe: Pipe) -> int:
    """Get ready, say so, wait for one run, train it; gives the exit code."""
    _be_killed_first()
    faulthandler.enable()
    start_logging()
    from stablessm_core.config import ConfigError
    from stablessm_core.training.environment import keep_freed_memory  # torch and the trainer: this takes seconds
    from worker.attempt import Attempt
    from worker.capabilities import report, warm_up

    keep_freed_memory()
    warm_up()
    try:
        pipe.send({"capabilities": report()})
        order = pipe.receive()
    except (EOFError, OSError):
        return 0  # never needed
    assert order is not None
    try:
        _log_to(Path(order["log"]))
    except OSError as error:  # nothing can be kept of this run here: no checkpoint, no spool
        pipe.send({"event": "failed", "reason": of_exception(error)})
        return FAILED
    start_logging(run=order["run_id"], attempt=order["attempt"])
    try:
        attempt = Attempt(order)
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
        pipe.send({"event": "failed", "reason": of_exception(error), "traceback": of_trace(error)})
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
            os._exit(FAILED)  # the worker is gone, and nothing else would end this process
        if message is not None:
            attempt.request_stop(message["stop"])


def _keep_reporting(pipe: Pipe, attempt: Attempt) -> None:
    while True:
        time.sleep(REPORT_SECONDS)
        _report_writes(pipe, attempt)


def _report_writes(pipe: Pipe, attempt: Attempt) -> None:
    try:
        pipe.send({"event": "writes", "numbers": attempt.writer.writes.numbers})
    except OSError:
        pass  # the worker is gone; the thread that reads the pipe ends this process


def _be_killed_first() -> None:
    if sys.platform == "linux":
        try:
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        except OSError as error:
            log.warning("the kernel's memory killer is not told to take this process first: %s", error)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    os.close(log_file)


def leave(status: int) -> NoReturn:
    """End the process: an interpreter that tidies up torch takes long and can crash."""
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    leave(main())
