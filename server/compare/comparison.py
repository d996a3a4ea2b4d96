"""Compares several runs: how their configurations differ, how each run ended, and how groups of runs rank.

server.compare.aggregation has the rules for counts, medians, ranks and paired differences; server.compare.compare_curves reads
the curves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from server.compare.aggregation import End, Summary, end_of, paired, ranks, summary
from server.compare.compare_curves import CURVE_POINTS, RunCurves, merged_range_json, ranges_json, read_curves
from server.database.models import Run
from server.lifecycle.reported import REPORTED
from server.search.filter_fields import LAYER as LAYER_FIELD
from server.search.filter_fields import MAP, MAP_TITLE, SHORT
from server.search.reported_settings import settings_of_config
from server.series.reading import SeriesData
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layers import layer_names, layers_text
from stablessm_core.spec.paths import leaves
from stablessm_core.spec.suggestions import did_you_mean, listed

CROWDED = 40
MAX_RUNS = 200  # runs that a filter or a list of numbers may choose, and runs with curves; a sweep may have more runs
GROUP_BY = "model.reparameterization.name"
LAYER = "model.layer"  # the layer's name, or the names of mixed layers; each option of a layer has its own path
SHORT_PATHS = SHORT | dict.fromkeys((MAP, MAP_TITLE), GROUP_BY) | {LAYER_FIELD: LAYER}  # as in filters
OF_MAP, OF_STABLE_SSM = "model.reparameterization.", ("model.d_state", "model.eigenvalue_range", "model.activation")
NO_SETTINGS = ("name", "tags")
MAX_SETTINGS = 500  # settings of a reported run that are compared, and settings that differ that are listed
LABELS = ("project", "kind")  # what users may group runs by although it changes nothing in the training
Setting = tuple[tuple[Hashable, ...], int]  # values of settings, and a counter of the runs that have these values


@dataclass(frozen=True)
class Comparison:
    """The comparison of several runs.

    `differences` has one {field, values} per field, with values in the order of the runs; `differences_left_out` counts the
    fields that are not listed because they are too many. `ends` and `ranges` have one item per
    run, in the order of the runs. Each item of `groups` has the runs with equal values of the `group_by` settings; `paired`
    compares every other group with the group `against`. `curves` has the series `train/loss` and `max_grad_over_weight` (over
    all layers and eigenvalues) of each run in `drawn`. `pooled` has the range of the ratios |grad| / |w| for each map.

    `settings_within` are the listed settings that may differ between runs of one group. For each group, `by_setting` maps their
    values and a counter to the position of the run. `reference` is the position of the group `against`; None without two groups.
    """

    runs: list[Run]
    differences: list[dict[str, Any]]
    differences_left_out: int
    ends: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    paired: dict[str, Any] | None
    ranges: list[dict[str, Any]]
    pooled: list[dict[str, Any]]
    curves: dict[int, dict[str, SeriesData]]
    drawn: list[int]
    settings_within: list[str]
    by_setting: list[dict[Setting, int]]
    reference: int | None


def compare(
    session: Session,
    runs: Sequence[Run],
    *,
    group_by: Sequence[str] = (GROUP_BY,),
    against: str | None = None,
    points: int = CURVE_POINTS,
    curves: bool = True,
) -> Comparison:
    """Compare the runs.

    group_by: dotted paths of the configuration, or their short names in filters. against: label of the group with which all
    other groups are compared; by default the best group. Raises ValueError for a path that no configuration has, and for an
    unknown label.
    """
    flat = [flat_settings(run) for run in runs]
    group_by = [SHORT_PATHS.get(path, path) for path in group_by]
    different, left_out = differences_json(flat)
    for path in group_by:
        if runs and not any(path in config for config in flat):
            known = dict.fromkeys((*(row["field"] for row in different), *sorted({p for c in flat for p in c})))
            raise ValueError(f"group_by has {path[:80]!r}{did_you_mean(path, known)}; allowed: {listed(known, 20)}")
    drawn = drawn_runs(runs)
    read = {one.run_id: one for one in read_curves(session, drawn, points)} if curves else {}
    ends = [end_of(run) for run in runs]
    keys = [tuple(_key(config.get(path)) for path in group_by) for config in flat] if group_by else []
    members: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    sums = [summary(ends[i] for i in chosen) for chosen in members.values()]
    groups = [
        _group_json(
            dict(zip(group_by, key, strict=True)),
            [runs[i].id for i in chosen],
            of,
            rank,
            [read[runs[i].id] for i in chosen if runs[i].id in read],
        )
        for (key, chosen), of, rank in zip(members.items(), sums, ranks(sums), strict=True)
    ]
    others = [
        row["field"] for row in different if row["field"] not in LABELS and not _of_group(row, group_by, list(members.values()))
    ]
    by_setting = [_by_setting(chosen, flat, others) for chosen in members.values()]
    reference = _reference(groups, against)
    return Comparison(
        runs=list(runs),
        differences=different,
        differences_left_out=left_out,
        ends=[
            {"run_id": run.id, "outcome": end.outcome, "loss": end.loss, **_per_step(run)}
            for run, end in zip(runs, ends, strict=True)
        ],
        groups=groups,
        paired=_paired_json(groups, by_setting, ends, reference),
        ranges=[one.range for one in read.values()],
        pooled=ranges_json(list(read.values())),
        curves={one.run_id: one.curves for one in read.values()},
        drawn=[run.id for run in drawn],
        settings_within=others,
        by_setting=by_setting,
        reference=reference,
    )


def drawn_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs whose curves are read and drawn: all of them, or a random sample of MAX_RUNS that is always the same.

    An evenly spaced sample could contain only one value of a setting, because the runs of a sweep are in the order of its grid.
    """
    if len(runs) <= MAX_RUNS:
        return list(runs)
    chosen = set(random.Random(0).sample(range(len(runs)), MAX_RUNS))
    return [run for i, run in enumerate(runs) if i in chosen]


def default_groups(runs: Sequence[Run]) -> str | None:
    """The settings by which runs are grouped by default, normally their maps. Runs with different layers are grouped by layer,
    and also by map if runs with the same layer have different maps. None if all runs have the same layer and this layer has no
    map, and for a comparison with reported runs, whose layers and maps are no settings."""
    if any(run.kind == REPORTED for run in runs):
        return None
    flat = [flat_settings(run) for run in runs]
    chosen = list(dict.fromkeys((config.get(LAYER), config.get(GROUP_BY)) for config in flat))
    layers = {layer for layer, _ in chosen}
    if len(layers) > 1:
        return LAYER if len(chosen) == len(layers) else f"{LAYER},{GROUP_BY}"
    return GROUP_BY if any(map_ is not None for _, map_ in chosen) else None


def default_view(runs: Sequence[Any], groups: Sequence[Any]) -> str:
    """The default view of the charts: "runs", or "groups" if there are too many runs to tell apart."""
    return "groups" if len(runs) > CROWDED and len(groups) > 1 else "runs"


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as a flat dict by dotted path. Fields that did not exist when the configuration was stored get their
    defaults."""
    try:
        flat = leaves(RunConfig.model_validate(dict(config)).model_dump(mode="json"))
    except ValidationError:  # another version wrote the configuration, or its task or layer is not installed
        flat = leaves(config)
        flat = {path: value for path, value in _defaults().items() if path.partition(".")[0] in config} | flat
    named = {LAYER if path == f"{LAYER}.name" else path: value for path, value in flat.items()}
    return named | {LAYER: layers_text(config)} if "model" in config or LAYER in named else named


def flat_settings(run: Run) -> dict[str, Any]:
    """The settings of a run by dotted path: of its configuration or, with the prefix "config.", of the free configuration of a
    reported run, the first MAX_SETTINGS of them. Also its labels, such as the project."""
    labels = {name: getattr(run, name) for name in LABELS}
    if run.kind == REPORTED:
        return labels | dict(islice(settings_of_config(run.reported_config).items(), MAX_SETTINGS))
    return labels | flat_config(run.config)


def run_settings_json(run: Run, parent: Run | None = None) -> list[dict[str, Any]]:
    """The `settings_json` of a run. A reported run has no defaults and no parent, so all its settings are listed."""
    if run.kind == REPORTED:
        return [
            {"field": field, "value": value, "default": None, "parent": None}
            for field, value in settings_of_config(run.reported_config).items()
        ]
    return settings_json(run.config, None if parent is None else parent.config)


def settings_json(config: Mapping[str, Any], parent: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The settings that differ from the default or from the parent: [{field, value, default, parent}].

    The defaults are those of the run's task and layers. In a row, `parent` is None if no parent is given. Names and tags are
    ignored.
    """
    flat, other = flat_config(config), None if parent is None else flat_config(parent)
    names = layer_names(config.get("model") or {})
    model = {"layer": names[0]} if not (config.get("model") or {}).get("layers") else {"layers": names}
    usual = flat_config({"task": {"name": config["task"]["name"]}, "model": model}) | {LAYER: "stable_ssm"}
    rows: list[dict[str, Any]] = [
        {
            "field": field,
            "value": flat.get(field),
            "default": usual.get(field),
            "parent": None if other is None else {"value": other.get(field)},
        }
        for field in dict.fromkeys([*flat, *(other or {})])
        if field not in NO_SETTINGS
    ]
    return [
        row
        for row in rows
        if row["value"] != row["default"] or (row["parent"] is not None and row["value"] != row["parent"]["value"])
    ]


@cache
def _defaults() -> dict[str, Any]:
    usual = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    return {path: value for path, value in leaves(usual).items() if not path.startswith("task.") and path not in NO_SETTINGS}


def differences_json(flat: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The first MAX_SETTINGS fields whose values differ between these configurations, [{field, values}], and how many more there
    are. Names and tags are ignored."""
    fields = _differing(flat)
    rows = [{"field": path, "values": [config.get(path) for config in flat]} for path in fields[:MAX_SETTINGS]]
    return rows, len(fields) - len(rows)


def _differing(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields whose values differ, in the order in which the configurations have them. Reads each value once."""
    first = flat[0] if flat else {}
    number = Counter(path for config in flat for path in config)
    different = {path for path, value in first.items() if value is not None and number[path] < len(flat)}
    different |= {path for config in flat for path, value in config.items() if value != first.get(path)}
    return [path for path in number if path in different and path not in NO_SETTINGS]


def label(key: Mapping[str, Any]) -> str:
    """A short name of a group: the values of the settings that define the group."""
    return ", ".join("none" if value is None else str(value) for value in key.values())


def _per_step(run: Run) -> dict[str, float | None]:
    """Tokens and seconds per training step, from the run's mean speed; a value is None if it is unknown."""
    tokens: int | None = None
    try:
        config = RunConfig.model_validate(run.config)
        tokens = config.train.batch_size * config.task.sequence_length()
    except ValidationError:
        pass
    seconds = (run.result or {}).get("seconds")
    if isinstance(seconds, int | float) and seconds and run.step:
        return {"tokens_per_step": tokens, "seconds_per_step": seconds / run.step}
    return {"tokens_per_step": tokens, "seconds_per_step": 1 / run.steps_per_second if run.steps_per_second else None}


def _group_json(key: dict[str, Any], runs: list[int], of: Summary, rank: int, read: list[RunCurves]) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(of).items() if name != "loss"}
    return {
        "key": key,
        "label": label(key),
        "rank": rank,
        "outcome": of.outcome,
        "runs": runs,
        **counts,
        "final_loss": asdict(of.loss),
        "grad_over_weight": merged_range_json(read),
    }


def _of_group(row: Mapping[str, Any], group_by: Sequence[str], groups: Sequence[Sequence[int]]) -> bool:
    """True if a field defines the groups. Such a field is in `group_by`, or it is an option of the groups' layer or map and has
    the same value in all runs of a group."""
    field, values = row["field"], row["values"]
    if field in group_by:
        return True
    of_layer = LAYER in group_by and (field.startswith(LAYER) or field in OF_STABLE_SSM)
    if not of_layer and not (field.startswith(OF_MAP) and (LAYER in group_by or GROUP_BY in group_by)):
        return False
    return all(values[i] == values[chosen[0]] for chosen in groups for i in chosen)


def _by_setting(chosen: Sequence[int], flat: Sequence[Mapping[str, Any]], others: Sequence[str]) -> dict[Setting, int]:
    """The positions of a group's runs, keyed by the settings `others`. The key includes a counter, so that the n-th run with the
    same settings is paired with the n-th such run of the other group."""
    found: dict[Setting, int] = {}
    seen: dict[Hashable, int] = {}
    for i in chosen:
        setting = tuple(_key(flat[i].get(path)) for path in others)
        seen[setting] = seen.get(setting, -1) + 1
        found[setting, seen[setting]] = i
    return found


def _reference(groups: list[dict[str, Any]], against: str | None) -> int | None:
    """The position of the group with which the others are compared: the one with the label `against`, or else the best. Raises
    ValueError for an unknown label."""
    if against is not None and against not in (labels := [group["label"] for group in groups]):
        guess = did_you_mean(against, labels)
        raise ValueError(f"against is {against[:80]!r}{guess}; allowed: {listed(labels) or 'no groups: give group_by'}")
    if len(groups) < 2:
        return None
    named = (i for i, group in enumerate(groups) if group["label"] == against)
    return next(named, min(range(len(groups)), key=lambda i: groups[i]["rank"]))


def _paired_json(
    groups: list[dict[str, Any]], by_setting: list[dict[Setting, int]], ends: Sequence[End], reference: int | None
) -> dict[str, Any] | None:
    """The losses of every other group minus the losses of the reference."""
    if reference is None:
        return None
    settings: list[dict[Hashable, End]] = [{key: ends[i] for key, i in group.items()} for group in by_setting]
    rows = [
        {"label": group["label"], **asdict(paired(settings[reference], settings[i]))}
        for i, group in enumerate(groups)
        if i != reference
    ]
    return {"against": groups[reference]["label"], "rows": rows}


def _key(value: Any) -> Any:
    return tuple(map(_key, value)) if isinstance(value, list) else tuple(value.items()) if isinstance(value, dict) else value
