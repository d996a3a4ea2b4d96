"""Trains short runs in a real installation, reads them through the client, and writes the results into docs/warnings.md.

    python -m benchmarks.warnings [--data-dir DIR] [--seeds 10 11 12] [--minutes 12] [--only-write]

For each seed, the benchmark trains every combination of variant, optimizer, map and learning rate with `on_warning: continue`.
Then the runs with the map `direct` or `best` that died or raised a critical alert are trained again with every other value of
`on_warning`. After --minutes the remaining runs are cancelled. The data directory keeps the runs and the records, so a second
call continues where the first call stopped. With --only-write, nothing is trained and only the page is rewritten.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.service import installation
from benchmarks.warnings.page import write
from benchmarks.warnings.reading import Record, read
from stablessm_core.client import ApiError, Client
from stablessm_core.spec.paths import with_settings

BASE: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"n_layers": 1, "d_model": 16, "d_state": 16},
    "train": {"steps": 60, "batch_size": 4, "eval_every": 0, "checkpoint_every": 20, "device": "cpu"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "two layers": {"model.n_layers": 2},
    "wider": {"model.d_model": 64, "model.d_state": 64},
    "GELU": {"model.activation": "gelu"},
    "length 784": {
        "task.length": 784,
        "model.d_model": 8,
        "train.steps": 40,
        "train.batch_size": 4,
        "train.checkpoint_every": 10,
    },
    "warm-up, clipping": {"optimizer.warmup_steps": 20, "optimizer.grad_clip": 1.0},
    "other task": {"task": {"name": "associative_recall", "length": 62}, "model.n_layers": 2},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer.name": "adamw"},
    "sgd": {"optimizer.name": "sgd"},
    "sgd, momentum": {"optimizer.name": "sgd", "optimizer.momentum": 0.9},
}
RATES: dict[str, list[float]] = {"adamw": [0.05, 0.2, 0.5], "sgd": [0.05, 0.2, 0.5], "sgd, momentum": [0.02, 0.1, 0.3]}
HIGHER: dict[str, list[float]] = {
    "sgd": [0.2, 1.0, 3.0],
    "sgd, momentum": [0.1, 0.5, 2.0],
}  # learning rates at which no run diverges are left out
OTHER_RATES = {("warm-up, clipping", o): r for o, r in HIGHER.items()} | {("other task", o): r for o, r in HIGHER.items()}
OTHER_RATES[("length 784", "adamw")] = [0.005, 0.02, 0.1]
MAPS = ("direct", "relu", "exp", "best")
ACTED = ("direct", "best")
SETTINGS = ("stop", "rollback", "lower_lr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[10, 11, 12])
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only-write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = (arguments.data_dir or Path(folder) / "state").resolve()
        stored = data_dir / "warnings.json"
        if not arguments.only_write:
            with installation(data_dir, OMP_NUM_THREADS="1", STABLESSM_SLOTS="5") as client:
                records = measure(client, arguments.seeds, arguments.minutes)
                stored.write_text(json.dumps([record.data() for record in records]))
        write([Record(**one) for one in json.loads(stored.read_text())])


def measure(client: Client, seeds: list[int], minutes: float) -> list[Record]:
    began = time.monotonic()
    until = began + 60 * minutes
    done = {sweep["name"] for sweep in client.sweeps()}
    records: list[Record] = []
    for seed in seeds:
        names = []
        for variant, optimizer in itertools.product(VARIANTS, OPTIMIZERS):
            names.append(f"seed {seed}; {variant}; {optimizer}; continue")
            if names[-1] not in done:
                grid: dict[str, list[Any]] = {
                    "model.reparameterization.name": list(MAPS),
                    "optimizer.lr": _rates(variant, optimizer),
                }
                client.submit_sweep(_base(variant, optimizer, seed), grid, name=names[-1])
        wait(client, until)
        records += (own := read(client, set(names)))
        print(f"seed {seed}: {len(own)} runs, {sum(r.died for r in own)} died, {time.monotonic() - began:.0f} s", flush=True)
        names = []
        for record in [r for r in own if r.map in ACTED and (r.died or r.warned)]:
            names.append(f"seed {seed}; {record.variant}; {record.optimizer}; {record.map}; {record.lr:g}; act")
            if names[-1] not in done:
                cell = {"model.reparameterization.name": record.map, "optimizer.lr": record.lr}
                base = with_settings(_base(record.variant, record.optimizer, seed), cell)
                client.submit_sweep(base, {"train.on_warning": list(SETTINGS)}, name=names[-1])
        wait(client, until)
        acted = read(client, set(names))
        print(f"seed {seed}: {len(acted)} runs act at warnings, {time.monotonic() - began:.0f} s", flush=True)
        records += acted
    return records


def _rates(variant: str, optimizer: str) -> list[float]:
    return OTHER_RATES.get((variant, optimizer), RATES[optimizer])


def _base(variant: str, optimizer: str, seed: int) -> dict[str, Any]:
    tags = {"tags": [variant, optimizer], "train.seed": seed}
    return with_settings(BASE, VARIANTS[variant] | OPTIMIZERS[optimizer] | tags)


def wait(client: Client, until: float) -> None:
    """Wait until every run has ended. At the time `until`, cancel the remaining runs, which are then left out of the
    results."""
    while waiting := [run for status in ("queued", "running") for run in client.runs(status=status, limit=500)]:
        if time.monotonic() > until:
            for run in waiting:
                with suppress(ApiError):  # the run may have just ended
                    client.cancel(run["id"])
        time.sleep(3)


if __name__ == "__main__":
    main()
