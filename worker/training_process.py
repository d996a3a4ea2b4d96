"""The worker's handle of a training process. The worker starts the process before a run needs it, gives it one run, watches it,
and always ends it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from worker.pipe import Message, Pipe

LAST_OUTPUT_BYTES = 4000

_left_behind: set[int] = set()  # ids of process groups whose leader has ended


@dataclass(frozen=True)
class DeviceAccess:
    """A process's access to its device: variables that select the device, and descriptors to keep open, such as the GPU's
    lock."""

    environment: dict[str, str] = field(default_factory=dict)
    keep_open: tuple[int, ...] = ()


class TrainingProcess:
    """A child process that waits for its run. It leads a process group, so the processes that it starts can be ended with it.

    `pipe`: the worker's end of the pipe to the process. `output`: the file for its output until its run begins; then the output
    goes to the run's log.
    """

    def __init__(self, pid: int, pipe: Pipe, output: IO[bytes], *, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.pipe = pid, pipe
        self.capabilities: Message | None = None  # reported once the process is warm
        self._output, self._popen = output, popen
        self._log: Path | None = None
        self._ended: int | None = None

    def poll_warm(self) -> bool:
        """True if the process has reported its capabilities and waits for a run. Raises EOFError if it died first."""
        if self.capabilities is None and (message := self.pipe.receive(timeout=0)) is not None:
            self.capabilities = message["capabilities"]
        return self.capabilities is not None

    def is_alive(self) -> bool:
        try:
            return self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # another thread has just collected its exit code
            return False

    def start_run(self, assignment: Message, log: Path) -> None:
        """Send the run to train to the process. From then on its output goes to the run's log. Raises OSError if the process
        has ended."""
        self._log = log
        self.pipe.send(assignment)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and to all processes that it started."""
        if self._ended is None:  # once the process has ended, the system may reuse its process id
            os.killpg(self.pid, number)

    def end(self, timeout: float) -> int:
        """Wait for the process to end and return its exit code (negative: the signal). If the process still runs after
        `timeout` seconds, it is killed."""
        if self._ended is None:
            _wait_ended(self, timeout)
            self.kill()  # also ends processes that the training process started
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if self._popen is not None:
                self._popen.returncode = self._ended  # so that Popen does not also wait for the process
            reap_left_behind(self.pid)
            self.pipe.close()
        return self._ended

    def last_output(self) -> str:
        """The last lines that the process printed."""
        if self._log is None:
            self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - LAST_OUTPUT_BYTES))
            text = self._output.read()
        else:
            try:
                with self._log.open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_OUTPUT_BYTES))
                    text = file.read()
            except OSError:
                return ""
        return "\n".join(text.decode(errors="replace").splitlines()[-12:])


def spawn(environment: dict[str, str], device: DeviceAccess) -> TrainingProcess:
    """Start a training process in a new interpreter. The process takes seconds to import torch and become warm. Raises
    OSError."""
    ours, theirs = socket.socketpair()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; a run's log replaces it
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker.trainer", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno(), *device.keep_open],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment | device.environment,
            start_new_session=True,
        )
    return TrainingProcess(process.pid, Pipe(ours), output, popen=process)


def reap_left_behind(group: int) -> None:
    """Collect the exit codes of processes whose group leader has ended; the kernel made them children of this process.

    Processes that still run are checked again at the next call.
    """
    _left_behind.add(group)
    for each in tuple(_left_behind):
        try:
            while os.waitpid(-each, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            _left_behind.discard(each)


def _wait_ended(process: TrainingProcess, timeout: float) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # the system is not Linux, or its kernel is old
        deadline = time.monotonic() + timeout
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        return
    try:
        select.select([descriptor], [], [], timeout)
    finally:
        os.close(descriptor)
