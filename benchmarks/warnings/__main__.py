"""Trains short runs, and writes into docs/warnings.md how well alerts warn.

    python -m benchmarks.warnings [--output FILE] [--seeds 10 11] [--only-write]
    python -m benchmarks.warnings --mix 720 --seeds 3 4 [--rows FOLDER]

The benchmark trains a healthy run of every layer with each of three optimizers and, for each seed, every combination of variant,
optimizer, map and learning rate with `on_warning: continue`. Then the runs with the map `direct` or `best` that died or raised
a critical alert are trained again with every other value of `on_warning`. FILE keeps one line per run. With --only-write,
nothing is trained, and the page is written from FILE.

With --mix N, N runs for each seed are drawn over every layer, its maps, tasks and optimizers, and the page's tables about this
mix are written. FOLDER keeps the recorded rows, so that changed detectors judge the same runs without training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.warnings import mix_page
from benchmarks.warnings.mix import mixed_runs
from benchmarks.warnings.page import write
from benchmarks.warnings.reading import LAYERS, Record, measure
from stablessm_core.spec.layers import LAYERS as ALL_LAYERS
from stablessm_core.spec.paths import with_settings

RESULTS = Path(__file__).parent.parent / "results" / "warnings_cpu.jsonl"
MIX_RESULTS = RESULTS.with_name("warnings_mix_cpu.jsonl")
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


HEALTHY: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 64},
    "model": {"d_model": 16},
    "train": {"steps": 400, "batch_size": 8, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
}
HEALTHY_RATES = (("adamw", 0.01), ("adamw", 0.001), ("sgd", 0.05))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[10, 11])
    parser.add_argument("--only-write", action="store_true")
    parser.add_argument("--mix", type=int, metavar="N")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    arguments.output = arguments.output or (RESULTS if arguments.mix is None else MIX_RESULTS)
    if arguments.mix is not None:
        _mix(arguments)
        return
    if not arguments.only_write:
        with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
            runs = [*healthy_runs(arguments.seeds[0]), *(config for seed in arguments.seeds for config in plain_runs(seed))]
            records = _counted(pool.imap_unordered(measure, runs), len(runs))
            again = [config for record in records for config in acting_runs(record)]
            records += _counted(pool.imap_unordered(measure, again), len(again))
        records.sort(key=lambda r: (*r.cell, r.layer, r.on_warning))
        _keep(records, arguments.output)
    write(_kept(arguments.output))


def _mix(arguments: argparse.Namespace) -> None:
    """Train the runs of a mix, judge them, and write the page."""
    if not arguments.only_write:
        runs = [config for seed in arguments.seeds for config in mixed_runs(arguments.mix, seed)]
        with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
            _keep(_counted(pool.imap(partial(mix_page.judge, folder=arguments.rows), runs), len(runs)), arguments.output)
    mix_page.write(_kept(arguments.output))


def _keep(records: Iterable[Record], path: Path) -> None:
    path.write_text("".join(json.dumps(record.data()) + "\n" for record in records))


def _kept(path: Path) -> list[Record]:
    return [Record(**json.loads(line)) for line in path.read_text().splitlines()]


def _counted(records: Iterable[Record], total: int) -> list[Record]:
    found = []
    for record in records:
        found.append(record)
        if len(found) % 50 == 0:
            print(f"{len(found)} of {total} runs", flush=True)
    return found


def plain_runs(seed: int) -> Iterator[dict[str, Any]]:
    """The runs around the largest stable learning rate."""
    for variant, optimizer in itertools.product(VARIANTS, OPTIMIZERS):
        for map_, lr in itertools.product(MAPS, OTHER_RATES.get((variant, optimizer), RATES[optimizer])):
            yield _config(variant, optimizer, map_, lr, seed)


def healthy_runs(seed: int) -> Iterator[dict[str, Any]]:
    """A run of every layer with each optimizer, and runs of 3,000 steps of stable_ssm."""
    for layer, (optimizer, lr) in itertools.product(ALL_LAYERS, HEALTHY_RATES):
        settings = {"model.layer": layer, "optimizer.name": optimizer, "optimizer.lr": lr, "train.seed": seed}
        small = {"model.d_state": 16} if layer == "stable_ssm" else {}
        yield with_settings(HEALTHY, settings | small | {"tags": [LAYERS, optimizer]})
    for map_, lr in itertools.product(MAPS, (0.01, 0.003)):
        settings = {"model.reparameterization.name": map_, "model.d_state": 16, "optimizer.lr": lr}
        yield with_settings(HEALTHY, settings | {"train.steps": 3000, "train.seed": seed, "tags": [LAYERS, "adamw"]})


def acting_runs(record: Record) -> Iterator[dict[str, Any]]:
    """The run again with every setting of `on_warning`, if acting could matter."""
    if record.variant != LAYERS and record.map in ACTED and (record.died or record.warned):
        for setting in SETTINGS:
            config = _config(record.variant, record.optimizer, record.map, record.lr, record.seed)
            yield with_settings(config, {"train.on_warning": setting})


def _config(variant: str, optimizer: str, map_: str, lr: float, seed: int) -> dict[str, Any]:
    settings = {"tags": [variant, optimizer], "train.seed": seed, "model.reparameterization.name": map_, "optimizer.lr": lr}
    return with_settings(BASE, VARIANTS[variant] | OPTIMIZERS[optimizer] | settings)


if __name__ == "__main__":
    main()
