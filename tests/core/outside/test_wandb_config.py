"""`config` and `summary` of W&B lose no value: before `init`, when the program replaces them, and when it copies them."""

from __future__ import annotations

import argparse
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stablessm as wandb
from stablessm_core.outside import wandb_missing
from tests.core.outside.reading import read

Caught = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs go into tmp_path, and none stays open."""
    monkeypatch.setenv("STABLESSM_MODE", "offline")
    monkeypatch.setenv("STABLESSM_DIR", str(tmp_path))
    monkeypatch.setattr(wandb_missing, "_told", set())
    yield
    wandb.finish()


def stored(tmp_path: Path) -> Any:
    wandb.finish()
    return read(tmp_path).file.opening["config"]


def test_what_is_set_before_init_belongs_to_the_next_run(tmp_path: Path, capfd: Caught) -> None:
    wandb.config.lr = 0.1
    wandb.config.update({"depth": 3, "width": 8})
    wandb.config.setdefaults({"width": 9})
    wandb.summary["best"] = 0.5
    assert (wandb.config.lr, dict(wandb.config)) == (0.1, {"lr": 0.1, "depth": 3, "width": 8})
    with pytest.raises(AttributeError, match="no 'epochs'"):
        _ = wandb.config.epochs
    wandb.init(config={"depth": 4})
    assert dict(wandb.config) == {"lr": 0.1, "depth": 4, "width": 8}
    assert stored(tmp_path) == {"lr": 0.1, "depth": 4, "width": 8}
    assert read(tmp_path).ends[0].result is not None
    assert read(tmp_path).ends[0].result["best"] == 0.5  # type: ignore[index]
    assert capfd.readouterr().err.count("config was set before stablessm.init") == 1
    assert dict(wandb.config) == {}


@pytest.mark.parametrize("config", [{"lr": 0.1, "n": np.int64(2)}, argparse.Namespace(lr=0.1, n=torch.tensor(2))])
@pytest.mark.parametrize("before", [True, False])
def test_an_assignment_to_config_is_stored(config: Any, before: bool, tmp_path: Path) -> None:
    if before:
        wandb.config = config
        wandb.init(config={"first": 1})
    else:
        wandb.init(config={"first": 1})
        wandb.config = config
    assert (wandb.config.lr, wandb.config["first"]) == (0.1, 1)
    assert stored(tmp_path) == {"lr": 0.1, "n": 2, "first": 1}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_a_copy_has_the_values_and_changes_no_run(copied: Any, tmp_path: Path) -> None:
    run = wandb.init(config={"lr": 0.1, "inner": {"x": [1]}})
    other = copied(run.config)
    assert (other.lr, other["inner"], other == run.config, dict(other)) == (0.1, {"x": [1]}, True, dict(run.config))
    other.lr = 5
    assert (run.config.lr, other.lr) == (0.1, 5)
    if copied is not copy.copy:
        other.inner["x"].append(2)
    assert stored(tmp_path) == {"lr": 0.1, "inner": {"x": [1]}}


def test_the_program_gets_back_the_objects_that_it_gave(tmp_path: Path) -> None:
    given = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "rate": float("nan"), "betas": (0.9, 0.99), "huge": 2**80}
    run = wandb.init(config=given)
    assert run.config.device is given["device"]
    assert {**run.config}["betas"] == (0.9, 0.99)
    assert run.config.rate != run.config.rate
    run.config.update({"huge": 2**81}, allow_val_change=True)
    run.config["more"] = np.float32(0.5)
    del run.config.betas
    assert run.config.get("betas", "none") == "none"
    assert stored(tmp_path) == {"device": "cpu", "dtype": "torch.bfloat16", "rate": "NaN", "huge": str(2**81), "more": 0.5}


@pytest.mark.parametrize("config", ["config.yaml", 3, int, object()])
def test_a_configuration_of_another_type_does_not_end_the_program(config: Any, tmp_path: Path, capfd: Caught) -> None:
    wandb.init(config=config).config.lr = 0.1
    assert stored(tmp_path) == {"lr": 0.1}
    assert capfd.readouterr().err.count("init goes on without it") == 1


def test_a_number_of_the_summary_that_no_float_holds_removes_no_other(tmp_path: Path, capfd: Caught) -> None:
    with wandb.init() as run:
        run.summary.update({"a": 1, "huge": 10**400, "b": np.float32(2), "text": "x"})
    assert read(tmp_path).ends[0].result == {"a": 1, "b": 2, "telemetry_dropped": 0}
    assert "summary: huge is beyond" in capfd.readouterr().err
