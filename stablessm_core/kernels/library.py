"""Loads the library of kernels for this processor and calls its functions, or returns the reason why there is no library.

The library is selected by the instruction set that PyTorch detects at run time, not by the machine that built the package. The
library starts no threads of its own. Each call receives the function with which PyTorch's OpenMP runtime starts a parallel
region. This needs GNU's runtime on Linux. With any other runtime, the kernels use one thread.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stablessm_core.kernels import build

# minimum number of elements for several threads; for fewer elements, waking another thread costs more time than it saves
PARALLEL_SIZE = 1 << 15


@functools.cache
def target() -> str:
    """The instruction set, a key of `build.TARGETS`. As in PyTorch, the variable ATEN_CPU_CAPABILITY limits the set."""
    if build.machine() != "x86_64":
        return next(iter(build.TARGETS.get(build.machine(), {"unknown": ()})))
    return {"AVX512": "v4", "AVX2": "v3"}.get(torch.backends.cpu.get_cpu_capability(), "v2")


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, or the reason why there is no library."""
    if build.machine() not in build.TARGETS:
        return f"there are no kernels for a processor of the family {build.machine()}"
    path = build.library_path(target())
    if not path.exists():
        return f"{path.name} was not built: {_build_failure()}"
    try:
        library = ctypes.CDLL(str(path))
        built_from = (ctypes.c_char * 33).in_dll(library, "stablessm_source").value.decode()
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if built_from != build.source_hash():
        return f"{path.name} was built from other sources; `python -m stablessm_core.kernels.build` rebuilds it"
    return library


def _build_failure() -> str:
    try:
        return build.failure_path().read_text(encoding="utf-8").strip()
    except OSError:
        return "stablessm-service contains it, and `python -m stablessm_core.kernels.build` builds it"


def why_not_compiled() -> str | None:
    """The reason why the kernels cannot run in this process; None if they can run."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


@functools.cache
def function(name: str) -> Any:
    """A function of the library: (numbers int64[], parallel, threads) -> 0, or nonzero if memory ran out.

    Raises RuntimeError if there is no library.
    """
    loaded = load()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    f = getattr(loaded, name)
    f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    f.restype = ctypes.c_long
    return f


def text(name: str) -> str:
    """A string that the library exports. Raises RuntimeError if there is no library."""
    loaded = load()
    if isinstance(loaded, str):
        raise RuntimeError(loaded)
    return (ctypes.c_char_p.in_dll(loaded, name).value or b"").decode()


@functools.cache
def openmp_parallel() -> int:
    """The address of GOMP_parallel in this process; 0 if PyTorch's threads belong to another runtime."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for path in dict.fromkeys(re.findall(r"/\S*libgomp\S*\.so\S*", mapped)):
        try:
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


@functools.cache
def _integers(count: int) -> struct.Struct:
    return struct.Struct(f"{count}q")


Call = tuple[Any, bytes, int | None, int]  # a function of the library, its packed numbers, GOMP_parallel, number of threads
_thread = threading.local()  # `recorded` is the list to which `call` adds this thread's calls


def call(name: str, numbers: tuple[int, ...], size: int) -> None:
    """Run a kernel over `size` numbers. numbers: lengths, strides and addresses in the order that the C function expects."""
    threads = 1 if size < PARALLEL_SIZE else torch.get_num_threads()
    this_call = function(name), _integers(len(numbers)).pack(*numbers), openmp_parallel() if threads > 1 else None, threads
    if (recorded := getattr(_thread, "recorded", None)) is not None:
        recorded.append(this_call)
    if this_call[0](*this_call[1:]):
        raise _out_of_memory(name)


def repeat_calls(calls: Iterable[Call]) -> None:
    """Run kernels with the recorded arguments. Raises MemoryError if a kernel cannot allocate memory."""
    for f, numbers, start, threads in calls:
        if f(numbers, start, threads):
            raise _out_of_memory(f.__name__)


def _out_of_memory(name: str) -> MemoryError:
    return MemoryError(f"{name} could not allocate memory for its sums")


@contextmanager
def record_calls() -> Iterator[list[Call]]:
    """Collects the calls made in the `with` block, for `repeat_calls`. The caller must keep the tensors of these calls alive."""
    before, _thread.recorded = getattr(_thread, "recorded", None), []
    try:
        yield _thread.recorded
    finally:
        _thread.recorded = before
