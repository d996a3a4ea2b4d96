"""The description of an exception that ended a run, which the training process sends to its worker."""

from __future__ import annotations

import errno
import traceback

from stablessm_core.spec.forking import ForkError
from worker.exit_causes import one_line

MAX_FRAMES = 100  # maximum number of frames in a traceback; the innermost frames are kept


def describe_error(error: BaseException) -> str:
    """One line with the type and message of an exception. Memory, disk and CUDA errors start with a plain description
    instead."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, ForkError):
        return one_line(text)  # the text is already a sentence
    if name == "OutOfMemoryError":
        return one_line(f"out of GPU memory: {text}")
    if isinstance(error, MemoryError) or "not enough memory" in text or "can't allocate memory" in text:
        return one_line(f"out of memory: {text or name}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return one_line(f"disk full: {text}")
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return one_line(f"not writable: {text}")
    if "CUDA error" in text or name == "AcceleratorError":
        return one_line(f"CUDA error: {text}")
    return one_line(f"{name}: {text}" if text else name)


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception and of its causes."""
    return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
