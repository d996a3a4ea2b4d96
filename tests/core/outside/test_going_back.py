"""Steps that a run takes again, and numbers at other steps than the optimizer's, reach a server as the program meant them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import stablessm
import stablessm as wandb
from server.cli.sync import sync
from stablessm_core.report.outbox import read_run_file
from tests.core.outside.stand_ins import Mamba2Mixer
from tests.core.outside.test_reporting import check_stored, get, train, wait_for, watched
from tests.server.http_service import TOKEN, running

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]
NAME = "8d3b2c6e-43b5-4a43-8d8a-3c05e7d1a001"


@pytest.fixture
def address(database_url: str, tmp_path: Path) -> Iterator[str]:
    with running(database_url, tmp_path, runs_per_minute=0) as (address, _):
        yield address


def send(address: str, *paths: Path) -> str:
    done = CliRunner(env={"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}).invoke(sync, [str(path) for path in paths])
    assert done.exit_code == 0, done.output
    return done.output


def recorded(tmp_path: Path, folder: str, steps: int, **more: Any) -> tuple[Path, list[torch.Tensor]]:
    """The file of an offline run, and its weights."""
    run, optimizer, weights = watched(tmp_path, mode="offline", dir=tmp_path / folder, id=NAME, **more)
    train(run, optimizer, steps)
    run.finish()
    return Path(str(run.path)), weights


def test_a_file_that_goes_back_replaces_the_later_steps_once(address: str, tmp_path: Path) -> None:
    first, old = recorded(tmp_path, "first", 30)
    second, new = recorded(tmp_path, "second", 25, resume="allow", from_step=20)
    third, last = recorded(tmp_path, "third", 10, resume="allow", from_step=40)
    send(address, first)
    send(address, second)
    assert "up to step 45" in send(address, Path(f"{second}.synced"))
    check_stored(address, 1, old[:20] + new, "finished")
    send(address, third)
    send(address, Path(f"{second}.synced"), Path(f"{first}.synced"))
    check_stored(address, 1, old[:20] + new[:20] + last, "finished")


def test_an_interrupted_sync_of_such_a_file_does_not_go_back_again(address: str, tmp_path: Path) -> None:
    first, old = recorded(tmp_path, "first", 30)
    second, new = recorded(tmp_path, "second", 25, resume="allow", from_step=20)
    send(address, first)
    copy = tmp_path / "copy.ssmr"
    assert read_run_file(second).opening["from_step"] == 20
    send(address, second)
    copy.write_bytes(Path(f"{second}.synced").read_bytes())
    assert "from_step" not in read_run_file(copy).opening
    send(address, copy)
    check_stored(address, 1, old[:20] + new, "finished")


def test_the_file_of_a_killed_process_that_went_back_online_does_not_go_back_again(address: str, tmp_path: Path) -> None:
    run, optimizer, first = watched(tmp_path, url=address, id=NAME)
    train(run, optimizer, 30)
    run.finish()
    run, optimizer, second = watched(tmp_path, url=address, id=NAME, resume="must", from_step=20)
    train(run, optimizer, 20)
    time.sleep(0.4)
    killed = tmp_path / "killed.ssmr"
    killed.write_bytes(Path(str(run.path)).read_bytes())
    train(run, optimizer, 20)
    run.finish()
    send(address, killed)
    check_stored(address, 1, first[:20] + second, "finished")


def test_numbers_at_later_steps_do_not_move_the_run(address: str, tmp_path: Path) -> None:
    run, optimizer, weights = watched(tmp_path, url=address, id=NAME)
    train(run, optimizer, 20)
    run.log({"by tokens": 1.5}, step=1_000_000)
    run.log({"by tokens": 2.5}, step=2_000_000)
    run.log({"early": 3.5}, step=0)
    run.log({"odd": 1.0}, step=2.5)
    run.finish()
    assert check_stored(address, 1, weights, "finished")["step"] == 20
    found = get(address, "/api/runs/1/series/by tokens?max_points=100")
    assert (found["step"], found["value"]) == ([1_000_000, 2_000_000], [1.5, 2.5])
    assert get(address, "/api/runs/1/series/early")["step"] == [0]
    run, optimizer, more = watched(tmp_path, url=address, id=NAME, resume="must")
    train(run, optimizer, 5)
    run.finish()
    check_stored(address, 1, weights + more, "finished")


def test_a_run_of_numbers_alone_goes_on_after_its_last_step(address: str, tmp_path: Path) -> None:
    for values in ((0.0, 1.0, 2.0), (3.0, 4.0)):
        with stablessm.log_only(url=address, token=TOKEN, dir=tmp_path, id=NAME, resume="allow") as run:
            for value in values:
                run.log({"a": value})
    found = get(address, "/api/runs/1/series/a")
    assert (found["step"], found["value"]) == ([1, 2, 3, 4, 5], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert get(address, "/api/runs/1")["step"] == 5


def test_what_a_program_for_wandb_changes_after_init_reaches_the_server(address: str, tmp_path: Path) -> None:
    model = Mamba2Mixer(5)
    with wandb.init(project="p", config={"lr": 0.1}, url=address, token=TOKEN, dir=tmp_path) as run:
        assert run.url is not None
        wandb.log({"before": 1})
        run.config.lr = 0.2
        wait_for(lambda: get(address, "/api/runs/1")["reported_config"] == {"lr": 0.2})
        wandb.watch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        weights = []
        for _ in range(30):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1)
            weights.append(model.A_log.detach().clone())
            optimizer.step()
            wandb.log({"val/acc": run.step / 1000})
        run.config.depth = 3
        run.summary["best"] = 0.75
        wait_for(lambda: get(address, "/api/runs/1")["reported_config"] == {"lr": 0.2, "depth": 3})
        wait_for(lambda: run._uplink is not None and run._uplink.sent == run._outbox.size)
    stored = check_stored(address, 1, weights, "finished")
    assert stored["reported_config"] == {"lr": 0.2, "depth": 3}
    assert (stored["how"]["optimizer"], stored["layers"][0]["path"], stored["result"]["best"]) == ("sgd", "A_log", 0.75)
    assert list(tmp_path.glob("*.ssmr*")) == []
