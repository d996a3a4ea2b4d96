"""The example programs report their runs to a real server: every step, every layer, and the right end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.http_service import BEARER, TOKEN, running

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 60


@pytest.fixture
def address(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    with running(sqlite_url, tmp_path, runs_per_minute=0) as (address, _):
        yield address


def environment(data: Path, **more: str) -> dict[str, str]:
    return os.environ | {"STABLESSM_DATA": str(data), "STABLESSM_MODE": "online", "PYTHONPATH": str(EXAMPLES.parent)} | more


@pytest.mark.parametrize(
    ("program", "prefix"), [("watch_mamba.py", ""), ("watch_trainer.py", ""), ("watch_lightning.py", "model.")]
)
def test_a_program_reports_every_step_of_every_layer(
    program: str, prefix: str, address: str, data_root: Path, tmp_path: Path
) -> None:
    env = environment(data_root, STABLESSM_URL=address, STABLESSM_TOKEN=TOKEN)
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / program)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{address}/runs/1" in done.stdout
    run = httpx.get(f"{address}/api/runs/1", headers=BEARER).raise_for_status().json()
    assert (run["status"], run["step"], run["project"]) == ("finished", STEPS, "examples")
    assert run["how"]["total_steps"] == STEPS
    assert [layer["path"] for layer in run["layers"]] == [f"{prefix}backbone.layers.{i}.mixer.A_log" for i in range(2)]
    for name in ("ssm/0/weight", "ssm/1/gradient"):
        series = httpx.get(f"{address}/api/runs/1/series/{name}", params={"max_points": 1000}, headers=BEARER).json()
        assert series["step"] == list(range(1, STEPS + 1))
    loss = httpx.get(f"{address}/api/runs/1/series/train/loss", params={"max_points": 1000}, headers=BEARER).json()
    assert loss["step"][-1] == STEPS
    assert loss["value"][-1] < loss["value"][0]
    assert list(tmp_path.glob("stablessm-runs/*")) == []  # everything is stored
