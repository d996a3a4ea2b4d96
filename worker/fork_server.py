"""The fork server: a process that imports torch and the trainer once, and then forks training processes that are ready at once.

The server only imports modules: it runs no torch operation, starts no thread, does not initialise CUDA and opens no connection.
Before each fork it looks for threads and open devices, which a forked process could not use. If it finds any, it refuses to
fork, and the worker spawns processes instead, as on systems other than Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from server.parent_death import die_with_parent
from worker import trainer
from worker.pipe import Message, Pipe

PRELOADED = (  # modules that a training process would otherwise import before its first step
    "stablessm_core.training.train",
    "numpy.random",
    "stablessm_core.scan.parallel",
    "stablessm_core.scan.triton_scan",
    "numpy.ctypeslib",
    "sqlalchemy.dialects.sqlite",
    "psycopg",
    "worker.attempt",
    "worker.autopsy_process",
    "worker.capabilities",
    "worker.process_state",
)


def main() -> NoReturn:
    """The program of the fork server: for each request, fork one training process and pass it the request's file
    descriptors."""
    control, worker = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(worker, signal.SIGKILL)
    gc.disable()  # imports leave no garbage, and looking for garbage takes a tenth of the import time
    preload()
    gc.freeze()  # otherwise a collection in a training process would write to, and so copy, every memory page of these objects
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
    """The reason why this process must not be forked: a thread or an open GPU, which the child could not use. None if forking
    is safe."""
    tasks = sorted((process / "task").iterdir())
    if len(tasks) > 1:
        names = ", ".join((task / "comm").read_text().strip() for task in tasks)
        return f"it has {len(tasks)} threads after its imports ({names})"
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists the folder is closed by now
            if (target := os.readlink(descriptor)).startswith("/dev/nvidia"):
                return f"it has opened {target} with its imports"
    return None


def preload() -> None:
    """Import the modules that a training process needs before its first step."""
    from stablessm_core.spec.tasks import BUILT_IN  # imported after die_with_parent, like all modules that take long to import

    # each training process imports the tasks of other packages itself, because their imports may have side effects
    for name in (*PRELOADED, *(section.trained_by.partition(":")[0] for section in BUILT_IN)):
        with contextlib.suppress(Exception):  # the code that needs the module will report the import error
            import_module(name)
    # on a GPU, long runs are compiled; importing the compiler takes as long as all other imports
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        import_module("torch._dynamo")


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
        pipe_end, output, *_kept_open = descriptors
        os.setsid()
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        while os.getppid() == between:  # wait until the worker has adopted this process
            time.sleep(0.0002)
        die_with_parent(worker, signal.SIGKILL)
        os.environ.update(request["environment"])
        _be_listed_as("worker.trainer", request["environment"])
        _reseed()
        pipe = Pipe(socket.socket(fileno=pipe_end))
        pipe.send({"pid": os.getpid()})
        status = trainer.train_runs(pipe)
    except BaseException:  # noqa: BLE001 - no exception may return to the server's loop
        traceback.print_exc()
    finally:
        trainer.exit_process(status)


def _reseed() -> None:
    """Reseed numpy and torch. Python reseeds its own generator after a fork, but the generators of numpy and torch would
    start with the same state in every training process of one server."""
    import numpy as np
    import torch

    np.random.seed()
    torch.default_generator.seed()


def _be_listed_as(module: str, environment: dict[str, str]) -> None:
    """Let `ps` and /proc show this process as `module` and with its own environment, if both fit into the memory of the old
    texts.

    The kernel reads both texts from the memory of the process, at addresses that /proc/self/stat contains.
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
        # a GPU's UUID always fits, because all UUIDs have the same length
        if at >= 0 and variables.find(b"\0", at + 1) == at + 1 + len(new):
            ctypes.memmove(environ_begin + at, new, len(new))


if __name__ == "__main__":
    logging.captureWarnings(True)
    main()
