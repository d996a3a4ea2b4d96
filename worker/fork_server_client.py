"""The worker's side of the fork server: starts the server once and requests one training process at a time.

A training process is forked twice, so that it becomes an orphan. The kernel then makes it a child of this worker, which has
registered as a subreaper. From then on the worker receives the process's exit code, and the process ends with the worker, even
if the fork server has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time

from worker.pipe import Message, Pipe
from worker.training_process import DeviceAccess, TrainingProcess, reap_left_behind

RESPONSE_SECONDS = 30.0  # maximum time to wait for a response, in seconds; usually 20 ms, but longer if memory is short
START_SECONDS = 300.0
PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>


class ForkRefused(Exception):
    """The fork server cannot be used on this machine or in this state; the text says why."""


class ServerGone(Exception):
    """The fork server has ended or does not respond; the text contains its last output."""


class ForkServer:
    """A running fork server. environment: the variables of every training process; the device adds further variables.

    Create the object in a thread that runs as long as the worker, because the server ends when that thread ends. Raises
    ForkRefused, OSError.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        if sys.platform != "linux" or ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise ForkRefused(f"{sys.platform} cannot adopt orphaned processes")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._deadline = time.monotonic() + START_SECONDS
        self.is_ready = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.fork_server", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def ready(self) -> bool:
        """True once the server can fork. Raises ServerGone, ForkRefused."""
        if not self.is_ready:
            self.is_ready = self._response(0.0) is not None
            if not self.is_ready and time.monotonic() > self._deadline:
                raise ServerGone(f"it was not ready within {START_SECONDS:g} s")
        return self.is_ready

    def fork(self, device: DeviceAccess) -> TrainingProcess:
        """A new training process, not yet warm. Raises ServerGone, ForkRefused, or OSError if no process can be created."""
        ours, theirs = socket.socketpair()
        pipe, output = Pipe(ours), tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the training process
        request = json.dumps({"environment": device.environment}).encode()
        try:
            with theirs:
                socket.send_fds(self._control, [request], [theirs.fileno(), output.fileno(), *device.keep_open])
            pid = self._receive_pid(pipe)
        except BaseException as error:
            last_output = _tail(output.fileno())
            pipe.close()
            output.close()
            if isinstance(error, EOFError | ConnectionError):
                raise ServerGone(last_output or self._last_output()) from error
            raise
        return TrainingProcess(pid, pipe, output)

    def _receive_pid(self, pipe: Pipe) -> int:
        """The process id that the new process reports once this worker has adopted it."""
        try:
            answer = self._response(RESPONSE_SECONDS) or {}
        except ServerGone:
            if (hello := pipe.receive(1.0)) is None:
                raise
            return int(hello["pid"])  # the process is usable even if the server was killed after the fork
        if "failed" in answer:
            raise OSError(f"the fork server cannot fork: {answer['failed']}")
        if (hello := pipe.receive(RESPONSE_SECONDS)) is None:
            raise ServerGone("its training process does not answer")
        return int(hello["pid"])

    def close(self) -> None:
        """End the fork server. The training processes that it forked continue to run."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        reap_left_behind(self.pid)
        self._output.close()

    def _response(self, timeout: float) -> Message | None:
        if not select.select([self._control], [], [], timeout)[0]:
            if timeout:
                raise ServerGone("it does not answer")
            return None
        try:
            data = self._control.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise ServerGone(self._last_output())
        answer: Message = json.loads(data)
        if "refused" in answer:
            raise ForkRefused(answer["refused"])
        return answer

    def _last_output(self) -> str:
        return _tail(self._output.fileno()) or "it printed nothing"


def _tail(file: int) -> str:
    size = os.fstat(file).st_size
    lines = os.pread(file, 4000, max(0, size - 4000)).decode(errors="replace").splitlines()
    return "\n".join(lines[-12:])
