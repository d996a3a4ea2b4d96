"""The recording process of `benchmarks.workload`. It records a run that was submitted over REST. The records pass through the
recorder, the worker's sink and the fence.

    python -m benchmarks.recording '{"url", "data_dir", "values", "full"}'

Prints one JSON object with the time of the first call of `Recorder.record`, the durations of each call, of all calls and of
storing, and the number of dropped steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.lifecycle.event_wakeups import publisher
from stablessm_core.model import build_model
from stablessm_core.report.messages import EndMessage
from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.sink import ResumableSink
from stablessm_core.training.recording import make_recorder
from stablessm_core.training.run import magnitudes
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.recorder import Recorder
from worker.attempt import spool_path
from worker.writer import Writer

LAYERS, WIDTH = 4, 64


def main() -> None:
    torch.set_num_threads(1)
    order: dict[str, Any] = json.loads(sys.argv[1])
    claim, database, writer = join(order["url"], Path(order["data_dir"]).resolve())
    values = np.load(order["values"])
    recorder, rows = full(RunConfig.model_validate(claim.config), writer, values) if order["full"] else plain(writer, values)
    blocked, started = [], time.time()
    for step, row in enumerate(rows, start=1):
        at = time.perf_counter()
        recorder.record(step, row)
        blocked.append(time.perf_counter() - at)
    looped = time.time()
    recorder.close()
    writer.wait_stored()
    stored = time.time()
    writer.finish(EndMessage("finished", "", {"train_loss": recorder.latest[names.TRAIN_LOSS]}, None))
    dropped = recorder.dropped + recorder.errors
    print(json.dumps({"started": started, "loop_s": looped - started, "stored_s": stored - started, "blocked": blocked,
                      "dropped": dropped}))  # fmt: skip
    database.close()


def join(url: str, data_dir: Path) -> tuple[lifecycle.Claim, Database, Writer]:
    """Claims a run. Returns the claim, the database, and the worker's sink for the run."""
    database = Database(url)
    with database.write() as session:
        claim = lifecycle.claim(session, "benchmark", {"devices": ["cpu"], "data": {}})
    if claim is None:
        raise SystemExit("nothing is queued")
    writer = Writer(
        database,
        claim.run_id,
        claim.attempt,
        data_dir=data_dir,
        outbox=spool_path(data_dir, claim.run_id, claim.attempt),
        outbox_bytes=1 << 30,
        publish=publisher(database, None),
        on_lease_lost=lambda: os._exit(75),
    )
    return claim, database, writer


def plain(sink: ResumableSink, values: np.ndarray) -> tuple[Recorder, list[torch.Tensor]]:
    """A recorder, and the rows of only workload W of `benchmarks.workload`: the loss and 256 ratios |gradient| / |weight|."""
    ratios = [names.layer_catalogue(layer, WIDTH, Form.of_map("best", "discrete"))[0] for layer in range(LAYERS)]
    catalogue = [names.scalar(names.TRAIN_LOSS), *ratios]
    return Recorder(catalogue, sink, layout=[(s.name, s.width) for s in catalogue]), list(torch.from_numpy(values))


def full(config: RunConfig, sink: ResumableSink, values: np.ndarray) -> tuple[Recorder, list[torch.Tensor]]:
    """A recorder, and rows with everything that the trainer records: the loss and the ratios of workload W, slowly changing
    weights, and ones in all other columns."""
    task = get_task(config.task, Path())
    probe = Probe(build_model(config, task), None, magnitudes(task))
    walk = np.cumsum(np.random.default_rng(8).normal(0, 1e-3, (len(values), LAYERS * WIDTH)), axis=0) + 2
    columns = []
    for name, width in probe.layout:
        layer = int(name.split("/")[1]) if name[:3] in ("ssm", "sta") else 0
        own = slice(layer * WIDTH, (layer + 1) * WIDTH)
        if name == names.TRAIN_LOSS:
            columns.append(values[:, :1])
        elif name.endswith("/grad_over_weight"):
            columns.append(values[:, 1:][:, own])
        elif name.endswith("/weight"):
            columns.append(walk[:, own].astype(np.float32))
        else:
            columns.append(np.ones((len(values), width), np.float32))
    rows = torch.from_numpy(np.concatenate(columns, axis=1))
    return make_recorder(config, task, probe, sink, torch.device("cpu")), list(rows)


if __name__ == "__main__":
    main()
