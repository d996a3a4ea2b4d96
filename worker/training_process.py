"""A training process as its worker sees it: started before it is needed, given one run, watched, and always ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from worker.pipe import Message, Pipe

LAST_OUTPUT_BYTES = 4000


@dataclass(frozen=True)
class Place:
    """Where a process trains: variables that say so, and descriptors that it keeps open to its end, such as its GPU's lock."""

    environment: dict[str, str] = field(default_factory=dict)
    keep: tuple[int, ...] = ()


class TrainingProcess:
    """A process that has imported torch and waits for its run. It leads a process group, so what it starts ends with it."""

    def __init__(self, place: Place, *, threads: int) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Pipe(ours)
        self.capabilities: Message | None = None  # reported once it is warm
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; then a run's log takes over
        self._log: Path | None = None
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment.setdefault(name, str(threads))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.trainer", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), *place.keep],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment | place.environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._ended: int | None = None

    def warm(self) -> bool:
        """True once it waits for its run; raises EOFError if it died on the way."""
        if self.capabilities is None and (message := self.pipe.receive(timeout=0)) is not None:
            self.capabilities = message["capabilities"]
        return self.capabilities is not None

    def alive(self) -> bool:
        return self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

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
            deadline = time.monotonic() + timeout
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.kill()  # also what it started and did not end
            self._ended = self._process.wait()
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
