"""A training process as its worker sees it: started before it is needed, given one run, watched, and always ended."""

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

_left_behind: set[int] = set()  # process groups whose leader has ended


@dataclass(frozen=True)
class Place:
    """Where a process trains: variables that say so, and descriptors that it keeps open to its end, such as its GPU's lock."""

    environment: dict[str, str] = field(default_factory=dict)
    keep: tuple[int, ...] = ()


class TrainingProcess:
    """A process that waits for its run, a child of this one. It leads a process group, so what it starts ends with it.

    `pipe`: the worker's end of the pipe to it. `output`: the file it prints to until it has its run's log.
    """

    def __init__(self, pid: int, pipe: Pipe, output: IO[bytes], *, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.pipe = pid, pipe
        self.capabilities: Message | None = None  # reported once it is warm
        self._output, self._popen = output, popen
        self._log: Path | None = None
        self._ended: int | None = None

    def warm(self) -> bool:
        """True once it waits for its run; raises EOFError if it died on the way."""
        if self.capabilities is None and (message := self.pipe.receive(timeout=0)) is not None:
            self.capabilities = message["capabilities"]
        return self.capabilities is not None

    def alive(self) -> bool:
        try:
            return self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # another thread has just taken its exit code
            return False

    def start_run(self, order: Message, log: Path) -> None:
        """Give it its run; from now on it writes to the run's log. Raises OSError if it is gone."""
        self._log = log
        self.pipe.send(order)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it and everything it started."""
        if self._ended is None:  # after `wait` the system may have given its number to another process
            os.killpg(self.pid, number)

    def end(self, timeout: float) -> int:
        """Wait for its end, by force after `timeout` seconds; gives the exit code (negative: the signal)."""
        if self._ended is None:
            _wait_ended(self, timeout)
            self.kill()  # also what it started and did not end
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if self._popen is not None:
                self._popen.returncode = self._ended  # it need not ask
            reap_left_behind(self.pid)
            self.pipe.close()
        return self._ended

    def last_output(self) -> str:
        """The end of what it printed."""
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


def spawn(environment: dict[str, str], place: Place) -> TrainingProcess:
    """A new training process in a new interpreter: warm after the seconds that the import of torch takes. Raises OSError."""
    ours, theirs = socket.socketpair()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; then a run's log takes over
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker.trainer", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno(), *place.keep],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment | place.environment,
            start_new_session=True,
        )
    return TrainingProcess(process.pid, Pipe(ours), output, popen=process)


def reap_left_behind(group: int) -> None:
    """Take the exit codes of what was left in a process group whose leader has ended: the kernel gave it to us as its new parent.

    What is not dead yet is tried again when the next one ends.
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
    except (AttributeError, OSError):  # not Linux, or an old one
        deadline = time.monotonic() + timeout
        while process.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        return
    try:
        select.select([descriptor], [], [], timeout)
    finally:
        os.close(descriptor)
