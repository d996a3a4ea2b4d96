"""The study of every state-space system: submits runs, and reads their results into a table with one row per layer and map.

Each row is one layer with one map, native or best, started at the same eigenvalues. All rows train on the same tasks with the
same seeds. A score is the median over the finite runs, and is always shown with the number of finite runs and of all runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model
from stablessm_core.spec.possible_maps import possible_maps
from studies.progress import wait_for_sweeps

if TYPE_CHECKING:
    from stablessm_core.client import Client

SEEDS = 5
RATIO, DISTANCE = "ssm/0/grad_over_weight", "ssm/0/boundary_distance"


@dataclass(frozen=True)
class Size:
    """The size of the study's runs. tasks: column title -> task section. The first task is also trained at each of the learning
    rates `rates`."""

    name: str
    tasks: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Any]
    steps: int
    batch_size: int
    lr: float
    rates: tuple[float, ...]


QUICK = Size(
    "quick",
    {
        "polynomial memory": {"name": "polynomial_memory", "length": 32},
        "recall": {"name": "multi_query_recall", "length": 16, "pairs": 2, "vocabulary_size": 18},
        "selective copying": {"name": "copying", "noise_length": 12, "memorized": 2, "vocabulary_size": 6, "variable": True},
        "digits": {"name": "digits"},
    },
    {"d_model": 16, "n_layers": 1, "mlp_expansion": 1},
    steps=60,
    batch_size=16,
    lr=0.01,
    rates=(0.1, 1.0),
)
LONG = Size(
    "long",
    {
        "polynomial memory": {"name": "polynomial_memory", "length": 100},
        "recall": {"name": "multi_query_recall", "length": 64, "pairs": 8, "vocabulary_size": 128},
        "selective copying": {"name": "copying", "noise_length": 64, "memorized": 8, "vocabulary_size": 10, "variable": True},
        "digits": {"name": "digits"},
    },
    {"d_model": 64, "n_layers": 2, "mlp_expansion": 2},
    steps=2000,
    batch_size=32,
    lr=0.005,
    rates=(0.02, 0.1, 0.5, 2.0),
)


@dataclass
class Row:
    """The results of one layer with one map.

    scores: for each task, (median score, number of finite runs, number of all runs).
    rates: for each learning rate, (number of finite runs, number of all runs).
    ratios: (99th percentile of |grad|/|w| over all eigenvalues and steps, quotient of the largest and the smallest median
        of |grad|/|w| per eigenvalue); None if no gradient belongs to a single eigenvalue.
    distance: the smallest distance to the stability boundary.
    memory: the longest memory 1/(-ln |lambda_bar|) in steps, at the first and at the last training step.
    """

    layer: str
    map: str
    parameters: int = 0
    scores: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    rates: dict[float, tuple[int, int]] = field(default_factory=dict)
    ratios: tuple[float, float] | None = None
    distance: float | None = None
    memory: tuple[float, float] | None = None
    steps_per_second: float = math.nan

    @property
    def largest_rate(self) -> float | None:
        """The largest learning rate such that every run stays finite at this rate and at all smaller rates, or None."""
        largest = None
        for rate, (finite, total) in sorted(self.rates.items()):
            if finite < total:
                break
            largest = rate
        return largest


def parse_layers(text: str) -> list[str]:
    """The layer names in a comma-separated list. Raises ValueError for an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LAYERS:
            raise ValueError(f"layers contains {name[:80]!r}; allowed: {', '.join(LAYERS)}")
    return names


def reproduce(client: Client, size: Size, layers: Sequence[str], report: Callable[[str], None]) -> list[Row]:
    """The table's rows, from new runs: submit them, wait until they end, read them. `report` receives lines of progress."""
    started = time.monotonic()
    sweep_ids = submit(client, size, layers)
    report(f"sweeps {', '.join(map(str, sweep_ids))} at {client.url}/sweeps")
    wait_for_sweeps(client, sweep_ids, report)
    rows = read(client, size, sweep_ids)
    at_rates = sum(total for row in rows for _, total in row.rates.values())
    report(f"{at_rates} runs tested learning rates; {time.monotonic() - started:.0f} s in all")
    return rows


def submit(client: Client, size: Size, layers: Sequence[str] = ()) -> list[int]:
    """Queue the runs in one sweep per task and, if the size has learning rates, one sweep over them. Returns the sweeps' ids. By
    default, the runs of all layers are queued."""
    base: dict[str, Any] = {
        "optimizer": {"lr": size.lr},
        "train": {"steps": size.steps, "batch_size": size.batch_size, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
    }
    grid: dict[str, list[Any]] = {"model": models(size, layers), "train.seed": list(range(SEEDS))}
    sweeps = [(column, dict(task), grid) for column, task in size.tasks.items()]
    first_task = next(iter(size.tasks.values()))
    if size.rates:
        sweeps.append(("learning rates", dict(first_task), grid | {"optimizer.lr": list(size.rates)}))
    return [
        client.submit_sweep(base | {"task": task}, axes, name=f"systems, {size.name}: {title}")["id"]
        for title, task, axes in sweeps
    ]


def models(size: Size, layers: Sequence[str] = ()) -> list[dict[str, Any]]:
    """`model` sections of the rows: each layer with its native map and, if the layer supports it, with the map best.

    The constant b of the map best is small enough for the layer's largest initial decay rate, so that both maps start at the
    same eigenvalues.
    """
    sections = []
    for name in layers or LAYERS:
        native = dict(size.model) | {"layer": name, "reparameterization": {"name": "native"}}
        sections.append(native)
        layer = Model.model_validate(native).sections()[0]
        best = next((found for found in possible_maps(layer, size.model["d_model"]) if found.name == "best"), None)
        if best is not None and layer.native != "best":
            sections.append(native | {"reparameterization": {"name": "best", "b": best.b or 0.5}})
    return sections


def read(client: Client, size: Size, sweep_ids: Sequence[int]) -> list[Row]:
    """The table's rows, read from the runs of these sweeps (see `submit`). Runs that have not ended count as not finite."""
    runs_by_row: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for sweep_id in sweep_ids:
        for run in client.sweep(sweep_id)["runs"]:
            runs_by_row.setdefault(_layer_and_map(run), []).append(run)
    return [_read_row(client, size, *key, runs) for key, runs in runs_by_row.items()]


def _read_row(client: Client, size: Size, layer: str, map_: str, runs: list[dict[str, Any]]) -> Row:
    row = Row(layer, map_)
    columns = {_task_key(section): column for column, section in size.tasks.items()}
    by_task: dict[str, list[dict[str, Any]]] = {column: [] for column in size.tasks}
    at_other_rates = []
    for run in runs:
        if run["config"]["optimizer"]["lr"] != size.lr:
            at_other_rates.append(run)
        elif (key := _task_key(run["config"]["task"])) in columns:
            by_task[columns[key]].append(run)
    for column, of_task in by_task.items():
        scores = [score for run in of_task if math.isfinite(score := _score(run))]
        row.scores[column] = float(np.median(scores)) if scores else math.nan, len(scores), len(of_task)
    of_first_task = by_task[next(iter(size.tasks))]
    for run in [*of_first_task, *at_other_rates]:
        rate = run["config"]["optimizer"]["lr"]
        finite, total = row.rates.get(rate, (0, 0))
        row.rates[rate] = finite + _is_finite(run), total + 1
    seconds = [run["result"]["seconds"] / run["step"] for run in of_first_task if run["result"] and run["step"]]
    row.steps_per_second = 1 / float(np.median(seconds)) if seconds else math.nan
    with_result = (run["id"] for run in of_first_task if run["result"])
    row.parameters = next((client.run(run_id)["environment"]["parameters"] for run_id in with_result), 0)
    _read_eigenvalues(client, row, of_first_task)
    return row


def _read_eigenvalues(client: Client, row: Row, runs: list[dict[str, Any]]) -> None:
    """Set the row's ratios, distance and memory from the recorded series of the runs."""
    ratios, distances = (list(_recorded(client, runs, name)) for name in (RATIO, DISTANCE))
    if ratios:
        joined = np.concatenate(ratios)
        positive = np.where(np.isfinite(joined) & (joined > 0), joined, np.nan)  # a weight of 0 makes the ratio infinite
        if np.isfinite(positive).any():
            medians = np.nanmedian(positive[:, np.isfinite(positive).any(0)], axis=0)
            row.ratios = float(np.nanquantile(positive, 0.99)), float(medians.max() / medians.min())
    if distances:
        with np.errstate(all="ignore"):
            row.distance = float(np.nanmin([np.nanmin(values) for values in distances]))
            first, last = (np.median([_longest_memory(values[step]) for values in distances]) for step in (0, -1))
        row.memory = float(first), float(last)


def _recorded(client: Client, runs: Sequence[Mapping[str, Any]], name: str) -> Iterator[np.ndarray]:
    """The series of each run that recorded it, (steps, eigenvalues) float64."""
    for run in runs:
        if name in {series["name"] for series in client.catalogue(run["id"])}:
            values = client.series(run["id"], name).value
            if values is not None and len(values):
                yield values.reshape(len(values), -1).astype(np.float64)


def _longest_memory(distance: np.ndarray) -> float:
    inside = distance[(distance > 0) & (distance < 1)]
    return float(1 / -np.log1p(-inside.min())) if len(inside) else math.nan


def _score(run: Mapping[str, Any]) -> float:
    result = run["result"] or {}
    accuracy = result.get("eval_accuracy")
    value = result.get("eval_loss") if accuracy is None else accuracy
    return float(value) if _is_finite(run) and value is not None else math.nan


def _is_finite(run: Mapping[str, Any]) -> bool:
    loss = (run["result"] or {}).get("train_loss")
    return run["status"] == "finished" and loss is not None and math.isfinite(float(loss))


def _layer_and_map(run: Mapping[str, Any]) -> tuple[str, str]:
    layer, map_ = run["config"]["model"]["layer"], run["config"]["model"]["reparameterization"]["name"]
    name = layer if isinstance(layer, str) else layer["name"]
    return str(name), "native" if map_ in ("native", LAYERS[name].native) else str(map_)


def _task_key(section: Mapping[str, Any]) -> str:
    return f"{section['name']} {section.get('variable', '')}".strip().removesuffix(" False")
