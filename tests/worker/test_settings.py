"""A worker that is configured wrongly says which setting, what was given and what is allowed, and does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [
        ("STABLESSM_LEASE_SECONDS", "soon", "STABLESSM_LEASE_SECONDS is 'soon'; allowed are numbers from 6 to 600"),
        ("STABLESSM_LEASE_SECONDS", "1", "STABLESSM_LEASE_SECONDS is 1; allowed are 6 to 600"),
        (
            "STABLESSM_DATABASE_URL",
            "mysql://x",
            "database URL starts with 'mysql'; allowed are sqlite:/// and postgresql+psycopg://",
        ),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tmp_path: Path, variable: str, given: str, expected: str) -> None:
    command = [sys.executable, "-m", "worker", "--data-dir", str(tmp_path)]
    root = Path(__file__).parents[2]
    environment = {variable: given, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"Error: {expected}"
    assert "Traceback" not in ended.stderr
