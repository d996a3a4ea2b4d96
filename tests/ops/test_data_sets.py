"""The folder of data sets that a developer names reaches every process of a test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_folder_named_reaches_the_processes_of_a_parallel_run(tmp_path: Path) -> None:
    given = tmp_path / "absent"
    tests = ["tests/core/tasks/test_task_data.py", "-k", "real_data"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "1", *tests]
    environment = os.environ | {"STABLESSM_DATA": str(given)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"STABLESSM_DATA={given} is not a directory" in done.stdout
