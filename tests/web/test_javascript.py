"""The pure parts of the browser's modules run in node and draw the same figures as Python."""

import base64
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from server.database.connection import Database
from server.http.api.overview import pack
from server.series import overview
from server.series.layout import Layout
from server.series.reading import read_series
from stablessm_core.telemetry.typed_arrays import encode
from tests.server.mixed import mixed_run
from tests.server.recording import Recording, claimed
from web.binding import bind
from web.charts import CHARTS
from web.figures import spec
from web.formatting import ago, duration, number

pytestmark = [pytest.mark.spread, pytest.mark.slow]

TESTS = Path(__file__).parent / "js"
RATIO, LOSS, DISTANCE = "ssm/1/grad_over_weight", "train/loss", "ssm/1/boundary_distance"


def run_node(static: Path, *arguments: str, stdin: str | None = None) -> str:
    environment = {**os.environ, "STATIC": static.as_uri()}
    done = subprocess.run(["node", *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(p.name for p in TESTS.glob("*.test.mjs")))
def test_the_javascript_module_tests_pass_in_node(static_modules: Path, name: str) -> None:
    assert "# fail 0" in run_node(static_modules, "--test", "--test-reporter=tap", str(TESTS / name))


def nonfinite_data() -> dict[str, dict[str, np.ndarray]]:
    """A run that becomes NaN: raw series, a series in buckets, and a series so wide that columns are merged."""
    rng = np.random.default_rng(3)
    step = np.arange(1.0, 1301.0)
    loss = (rng.random(1300) + 0.1).astype(np.float32)
    loss[700:], loss[650], loss[651] = np.nan, np.inf, -np.inf
    ratio = np.exp(rng.normal(size=(1300, 300))).astype(np.float32)
    ratio[800:, 7], ratio[900, 11], ratio[3, 5] = np.nan, np.inf, 0.0
    low = rng.random((40, 3)).astype(np.float32) - 0.1
    buckets = {"min": low, "max": low + 1, "last": low + 0.5, "nonfinite": (rng.random((40, 3)) > 0.9).astype(np.float32)}
    size, angle = rng.random((1300, 300)).astype(np.float32), rng.normal(size=(1300, 300)).astype(np.float32)
    size[1299, 4], size[:, 5], angle[600:, 6] = np.nan, np.inf, np.nan
    weight, gradient = np.ones_like(ratio), np.ones_like(ratio)
    ratio[0, :3], weight[0, :3] = np.inf, 0
    ratio[2, 40], gradient[2, 40] = np.inf, np.inf  # infinite because of its gradient, not because of its weight
    gates = np.exp(rng.normal(size=(3, 1300, 30))).astype(np.float32)  # 30 gates of 300 eigenvalues
    complex_ = {"eigenvalue": size, "phase": angle, "rate": size - 0.1, "phase_weight": 10 * angle, "weight": weight,
                "gradient": gradient, "gate_min": gates[0], "gate_mean": gates[1], "gate_max": gates[2]}  # fmt: skip
    return {
        LOSS: {"step": step, "value": loss},
        RATIO: {"step": step, "value": ratio},
        **{f"ssm/1/{kind}": {"step": step, "value": values} for kind, values in complex_.items()},
        DISTANCE: {"step": np.arange(1.0, 401.0, 10.0), **buckets},
        "5:train/loss": {"step": step, "value": loss},
        "5:max_grad_over_weight": {"step": step, "value": ratio.max(axis=1)},
    }


ALERTS = [
    {"step": 701, "series": LOSS, "severity": "critical", "message": "loss is <NaN> & lost"},
    {"step": 801, "series": RATIO, "severity": "warning", "message": "ratio above 1e4"},
]
RUNS = [{"key": "5", "label": "<b>best</b> $& {key}", "color": "map-best", "dash": "dot"}]
RANGES = [
    {
        "label": "a <1>",
        "color": "map-exp",
        "min": 1e-3,
        "q05": 0.01,
        "median": 0.1,
        "q95": 1.0,
        "max": 20.0,
        "finite": 9,
        "total": 10,
    },
    {
        "label": "b",
        "color": "map-direct",
        "min": 0.0,
        "q05": None,
        "median": "NaN",
        "q95": 2.0,
        "max": "Infinity",
        "finite": 0,
        "total": 10,
    },
]


def plain(value: object) -> object:
    if isinstance(value, dict) and "bdata" in value:
        flat = np.frombuffer(base64.b64decode(value["bdata"]), "<" + value["dtype"]).astype(np.float64)
        shape = [int(n) for n in value["shape"].split(",")] if "shape" in value else [len(flat)]
        return plain(flat.reshape(shape).tolist())
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def assert_same(python: object, browser: object, where: str) -> None:
    if isinstance(python, dict):
        assert isinstance(browser, dict), where
        assert sorted(python) == sorted(browser), where
        for key in python.keys() - {"hovertext"}:  # without hover texts, in which each side formats numbers differently
            assert_same(python[key], browser[key], f"{where}.{key}")
    elif isinstance(python, list):
        assert isinstance(browser, list), where
        assert len(python) == len(browser), where
        for i, (p, b) in enumerate(zip(python, browser, strict=True)):
            assert_same(p, b, f"{where}[{i}]")
    elif isinstance(python, float) and isinstance(browser, int | float):
        assert browser == pytest.approx(python, rel=1e-5, abs=1e-6), where
    else:
        assert python == browser, where


def test_server_and_browser_format_numbers_and_times_identically(static_modules: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = [0, -0.0, 1, 999_999, 1_000_000, 1e9, -1e9, 1e-3, 9.9996e-4, 1234.5, 12345.5, 0.5, 2.5, 1e300, 5e-324, 99999.99]
    numbers += [*(rng.choice([-1, 1], 400) * 10 ** rng.uniform(-12, 14, 400)), *rng.integers(0, 10**10, 50).tolist()]
    spans = [0, 0.4, 1, 4.9, 59.5, 60, 61, 3599.6, 3661, 90_000.0, 1e7]
    code = (
        "const {number, duration, ago} = await import(`${process.env.STATIC}/lib/format.js`);"
        "const {n, s} = JSON.parse(process.argv[1]); console.log(JSON.stringify([n.flatMap((x) => [number(x), number(x, 6)]),"
        "s.map((x) => duration(x)),"
        "s.flatMap((x) => [ago(0, x), ago(x, 0)])]));"
    )
    given = json.dumps({"n": numbers, "s": spans}, default=float)
    browser = json.loads(run_node(static_modules, "--input-type=module", "-e", code, given))
    words = [[ago(0, x), ago(x, 0)] for x in spans]
    python = [
        [f(x) for x in numbers for f in (number, six_digits)],
        [duration(x) for x in spans],
        [w for pair in words for w in pair],
    ]
    assert browser == python
    assert [number(x) for x in ("NaN", "Infinity", "-Infinity", None)] == ["NaN", "+Inf", "−Inf", "–"]


def six_digits(x: float) -> str:
    return number(x, 6)


def test_browser_and_python_build_the_same_figures(static_modules: Path) -> None:
    data = nonfinite_data()
    charts = [c for c in CHARTS if not c.startswith(("theory", "sweep", "paper"))]
    items = {c: RANGES if c == "compare_ranges" else RUNS for c in charts if c.startswith("compare")}
    cases, expected = [], []
    wire = {
        n: {"width": next(v for k, v in d.items() if k != "step").reshape(len(d["step"]), -1).shape[1]}
        | {k: encode(v) for k, v in d.items()}
        for n, d in data.items()
    }
    for chart in charts:
        options = {"layer": 1, "alerts": ALERTS, "eigenvalues": 300} | ({"items": items[chart]} if chart in items else {})
        cases.append({"figure": spec(chart), "data": wire, "options": options})
        expected.append(plain(bind(spec(chart), data, **options)))
    answers = json.loads(run_node(static_modules, str(TESTS / "bind_cases.mjs"), stdin=json.dumps(cases)))
    for chart, python, browser in zip(charts, expected, answers, strict=True):
        assert_same(python, browser, chart)


@pytest.mark.parametrize(("layer", "eigenvalues"), [(None, 6), ("0", 8), ("1", 6), ("2", 4), ("0.dt_bias", 4)])
def test_charts_from_an_overview_equal_charts_from_all_buckets(
    static_modules: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str, layer: str | None, eigenvalues: int
) -> None:
    """On the page of a long run, charts from an overview equal charts from the buckets of all eigenvalues."""
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    database = Database(sqlite_url)
    if layer is None:
        Recording(database, claimed(database, model__reparameterization__name="direct"), width=6).write(3000)
    else:
        mixed_run(database)
    points, id_ = (200, "0") if layer is None else (20, layer)
    ratio = f"ssm/{id_}/grad_over_weight"
    with database.read() as session:
        layout = Layout(session, 1)
        rows = [row for row in layout.series.values() if row.name.startswith(f"ssm/{id_}/")]
        found, lines = overview.read_overview(
            session, layout, rows, overview.OverviewOptions(points=points, lines=[2], top=3, by=ratio, heat=[ratio])
        )
        buckets = {row.name: read_series(session, 1, row.name, max_points=points) for row in rows}
    database.close()
    data = {
        name: {p: np.asarray(getattr(s, p)) for p in ("step", "min", "max", "last", "nonfinite")}
        for name, s in buckets.items()
        if s.value is None  # series that are computed at evaluations have only few points
    }
    charts = [c for c in CHARTS if CHARTS[c].scope == "layer" and not c.startswith(("true", "gain"))]
    items = [{"key": str(c), "column": c, "label": f"eigenvalue {c}", "color": "line-0", "dash": "dot"} for c in lines]
    options = {"layer": id_, "items": items, "eigenvalues": eigenvalues}
    cases = [
        {"figure": spec(chart), "overview": base64.b64encode(pack({}, found)).decode(), "options": options} for chart in charts
    ]
    answers = json.loads(run_node(static_modules, str(TESTS / "bind_cases.mjs"), stdin=json.dumps(cases)))
    for chart, browser in zip(charts, answers, strict=True):
        python = plain(bind(spec(chart), data, **options))
        assert isinstance(python, dict)
        for ours, theirs in zip(python["data"], browser["data"], strict=True):
            if ours["type"] == "heatmap" and ours["meta"]["field"] == "heat":  # overview codes are rounded to shades
                for mine, shown in zip(ours.pop("z", []), theirs.pop("z", []), strict=True):
                    fine = 12 / 250
                    assert [v if isinstance(v, str) else pytest.approx(v, abs=fine) for v in mine] == shown
        assert_same(python, browser, chart)
