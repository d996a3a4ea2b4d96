"""The reason in a run's row names what happened, in one bounded line."""

from __future__ import annotations

import errno

import pytest

from worker.exit_causes import MAX_REASON, of_exception, of_exit, one_line


@pytest.mark.parametrize(
    ("code", "out_of_memory", "expected"),
    [
        (-11, False, "SIGSEGV (segmentation fault)"),
        (-9, False, "SIGKILL (killed from outside)"),
        (-9, True, "the kernel ran out of memory"),
        (-64, False, "SIGRTMAX"),
        (-50, False, "signal 50"),
        (3, False, "exited with code 3 without a result"),
    ],
)
def test_an_exit_is_named(code: int, out_of_memory: bool, expected: str) -> None:
    assert expected in of_exit(code, out_of_memory, "")


def test_the_last_words_are_quoted_in_one_line() -> None:
    assert of_exit(-6, False, "terminate called\n  what():  bad") == (
        "training process ended by SIGABRT (abort); last output: terminate called what(): bad"
    )


def test_memory_disk_and_cuda_errors_are_named_as_such() -> None:
    class OutOfMemoryError(RuntimeError): ...  # as torch names its own

    class AcceleratorError(RuntimeError): ...

    assert of_exception(OutOfMemoryError("tried to allocate 2 GiB")) == "out of GPU memory: tried to allocate 2 GiB"
    assert of_exception(MemoryError()) == "out of memory: MemoryError"
    assert of_exception(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")).startswith("out of memory: ")
    assert of_exception(AcceleratorError("CUDA error: an illegal memory access")).startswith("CUDA error: ")
    assert of_exception(OSError(errno.ENOSPC, "No space left on device")).startswith("disk full: ")
    assert of_exception(OSError(errno.EROFS, "Read-only file system", "/state")).startswith("not writable: ")
    assert of_exception(ValueError("lr is -1")) == "ValueError: lr is -1"
    assert of_exception(KeyError()) == "KeyError"


def test_a_reason_is_bounded_and_holds_no_control_characters() -> None:
    reason = one_line("a\x00b\x1b[31m\n" + "x" * 5000)
    assert len(reason) == MAX_REASON
    assert reason.isprintable()
