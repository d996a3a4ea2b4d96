"""The library of kernels that this processor can run, the threads it runs on, or why there is none.

The library is chosen by what PyTorch found the processor able to do, never by where the package was built. It has no threads of
its own: it is handed the function by which the OpenMP runtime that PyTorch has loaded (GNU's, on Linux) starts a parallel region.
Where that is another runtime, one thread does the work.
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

from stablessm_core.compiled import build

FEW = 1 << 15  # numbers: below, waking another thread costs more than it saves


@functools.cache
def target() -> str:
    """The set of instructions, as `build.TARGETS` has it. ATEN_CPU_CAPABILITY lowers it, as it does PyTorch's own."""
    if build.machine() != "x86_64":
        return next(iter(build.TARGETS.get(build.machine(), {"unknown": ()})))
    return {"AVX512": "v4", "AVX2": "v3"}.get(torch.backends.cpu.get_cpu_capability(), "v2")


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if build.machine() not in build.TARGETS:
        return f"there are no kernels for a processor of the family {build.machine()}"
    path = build.library(target())
    if not path.exists():
        return f"{path.name} was not built: {_reason_of_the_build()}"
    try:
        library = ctypes.CDLL(str(path))
        made_from = (ctypes.c_char * 33).in_dll(library, "stablessm_source").value.decode()
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if made_from != build.source_hash():
        return f"{path.name} was built from other sources; `python -m stablessm_core.compiled.build` builds it anew"
    return library


def _reason_of_the_build() -> str:
    try:
        return build.reason_file().read_text(encoding="utf-8").strip()
    except OSError:
        return "`python -m stablessm_core.compiled.build` builds it"


def why_not_compiled() -> str | None:
    """What keeps the kernels from running in this process, or None."""
    found = load()
    return found if isinstance(found, str) else None


@functools.cache
def function(name: str) -> Any:
    """A function of the library: (numbers int64[], parallel, threads) -> 0, or not 0 when memory ran out."""
    found = load()
    if isinstance(found, str):
        raise RuntimeError(found)
    f = getattr(found, name)
    f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    f.restype = ctypes.c_long
    return f


@functools.cache
def parallel() -> int:
    """The address of GOMP_parallel in this process, 0 where PyTorch's threads are another runtime's."""
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


Call = tuple[Any, bytes, int | None, int]  # a function of the library and what it is given
_thread = threading.local()  # recorded: the calls that `recording` waits for in this thread


def call(name: str, numbers: tuple[int, ...], size: int) -> None:
    """Run a kernel over `size` numbers: `numbers` are lengths, strides and addresses in the order that its C function names."""
    threads = 1 if size < FEW else torch.get_num_threads()
    made = function(name), _integers(len(numbers)).pack(*numbers), parallel() if threads > 1 else None, threads
    if (recorded := getattr(_thread, "recorded", None)) is not None:
        recorded.append(made)
    repeat((made,))


def repeat(calls: Iterable[Call]) -> None:
    """Run kernels again as they were run."""
    for f, numbers, start, threads in calls:
        if f(numbers, start, threads):
            raise MemoryError(f"{f.__name__} found no memory for its sums")


@contextmanager
def recording() -> Iterator[list[Call]]:
    """The calls made inside, for `repeat`; the memory that they name has to be kept for it."""
    before, _thread.recorded = getattr(_thread, "recorded", None), []
    try:
        yield _thread.recorded
    finally:
        _thread.recorded = before
