"""The report of a study as plain data: verdicts, cells, figures, configurations, and where the numbers came from.

A report depends only on the stored runs, the design and the registered claims. It contains no time of its making, so the same
runs give the same bytes again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from stablessm_core import __version__
from stablessm_core.telemetry.nonfinite import json_safe
from studies.paper.comparisons import interval_of_share
from studies.paper.designs import Part
from studies.paper.groups import UNKNOWN
from studies.paper.judge import UNKNOWN as CANNOT_TELL
from studies.paper.judge import Verdict, judge
from studies.paper.measures import UNCERTAIN, numbers_of
from studies.paper.outcomes import Collected, Outcome
from studies.paper.registry import Registry, short

CHANGED = "claims.json has changed since these runs were submitted: the tests were not registered before the runs."
DIGITS = 6
METRICS = {"eval_loss": "loss", "eval_accuracy": "accuracy", "largest_ratio": "largest |grad| / |w|"}


def trained_report(found: Collected, registry: Registry) -> dict[str, Any]:
    """The report of a study that trained runs."""
    claims = registry.of(found.group.study, found.group.preset)
    problems = list(found.problems)
    changed = found.group.claims != short(registry.sha256)
    verdicts = judge(
        claims, registry, lambda test, variant, spared: numbers_of(found, test, variant, spared=spared), found.seeds,
        problems + ([CHANGED] if changed else []), sum(one.state in UNCERTAIN for one in found.outcomes),
    )  # fmt: skip
    cells = [cell for part in found.design.parts for cell in cells_of(found, part)]
    report: dict[str, Any] = {
        "study": found.group.study,
        "preset": found.group.preset,
        "size": found.group.size,
        "title": found.design.title,
        "seeds": found.seeds,
        "trained_means": found.design.chance,
        "claims_sha256": registry.sha256,
        "claims_at_submission": found.group.claims,
        "claims_changed": changed,
        "family_size": registry.family_size,
        "commit": found.group.commit,
        "versions": found.versions,
        "machines": found.machines,
        "sweeps": found.sweeps,
        "departures": list(found.design.departures),
        "problems": problems + ([CHANGED] if changed else []),
        "verdicts": [verdict_json(one) for one in verdicts],
        "cells": cells,
        "tables": [],
        "figures": _figures(found, cells),
        "configurations": [
            {"part": part.name, "base": dict(part.base), "grid": found.design.grid(part)} for part in found.design.parts
        ],
    }
    return report


def computed_report(
    study: str, title: str, registry: Registry, verdicts: Sequence[Verdict], *, tables: Sequence[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Any]], departures: Sequence[str], configuration: Mapping[str, Any], size: str = "full",
    seeds: int = 0, commit: str = UNKNOWN, machine: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The report of a study that was computed without runs. A table or figure with `claims` belongs to these claims."""
    return {
        "study": study,
        "preset": None,
        "size": size,
        "title": title,
        "seeds": seeds,
        "trained_means": "",
        "claims_sha256": registry.sha256,
        "claims_at_submission": short(registry.sha256),
        "claims_changed": False,
        "family_size": registry.family_size,
        "commit": commit,
        "versions": [f"stablessm {__version__}"],
        "machines": list(machine),
        "sweeps": [],
        "departures": list(departures),
        "problems": [],
        "verdicts": [verdict_json(one) for one in verdicts],
        "cells": [],
        "tables": list(tables),
        "figures": list(figures),
        "configurations": [{"part": "computed", "base": dict(configuration), "grid": {}}],
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data, with rounded numbers."""
    plain: dict[str, Any] = rounded(asdict(verdict))
    return plain


def dumps(report: Mapping[str, Any]) -> str:
    """The report as JSON text; equal reports give equal bytes."""
    return json.dumps(json_safe(dict(report)), ensure_ascii=False, indent=1) + "\n"


def rounded(value: Any) -> Any:
    """The value with every float rounded to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value


def against_registry(report: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """A committed report beside the present registry: if the registry has changed since, no verdict stands."""
    if report["claims_sha256"] == registry.sha256:
        return dict(report)
    verdicts = [
        dict(one) | ({"verdict": CANNOT_TELL, "why": CHANGED} if one["p"] is not None else {}) for one in report["verdicts"]
    ]
    problems = [*report["problems"], *([] if CHANGED in report["problems"] else [CHANGED])]
    return dict(report) | {"claims_changed": True, "problems": problems, "verdicts": verdicts}


def cells_of(found: Collected, part: Part) -> list[dict[str, Any]]:
    """The cells of a part: one per learning rate and variant."""
    return [
        _cell(part, variant, rate, list(found.of(part.name, variant, rate).values()))
        for rate in part.rates
        for variant in part.variants
    ]


def _cell(part: Part, variant: str, rate: float, runs: Sequence[Outcome]) -> dict[str, Any]:
    """One cell: k of n runs finite with Wilson's interval, how many learnt, and the part's metric.

    The metric is that of the runs that learnt; an accuracy is that of the finite runs, and a ratio that of all ended runs."""
    ended = [one for one in runs if one.state not in ("open", "failed")]
    count = {state: sum(one.state == state for one in ended) for state in ("finite", "died", "arithmetic", "unchecked")}
    used = [one for one in ended if one.state == "finite" and (one.trained or part.trained is None)]
    if part.metric == "eval_accuracy":
        used = [one for one in ended if one.state == "finite"]
    elif part.metric == "largest_ratio":
        used = ended
    values = [one.values[part.metric] for one in used if math.isfinite(one.values[part.metric])]
    share = interval_of_share(count["finite"], len(ended)) if ended else (math.nan, math.nan)
    spread = [float(x) for x in np.quantile(values, (0.25, 0.5, 0.75))] if values else [None, None, None]
    cell: dict[str, Any] = rounded(
        {
            "part": part.name,
            "variant": variant,
            "rate": rate,
            "runs": [one.run_id for one in runs],
            "ended": len(ended),
            **count,
            "finite_interval": list(share),
            "trained": sum(one.trained for one in ended) if part.trained is not None else None,
            "metric": part.metric,
            "of": len(values),
            "low": spread[0],
            "median": spread[1],
            "high": spread[2],
            "exploratory": part.exploratory,
        }
    )
    return cell


def _figures(found: Collected, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The figures of each part: by learning rate if it has several, else by variant."""
    figures: list[dict[str, Any]] = []
    for part in found.design.parts:
        own = [cell for cell in cells if cell["part"] == part.name]
        figures += _by_rate(part, own) if len(part.rates) > 1 else _by_variant(part, own)
    return figures


def _by_rate(part: Part, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    shares: dict[str, Any] = {}
    medians: dict[str, Any] = {}
    for variant in part.variants:
        own = [cell for cell in cells if cell["variant"] == variant]
        x = [cell["rate"] for cell in own]
        shares[variant] = {"x": x, "y": [cell["finite"] / cell["ended"] if cell["ended"] else None for cell in own]}
        medians[variant] = {"x": x, "y": [cell["median"] for cell in own]}
    chart = "paper_loss" if part.metric == "eval_loss" else "paper_accuracy"
    caption = f"Median {METRICS[part.metric]} of the runs that learnt, by learning rate; {part.name}."
    share = f"Share of the runs that stayed finite, by learning rate; {part.name}."
    return [
        {"chart": "paper_finite", "part": part.name, "caption": share, "lines": rounded(shares)},
        {"chart": chart, "part": part.name, "caption": caption, "lines": medians},
    ]


def _by_variant(part: Part, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ranges = {
        cell["variant"]: {word: cell[word] for word in ("low", "median", "high")} | {"finite": cell["of"], "total": cell["ended"]}
        for cell in cells
        if cell["median"] is not None
    }
    caption = f"Median and quartiles over the seeds, {METRICS[part.metric]}; {part.name}."
    figure = {"chart": "paper_ranges", "part": part.name, "caption": caption, "ranges": ranges, "x_title": METRICS[part.metric]}
    return [figure] if ranges else []
