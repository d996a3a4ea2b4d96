"""The study "who killed the run?": trains every layer with several maps and rates, and asks the autopsy of every run that died.

Each layer has up to four arms, which start from the same eigenvalues: its native map, the same with the recurrence frozen from
the start, and the maps `direct` and `best`. The runs of an arm differ in learning rate and seed. A second part, the stability
map, trains one layer at several sequence lengths (studies.stability_map).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model
from stablessm_core.spec.possible_maps import possible_maps
from studies.autopsies import Death, death_of, wait_for_autopsies
from studies.paper.outcomes import trained_with
from studies.progress import wait_for_sweeps
from studies.stability_map import LONG_MAP, QUICK_MAP, MapSize, Point, map_base, map_grid, read_points

if TYPE_CHECKING:
    from stablessm_core.client import Client

FROZEN = "native, frozen"
STEPS_AFTER = 20  # as in the trials of autopsies
OTHER_MAPS = ("direct", "best")
CULPRITS = ("recurrence", "other weights", "arithmetic", "no eigenvalue is trained", "unknown")
TITLES = ("maps", "frozen", "stability map")  # the study's sweeps
Report = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """The size of the study's runs. All runs have the same task and model, apart from the layer and its map."""

    name: str
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    steps: int
    batch_size: int
    rates: tuple[float, ...]
    seeds: int
    map: MapSize


QUICK = Size(
    "quick",
    {"name": "polynomial_memory", "length": 32},
    {"d_model": 16, "n_layers": 1, "mlp_expansion": 1},
    steps=60,
    batch_size=16,
    rates=(3.0,),
    seeds=1,
    map=QUICK_MAP,
)
FULL = Size(
    "full",
    {"name": "polynomial_memory", "length": 32},
    {"d_model": 16, "n_layers": 1, "mlp_expansion": 1},
    steps=200,
    batch_size=16,
    rates=(0.3, 1.0, 3.0),
    seeds=12,
    map=LONG_MAP,
)


@dataclass
class Cell:
    """The runs of one layer, arm and learning rate. finite: for each seed, whether the run stayed finite. deaths: for each seed
    whose run diverged, what its autopsy measured."""

    layer: str
    arm: str
    lr: float
    finite: dict[int, bool] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)


@dataclass
class Findings:
    """The results of the study. problems: sentences about runs that are missing or cannot be compared. parts: for each sweep its
    id, title, base and grid."""

    size: Size
    sweeps: list[int]
    cells: list[Cell]
    points: list[Point]
    problems: list[str]
    versions: list[str]
    seconds: float = 0.0
    machines: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)


class NotThisStudy(ValueError):
    """The sweep that shall be resumed is no sweep of this study. The message says what is."""


def reproduce(client: Client, size: Size, layers: Sequence[str], report: Report, resume: int | None = None) -> Findings:
    """The findings, from new runs or, with `resume`, from the runs of an earlier call: whatever is missing is submitted.

    resume: a sweep of the earlier call, whose size and layers then count. Raises NotThisStudy.
    """
    started = time.monotonic()
    tag = secrets.token_hex(4)
    if resume is not None:
        size, layers, tag = resumed(client, resume)
    sweeps = submit(client, size, layers, tag, report)
    wait_for_sweeps(client, sweeps, report)
    found = read(client, size, sweeps, report)
    found.seconds = time.monotonic() - started
    return found


def submit(client: Client, size: Size, layers: Sequence[str], tag: str, report: Report) -> list[int]:
    """Queue the study's sweeps that do not exist yet. Returns the ids of all, in the order of TITLES.

    tag: part of the sweeps' names and idempotency keys, so that a second call with the same tag submits nothing twice.
    """
    base = {
        "task": dict(size.task),
        "train": {"steps": size.steps, "batch_size": size.batch_size, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
    }
    axes: dict[str, list[Any]] = {"optimizer.lr": list(size.rates), "train.seed": list(range(size.seeds))}
    frozen = base | {"optimizer": {"recurrent_lr": 0.0}}
    parts = [
        (base, {"model": arms(size, layers)} | axes),
        (frozen, {"model": [model for model in arms(size, layers, ()) if maps_of(model)]} | axes),
        (map_base(size.map), map_grid(size.map)),
    ]
    known = {sweep["name"]: int(sweep["id"]) for sweep in client.sweeps(q=tag)}
    found: list[int] = []
    for title, (part, grid) in zip(TITLES, parts, strict=True):
        name = f"culprits, {size.name}, {tag}: {title}"
        if not grid.get("model", True):
            continue  # none of these layers has a map
        if name not in known:
            known[name] = int(client.submit_sweep(part, grid, name=name, key=name)["id"])
        if not found:
            report(f"sweep {known[name]} at {client.url}/sweeps; if interrupted, continue with --resume {known[name]}")
        found.append(known[name])
    return found


def resumed(client: Client, sweep_id: int) -> tuple[Size, list[str], str]:
    """Size, layers and tag of the study to which this sweep belongs. Raises NotThisStudy."""
    name = client.sweep(sweep_id)["name"] or ""
    match = re.fullmatch(r"culprits, (quick|full), ([0-9a-f]{8}): (.+)", name)
    if match is None:
        raise NotThisStudy(f"sweep {sweep_id} ({name[:80]!r}) is no sweep of this study; its sweeps are named 'culprits, ...'")
    first = next((sweep for sweep in client.sweeps(q=match[2]) if sweep["name"].endswith(f": {TITLES[0]}")), None)
    if first is None:
        raise NotThisStudy(f"the sweep 'culprits, {match[1]}, {match[2]}: {TITLES[0]}' of the same study was deleted or renamed")
    layers = dict.fromkeys(str(model["layer"]) for model in first["grid"]["model"])
    size = QUICK if match[1] == "quick" else FULL
    return replace(size, seeds=len(first["grid"]["train.seed"])), list(layers), match[2]


def arms(size: Size, layers: Sequence[str] = (), other_maps: Sequence[str] = OTHER_MAPS) -> list[dict[str, Any]]:
    """`model` sections: each layer with its native map, and with each of the other maps that it can have."""
    sections = []
    for name in layers or LAYERS:
        native = dict(size.model) | {"layer": name, "reparameterization": {"name": "native"}}
        sections.append(native)
        for map_ in maps_of(native):
            if map_["name"] in other_maps and map_["name"] != LAYERS[name].native:
                sections.append(native | {"reparameterization": map_})
    return sections


def maps_of(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `reparameterization` sections that the model's layer accepts, one per map; empty if it has no map."""
    section = Model.model_validate(model).sections()[0]
    found = {one.name: one for one in possible_maps(section, model["d_model"])}
    return [{"name": name} | ({} if one.b is None else {"b": one.b}) for name, one in found.items()]


def read(client: Client, size: Size, sweeps: Sequence[int], report: Report) -> Findings:
    """The findings from the ended runs of these sweeps (see `submit`). Waits for their autopsies."""
    cells: dict[tuple[str, str, float], Cell] = {}
    died: dict[int, tuple[Cell, int]] = {}
    problems, versions, of_map = [], set[str](), []
    machines, parts = set[str](), []
    for sweep in map(client.sweep, sweeps):
        machines |= set(trained_with(sweep["runs"])[1])
        title = sweep["name"].rpartition(": ")[2]
        parts.append({"id": sweep["id"], "part": title, "base": sweep["base"], "grid": sweep["grid"], "runs": len(sweep["runs"])})
        expected = 1
        for values in sweep["grid"].values():
            expected *= len(values)
        if len(sweep["runs"]) < expected:
            problems.append(f"{expected - len(sweep['runs'])} of {expected} runs of sweep {sweep['id']} were deleted.")
        versions |= {f"{name} {version}" for run in sweep["runs"] for name, version in _versions(run).items()}
        if sweep["name"].endswith(TITLES[2]):
            of_map += sweep["runs"]
            continue
        unfinished = [run["id"] for run in sweep["runs"] if run["status"] not in ("finished", "diverged")]
        if unfinished:
            problems.append(
                f"{len(unfinished)} runs neither finished nor diverged, among them run {unfinished[0]}; they do not count."
            )
        for run in sweep["runs"]:
            if run["id"] in unfinished:
                continue
            key = _key(run)
            cell = cells.setdefault(key, Cell(*key))
            seed = run["config"]["train"]["seed"]
            cell.finite[seed] = run["status"] == "finished"
            if not cell.finite[seed]:
                died[run["id"]] = cell, seed
    for name in ("stablessm", "torch"):
        found = sorted(version for version in versions if version.startswith(f"{name} "))
        if len(found) > 1:
            problems.append(f"Runs of several versions are mixed: {', '.join(found)}.")
    for run_id, answer in wait_for_autopsies(client, list(died), report).items():
        cell, seed = died[run_id]
        cell.deaths[seed] = death_of(answer)
    points = read_points(client, of_map)
    return Findings(
        size, list(sweeps), list(cells.values()), points, problems, sorted(versions), machines=sorted(machines), parts=parts
    )


def culprit(cells: Mapping[tuple[str, str, float], Cell], cell: Cell, seed: int) -> str:
    """Whose change killed this run: one of CULPRITS.

    - "arithmetic": float64 computes the fatal step without trouble (studies.autopsies.kind_of).
    - "recurrence": the run with the same layer, seed and learning rate survives this death if its eigenvalues are frozen from the
      start: it lives 20 steps longer and twice as long, as the trials of an autopsy must, or to its end. All maps start at the
      same eigenvalues, so this frozen run is the same for all of them.
    - "other weights": that run dies too.
    """
    death = cell.deaths[seed]
    if death.kind == "arithmetic":
        return "arithmetic"
    if cell.arm == FROZEN:
        return "other weights"
    of_layer = [other for other in cells.values() if (other.layer, other.arm) == (cell.layer, FROZEN)]
    if not of_layer:
        return "no eigenvalue is trained"
    frozen = cells.get((cell.layer, FROZEN, cell.lr))
    if frozen is None or seed not in frozen.finite:
        return "unknown"
    survives = frozen.finite[seed] or frozen.deaths[seed].step > max(death.step + STEPS_AFTER, 2 * death.step)
    return "recurrence" if survives else "other weights"


def by_key(cells: Sequence[Cell]) -> dict[tuple[str, str, float], Cell]:
    return {(cell.layer, cell.arm, cell.lr): cell for cell in cells}


def _versions(run: Mapping[str, Any]) -> dict[str, str]:
    versions = (run["environment"] or {}).get("versions") or {}
    return {name: str(versions[name]) for name in ("stablessm", "torch") if name in versions}


def _key(run: Mapping[str, Any]) -> tuple[str, str, float]:
    """Layer, arm and learning rate of a run."""
    config = run["config"]
    layer, map_ = config["model"]["layer"], config["model"]["reparameterization"]["name"]
    name = str(layer if isinstance(layer, str) else layer["name"])
    arm = "native" if map_ in ("native", LAYERS[name].native) else str(map_)
    return name, FROZEN if config["optimizer"]["recurrent_lr"] == 0 else arm, float(config["optimizer"]["lr"])
