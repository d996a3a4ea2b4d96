"""Where a run happens, and what its process asks of it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from stablessm_core.environment import keep_freed_memory

def step():
    kept = [torch.ones(8 << 20) for _ in range(4)]  # 32 MiB each
    return [x + 1 for x in kept]

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_a_training_process_does_not_have_its_memory_cleared_again_at_every_step() -> None:
    """Told by the pages the kernel had to hand out: 3 steps of 256 MiB are 196,608 of 4 KiB, or 384 of the largest, 2 MiB."""

    def pages(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert pages("keep") < 200
    assert pages("leave") > 300, "without it this would prove nothing"
