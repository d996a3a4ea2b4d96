"""docs/extending.md: each extension works in a copy of this repository that has it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import extend_a_copy

TRAIN = """
import sys
from pathlib import Path
from stablessm_core.config import parse_config
from stablessm_core.telemetry.recorder import MemorySink
from stablessm_core.training.train import train

def trained(sections, folder=Path(sys.argv[1])):
    small = {"model": {"d_model": 4, "d_state": 4}, "train": {"steps": 5, "batch_size": 4, "eval_every": 0, "device": "cpu"}}
    config = parse_config({key: small.get(key, {}) | sections.get(key, {}) for key in {*small, *sections}})
    sink = MemorySink()
    return train(config, sink=sink, data_root=folder, checkpoint_dir=folder / "checkpoints"), sink
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("extended")
    extend_a_copy(copy)
    return copy


def run_in(copy: Path, code: str, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", TRAIN + code, folder], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_task_in_the_repository_is_trained(extended: Path, tmp_path: Path) -> None:
    code = """
outcome, _ = trained({"task": {"name": "echo", "length": 16, "delay": 2}})
assert outcome.status == "finished" and outcome.result["eval_loss"] > 0, outcome
"""
    run_in(extended, code, tmp_path)
