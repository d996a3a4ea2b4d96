"""The table of every state-space system: which runs it is made of, what is read of them, and a sentence that they support.

Each row is one layer with one map, native or best, started at the same eigenvalues; all rows train on the same tasks with the
same seeds. Nothing is averaged away: every score says of how many runs it is the median, and how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stablessm_core.config import Model
from stablessm_core.layers.registry import LAYERS
from stablessm_core.possible_maps import possible_maps

if TYPE_CHECKING:
    from stablessm_core.client import Client

SEEDS = 5
RATIO, DISTANCE = "ssm/0/grad_over_weight", "ssm/0/boundary_distance"


@dataclass(frozen=True)
class Size:
    """How large the runs are. tasks: column -> section; the first one is also trained at each of `rates`."""

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


def models(size: Size, layers: Sequence[str] = ()) -> list[dict[str, Any]]:
    """`model` sections of the rows: each layer with its native map and, where it can have another, with best.

    best's constant b leaves room over the layer's fastest initial rate, so that both start at the same eigenvalues.
    """
    found = []
    for name in layers or LAYERS:
        native = dict(size.model) | {"layer": name, "reparameterization": {"name": "native"}}
        found.append(native)
        section = Model.model_validate(native).sections()[0]
        best = next((one for one in possible_maps(section, size.model["d_model"]) if one.name == "best"), None)
        if best is not None and section.native != "best":
            found.append(native | {"reparameterization": {"name": "best", "b": best.b or 0.5}})
    return found


def submit(client: Client, size: Size, layers: Sequence[str] = ()) -> list[int]:
    """Queue the runs, a sweep for each task and one over the learning rates; gives the sweeps' numbers."""
    base: dict[str, Any] = {
        "optimizer": {"lr": size.lr},
        "train": {"steps": size.steps, "batch_size": size.batch_size, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
    }
    axes: dict[str, list[Any]] = {"model": models(size, layers), "train.seed": list(range(SEEDS))}
    first = next(iter(size.tasks.values()))
    sweeps = [(column, base | {"task": dict(task)}, axes) for column, task in size.tasks.items()]
    sweeps.append(("learning rates", base | {"task": dict(first)}, axes | {"optimizer.lr": list(size.rates)}))
    return [client.submit_sweep(one, grid, name=f"systems, {size.name}: {what}")["id"] for what, one, grid in sweeps]


@dataclass
class Row:
    """One layer with one map. scores: per task (median, finite runs, all runs). ratios: 99th percentile of |grad|/|w| over all
    eigenvalues and steps, and largest over smallest of the eigenvalues' medians; None where no gradient belongs to an eigenvalue.
    memory: longest 1/(-ln |lambda_bar|) in steps, at the first and the last step."""

    layer: str
    map: str
    parameters: int = 0
    scores: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    rates: dict[float, tuple[int, int]] = field(default_factory=dict)
    ratios: tuple[float, float] | None = None
    distance: float | None = None
    memory: tuple[float, float] | None = None
    steps_per_second: float = math.nan
    causes: tuple[str, ...] = ()

    @property
    def largest_rate(self) -> float | None:
        """The largest learning rate up to which every run of every smaller one was finite, too."""
        found = None
        for rate, (finite, total) in sorted(self.rates.items()):
            if finite < total:
                break
            found = rate
        return found


def read(client: Client, size: Size, sweeps: Sequence[int]) -> list[Row]:
    """The rows, from the runs of the sweeps that `submit` made, as far as they have ended."""
    runs = [run for sweep in sweeps for run in client.sweep(sweep)["runs"]]
    columns = {_task_key(section): column for column, section in size.tasks.items()}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(_row_of(run), []).append(run)
    return [_row(client, size, key, of, columns) for key, of in rows.items()]


def _row(client: Client, size: Size, key: tuple[str, str], runs: list[dict[str, Any]], columns: Mapping[str, str]) -> Row:
    row = Row(*key)
    at_base = [run for run in runs if run["config"]["optimizer"]["lr"] == size.lr]
    first = next(iter(size.tasks))
    for column in size.tasks:
        of = [run for run in at_base if columns.get(_task_key(run["config"]["task"])) == column]
        values = [value for run in of if math.isfinite(value := _score(run))]
        row.scores[column] = float(np.median(values)) if values else math.nan, len(values), len(of)
    memory = [run for run in at_base if columns.get(_task_key(run["config"]["task"])) == first]
    for run in [*memory, *(run for run in runs if run["config"]["optimizer"]["lr"] != size.lr)]:
        rate = run["config"]["optimizer"]["lr"]
        finite, total = row.rates.get(rate, (0, 0))
        row.rates[rate] = finite + _is_finite(run), total + 1
    row.causes = tuple(sorted({run["cause"] for run in runs if run.get("cause")}))
    seconds = [run["result"]["seconds"] / run["step"] for run in memory if run["result"] and run["step"]]
    row.steps_per_second = 1 / float(np.median(seconds)) if seconds else math.nan
    row.parameters = next((client.run(run["id"])["environment"]["parameters"] for run in memory if run["result"]), 0)
    _spectrum(client, row, memory)
    return row


def _spectrum(client: Client, row: Row, runs: list[dict[str, Any]]) -> None:
    ratios, distances = (list(_recorded(client, runs, name)) for name in (RATIO, DISTANCE))
    if ratios:
        every = np.concatenate(ratios)
        some = np.where(np.isfinite(every) & (every > 0), every, np.nan)  # infinite where a weight is 0
        if np.isfinite(some).any():
            middle = np.nanmedian(some[:, np.isfinite(some).any(0)], axis=0)
            row.ratios = float(np.nanquantile(some, 0.99)), float(middle.max() / middle.min())
    if distances:
        with np.errstate(all="ignore"):
            row.distance = float(np.nanmin([np.nanmin(values) for values in distances]))
            first, last = (np.median([_longest(values[at]) for values in distances]) for at in (0, -1))
        row.memory = float(first), float(last)


def _recorded(client: Client, runs: Sequence[Mapping[str, Any]], name: str) -> Iterator[np.ndarray]:
    """The series of each run that records it, (steps, eigenvalues) float64."""
    for run in runs:
        if name in {one["name"] for one in client.catalogue(run["id"])}:
            values = client.series(run["id"], name).value
            if values is not None and len(values):
                yield values.reshape(len(values), -1).astype(np.float64)


def _longest(distance: np.ndarray) -> float:
    inside = distance[(distance > 0) & (distance < 1)]
    return float(1 / -np.log1p(-inside.min())) if len(inside) else math.nan


def _score(run: Mapping[str, Any]) -> float:
    result = run["result"] or {}
    value = result.get("eval_accuracy")
    value = result.get("eval_loss") if value is None else value
    return float(value) if _is_finite(run) and value is not None else math.nan


def _is_finite(run: Mapping[str, Any]) -> bool:
    loss = (run["result"] or {}).get("train_loss")
    return run["status"] == "finished" and loss is not None and math.isfinite(float(loss))


def _row_of(run: Mapping[str, Any]) -> tuple[str, str]:
    layer, map_ = run["config"]["model"]["layer"], run["config"]["model"]["reparameterization"]["name"]
    name = layer if isinstance(layer, str) else layer["name"]
    return str(name), "native" if map_ in ("native", LAYERS[name].native) else str(map_)


def _task_key(section: Mapping[str, Any]) -> str:
    return f"{section['name']} {section.get('variable', '')}".strip().removesuffix(" False")


def table(rows: Sequence[Row], size: Size) -> Iterator[str]:
    """The lines of a Markdown table, a row each."""
    losses = next(iter(size.tasks))
    heads = [
        "layer", "map", "parameters", *(f"{column}{', loss' if column == losses else ''}" for column in size.tasks),
        "largest lr with all seeds finite", "p99 of \\|grad\\|/\\|w\\|", "spread over eigenvalues", "smallest distance",
        "longest memory, first → last step", "steps/s",
    ]  # fmt: skip
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        cells = [
            row.layer,
            row.map,
            f"{row.parameters:,}",
            *(_cell(row.scores.get(column)) for column in size.tasks),
            _rates(row),
        ]
        cells += [_number(row.ratios[0]), _number(row.ratios[1])] if row.ratios else ["none", "none"]
        cells.append("none" if row.distance is None else _number(row.distance))
        cells.append("none" if row.memory is None else f"{_number(row.memory[0])} → {_number(row.memory[1])}")
        yield "| " + " | ".join([*cells, f"{row.steps_per_second:.0f}"]) + " |"


def _cell(score: tuple[float, int, int] | None) -> str:
    if score is None:
        return ""
    value, finite, total = score
    return f"{_number(value)}" + (f" ({finite}/{total})" if finite < total else "")


def _rates(row: Row) -> str:
    largest = row.largest_rate
    lost = [f"{rate:g}: {finite}/{total}" for rate, (finite, total) in sorted(row.rates.items()) if finite < total]
    return ("none" if largest is None else f"{largest:g}") + (f" ({', '.join(lost)})" if lost else "")


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def sentences(rows: Sequence[Row], size: Size) -> Iterator[str]:
    """One sentence per row, of what its numbers say and no more."""
    native = {row.layer: row for row in rows if row.map == "native"}
    for row in rows:
        yield f"- **{row.layer}, {row.map}**: " + _sentence(row, native.get(row.layer), size)


def _sentence(row: Row, native: Row | None, size: Size) -> str:
    rates = sorted(row.rates)
    stable = row.largest_rate
    if stable is None:
        text = f"not all seeds stay finite even at lr {rates[0]:g}"
    elif stable == rates[-1]:
        text = f"all seeds stay finite up to lr {stable:g}, the largest tried"
    else:
        text = f"all seeds stay finite up to lr {stable:g}, not at {rates[rates.index(stable) + 1]:g}"
    if row.ratios is None:
        text += "; its eigenvalues have no weight of their own to measure a gradient against"
    if native is not None and native is not row:
        other = native.largest_rate
        compared = "the same as" if other == stable else "more than" if (stable or 0) > (other or 0) else "less than"
        text += f", {compared} with its native map"
        if row.ratios and native.ratios:
            times = native.ratios[0] / row.ratios[0]
            text += f"; the 99th percentile of |grad|/|w| is {_number(times if times >= 1 else 1 / times)} times "
            text += "smaller" if times >= 1 else "larger"
        text += _changes(row, native, size)
    return text + "."


def _changes(row: Row, native: Row, size: Size) -> str:
    """Tasks on which the two maps differ by a tenth or more, losses relative, shares of right answers absolute."""
    found, losses = [], next(iter(size.tasks))
    for column in size.tasks:
        (own, *_), (other, *_) = row.scores[column], native.scores[column]
        if not (math.isfinite(own) and math.isfinite(other)):
            continue
        better = (other - own) / max(abs(other), 1e-12) if column == losses else own - other
        if abs(better) >= 0.1:
            found.append(f"{'better' if better > 0 else 'worse'} on {column} ({_number(own)}, native {_number(other)})")
    return "; " + ", ".join(found) if found else "; on no task do the two differ by a tenth"
