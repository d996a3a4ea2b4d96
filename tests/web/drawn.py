"""Figures with data for the tests of pictures: charts of pages that show every kind of trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from web.binding import bind, eigenvalue_items
from web.compared import compared_figure, range_items
from web.figures import spec
from web.palette import COLORS
from web.standalone import sized
from web.swept import swept_figure

STEPS = np.arange(1.0, 301.0)
MAPS = ("direct", "exp", "best", "softplus")
LONG = "reparameterization softplus, learning rate 0.003, a long name of a run that somebody chose"


def loss_of(runs: int = 12, name: str = "map {map}, learning rate 0.01, seed {i}") -> dict[str, Any]:
    """The loss of several runs on a logarithmic axis; every fourth run becomes NaN."""
    rng = np.random.default_rng(0)
    shown, curves = [], {}
    for i in range(runs):
        value = (np.exp(-STEPS / (60 + 15 * i)) + 1e-4 * (i + 1)) * np.exp(rng.standard_normal(300) / 12)
        if i % 4 == 0:
            value[100 + 8 * i :] = np.nan
        map_ = MAPS[i % 4]
        label, look = name.format(map=map_, i=i), {"color": f"map-{map_}", "dash": ("solid", "dash", "dot", "longdash")[i % 4]}
        shown.append({"key": i, "label": label, "group": map_, "outcome": "lost", "per_step": {"step": 1}, **look})
        curves[i] = {"step": STEPS, "value": value.astype(np.float32)}
    return compared_figure(spec("compare_loss"), shown, curves, lines=range(runs), groups=False)


def bands() -> dict[str, Any]:
    """Median and quartiles of groups of runs."""
    rng = np.random.default_rng(1)
    shown, curves = [], {}
    for i in range(12):
        look = {"color": f"map-{MAPS[i % 3]}", "dash": "solid"}
        facts = {"layer": "stable_ssm", "map": MAPS[i % 3]}
        shown.append(
            {"key": i, "label": f"run {i}", "group": MAPS[i % 3], "outcome": "stable", "per_step": {"step": 1}, **look, **facts}
        )
        value = np.exp(-STEPS / (60 + 40 * (i % 3))) * np.exp(rng.standard_normal(300) / 8 + rng.standard_normal() / 3)
        curves[i] = {"step": STEPS, "value": value.astype(np.float32)}
    return compared_figure(spec("compare_loss"), shown, curves, lines=[], groups=True)


def heat_map() -> dict[str, Any]:
    """Gradient over weight of 64 eigenvalues, with cells of NaN and of infinity, and an alert."""
    rng = np.random.default_rng(2)
    value = np.exp(np.linspace(-8, 4, 300)[:, None] + np.sin(np.arange(64) / 9) * 3 + rng.standard_normal((300, 64)) / 2)
    value[240:, 20:24] = np.nan
    value[260:, 40] = np.inf
    data = {"ssm/0/grad_over_weight": {"step": STEPS, "value": value.astype(np.float32)}}
    return bind(spec("grad_over_weight_heatmap"), data, alerts=[alert("ssm/0/grad_over_weight")], colors=COLORS, eigenvalues=64)


def eigenvalues(kind: str = "grad_over_weight") -> dict[str, Any]:
    """Lines of eigenvalues with range and median, and values that the axis cannot show."""
    rng = np.random.default_rng(3)
    value = np.exp(rng.standard_normal((300, 16)).cumsum(axis=0) / 8)
    value[200:, 3], value[150, 5], value[40:44] = np.nan, np.inf, 0
    data = {f"ssm/0/{kind}": {"step": STEPS, "value": value.astype(np.float32)}}
    items = eigenvalue_items(range(8))
    return sized(bind(spec(kind), data, items=items, alerts=[alert(f"ssm/0/{kind}")], colors=COLORS, eigenvalues=16), 900, 420)


def unit_disc() -> dict[str, Any]:
    """Complex eigenvalues on the unit disc, some of them outside, and some that are not finite at the end."""
    rng = np.random.default_rng(4)
    angle = rng.uniform(0, np.pi, 32) + rng.standard_normal((300, 32)).cumsum(axis=0) / 200
    size = np.linspace(0.7, 1.02, 32) + rng.standard_normal((300, 32)).cumsum(axis=0) / 900
    size[-1, 3] = np.nan
    data = {
        f"ssm/0/{name}": {"step": STEPS, "value": v.astype(np.float32)} for name, v in (("phase", angle), ("eigenvalue", size))
    }
    return sized(bind(spec("unit_disc"), data, items=eigenvalue_items(range(4)), colors=COLORS, eigenvalues=32), 900, 420)


def ranges() -> dict[str, Any]:
    """Bars of maps on a categorical axis; one map has no finite ratio."""
    rows = [
        {
            "reparameterization": name,
            "runs": 3,
            "min": low,
            "q05": low * 4,
            "median": low * 30,
            "q95": low * 400,
            "max": low * 9000,
        }
        for name, low in zip(MAPS[:3], (1e-6, 3e-5, 0.0), strict=True)
    ]
    lost = dict.fromkeys(("min", "q05", "median", "q95", "max"))
    items = [{**row, "finite": 900, "total": 900} for row in rows] + [
        {"reparameterization": "relu", "runs": 1, **lost, "finite": 0, "total": 300}
    ]
    return bind(spec("compare_ranges"), {}, items=range_items(items), colors=COLORS)


def swept() -> dict[str, Any]:
    """Final losses of maps by learning rate with quartiles; the largest rate lost a run."""
    rates = [0.001, 0.01, 0.1]
    cells = [
        [
            {"loss": {"median": m, "q25": m * 0.8, "q75": m * 1.5}, "lost": int(rate == 0.1), "total": 3}
            for rate, m in zip(rates, (0.1 / (i + 1), 0.02, 0.3 * (i + 1)), strict=True)
        ]
        for i in range(3)
    ]
    grid = {"rows": {"path": "model.reparameterization.name", "values": list(MAPS[:3])}, "cells": cells}
    return swept_figure(spec("sweep_final_loss"), {**grid, "columns": {"path": "optimizer.lr", "values": rates}})


def alert(series: str) -> dict[str, Any]:
    return {"series": series, "severity": "critical", "step": 240, "message": "a < b", "id": 1}
