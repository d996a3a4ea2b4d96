"""The description of an exception that ended a run, which the training process sends to its worker, and what it blames."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from stablessm_core.spec.data.files import MissingData
from stablessm_core.spec.forking import ForkError
from worker.exit_causes import one_line
from worker.quarantine import Kind

MAX_FRAMES = 100  # maximum number of frames in a traceback; the innermost frames are kept
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


def describe_error(error: BaseException) -> str:
    """One line with the type and message of an exception. Memory, disk and CUDA errors start with a plain description
    instead."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, ForkError):
        return one_line(text)  # the text is already a sentence
    if name == "OutOfMemoryError":
        return one_line(f"out of GPU memory: {text}")
    if _lacks_memory(error):
        return one_line(f"out of memory: {text or name}")
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return one_line(f"disk full: {text}")
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        return one_line(f"not writable: {text}")
    if _is_gpu_error(error):
        return one_line(f"CUDA error: {text}")
    return one_line(f"{name}: {text}" if text else name)


def machine_fault(error: BaseException, data_dir: Path) -> Kind | None:
    """What part of the machine an exception blames; None if the run may be the cause.

    The worker checks missing data and memory again. A failed assertion in a CUDA kernel is the run's own fault.
    """
    for cause in _causes(error):
        if isinstance(cause, OSError) and (cause.errno in DISK_FULL or _is_below(cause, data_dir)):
            return "disk"
        if isinstance(cause, MissingData):
            return "data"
        if _lacks_memory(cause):
            return "memory"
        if _is_gpu_error(cause) and "assert" not in str(cause):
            return "gpu"
        if type(cause).__name__ == "OutOfMemoryError" and _others_fill_gpu():
            return "gpu"
    return None


def fills_disk(error: BaseException) -> bool:
    """True if an exception, or one that caused it, says that the disk is full."""
    return any(isinstance(cause, OSError) and cause.errno in DISK_FULL for cause in _causes(error))


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception and of its causes."""
    return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _is_below(error: OSError, data_dir: Path) -> bool:
    """True if the error is about a file of the data directory that cannot be written or read."""
    if error.errno not in (*NOT_WRITABLE, errno.EIO) or not isinstance(error.filename, str | Path):
        return False
    return Path(error.filename).is_relative_to(data_dir)


def _lacks_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "not enough memory" in text or "can't allocate memory" in text


def _others_fill_gpu() -> bool:
    """True if other processes use more than half of this process's GPU."""
    if (torch := sys.modules.get("torch")) is None:
        return False
    try:
        free, total = torch.cuda.mem_get_info()
        return bool(total - free - torch.cuda.memory_reserved() > total // 2)
    except Exception:  # noqa: BLE001 - the GPU may be broken in any way, and the run has failed already
        return False


def _is_gpu_error(error: BaseException) -> bool:
    return "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError"
