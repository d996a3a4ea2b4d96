"""The reason in a run's row states what happened, in one line of bounded length."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from worker.exit_causes import MAX_REASON, describe_exit, kernel_memory_kills, one_line
from worker.failures import describe_error


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
def test_the_exit_of_a_training_process_is_described(code: int, out_of_memory: bool, expected: str) -> None:
    assert expected in describe_exit(code, out_of_memory, "")


def test_the_last_output_is_quoted_in_one_line() -> None:
    assert describe_exit(-6, False, "terminate called\n  what():  bad") == (
        "training process ended by SIGABRT (abort); last output: terminate called what(): bad"
    )


def test_memory_disk_and_cuda_errors_are_named() -> None:
    class OutOfMemoryError(RuntimeError): ...  # has the name of torch's own class

    class AcceleratorError(RuntimeError): ...

    assert describe_error(OutOfMemoryError("tried to allocate 2 GiB")) == "out of GPU memory: tried to allocate 2 GiB"
    assert describe_error(MemoryError()) == "out of memory: MemoryError"
    assert describe_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")).startswith("out of memory: ")
    assert describe_error(AcceleratorError("CUDA error: an illegal memory access")).startswith("CUDA error: ")
    assert describe_error(OSError(errno.ENOSPC, "No space left on device")).startswith("disk full: ")
    assert describe_error(OSError(errno.EROFS, "Read-only file system", "/state")).startswith("not writable: ")
    assert describe_error(ValueError("lr is -1")) == "ValueError: lr is -1"
    assert describe_error(KeyError()) == "KeyError"


def test_a_reason_has_bounded_length_and_no_control_characters() -> None:
    reason = one_line("a\x00b\x1b[31m\n" + "x" * 5000)
    assert len(reason) == MAX_REASON
    assert reason.isprintable()


def test_memory_kills_are_summed_over_the_control_group_and_the_machine(tmp_path: Path) -> None:
    group, machine = tmp_path / "memory.events", tmp_path / "vmstat"
    group.write_text("low 0\nmax 7\noom 5\noom_kill 2\noom_group_kill 9\n")
    machine.write_text("nr_free_pages 100\noom_kill 3\npgfault 1\n")
    assert kernel_memory_kills([str(group), str(machine)]) == 5
    assert kernel_memory_kills([str(tmp_path / "missing"), str(machine)]) == 3
