"""Short runs through a real installation, read back by the client; writes the tables and curves of docs/warnings.md.

    python -m benchmarks.warnings [--data-dir DIR] [--seeds 10 11 12] [--minutes 12] [--only-write]

Of each seed every variant, optimizer, map and learning rate is trained with `on_warning: continue`; then the cells of `direct`
and `best` that died or raised a critical alert are trained again with each other setting. After --minutes
what has not ended is cancelled.
The installation's data directory keeps runs and records: a second call goes on there, --only-write only writes the page again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.warnings.page import write
from benchmarks.warnings.reading import Record, read
from stablessm_core.client import ApiError, Client
from stablessm_core.config import with_settings

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
HIGHER: dict[str, list[float]] = {"sgd": [0.2, 1.0, 3.0], "sgd, momentum": [0.1, 0.5, 2.0]}  # where the others do not die
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
            with installation(data_dir) as client:
                records = measure(client, arguments.seeds, arguments.minutes)
                stored.write_text(json.dumps([record.data() for record in records]))
        write([Record(**one) for one in json.loads(stored.read_text())])


@contextmanager
def installation(data_dir: Path) -> Iterator[Client]:
    """A client of `stablessm up` with five lanes, which is ended afterwards."""
    data_dir.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"STABLESSM_DATA_DIR": str(data_dir), "OMP_NUM_THREADS": "1", "STABLESSM_SLOTS": "5"}
    environment.pop("STABLESSM_TOKEN", None)
    command = [str(Path(sys.executable).parent / "stablessm"), "up", "--port", "0"]
    with (data_dir / "up.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield Client(*_address(data_dir, process), timeout=300)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _address(data_dir: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    for _ in range(1200):
        if process.poll() is not None:
            sys.exit((data_dir / "up.log").read_text()[-3000:])
        try:
            found = json.loads((data_dir / "up.json").read_text())
            url, token = found["url"], (data_dir / "token").read_text().strip()
            if found["pid"] == process.pid and url:
                with Client(url, token) as client:
                    client.ready()
                return url, token
        except (OSError, ValueError, KeyError, ApiError):  # not up yet
            pass
        time.sleep(0.2)
    sys.exit("the installation does not come up")


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
    """Until every run has ended; at that time those that have not are cancelled and count nowhere."""
    while waiting := [run for status in ("queued", "running") for run in client.runs(status=status, limit=500)]:
        if time.monotonic() > until:
            for run in waiting:
                with suppress(ApiError):  # it has just ended
                    client.cancel(run["id"])
        time.sleep(3)


if __name__ == "__main__":
    main()
