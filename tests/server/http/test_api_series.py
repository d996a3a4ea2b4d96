"""The numbers over REST equal the recorded numbers in every format. Also: figures, comparisons, alerts and sweeps."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.series import files, overview
from stablessm_core.telemetry.typed_arrays import decode
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claimed, nonfinite
from web.charts import CHARTS

pytestmark = [pytest.mark.spread, pytest.mark.slow]

RATIO, WEIGHT, EIGENVALUE = "ssm/0/grad_over_weight", "ssm/0/weight", "ssm/0/eigenvalue"
DERIVED = {"ssm/0/boundary_distance", "ssm/0/relative_step", "ssm/0/overflow_budget"}


@pytest.fixture
def recording(database: Database) -> Recording:
    made = Recording(database, claimed(database, train__steps=1000, model__d_state=4), width=4)
    for points in (70, 1, 129, 100):
        made.write(points)
    return made


@pytest.fixture
def client(recording: Recording, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(recording.database.url, tmp_path)) as client:
        yield client


def read(client: httpx.Client, name: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/api/runs/1/series/{name}", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=object).astype(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


def test_the_catalogue_lists_every_series_with_its_range_of_steps(client: httpx.Client) -> None:
    answer = client.get("/api/runs/1/series").json()
    by_name = {series["name"]: series for series in answer["series"]}
    assert set(by_name) == {"train/loss", RATIO, WEIGHT, EIGENVALUE, *DERIVED}
    assert (by_name[RATIO]["width"], by_name["train/loss"]["width"]) == (4, 1)
    extents = {name: (s["first_step"], s["last_step"], s["points"]) for name, s in by_name.items()}
    assert extents.pop("ssm/0/relative_step") == (1, 299, 299)  # a relative step needs the following step
    assert set(extents.values()) == {(1, 300, 300)}
    assert "grad" in by_name[RATIO]["meaning"] or "dL" in by_name[RATIO]["meaning"]
    assert answer["seq"] == client.get("/api/runs/1").json()["seq"]


@pytest.mark.parametrize("name", ["train/loss", RATIO, WEIGHT, EIGENVALUE])
def test_raw_points_equal_the_recorded_values_in_every_format(client: httpx.Client, recording: Recording, name: str) -> None:
    truth = recording.truth[name].astype(np.float32)
    flat = truth[:, 0] if truth.shape[1] == 1 else truth
    body = read(client, name)
    assert list(body) == ["name", "width", "unit", "seq", "last_step", "step", "value"]
    assert body["step"] == list(range(1, 301))
    assert same(numbers(body["value"]), flat)
    typed = read(client, name, format="typed")
    assert same(decode(typed["step"]), np.arange(1.0, 301.0))
    assert same(decode(typed["value"]), truth)
    content = client.get(f"/api/runs/1/series/{name}", params={"format": "arrow"}).content
    table = pa.ipc.open_stream(content).read_all()
    assert table["step"].to_pylist() == list(range(1, 301))
    column = table["value"].combine_chunks()
    values = column if truth.shape[1] == 1 else column.flatten()
    assert same(values.to_numpy(zero_copy_only=False).reshape(flat.shape), flat)
    text = client.get(f"/api/runs/1/series/{name}", params={"format": "csv"}).text
    rows = np.genfromtxt(io.StringIO(text), delimiter=",", skip_header=1)
    assert same(rows[:, 1:].astype(np.float32), truth)
    assert text.startswith("step,value\n" if truth.shape[1] == 1 else "step,value_0,value_1,value_2,value_3\n")


def test_non_finite_numbers_are_strings_in_json(client: httpx.Client, recording: Recording) -> None:
    text = client.get(f"/api/runs/1/series/{RATIO}").text
    truth = recording.truth[RATIO]
    for word, count in [
        ('"NaN"', np.isnan(truth).sum()), ('"Infinity"', np.isposinf(truth).sum()), ('"-Infinity"', np.isneginf(truth).sum()),
    ]:  # fmt: skip
        assert text.count(word) == count
    assert np.isnan(truth).any()


def test_more_points_than_requested_are_reduced_to_an_envelope(client: httpx.Client, recording: Recording) -> None:
    body = read(client, RATIO, max_points=30)
    assert "value" not in body
    assert 0 < len(body["step"]) <= 30
    truth = recording.truth[RATIO]
    finite = np.where(np.isfinite(truth), truth, np.nan)
    assert same(np.nanmax(numbers(body["max"]), axis=0), np.nanmax(finite, axis=0))
    assert same(np.nanmin(numbers(body["min"]), axis=0), np.nanmin(finite, axis=0))
    assert np.array(body["nonfinite"]).sum() == (~np.isfinite(truth)).sum()
    assert same(numbers(body["last"])[-1], truth[-1])
    assert body["last_step"] == 300


@pytest.mark.parametrize("name", ["train/loss", RATIO, EIGENVALUE])
def test_a_download_has_every_point_even_of_a_running_run(
    client: httpx.Client, recording: Recording, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link on the page does not name a number of points, so it stays valid while the run grows."""
    page = client.get("/runs/1").text
    link = f"/api/runs/1/series/{name}?format={{}}&amp;download=true"
    assert all(f'href="{link.format(form)}"' in page for form in ("csv", "arrow", "json"))
    assert "max_points" not in page
    monkeypatch.setattr(files, "PIECE_NUMBERS", 3000)  # so that the download has several pieces
    recording.write(3000)
    truth = recording.truth[name].astype(np.float32)
    answers = {form: client.get(link.format(form).replace("&amp;", "&")) for form in ("csv", "arrow", "json")}
    for form, answer in answers.items():
        assert f'filename="run-1-{name.replace("/", "-")}.{form}"' in answer.headers["content-disposition"]
    rows = np.genfromtxt(io.StringIO(answers["csv"].text), delimiter=",", skip_header=1)
    assert same(rows[:, 0], np.arange(1.0, 3301.0))
    assert same(rows[:, 1:].astype(np.float32), truth)
    table = pa.ipc.open_stream(answers["arrow"].content).read_all()
    column = table["value"].combine_chunks()
    values = column if truth.shape[1] == 1 else column.flatten()
    assert same(values.to_numpy(zero_copy_only=False).reshape(truth.shape), truth)
    assert answers["json"].json() == client.get(f"/api/runs/1/series/{name}?max_points=10000").json()
    assert client.get(link.format("json").replace("&amp;", "&") + "&from_step=9000").json()["value"] == []


def test_a_download_of_buckets_has_buckets_in_its_file_name(client: httpx.Client) -> None:
    answer = client.get(f"/api/runs/1/series/{RATIO}?format=csv&download=true&max_points=30")
    assert 'filename="run-1-ssm-0-grad_over_weight-buckets.csv"' in answer.headers["content-disposition"]
    assert answer.text.startswith("step,min_0,")
    one = client.get("/api/runs/1/series/train/loss?format=csv&download=true&max_points=300&eigenvalues=0")
    assert 'filename="run-1-train-loss.csv"' in one.headers["content-disposition"]
    assert error_of(client.get("/api/runs/1/series/train/loss?format=typed&download=true"), 422)["field"] == "format"


def test_a_range_of_steps_and_some_eigenvalues_can_be_read(client: httpx.Client, recording: Recording) -> None:
    body = read(client, RATIO, from_step=60, to_step=80, eigenvalues="3,0-1")
    assert body["step"] == list(range(60, 81))
    assert (body["width"], body["eigenvalues"]) == (3, [3, 0, 1])
    assert same(numbers(body["value"]), recording.truth[RATIO][59:80][:, [3, 0, 1]])
    one = read(client, RATIO, eigenvalues="2", to_step=5)
    assert same(numbers(one["value"]), recording.truth[RATIO][:5, 2])
    assert read(client, RATIO, from_step=5000)["value"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [("eigenvalues=4", "eigenvalues"), ("eigenvalues=a", "eigenvalues"), ("eigenvalues=3-1", "eigenvalues"),
     ("eigenvalues=", "eigenvalues"), ("eigenvalues=0-99999999999", "eigenvalues"), ("from_step=9&to_step=3", "from_step"),
     ("max_points=0", "max_points"), ("max_points=99999999999", "max_points"), ("format=xml", "format"),
     ("from_step=-1", "from_step"),
     ("maxpoints=3", "maxpoints")],
)  # fmt: skip
def test_an_invalid_series_query_is_refused(client: httpx.Client, query: str, field: str) -> None:
    error = error_of(client.get(f"/api/runs/1/series/{RATIO}?{query}"), 422)
    assert error["field"] == field


def unpacked(body: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(body[:4], "little")
    return json.loads(body[4 : 4 + size]), body[4 + size :]


def test_the_overview_equals_the_series(client: httpx.Client, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    recording.write(700)
    head, data = unpacked(client.get("/api/runs/1/overview?points=100", headers={"accept-encoding": "gzip"}).content)
    assert (head["part"], head["layer"], list(head["series"])) == ("scalars", None, ["train/loss"])
    body = read(client, "train/loss", max_points=100)
    refs = head["series"]["train/loss"]["arrays"]
    for name, (dtype, at, length) in refs.items():
        assert same(np.frombuffer(data, f"<{dtype}", length, at).astype(np.float32), numbers(body[name])), name
    assert all(at % 8 == 0 for _, at, _ in refs.values())
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    answer = client.get("/api/runs/1/overview?part=layer&points=100&eigenvalues=1,3&top=0")
    head, data = unpacked(answer.content)
    assert head["lines"] == [1, 3]
    assert set(head["series"]) == {RATIO, WEIGHT, EIGENVALUE, *DERIVED}
    one = head["series"][RATIO]
    dtype, at, length = one["arrays"]["lines"]
    lines = np.frombuffer(data, f"<{dtype}", length, at).reshape(2, -1)
    assert same(lines, numbers(read(client, RATIO, max_points=100, eigenvalues="1,3")["last"]).T)
    assert one["arrays"]["heat"][0] == "u1"
    assert "heat" not in head["series"][WEIGHT]["arrays"]
    assert one["arrays"]["step"] == head["series"][WEIGHT]["arrays"]["step"], "series with the same steps must share one array"


@pytest.mark.parametrize(
    ("query", "field"),
    [("part=some", "part"), ("points=1", "points"), ("part=layer&layer=1", "layer"), ("part=layer&eigenvalues=4", "eigenvalues"),
     ("from_step=5&to_step=2", "from_step"), ("layers=1", "layers")],
)  # fmt: skip
def test_an_invalid_overview_query_is_refused(client: httpx.Client, query: str, field: str) -> None:
    assert error_of(client.get(f"/api/runs/1/overview?{query}"), 422)["field"] == field


def test_the_error_for_an_unknown_series_lists_the_known_series(client: httpx.Client) -> None:
    assert "train/loss" in error_of(client.get("/api/runs/1/series/train/weather"), 404)["allowed"]


def test_every_chart_definition_is_available_without_data(client: httpx.Client) -> None:
    figures = client.get("/api/figures").json()["figures"]
    assert set(figures) == set(CHARTS)
    assert all("x" not in trace for chart in figures.values() for trace in chart["figure"]["data"])


@pytest.mark.parametrize("chart", [name for name, chart in CHARTS.items() if chart.scope in ("run", "layer")])
def test_a_run_s_figure_contains_its_recorded_numbers(client: httpx.Client, recording: Recording, chart: str) -> None:
    figure = client.get(f"/api/runs/1/figures/{chart}").json()
    assert figure["layout"]["xaxis"]
    if chart == "loss":
        line = next(t for t in figure["data"] if t["meta"] == {"series": "train/loss", "field": "last", "color": "accent"})
        truth = recording.truth["train/loss"][:, 0]
        # The axis is logarithmic, so only positive values are drawn.
        expected = np.where(np.isfinite(truth) & (truth > 0), truth, np.nan)
        assert same(decode(line["y"]), expected.astype(np.float32))
    if chart == "grad_over_weight":
        chosen = client.get(f"/api/runs/1/figures/{chart}?eigenvalues=1,3").json()
        names = [t["name"] for t in chosen["data"] if t["meta"].get("each") == "eigenvalue"]
        assert [name.split()[-1] for name in names] == ["1", "3"]


def test_an_exported_chart_is_one_self_contained_file(client: httpx.Client) -> None:
    query = "eigenvalues=1&from_step=10&to_step=150&width=640&height=400"
    figure = client.get(f"/api/runs/1/figures/grad_over_weight?{query}").json()
    assert (figure["layout"]["width"], figure["layout"]["height"]) == (640, 400)
    line = next(t for t in figure["data"] if t["meta"].get("each") == "eigenvalue")
    assert decode(line["x"])[[0, -1]].tolist() == [10, 150]
    answer = client.get(f"/api/runs/1/figures/grad_over_weight?{query}&format=html")
    assert "attachment" in answer.headers["content-disposition"]
    inside = answer.text.partition('id="figure">')[2].partition("</script>")[0]
    assert json.loads(inside.replace("<\\/", "</")) == figure
    assert "<script src" not in answer.text


def test_an_unknown_chart_or_layer_is_refused(client: httpx.Client) -> None:
    assert "loss" in error_of(client.get("/api/runs/1/figures/weather"), 404)["allowed"]
    error_of(client.get("/api/runs/1/figures/compare_loss"), 404)
    assert error_of(client.get("/api/runs/1/figures/eigenvalue?layer=1"), 422)["allowed"] == "0"


def test_alerts_are_listed_for_one_run_and_for_all_runs(client: httpx.Client, recording: Recording) -> None:
    recording.write(10, [nonfinite(step=302), nonfinite("nonfinite_gradient", 303, series=RATIO, layer=0, eigenvalue=2)])
    of_run = client.get("/api/runs/1/alerts").json()["alerts"]
    assert [(a["kind"], a["step"], a["value"], a["eigenvalue"]) for a in of_run] == [
        ("nonfinite_loss", 302, "NaN", None), ("nonfinite_gradient", 303, "NaN", 2),
    ]  # fmt: skip
    assert client.get("/api/alerts").json()["alerts"] == of_run[::-1]
    assert client.get("/api/alerts", params={"since": of_run[0]["id"]}).json()["alerts"] == of_run[1:]
    assert client.get("/api/alerts?severity=warning").json()["alerts"] == []
    assert client.get("/api/runs/1").json()["alerts"] == 2
    assert error_of(client.get("/api/alerts?severity=mild"), 422)["allowed"] == "warning, critical"


def test_runs_are_compared(client: httpx.Client, recording: Recording) -> None:
    body = BODY | {"model": {"d_state": 4, "reparameterization": {"name": "direct"}}, "train": {"steps": 1000}}
    assert client.post("/api/runs", json=body).json()["id"] == 2
    answer = client.get("/api/compare?runs=2,1&group_by=model.reparameterization.name").json()
    assert [run["id"] for run in answer["runs"]] == [2, 1]
    assert {"field": "model.reparameterization.name", "values": ["direct", "best"]} in answer["differences"]
    truth = recording.truth[RATIO]
    of_first = next(r for r in answer["ranges"] if r["run_id"] == 1)
    assert (of_first["total"], of_first["finite"]) == (truth.size, int(np.isfinite(truth).sum()))
    assert same(decode(answer["curves"]["1"]["train/loss"]["value"])[:, 0], recording.truth["train/loss"][:, 0])
    of_loss = client.get("/api/compare/curves?runs=2,1").json()
    assert of_loss["curves"]["1"] == {"train/loss": answer["curves"]["1"]["train/loss"]}
    assert (of_loss["ranges"], of_loss["pooled"]) == ([], [])
    of_ratio = client.get("/api/compare/curves?runs=2,1&series=max_grad_over_weight&points=50").json()
    assert list(of_ratio["curves"]["1"]) == ["max_grad_over_weight"]
    assert [r["run_id"] for r in of_ratio["ranges"]] == [1]
    assert of_ratio["pooled"][0]["total"] == truth.size
    assert [group["key"] for group in answer["groups"]] == [{"model.reparameterization.name": n} for n in ("direct", "best")]
    assert client.get("/api/compare?q=reparam=best").json()["runs"][0]["id"] == 1


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [("", 422, "runs"), ("runs=1&q=lr>0", 422, "runs"), ("runs=x", 422, "runs"), ("runs=1,99", 404, "runs"), ("q=zz=1", 422, "q"),
     ("runs=1&group_by=nothing", 422, "group_by"), ("sweep=0", 422, "sweep"), ("runs=" + ",".join(["1"] * 201), 422, "runs")],
)  # fmt: skip
def test_an_invalid_comparison_query_is_refused(client: httpx.Client, query: str, status: int, field: str) -> None:
    assert error_of(client.get(f"/api/compare?{query}"), status)["field"] == field


def test_a_sweep_submits_every_combination_or_none(client: httpx.Client) -> None:
    grid = {"optimizer.lr": [0.01, 0.1], "model.reparameterization.name": ["best", "direct", "exp"]}
    answer = client.post("/api/sweeps", json={"base": BODY | {"name": "memory"}, "grid": grid})
    assert answer.status_code == 201, answer.text
    sweep = answer.json()
    cells = {(r["config"]["optimizer"]["lr"], r["config"]["model"]["reparameterization"]["name"]) for r in sweep["runs"]}
    assert cells == {(lr, name) for lr in grid["optimizer.lr"] for name in grid["model.reparameterization.name"]}
    assert sweep["statuses"] == {"queued": 6}
    assert len({run["name"] for run in sweep["runs"]}) == 6
    assert client.get(f"/api/sweeps/{sweep['id']}").json() == sweep
    assert len(client.get(f"/api/compare?sweep={sweep['id']}").json()["runs"]) == 6
    before = len(client.get("/api/runs").json()["runs"])
    refused = client.post("/api/sweeps", json={"base": BODY, "grid": {"optimizer.lr": [0.1, -1]}})
    assert error_of(refused, 422)["field"] == "grid.optimizer.lr"
    assert len(client.get("/api/runs").json()["runs"]) == before


@pytest.mark.parametrize(
    ("body", "field"),
    [({"base": BODY, "grid": {"train.seed": list(range(2001))}}, "grid"),
     ({"base": BODY, "grid": {"train.seed": list(range(50)), "optimizer.lr": [i / 100 + 0.01 for i in range(50)]}}, "grid"),
     ({"base": BODY, "grid": {"train.seed": []}}, "grid.train.seed"),
     ({"base": BODY, "grid": {}}, "grid"),
     ({"base": BODY, "grid": {"train..seed": [1]}}, "grid.train..seed"),
     ({"base": BODY, "grid": {"train.sed": [1]}}, "grid.train.sed"),
     ({"base": {}, "grid": {"train.seed": [1]}}, "task"),
     ({"base": BODY}, "grid"),
     ({"base": BODY, "grid": {"train.seed": [1]}, "search": {"space": {"train.seed": {"distribution": "choice", "values": [1]}}}},
      "grid"),
     ({"base": 3, "grid": {"train.seed": [1]}}, "base")],
)  # fmt: skip
def test_an_invalid_or_too_large_grid_is_refused_with_its_field(client: httpx.Client, body: dict[str, Any], field: str) -> None:
    assert error_of(client.post("/api/sweeps", json=body), 422)["field"] == field


def test_the_service_reports_workers_metrics_and_readiness(client: httpx.Client, recording: Recording) -> None:
    with recording.database.write() as session:
        lifecycle.register_worker(session, "tester", "here", 2, {"devices": ["cpu"]})
    worker = client.get("/api/workers").json()["workers"][0]
    assert (worker["id"], worker["alive"], worker["slots"], worker["runs"]) == ("tester", True, 2, [1])
    text = client.get("/metrics").text
    assert 'stablessm_runs{status="running"} 1.0\n' in text
    assert "stablessm_workers_alive 1.0\n" in text
    assert all(line.startswith(("#", "stablessm_", "process_")) for line in text.splitlines())
    assert client.get("/readyz").json()["checks"]["database"] == "ok"


def test_any_metric_that_all_runs_have_is_compared(client: httpx.Client, recording: Recording) -> None:
    curves = client.get("/api/compare/curves?runs=1&series=ssm/0/boundary_distance").raise_for_status().json()
    found = curves["curves"]["1"]["ssm/0/boundary_distance"]
    truth = recording.truth["ssm/0/boundary_distance"]
    assert min(np.nanmin(decode(found["min"])), 9) == pytest.approx(np.nanmin(np.where(np.isfinite(truth), truth, np.nan)))
    assert decode(found["last"]).size == decode(found["step"]).size, "one value per step: the smallest over the eigenvalues"
    drawn = client.get("/api/compare/figures/compare_loss?runs=1&metric=ssm/0/weight&smooth=0.9").raise_for_status().json()
    assert drawn["layout"]["yaxis"]["title"]["text"] == "ssm/0/weight"
    assert [trace.get("opacity") for trace in drawn["data"][:2]] == [0.25, None]
    page = client.get("/compare?runs=1&metric=ssm/0/weight&smooth=").text
    assert '<option value="ssm/0/grad_over_weight">ssm/0/grad_over_weight (largest over the eigenvalues)' in page
    assert 'data-metric="ssm/0/weight"' in page
    client.post("/api/runs", json=BODY)
    refused = error_of(client.get("/api/compare/curves?runs=1,2&series=ssm/0/weight"), 422)
    assert (refused["field"], refused["allowed"]) == ("series", "train/loss, max_grad_over_weight")
    assert "ssm/0/weight" not in client.get("/compare?runs=1,2").text
