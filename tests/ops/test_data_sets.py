"""The data folder that a developer sets in STABLESSM_DATA reaches every process of a test run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_configured_data_folder_reaches_every_process_of_a_parallel_test_run(tmp_path: Path) -> None:
    given = tmp_path / "absent"
    tests = ["tests/core/tasks/test_task_data.py", "-k", "real_data"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "1", *tests]
    environment = os.environ | {"STABLESSM_DATA": str(given)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"STABLESSM_DATA={given} is not a directory" in done.stdout
