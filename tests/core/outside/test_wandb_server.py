"""A program for W&B reaches a real server: what it resumes, and its configuration as numbers that filters find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import stablessm as wandb
from tests.server.http_service import BEARER, TOKEN, running

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]


@pytest.fixture
def address(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with running(database_url, tmp_path, runs_per_minute=0) as (address, _):
        monkeypatch.setenv("STABLESSM_URL", address)
        monkeypatch.setenv("STABLESSM_TOKEN", TOKEN)
        monkeypatch.setenv("STABLESSM_DIR", str(tmp_path / "files"))
        yield address
        wandb.finish()


def get(address: str, path: str, **query: Any) -> Any:
    answer = httpx.get(address + path, headers=BEARER, params=query, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_run_knows_whether_it_is_resumed(address: str) -> None:
    found = []
    for _ in range(3):
        with wandb.init(project="p", id="my-run", resume="allow", group="g", job_type="train") as run:
            run.config.update({"changed": len(found)})  # a change is another attempt, and no other process
            found.append((wandb.run.resumed, run.starting_step))
            run.log({"a": 1})
    with wandb.init(project="p", id="another") as run:
        found.append((run.resumed, run.starting_step))
        assert run.get_url() == run.url != None  # noqa: E711
    assert found == [(False, 0), (True, 1), (True, 2), (False, 0)]
    listed = get(address, "/api/runs", tag="group:g")["runs"]
    assert [run["tags"] for run in listed] == [["group:g", "job:train"]]


def test_numbers_of_every_library_are_found_by_filters(address: str) -> None:
    config = {
        "width": np.int64(64), "seed": torch.tensor(3), "lr": np.float32(0.25), "flag": np.bool_(True),
        "betas": np.array([0.9, 0.99]), "huge": 10**400, "bad": "a\0b", "nan": float("nan"),
    }  # fmt: skip
    with wandb.init(project="p", config=config) as run:
        run.log({"a": 1, "huge": 10**400, "b": 2, "large": 1e39, "minus": float("-inf")})
    for query in ("config.width<100", "config.seed=3", "config.lr=0.25", "config.flag=true"):
        assert len(get(address, "/api/runs", q=query)["runs"]) == 1, query
    stored = get(address, "/api/runs/1")["reported_config"]
    assert (stored["betas"], stored["huge"], stored["nan"]) == ([0.9, 0.99], str(10**400), "NaN")
    values = {name: get(address, f"/api/runs/1/series/{name}")["value"] for name in ("a", "b", "large", "minus")}
    assert values == {"a": [1.0], "b": [2.0], "large": [3.4028235e38], "minus": ["-Infinity"]}


def test_a_changed_configuration_with_a_bad_entry_is_stored_without_it(address: str) -> None:
    with wandb.init(project="p", config={"lr": 0.1}) as run:
        run.config.update({"depth": np.int8(4), "large": "x" * 70_000, "big": 2**70})
        run.log({"a": 1})
    assert get(address, "/api/runs/1")["reported_config"] == {"lr": 0.1, "depth": 4, "big": str(2**70)}
