"""The study "who killed the run?" as a report with the fields of the reports about the paper, and back.

The report contains every run that the tables count, so the tables, the figure and the article can be made from its file alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stablessm_core.statistics import share
from studies.autopsies import Death
from studies.culprits import FROZEN, FULL, QUICK, Cell, Findings, by_key, culprit
from studies.culprits_statistics import comparison_sentences
from studies.culprits_text import death_rows, finite_rows, map_rows, map_sentences, scaled, sentences
from studies.paper.groups import commit
from studies.paper.registry import Registry
from studies.stability_map import Point, critical

STUDY = "culprits"
TITLE = "Who kills a state-space model?"
METHOD = (
    "Exploratory: no test of this study was registered before the runs.",
    "Recurrence: the run of equal layer, seed and learning rate survives this death with its eigenvalues frozen from the start. "
    "Other weights: that run dies too. Arithmetic: float64 computes the fatal step without trouble.",
    "From the start counts, of the seeds that died, those whose run with frozen eigenvalues or with the map best stayed finite. "
    "Trials are those of the autopsies, which begin right before the trouble.",
    "The shares have 95 % Wilson intervals.",
)
FIGURE = (
    "Largest |λ| - 1 by length of the sequence T, with the line e^(88.72/T) - 1. Filled: a fatal step. Hollow: the largest of a "
    "run that lived. Runs whose eigenvalues all stayed inside the boundary stand on the lower edge."
)


def culprits_report(found: Findings, registry: Registry) -> dict[str, Any]:
    """The report as plain data. Equal findings give equal bytes."""
    return {
        "study": STUDY,
        "preset": None,
        "size": found.size.name,
        "title": TITLE,
        "seeds": found.size.seeds,
        "trained_means": "",
        "claims_sha256": registry.sha256,
        "claims_at_submission": "",
        "claims_changed": False,
        "family_size": registry.family_size,
        "commit": commit(),
        "versions": list(found.versions),
        "machines": list(found.machines),
        "sweeps": [{"id": one["id"], "part": one["part"], "runs": one["runs"]} for one in found.parts],
        "departures": [*METHOD, *([scaled(found.size).strip()] if scaled(found.size) else [])],
        "problems": list(found.problems),
        "verdicts": [],
        "cells": [],
        "tables": tables(found),
        "figures": figures(found.points),
        "configurations": [{"part": one["part"], "base": one["base"], "grid": one["grid"]} for one in found.parts],
        "findings": {"cells": [_cell_json(cell) for cell in found.cells], "points": [asdict(point) for point in found.points]},
    }


def findings_of(report: Mapping[str, Any]) -> Findings:
    """The findings that a report was made from. Raises ValueError for a report of another study."""
    if report.get("study") != STUDY or "findings" not in report:
        raise ValueError(f"the report is about {report.get('study')!r}; expected a report of `stablessm reproduce {STUDY}`")
    size = replace(QUICK if report["size"] == QUICK.name else FULL, seeds=int(report["seeds"]))
    cells = [_cell(one) for one in report["findings"]["cells"]]
    points = [_point(one) for one in report["findings"]["points"]]
    sweeps = [int(one["id"]) for one in report["sweeps"]]
    machines = [str(machine) for machine in report.get("machines", ())]
    return Findings(size, sweeps, cells, points, list(report["problems"]), list(report["versions"]), machines=machines)


def deaths_of_arms(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One entry per layer, map and learning rate: its runs, its deaths with their interval, what float64 says, who killed them,
    and how many of the seeds that died live with frozen eigenvalues and with `best`."""
    known = by_key(cells)
    return [
        {
            "layer": cell.layer,
            "map": cell.arm,
            "rate": cell.lr,
            "runs": len(cell.finite),
            "deaths": len(cell.deaths),
            "interval": _interval(len(cell.deaths), len(cell.finite)),
            "float64": dict(Counter(death.kind for death in cell.deaths.values())),
            "killed_by": dict(Counter(culprit(known, cell, seed) for seed in cell.deaths)),
            "live_frozen": _saved(cell, known.get((cell.layer, FROZEN, cell.lr))),
            "live_with_best": _saved(cell, known.get((cell.layer, "best", cell.lr))),
        }
        for cell in cells
    ]


def tables(found: Findings) -> list[dict[str, Any]]:
    """The tables of the report: finite runs, deaths, the stability map."""
    named = (
        ("Finite runs / all runs", finite_rows(found.cells, found.size)),
        ("What killed the others", death_rows(found.cells)),
        ("Stability map", map_rows(found.points) if found.points else [[]]),
    )
    return [{"caption": caption, "columns": rows[0], "rows": rows[1:]} for caption, rows in named if len(rows) > 1]


def summary(found: Findings) -> list[str]:
    """The results in sentences: the deaths of each arm, the tests of the native map against others, and the stability map."""
    said = [*sentences(found.cells), *comparison_sentences(found.cells), *map_sentences(found.points)]
    return [one.removeprefix("- ").replace("**", "").replace("`", "") for one in said if one]


def figures(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The stability map: the marks of each map, and the line without parameters."""
    if not points:
        return []
    lengths = sorted({point.length for point in points})
    first, last = lengths[0], lengths[-1]
    line = [first * (last / first) ** (i / 40) for i in range(41)] if last > first else [first / 1.2, first * 1.2]
    outside = [point.shown - 1 for point in points if point.shown > 1]
    floor = min([*outside, *(critical(length) - 1 for length in lengths)]) / 4
    marks = [
        {
            "map": point.map,
            "died": point.fatal is not None,
            "x": point.length,
            "y": max(point.shown - 1, floor),
            "text": f"{point.map}, lr {point.lr:g}, T = {point.length}, seed {point.seed}: |λ| = {point.shown:.5g}",
        }
        for point in sorted(points, key=lambda one: (one.map, one.length, one.lr, one.seed))
    ]
    drawn = {"x": line, "y": [critical(length) - 1 for length in line]}
    return [{"chart": "paper_stability", "caption": FIGURE, "line": drawn, "marks": marks}]


def _interval(count: int, total: int) -> list[float]:
    of = share(count, total).interval if total else None
    return [0.0, 1.0] if of is None else [of.low, of.high]


def _saved(cell: Cell, other: Cell | None) -> dict[str, Any] | None:
    """Of the seeds that died in a cell, how many stayed finite in another; None if there is no other."""
    if other is None or other is cell:
        return None
    lives = [other.finite[seed] for seed in cell.deaths if seed in other.finite]
    return {"count": sum(lives), "total": len(lives), "interval": _interval(sum(lives), len(lives))}


def _cell_json(cell: Cell) -> dict[str, Any]:
    finite = {str(seed): cell.finite[seed] for seed in sorted(cell.finite)}
    deaths = {str(seed): asdict(cell.deaths[seed]) for seed in sorted(cell.deaths)}
    return {"layer": cell.layer, "arm": cell.arm, "lr": cell.lr, "finite": finite, "deaths": deaths}


def _cell(one: Mapping[str, Any]) -> Cell:
    deaths = {int(seed): Death(**death) for seed, death in one["deaths"].items()}
    return Cell(one["layer"], one["arm"], float(one["lr"]), {int(seed): bool(x) for seed, x in one["finite"].items()}, deaths)


def _point(one: Mapping[str, Any]) -> Point:
    fatal = None if one["fatal"] is None else float(one["fatal"])
    largest = math.nan if one["largest"] is None else float(one["largest"])
    return Point(int(one["length"]), float(one["lr"]), str(one["map"]), int(one["seed"]), largest, fatal)
