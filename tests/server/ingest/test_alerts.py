"""A program that posts its rows by hand gets the alerts of `stablessm.watch`, each once, whatever is repeated or restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from stablessm_core.report.messages import CatalogueMessage, EndMessage, EnvironmentMessage, TruncateMessage
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import GRAD_NORM, SCALARS, TRAIN_LOSS, SeriesSpec, layer_catalogue, scalar
from stablessm_core.telemetry.sink import Flush
from tests.server.http_service import application, client_of
from tests.server.reporting import Program

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]
WIDTH, STEPS = 3, 400
FORM = Form("direct", "discrete", "none")
DESCRIBED: dict[str, Any] = {
    "layers": [{"name": "memory", "path": "model.memory", "width": WIDTH}],
    "how": {"optimizer": "sgd", "lr": 0.5},
}


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(database_url, tmp_path, runs_per_minute=0)) as client:
        yield client


def crossing() -> tuple[np.ndarray, np.ndarray]:
    """The loss and the weights of a run whose first eigenvalue crosses the boundary at step 100, and which is NaN from 300 on."""
    steps = np.arange(1, STEPS + 1)
    weights = np.full((WIDTH, STEPS), 0.5, np.float32)
    weights[0] = np.where(steps < 100, 0.9, 1.01)
    weights[:, steps >= 300] = np.nan
    return np.where(steps >= 301, np.nan, 1.0).astype(np.float32), weights


def posts(size: int, *, stride: int = 1, split: bool = False) -> list[list[Flush]]:
    """The flushes of each post. split: the loss and the weights travel in flushes of their own."""
    loss, weights = (values[..., ::stride] for values in crossing())
    ratio = np.where(np.isfinite(weights), 0.01, np.nan).astype(np.float32)
    found = []
    for at in range(0, loss.shape[-1], size):
        part, first = np.s_[..., at : at + size], 1 + at * stride
        blocks = [
            Block(SCALARS, 0, first, stride, loss[None][part]),
            Block("ssm/0", 0, first, stride, np.concatenate([ratio, weights])[part]),
        ]
        last = blocks[0].last_step
        found.append([Flush([b], [], last, None) for b in blocks] if split else [Flush(blocks, [], last, None)])
    return found


def opened(client: httpx.Client, **more: Any) -> Program:
    program = Program(client, more=DESCRIBED | more)
    assert program.post(CatalogueMessage([scalar(TRAIN_LOSS), *layer_catalogue(0, WIDTH, FORM)])).status_code == 200
    return program


def alerts(client: httpx.Client, program: Program) -> list[tuple[str, int]]:
    found = client.get(f"/api/runs/{program.run_id}/alerts").json()["alerts"]
    return sorted((one["kind"], one["step"]) for one in found)


EXPECTED = [("nonfinite_loss", 301), ("nonfinite_weight", 300), ("unstable_eigenvalue", 100)]


@pytest.mark.parametrize("size", [1, 50, 400])
@pytest.mark.parametrize("split", [False, True])
def test_each_alert_is_raised_once_at_its_step_however_the_rows_are_posted(client: httpx.Client, size: int, split: bool) -> None:
    program = opened(client)
    for post in posts(size, split=split):
        for _ in range(2):  # the answer may be lost, and the post repeated
            assert program.post(*post).status_code == 200
    assert program.post(EndMessage("diverged", "NaN")).status_code == 200
    assert alerts(client, program) == EXPECTED
    found = {one["kind"]: one for one in client.get(f"/api/runs/{program.run_id}/alerts").json()["alerts"]}
    assert (found["unstable_eigenvalue"]["layer"], found["unstable_eigenvalue"]["eigenvalue"]) == (0, 0)
    assert found["nonfinite_weight"]["tensor"] == "model.memory"
    assert "this lasted from step 100 to step 299" in found["unstable_eigenvalue"]["message"]


def test_posts_to_two_servers_and_a_restart_raise_each_alert_once(database_url: str, tmp_path: Path) -> None:
    with client_of(application(database_url, tmp_path / "a", runs_per_minute=0)) as client:
        program, waiting = opened(client), posts(10)
        for number, post in enumerate(waiting):
            if number % 7 == 3:
                with client_of(application(database_url, tmp_path / str(number), runs_per_minute=0)) as other:
                    program.client = other
                    assert program.post(*post).status_code == 200
                program.client = client
            assert program.post(*post).status_code == 200
        assert alerts(client, program) == EXPECTED


def test_rows_of_every_tenth_step_name_their_own_steps(client: httpx.Client) -> None:
    program = opened(client)
    for post in posts(7, stride=10):
        assert program.post(*post).status_code == 200
    assert alerts(client, program) == [("nonfinite_loss", 301), ("nonfinite_weight", 301), ("unstable_eigenvalue", 101)]


def test_a_program_that_computes_its_alerts_gets_no_others(client: httpx.Client) -> None:
    says, raises, old = opened(client), opened(client), opened(client)
    says.post(EnvironmentMessage({"computes_alerts": True}))
    old.post(EnvironmentMessage({"device": "cpu", "torch": "2", "python": "3", "gradient": "raw"}))
    own = KINDS["nonfinite_loss"].alert(step=7, message="mine", series=TRAIN_LOSS, tensor="loss")
    raises.post(Flush([], [own], 0, None))
    for program in (says, raises, old):
        for post in posts(100):
            assert program.post(*post).status_code == 200
    assert [alerts(client, program) for program in (says, raises, old)] == [[], [("nonfinite_loss", 7)], []]


def test_steps_that_were_taken_back_raise_their_alerts_again(client: httpx.Client) -> None:
    program, waiting = opened(client), posts(50)
    for post in waiting[:5]:
        program.post(*post)
    assert alerts(client, program) == [("unstable_eigenvalue", 100)]
    assert program.post(TruncateMessage(50, "back")).status_code == 200
    for post in waiting[1:]:
        assert program.post(*post).status_code == 200
    assert alerts(client, program) == EXPECTED


def test_two_layers_and_an_exploding_loss_are_judged_like_watched_ones(client: httpx.Client) -> None:
    program = Program(client, more=DESCRIBED | {"layers": [DESCRIBED["layers"][0]] * 2})
    series = [scalar(TRAIN_LOSS), *layer_catalogue(0, 1, FORM), *layer_catalogue(1, 1, FORM)]
    assert program.post(CatalogueMessage(series)).status_code == 200
    loss = np.array([[1.0] * 30 + [1e3] * 10], np.float32)
    weights = [np.array([[0.0] * 40, [0.5] * 40], np.float32), np.array([[0.1] * 40, [0.5] * 20 + [2.0] * 20], np.float32)]
    blocks = [Block(SCALARS, 0, 1, 1, loss), *(Block(f"ssm/{i}", 0, 1, 1, values) for i, values in enumerate(weights))]
    assert program.post(Flush(blocks, [], 40, None)).status_code == 200
    assert alerts(client, program) == [("training_explodes", 31), ("unstable_eigenvalue", 21)]
    found = client.get(f"/api/runs/{program.run_id}/alerts").json()["alerts"]
    assert {one["kind"]: one["severity"] for one in found}["training_explodes"] == "critical"


def test_a_run_of_scalars_alone_gets_the_alerts_about_its_loss(client: httpx.Client) -> None:
    program = Program(client)
    assert program.post(CatalogueMessage([scalar(TRAIN_LOSS), scalar(GRAD_NORM)])).status_code == 200
    for step in range(1, 40):
        values = np.array([[np.inf if step == 20 else 1.0], [1.0]], np.float32)
        assert program.post(Flush([Block(SCALARS, 0, step, 1, values)], [], step, None)).status_code == 200
    assert alerts(client, program) == [("nonfinite_loss", 20)]


def test_groups_of_other_series_raise_nothing(client: httpx.Client) -> None:
    program = Program(client)
    series = [SeriesSpec("ssm/0/gate_mean", "ssm/0", 2, "", ""), SeriesSpec("speed", "more", 1, "", "")]
    assert program.post(CatalogueMessage(series)).status_code == 200
    blocks = [Block(group, 0, 1, 1, np.full((width, 5), np.nan, np.float32)) for group, width in (("ssm/0", 2), ("more", 1))]
    assert program.post(Flush(blocks, [], 5, None)).status_code == 200
    assert alerts(client, program) == []
