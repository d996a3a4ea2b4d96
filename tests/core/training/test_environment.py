"""The recorded environment of a run, and the settings that its process applies."""

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.long
def test_a_training_process_reuses_its_memory_instead_of_getting_new_pages_at_every_step() -> None:
    """Measured by the pages that the kernel provides in the median step: 256 MiB are 65,536 pages of 4 KiB or 128 of 2 MiB.

    In some other steps the heap still grows. The number of steps until it is large enough differs between processes.
    """

    def pages(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert pages("keep") < 60
    assert pages("leave") > 100, "without the setting the process must get many new pages, or the test proves nothing"
