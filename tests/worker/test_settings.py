"""A worker with a wrong setting does not start. The error names the setting, the given value and the allowed values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [
        ("STABLESSM_LEASE_SECONDS", "soon", "STABLESSM_LEASE_SECONDS is 'soon'; allowed: numbers from 6 to 600"),
        ("STABLESSM_LEASE_SECONDS", "1", "STABLESSM_LEASE_SECONDS is 1; allowed: 6 to 600"),
        (
            "STABLESSM_DATABASE_URL",
            "mysql://x",
            "database URL starts with 'mysql'; allowed: sqlite:/// and postgresql+psycopg://",
        ),
    ],
)
@pytest.mark.slow
def test_an_invalid_setting_is_reported_in_one_line(tmp_path: Path, variable: str, given: str, expected: str) -> None:
    command = [sys.executable, "-m", "worker", "--data-dir", str(tmp_path)]
    root = Path(__file__).parents[2]
    environment = {variable: given, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"Error: {expected}"
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_worker_starts_its_training_processes_before_slow_imports() -> None:
    slow = ("sqlalchemy", "numpy", "redis", "celery", "torch")
    probe = f"import sys, worker.main; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
