"""Python and the browser compute the same comparison figures, ranges and reasons for lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.database.connection import Database
from server.http.api.overview import pack
from server.series import overview
from server.series.layout import Layout
from stablessm_core.spec.axis_values import axis_values
from stablessm_core.telemetry.series import EVAL_ACCURACY
from stablessm_core.telemetry.typed_arrays import decode, encode
from tests.server.mixed import mixed_run
from tests.server.recording import Recording, claimed
from tests.web.test_javascript import TESTS, assert_same, plain, run_node
from web.compared import compared_figure, range_items
from web.figures import spec
from web.log_ticks import log_ticks
from web.palette import COLORS


def browser_results(static_modules: Path, cases: list[dict[str, Any]]) -> Any:
    return json.loads(run_node(static_modules, str(TESTS / "parity_cases.mjs"), stdin=json.dumps(cases)))


def runs_and_curves() -> tuple[list[dict[str, Any]], dict[int, dict[str, np.ndarray]]]:
    """Five runs in two groups, raw and in buckets. One is lost halfway, one ends early, and one has no token rate."""
    rng = np.random.default_rng(8)
    runs, curves = [], {}
    kinds = [("a", "stable", 64, 300), ("a", "lost", 64, 150), ("a", "stable", 64, 200), ("b", "stable", 32, 300)]
    for key, (group, outcome, tokens, steps) in enumerate([*kinds, ("b", "stable", None, 90)], start=1):
        loss = np.exp(rng.normal(size=steps)).astype(np.float32)
        if outcome == "lost":
            loss[140:] = np.nan
        loss[7] = -1.0 if key == 3 else loss[7]
        curves[key] = {"step": np.arange(1.0, steps + 1), "value": loss}
        look = {"color": f"line-{key}", "dash": ("solid", "dash", "dot")[key % 3]}
        kind = {"label": f"<run> & {key}", "layer": "s4d", "map": "best", "group": group, "outcome": outcome}
        per_step = {"step": 1, "tokens": tokens, "seconds": 0.5}
        runs.append({"key": key, **kind, **look, "per_step": per_step})
    low = np.exp(rng.normal(size=40)).astype(np.float32)
    curves[4] = {
        "step": np.arange(1.0, 400, 10),
        "min": low,
        "max": low + 1,
        "last": low + 0.5,
        "nonfinite": np.zeros(40, np.float32),
    }
    return runs, curves


LOG_AXES = [(0.4, 0.62), (0.1, 0.1000001), (1.5, 30.0), (3e-9, 8e-9), (2e6, 1.9e7), (990.0, 1010.0), (0, 1), (1e-3, 1), (1, 1)]


AXES = [
    *("0-4", "0..4", "1e-4..1e-1 log 4", "1..0.01 LOG 5", "0..1 linear 5, 7", "s4d, direct", '"a", [0.5, 1]', "true, null, 0x10"),
    *("4-0", "1e-4, -3", "0..1 log 4", "1..2 log 1", "", " , ,", "NaN", "+3, .5, 5."),
]


@pytest.mark.slow
def test_the_form_and_the_server_read_the_same_values_of_an_axis(static_modules: Path) -> None:
    found = browser_results(static_modules, [{"what": "axis_values", "text": text} for text in AXES])
    for text, theirs in zip(AXES, found, strict=True):
        assert_same(json.loads(json.dumps(axis_values(text))), theirs, text)


@pytest.mark.slow
def test_logarithmic_axes_below_two_decades_have_at_least_two_readable_ticks(static_modules: Path) -> None:
    found = browser_results(static_modules, [{"what": "log_ticks", "low": low, "high": high} for low, high in LOG_AXES])
    for (low, high), theirs in zip(LOG_AXES, found, strict=True):
        ours = log_ticks(low, high)
        assert_same(ours, theirs, f"{low} to {high}")
        if 0 < low < high < 100 * low:
            assert len(set(ours["ticktext"])) == len(ours["tickvals"]) >= 2, ours
            assert [float(text) for text in ours["ticktext"]] == pytest.approx(ours["tickvals"])
        else:
            assert ours == {}
    assert log_ticks(0.4, 0.62)["ticktext"] == ["0.40", "0.45", "0.50", "0.55", "0.60"]


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize(("x", "y", "smooth", "metric"), [
    ("step", "log", 0, ""), ("tokens", "linear", 0.9, "eval/<loss>"), ("seconds", "log", 0.6, EVAL_ACCURACY),
])  # fmt: skip
@pytest.mark.slow
def test_the_comparison_page_and_its_files_show_the_same_lines_bands_and_marks(
    static_modules: Path, x: str, y: str, smooth: float, metric: str, groups: bool
) -> None:
    runs, curves = runs_and_curves()
    lines = [1, 2, 4] if groups else [run["key"] for run in runs]
    python = plain(
        compared_figure(
            spec("compare_loss"),
            runs,
            curves,
            lines=lines,
            groups=groups,
            x=x,
            y=y,
            between=(3.0, 90.0),
            smooth=smooth,
            metric=metric,
        )
    )
    assert isinstance(python, dict)
    assert len([trace for trace in python["data"] if trace.get("opacity") == 0.25]) == (
        len(lines) - (x == "tokens" and not groups) if smooth else 0
    )
    case = {
        "what": "compared",
        "figure": spec("compare_loss"),
        "runs": [{**run, "key": str(run["key"]), "perStep": run["per_step"]} for run in runs],
        "curves": {key: {"width": 1} | {part: encode(values) for part, values in curve.items()} for key, curve in curves.items()},
        "view": {
            "show": "groups" if groups else "runs",
            "x": x,
            "y": y,
            "ticked": [str(key) for key in lines],
            "range": [3, 90],
            "smooth": smooth,
            "metric": metric,
            "larger": metric == EVAL_ACCURACY,
        },
        "palette": COLORS,
    }
    (browser,) = browser_results(static_modules, [case])
    for axis in ("xaxis", "yaxis"):
        assert_same(python["layout"][axis], browser["layout"][axis], axis)
    assert len(python["data"]) == len(browser["data"])
    for i, (ours, theirs) in enumerate(zip(python["data"], browser["data"], strict=True)):
        for part in ("x", "y", "text", "name", "mode", "fill", "fillcolor", "opacity"):
            if part in ours and part in theirs:
                assert_same(ours[part], theirs[part], f"trace {i}.{part}")
        assert ("text" in ours, "fill" in ours) == ("text" in theirs, "fill" in theirs)
        for part, look in ours.get("line", {}).items():
            assert theirs["line"][part] == look, f"trace {i}.line.{part}"


@pytest.mark.parametrize(("metric", "median"), [("", 0.3), (EVAL_ACCURACY, 0.2), ("ssm/0/boundary_distance", 0.2)])
def test_a_lost_run_counts_as_the_worst_of_its_group_also_where_larger_values_are_better(metric: str, median: float) -> None:
    look = {"group": "a", "layer": "s4d", "map": "best", "color": "line-1", "dash": "solid", "per_step": {"step": 1}}
    runs = [{"key": key, "label": str(key), "outcome": "lost" if key == 1 else "stable", **look} for key in (1, 2, 3)]
    curves = {key: {"step": np.arange(1.0, 101.0), "value": np.full(100, key / 10, np.float32)} for key in (1, 2, 3)}
    curves[1]["value"][50:] = np.nan
    drawn = compared_figure(spec("compare_loss"), runs, curves, lines=[], groups=True, metric=metric)["data"]
    assert decode(drawn[1]["y"])[-1] == pytest.approx(median)


def test_range_bars_have_the_same_labels_and_colours_in_python_and_the_browser(static_modules: Path) -> None:
    pooled = [
        {"reparameterization": "best", "runs": 1, "min": 0.1, "finite": 3, "total": 4},
        {"reparameterization": "exp, direct", "runs": 3, "min": None, "finite": 0, "total": 4},
    ]
    (browser,) = browser_results(static_modules, [{"what": "ranges", "pooled": pooled}])
    assert [{**one, "run_id": None} for one in range_items(pooled)] == browser


@pytest.mark.parametrize("layer", ["0", "1", "wide"])
@pytest.mark.parametrize("order", ["end", "start"])
@pytest.mark.slow
def test_the_server_sends_exactly_the_highlighted_lines_that_the_page_names(
    static_modules: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str, layer: str, order: str
) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    database = Database(sqlite_url)
    if layer == "wide":
        Recording(database, claimed(database, model__reparameterization__name="direct"), width=9).write(3000)
    else:
        mixed_run(database)
    id_ = "0" if layer == "wide" else layer
    with database.read() as session:
        layout = Layout(session, 1)
        rows = [row for row in layout.series.values() if row.name.startswith(f"ssm/{id_}/")]
        ratio = f"ssm/{id_}/grad_over_weight"
        options = overview.OverviewOptions(points=20, top=0, by=ratio, reasons=True, heat=[ratio], order=order)
        found, drawn = overview.read_overview(session, layout, rows, options)
    database.close()
    case = {"what": "reasons", "overview": base64.b64encode(pack({}, found)).decode(), "layer": int(id_)}
    (browser,) = browser_results(static_modules, [case])
    assert drawn
    assert sorted(browser["columns"]) == sorted(drawn)
    (map_,) = [one for one in found if one.name == ratio]
    assert map_.facts["heat_rows"] == browser[order]
