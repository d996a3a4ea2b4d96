"""One call of the client returns the server's data as a DataFrame, including non-finite numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.client import Client, PandasMissing
from tests.server.http_service import BODY, TOKEN, InProcess, application
from tests.server.recording import Recording, claim, nonfinite

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('frames')}/frames.db")
    database.migrate()
    yield database
    database.close()


@pytest.fixture(scope="module")
def client(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A sweep of four runs: finished with 20 recorded steps, diverged to NaN, failed, and queued."""
    transport = InProcess(application(database.url, tmp_path_factory.mktemp("state")))
    with Client("http://127.0.0.1:8000", TOKEN, transport=transport) as client:
        client.submit_sweep(BODY, {"optimizer.lr": [0.01, 0.02], "train.seed": [1, 2]}, name="four")
        ends = [("finished", {"train_loss": 0.5}), ("diverged", {"train_loss": float("nan")}), ("failed", None)]
        for number, (status, result) in enumerate(ends):
            taken = claim(database)
            if number == 0:
                Recording(database, taken, width=3).write(20, [nonfinite(step=7)])
            with database.write() as session:
                where = {"step": 28, "layer": 0, "eigenvalue": 2, "tensor": "w"} if status == "diverged" else None
                lifecycle.finish(session, taken.run_id, taken.attempt, status, "", result, where)
        yield client


def test_the_frame_of_a_sweep_has_a_row_for_every_run(client: Client) -> None:
    frame = client.sweep_frame(1)
    assert frame.index.tolist() == [1, 2, 3, 4]
    assert frame["status"].tolist() == ["finished", "diverged", "failed", "queued"]
    assert frame["train_loss"].dtype == np.float64
    assert np.array_equal(frame["train_loss"], [0.5, np.nan, np.nan, np.nan], equal_nan=True)
    assert frame["diverged_step"].isna().tolist() == [True, False, True, True]
    assert frame.loc[2, "diverged_step"] == 28
    assert (frame.attrs["finite"], frame.attrs["total"]) == (1, 4)
    groups = client.sweep_frame(1, group_by=["optimizer.lr"])
    assert groups[["optimizer.lr", "finite", "total"]].to_numpy().tolist() == [[0.01, 1, 2], [0.02, 0, 2]]


def test_the_frame_of_runs_has_columns_for_settings_and_results(client: Client) -> None:
    frame = client.runs_frame("seed=1", sort="id")
    assert frame.index.tolist() == [1, 3]
    assert frame["optimizer.lr"].tolist() == [0.01, 0.02]
    assert frame["sweep_name"].tolist() == ["four", "four"]
    assert np.isnan(client.runs_frame("status=diverged").loc[2, "result.train_loss"])
    assert client.runs_frame("seed=9").empty


def test_the_frame_of_series_has_a_column_per_eigenvalue(client: Client) -> None:
    frame = client.series_frame(1, ["train/loss", "ssm/0/grad_over_weight"])
    assert frame.index.tolist() == list(range(1, 21))
    assert frame.columns.tolist() == ["train/loss", *(f"ssm/0/grad_over_weight[{i}]" for i in range(3))]
    truth = client.series(1, "ssm/0/grad_over_weight").value
    assert np.array_equal(frame.iloc[:, 1:].to_numpy(), truth, equal_nan=True)
    assert client.series_frame(1, "train/loss", from_step=3, to_step=4).index.tolist() == [3, 4]


def test_the_error_without_pandas_names_the_package_to_install(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for call in (lambda: client.sweep_frame(1), client.runs_frame, lambda: client.series_frame(1, ["train/loss"])):
        with pytest.raises(PandasMissing, match=r"pip install 'stablessm-service\[frames\]'"):
            call()
