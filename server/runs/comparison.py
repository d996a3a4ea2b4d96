"""Runs side by side: what differs in their configurations, what became of them, and how groups of them stand to each other.

Counting, medians, ranking and paired differences follow server.runs.aggregation; curves are server.runs.compare_curves'.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from server.database.models import Run
from server.runs.aggregation import End, Summary, end_of, paired, ranks, summary
from server.runs.compare_curves import CURVE_POINTS, RunCurves, ranges, read_curves
from server.series.reading import SeriesData
from stablessm_core.config import RunConfig
from stablessm_core.layers.registry import layer_names, layers_text

CROWDED = 40
MAX_RUNS = 200
GROUP_BY = "model.reparameterization.name"
LAYER = "model.layer"  # by name, or names where kinds are mixed; the options of a section stand beside it
OF_MAP, OF_STABLE_SSM = "model.reparameterization.", ("model.d_state", "model.eigenvalue_range", "model.activation")
ABSENT = None  # how a field that a configuration does not have is shown


@dataclass(frozen=True)
class Comparison:
    """`differences`: {field, values} in the order of the runs; `ends` and `ranges` one per run; `groups` by the fields asked for,
    `paired` the differences of each to one of them; `curves`: per run the series `train/loss` and `max_grad_over_weight` (over
    all layers and eigenvalues), `pooled` their ranges by map."""

    runs: list[Run]
    differences: list[dict[str, Any]]
    ends: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    paired: dict[str, Any] | None
    ranges: list[dict[str, Any]]
    pooled: list[dict[str, Any]]
    curves: dict[int, dict[str, SeriesData]]


def compare(
    session: Session,
    runs: Sequence[Run],
    *,
    group_by: Sequence[str] = (GROUP_BY,),
    against: str | None = None,
    points: int = CURVE_POINTS,
    curves: bool = True,
) -> Comparison:
    """Compare the runs. `group_by`: dotted configuration paths; `against`: label of the group that the others are paired with,
    the best one without it. Raises ValueError for a path no configuration has, and for a group that is not there."""
    flat = [complete(run.config) for run in runs]
    for path in group_by:
        if runs and not any(path in config for config in flat):
            raise ValueError(f"group_by has {path[:80]!r}; allowed are {', '.join(sorted({p for c in flat for p in c}))}")
    read = read_curves(session, runs, points) if curves else []
    ends = [end_of(run) for run in runs]
    different = differences(flat)
    keys = [tuple(_key(config.get(path)) for path in group_by) for config in flat] if group_by else []
    members = {key: [i for i, k in enumerate(keys) if k == key] for key in dict.fromkeys(keys)}
    sums = [summary(ends[i] for i in chosen) for chosen in members.values()]
    groups = [
        _group(dict(zip(group_by, key, strict=True)), [runs[i].id for i in chosen], of, rank, [read[i] for i in chosen if read])
        for (key, chosen), of, rank in zip(members.items(), sums, ranks(sums), strict=True)
    ]
    others = [row["field"] for row in different if not _of_group(row, group_by, list(members.values()))]
    return Comparison(
        runs=list(runs),
        differences=different,
        ends=[
            {"run_id": run.id, "outcome": end.outcome, "loss": end.loss, **_per_step(run)}
            for run, end in zip(runs, ends, strict=True)
        ],
        groups=groups,
        paired=_paired(groups, [_by_setting(chosen, flat, ends, others) for chosen in members.values()], against),
        ranges=[one.range for one in read],
        pooled=ranges(read),
        curves={one.run_id: one.curves for one in read},
    )


def usual_groups(runs: Sequence[Run]) -> str | None:
    """What runs are grouped by where nothing else is asked for: the map, if they have one; the layer where there are several,
    and the map too if runs of one layer have different ones."""
    chosen = list(dict.fromkeys((config.get(LAYER), config.get(GROUP_BY)) for config in (complete(run.config) for run in runs)))
    layers = {layer for layer, _ in chosen}
    if len(layers) > 1:
        return LAYER if len(chosen) == len(layers) else f"{LAYER},{GROUP_BY}"
    return GROUP_BY if any(map_ is not None for _, map_ in chosen) else None


def usually_shown(runs: Sequence[Any], groups: Sequence[Any]) -> str:
    """What the comparison's charts show where nothing else is asked for: the groups, of more runs than can be told apart."""
    return "groups" if len(runs) > CROWDED and len(groups) > 1 else "runs"


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration by dotted path, with the defaults of what it was stored without: an older one has not every field."""
    try:
        flat = dict(_flatten(RunConfig.model_validate(dict(config)).model_dump(mode="json")))
    except ValidationError:  # of another program, or of a task or layer that is not installed here
        flat = dict(_flatten(config))
        flat = {path: value for path, value in _defaults().items() if path.partition(".")[0] in config} | flat
    named = {LAYER if path == f"{LAYER}.name" else path: value for path, value in flat.items()}
    return named | {LAYER: layers_text(config)} if "model" in config or LAYER in named else named


def settings_beside(config: Mapping[str, Any], parent: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The settings that are not the default, or not the parent's: [{field, value, default, parent}], `parent` None without one.

    The defaults are those of the run's task and layers. Names and tags are no settings.
    """
    flat, other = complete(config), None if parent is None else complete(parent)
    names = layer_names(config.get("model") or {})
    model = {"layer": names[0]} if not (config.get("model") or {}).get("layers") else {"layers": names}
    usual = complete({"task": {"name": config["task"]["name"]}, "model": model}) | {LAYER: "stable_ssm"}
    rows: list[dict[str, Any]] = [
        {
            "field": field,
            "value": flat.get(field, ABSENT),
            "default": usual.get(field, ABSENT),
            "parent": None if other is None else {"value": other.get(field, ABSENT)},
        }
        for field in dict.fromkeys([*flat, *(other or {})])
        if field not in ("name", "tags")
    ]
    return [
        row
        for row in rows
        if row["value"] != row["default"] or (row["parent"] is not None and row["value"] != row["parent"]["value"])
    ]


@cache
def _defaults() -> dict[str, Any]:
    usual = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    return {path: value for path, value in _flatten(usual) if not path.startswith("task.") and path not in ("name", "tags")}


def differences(flat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fields whose value is not the same in all configurations; names and tags are no configuration."""
    paths = dict.fromkeys(path for config in flat for path in config if path not in ("name", "tags"))
    rows = [{"field": path, "values": [config.get(path, ABSENT) for config in flat]} for path in paths]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def label(key: Mapping[str, Any]) -> str:
    """A group in a few characters: its values."""
    return ", ".join("none" if value is None else str(value) for value in key.values())


def _per_step(run: Run) -> dict[str, float | None]:
    """What one step is in tokens and in seconds of training, by the run's mean speed; None where it is not known."""
    try:
        config = RunConfig.model_validate(run.config)
        tokens: int | None = config.train.batch_size * config.task.sequence_length()
    except ValidationError:
        tokens = None
    seconds = (run.result or {}).get("seconds")
    if seconds and run.step:
        return {"tokens_per_step": tokens, "seconds_per_step": seconds / run.step}
    return {"tokens_per_step": tokens, "seconds_per_step": 1 / run.steps_per_second if run.steps_per_second else None}


def _group(key: dict[str, Any], runs: list[int], of: Summary, rank: int, read: list[RunCurves]) -> dict[str, Any]:
    spans = [one.range for one in read]
    lows, highs = ([s[end] for s in spans if s[end] is not None] for end in ("min", "max"))
    counts = {name: value for name, value in asdict(of).items() if name != "loss"}
    return {
        "key": key,
        "label": label(key),
        "rank": rank,
        "outcome": of.outcome,
        "runs": runs,
        **counts,
        "final_loss": asdict(of.loss),
        "grad_over_weight": {
            "min": min(lows) if lows else None,
            "max": max(highs) if highs else None,
            "finite": sum(s["finite"] for s in spans),
            "total": sum(s["total"] for s in spans),
        },
    }


def _of_group(row: Mapping[str, Any], group_by: Sequence[str], groups: Sequence[Sequence[int]]) -> bool:
    """Whether a field is no other setting but what makes the groups: one they are made by, or an option of their layer or map
    that all runs of each of them have alike."""
    field, values = row["field"], row["values"]
    if field in group_by:
        return True
    of_layer = LAYER in group_by and (field.startswith(LAYER) or field in OF_STABLE_SSM)
    if not of_layer and not (field.startswith(OF_MAP) and (LAYER in group_by or GROUP_BY in group_by)):
        return False
    return all(values[i] == values[chosen[0]] for chosen in groups for i in chosen)


def _by_setting(
    chosen: Sequence[int], flat: Sequence[Mapping[str, Any]], ends: Sequence[End], others: Sequence[str]
) -> dict[Hashable, End]:
    """The ends of a group's runs by their other settings; the second run with the same ones is paired with a second one."""
    found: dict[Hashable, End] = {}
    seen: dict[Hashable, int] = {}
    for i in chosen:
        setting = tuple(_key(flat[i].get(path)) for path in others)
        seen[setting] = seen.get(setting, -1) + 1
        found[setting, seen[setting]] = ends[i]
    return found


def _paired(groups: list[dict[str, Any]], settings: list[dict[Hashable, End]], against: str | None) -> dict[str, Any] | None:
    """Each group's losses less those of the group `against`. Raises ValueError for a group that is not there."""
    if against is not None and against not in (labels := [group["label"] for group in groups]):
        raise ValueError(f"against is {against[:80]!r}; allowed are {', '.join(labels) or 'no groups: give group_by'}")
    if len(groups) < 2:
        return None
    named = (i for i, group in enumerate(groups) if group["label"] == against)
    first = next(named, min(range(len(groups)), key=lambda i: groups[i]["rank"]))
    rows = [
        {"label": group["label"], **asdict(paired(settings[first], settings[i]))} for i, group in enumerate(groups) if i != first
    ]
    return {"against": groups[first]["label"], "rows": rows}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _key(value: Any) -> Any:
    return tuple(map(_key, value)) if isinstance(value, list) else tuple(value.items()) if isinstance(value, dict) else value
