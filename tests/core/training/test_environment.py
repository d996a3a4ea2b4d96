"""Where a run happens, and what its process asks of it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from stablessm_core.training.environment import keep_freed_memory

def step():
    kept = [torch.ones(8 << 20) for _ in range(4)]  # 32 MiB each
    return [x + 1 for x in kept]

if sys.argv[1] == "keep":
    assert keep_freed_memory()
pages = []
for _ in range(21):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(pages)[10])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
@pytest.mark.slow
def test_a_training_process_does_not_have_its_memory_cleared_again_at_every_step() -> None:
    """Told by the pages the kernel handed out in the median step: 256 MiB are 65,536 of 4 KiB, or 128 of the largest, 2 MiB.

    In some of the other steps the heap still grows; how soon it is large enough differs from process to process.
    """

    def pages(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert pages("keep") < 60
    assert pages("leave") > 100, "without it this would prove nothing"
