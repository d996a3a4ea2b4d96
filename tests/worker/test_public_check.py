"""Whatever a worker stores, another program could have posted: the records of a training run pass the check of strangers."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.ingest.records import read_records
from stablessm_core.report.frames import pack
from stablessm_core.report.messages import CatalogueMessage, TelemetryMessage, catalogues, parts, to_bytes
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush, MemorySink
from stablessm_core.training.train import train
from tests.server.http_service import application, client_of
from tests.server.reporting import Program

pytestmark = pytest.mark.slow
LAYERS = ("stable_ssm", "s4d", "dss", "mamba", "gla")


class Kept(MemorySink):
    """Keeps the messages that a worker's writer would store."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[TelemetryMessage] = []

    def open(self, series: list[SeriesSpec]) -> None:
        super().open(series)
        self.messages += catalogues(series)

    def write(self, flush: Flush) -> None:
        super().write(flush)
        self.messages += parts(flush)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_records_of_a_training_run_can_be_posted(layer: str, sqlite_url: str, tmp_path: Path) -> None:
    data = {"model": {"layer": layer, "d_model": 8, "n_layers": 2}, "train": {"steps": 40, "eval_every": 20, "batch_size": 4}}
    sink = Kept()
    config = parse_config({"task": {"name": "polynomial_memory", "length": 16}} | data)
    train(config, sink=sink, data_root=tmp_path, checkpoint_dir=tmp_path / "checkpoints")
    assert any(isinstance(message, CatalogueMessage) for message in sink.messages)
    bodies = [pack([to_bytes(message)]) for message in sink.messages]
    for body in bodies:
        read_records(body)
    with client_of(application(sqlite_url, tmp_path, runs_per_minute=0)) as client:
        program = Program(client)
        for body in bodies:
            answer = program.post_bytes(body)
            assert answer.status_code == 200, answer.text
        assert answer.json()["stored_through"] == 40
