"""The fork server: a process that has imported torch and the trainer once, and forks training processes, ready at once.

It imports, and does nothing else: no operation of torch, no thread, no CUDA, no connection. Before each fork it looks for threads
and open devices, which a forked process could not use, and refuses if it finds any; then the worker spawns, as on all but Linux.
A training process is forked twice, so that it is an orphan, which the worker has asked the kernel to be given: from then on it is
the worker's own child, with exit code and death signal, whatever becomes of the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from server.parent_death import die_with_parent
from worker import trainer
from worker.pipe import Message, Pipe
from worker.training_process import Place, TrainingProcess, reap_left_behind

ANSWER_SECONDS = 30.0  # for what takes 20 ms: a machine that is out of memory may stand still
START_SECONDS = 300.0
PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>
PRELOADED = (  # what a training process would import itself before its first step
    "stablessm_core.training.train",
    "torch._dynamo",  # which the first step of an optimizer imports, compiled or not
    "numpy.random",
    "stablessm_core.scan.parallel",
    "stablessm_core.scan.triton_scan",
    "numpy.ctypeslib",
    "sqlalchemy.dialects.sqlite",
    "psycopg",
    "worker.attempt",
    "worker.capabilities",
)


class ForkRefused(Exception):
    """The server must not fork, now or later; the text says why."""


class ServerGone(Exception):
    """The server has ended, or does not answer; the text has what it printed last."""


class ForkServer:
    """The server as its worker sees it. `environment`: of every training process, beside what its place adds.

    Started by a thread that lives as long as the worker: the server dies with that thread. Raises ForkRefused, OSError.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        if sys.platform != "linux" or ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise ForkRefused(f"{sys.platform} has no orphans to adopt")
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
        """True once it can fork. Raises ServerGone, ForkRefused."""
        if not self.is_ready:
            self.is_ready = self._answer(0.0) is not None
            if not self.is_ready and time.monotonic() > self._deadline:
                raise ServerGone(f"it was not ready within {START_SECONDS:g} s")
        return self.is_ready

    def fork(self, place: Place) -> TrainingProcess:
        """A new training process, not yet warm. Raises ServerGone, ForkRefused, OSError when there is no room for a process."""
        ours, theirs = socket.socketpair()
        pipe, output = Pipe(ours), tempfile.TemporaryFile()  # noqa: SIM115 - it goes with the training process
        request = json.dumps({"environment": place.environment}).encode()
        try:
            with theirs:
                socket.send_fds(self._control, [request], [theirs.fileno(), output.fileno(), *place.keep])
            pid = self._forked(pipe)
        except BaseException as error:
            last_output = _tail(output.fileno())
            pipe.close()
            output.close()
            if isinstance(error, EOFError | ConnectionError):
                raise ServerGone(last_output or self._last_output()) from error
            raise
        return TrainingProcess(pid, pipe, output)

    def _forked(self, pipe: Pipe) -> int:
        """The number of the new process, which it tells itself, once it has been adopted."""
        try:
            answer = self._answer(ANSWER_SECONDS) or {}
        except ServerGone:
            if (hello := pipe.receive(1.0)) is None:
                raise
            return int(hello["pid"])  # the server was killed after it forked: that process is as good as any
        if "failed" in answer:
            raise OSError(f"the fork server cannot fork: {answer['failed']}")
        if (hello := pipe.receive(ANSWER_SECONDS)) is None:
            raise ServerGone("its training process does not answer")
        return int(hello["pid"])

    def close(self) -> None:
        """End it; training processes that it forked live on."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        reap_left_behind(self.pid)
        self._output.close()

    def _answer(self, timeout: float) -> Message | None:
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


def main() -> NoReturn:
    """The program of the server: one request, which brings descriptors, is one training process."""
    control, worker = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(worker, signal.SIGKILL)
    gc.disable()  # nothing that is imported can be freed: looking for it takes a tenth of the time
    _preload()
    gc.freeze()  # a collection in a training process would write into, and so copy, every page of these objects
    gc.enable()
    refused = why_not_fork()
    control.send(json.dumps({"refused": refused} if refused else {"ready": True}).encode())
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(control, 1 << 16, 16)
        if not data:
            os._exit(0)
        answer = _fork(control, worker, json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())


def why_not_fork(process: Path = Path("/proc/self")) -> str | None:
    """What a forked process could not use of this one; None when it may be forked."""
    tasks = sorted((process / "task").iterdir())
    if len(tasks) > 1:
        names = ", ".join((task / "comm").read_text().strip() for task in tasks)
        return f"it has {len(tasks)} threads after its imports ({names})"
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder is gone again
            if (target := os.readlink(descriptor)).startswith("/dev/nvidia"):
                return f"it has opened {target} with its imports"
    return None


def _preload() -> None:
    from stablessm_core.tasks.registry import BUILT_IN

    # tasks of other packages are left to each training process: nobody knows what their import does
    for name in (*PRELOADED, *(section.trained_by.partition(":")[0] for section in BUILT_IN)):
        with contextlib.suppress(Exception):  # what needs it says so
            import_module(name)


def _fork(control: socket.socket, worker: int, request: Message, descriptors: list[int]) -> Message:
    if (refused := why_not_fork()) is not None:
        return {"refused": refused}
    try:
        between = os.fork()
    except OSError as error:
        return {"failed": str(error)}
    if between == 0:
        control.close()
        _fork_again(worker, request, descriptors)
    code = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
    return {"forked": True} if code == 0 else {"failed": os.strerror(code) if code > 0 else f"signal {-code}"}


def _fork_again(worker: int, request: Message, descriptors: list[int]) -> NoReturn:
    between = os.getpid()
    try:
        if os.fork() == 0:
            _be_trainer(worker, between, request, descriptors)
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _be_trainer(worker: int, between: int, request: Message, descriptors: list[int]) -> NoReturn:
    status = trainer.FAILED
    try:
        pipe_end, output, *_kept = descriptors
        os.setsid()
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        while os.getppid() == between:  # until it is adopted
            time.sleep(0.0002)
        die_with_parent(worker, signal.SIGKILL)
        os.environ.update(request["environment"])
        _be_listed_as("worker.trainer", request["environment"])
        _draw_seeds()
        pipe = Pipe(socket.socket(fileno=pipe_end))
        pipe.send({"pid": os.getpid()})
        status = trainer.train_one(pipe)
    except BaseException:  # noqa: BLE001 - nothing may get back into the server's loop
        traceback.print_exc()
    finally:
        trainer.leave(status)


def _draw_seeds() -> None:
    """Python reseeds its own generator after a fork; these would be the same in every training process of one server."""
    import numpy as np
    import torch

    np.random.seed()
    torch.default_generator.seed()


def _be_listed_as(module: str, environment: dict[str, str]) -> None:
    """`ps` and /proc show what this process is and, where it has the room, what it was told beside its server's environment.

    Both lie in its own memory, between addresses that the kernel tells.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end, environ_begin, environ_end = (int(address) for address in fields[45:49])
    title = b"\0".join([os.fsencode(sys.executable), b"-m", module.encode(), b""])
    if 0 < len(title) <= end - begin:
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, title, len(title))
    variables = b"\0" + ctypes.string_at(environ_begin, environ_end - environ_begin) if environ_begin else b""
    for name, value in environment.items():
        new = f"{name}={value}".encode()
        at = variables.find(b"\0" + new[: len(name) + 1])
        if at >= 0 and variables.find(b"\0", at + 1) == at + 1 + len(new):  # every UUID is as long as another
            ctypes.memmove(environ_begin + at, new, len(new))


def _tail(file: int) -> str:
    size = os.fstat(file).st_size
    lines = os.pread(file, 4000, max(0, size - 4000)).decode(errors="replace").splitlines()
    return "\n".join(lines[-12:])


if __name__ == "__main__":
    logging.captureWarnings(True)
    main()
