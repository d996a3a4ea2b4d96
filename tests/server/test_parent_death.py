"""A child process ends when its parent process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import signal, sys, time
from server.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]), signal.Signals(int(sys.argv[2])))
print("ready", flush=True)
time.sleep(100)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such signal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_process_ends_when_its_parent_is_killed(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(int(number))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number_of_child, ready = sorted(parent.stdout.readline() for _ in range(2))  # either process may write first
        assert ready == "ready\n"
        child = int(number_of_child)
        parent.kill()
        deadline = time.monotonic() + 30
        while _lives(child) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not _lives(child)


def test_a_process_whose_parent_has_already_ended_exits_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1", "15"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, "the parent process 1 has ended" in done.stderr) == (1, True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as status:  # a zombie, whose parent has not waited for it yet, is still listed
        return status.read().rpartition(")")[2].split()[0] != "Z"
