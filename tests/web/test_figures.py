"""Every chart is defined once, contains no data, has no link to other servers, and shows non-finite values."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from stablessm_core.telemetry.typed_arrays import encode
from web import figures
from web.binding import MAX_COLUMNS, MAX_ROWS, bind, top_eigenvalues
from web.charts import CHARTS, autopsy, layer, paper, run, several, theory
from web.figures import CONFIG, catalogue, spec
from web.palette import COLORS

RATIO = "ssm/0/grad_over_weight"


def numbers(array: dict[str, str]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(array["bdata"]), "<" + array["dtype"])
    return flat.reshape([int(n) for n in array["shape"].split(",")]) if "shape" in array else flat


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.slow
def test_every_chart_definition_is_a_valid_figure_without_data(chart: str) -> None:
    figure = spec(chart)
    go.Figure(figure)  # plotly validates the figure
    for trace in figure["data"]:
        assert not {"x", "y", "z", "base"} & set(trace)
        assert trace["meta"]["field"]
    assert "template" not in figure["layout"]


def test_the_error_for_an_unknown_chart_lists_the_known_charts() -> None:
    with pytest.raises(ValueError, match="grad_over_weight_heatmap"):
        spec("nonsense")


def test_no_chart_offers_to_upload_data_to_plotly() -> None:
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["displaylogo"] is False
    assert CONFIG["plotlyServerURL"] == ""
    assert all(entry["config"] == CONFIG for entry in catalogue().values())


def test_binding_data_does_not_change_the_chart_definition() -> None:
    before = repr(spec("grad_over_weight"))
    bind(spec("grad_over_weight"), {RATIO: {"step": np.arange(3.0), "value": np.ones((3, 4), np.float32)}})
    assert repr(spec("grad_over_weight")) == before


@pytest.mark.slow
def test_a_figure_with_data_is_valid_and_within_its_size_limits() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=(3000, 600))).astype(np.float32)
    data = {RATIO: {"step": np.arange(1.0, 3001.0), "value": values}}
    items = [{"key": str(i), "column": i, "label": f"eigenvalue {i}", "color": "line-0"} for i in range(600)]
    lines = bind(spec("grad_over_weight"), data, items=items)
    go.Figure(lines)
    assert sum(t["meta"].get("each") == "eigenvalue" for t in lines["data"]) == 24
    heat = bind(spec("grad_over_weight_heatmap"), data)["data"][0]
    rows, columns = numbers(heat["z"]).shape
    assert rows <= MAX_ROWS
    assert columns <= MAX_COLUMNS
    assert numbers(heat["z"]).max() == pytest.approx(np.log10(values.max()), rel=1e-6)  # the reduced columns keep the maximum


def test_nonfinite_values_are_drawn_as_gaps_in_the_line_and_as_labelled_marks() -> None:
    value = np.array([1, 2, np.nan, np.inf, -np.inf, 3], np.float32)
    figure = bind(spec("loss"), {"train/loss": {"step": np.arange(1.0, 7.0), "value": value}})
    line = next(t for t in figure["data"] if t["name"] == "train")
    np.testing.assert_array_equal(np.isnan(numbers(line["y"])), ~np.isfinite(value))
    marks = next(t for t in figure["data"] if t["meta"]["field"] == "nonfinite" and t["visible"])
    assert marks["text"] == ["step 3: NaN", "step 4: Infinity", "step 5: -Infinity"]
    assert marks["marker"]["symbol"] == ["x", "triangle-up", "triangle-down"]
    assert marks["yaxis"] == "y2"


def cells(trace: dict[str, Any]) -> list[tuple[float, float]]:
    """(eigenvalue, step) of each marked cell in a trace of marks."""
    x, y, z = (numbers(trace[name]) for name in "xyz")
    return [(float(y[row]), float(x[column])) for row, column in np.argwhere(z == 1)]


def test_the_heatmap_marks_nan_and_infinite_cells_separately() -> None:
    value = np.ones((4, 3), np.float32)
    value[2, 1], value[3, 2], value[0, 0] = np.nan, np.inf, 0
    traces = bind(spec("grad_over_weight_heatmap"), {RATIO: {"step": np.arange(4.0), "value": value}})["data"]
    heat, nan, inf, minus, zero = traces[:5]
    assert np.isnan(numbers(heat["z"])[1, 2])
    assert (cells(nan), cells(inf), cells(zero)) == ([(1, 2)], [(2, 3)], [(0, 0)])
    assert minus["visible"] is False


def test_a_heatmap_says_of_an_exact_zero_that_it_is_0_and_not_the_logarithm_of_a_tiny_number() -> None:
    value = np.full((4, 3), 1e-3, np.float32)
    value[2, 1] = 0
    traces = bind(spec("grad_over_weight_heatmap"), {RATIO: {"step": np.arange(4.0), "value": value}})["data"]
    heat, zero = traces[0], next(t for t in traces if t["meta"].get("kind") == "zero")
    assert np.isnan(numbers(heat["z"])[1, 2])
    assert cells(zero) == [(1, 2)]
    assert "exactly 0" in zero["hovertemplate"]
    value[2, 1] = 1
    traces = bind(spec("grad_over_weight_heatmap"), {RATIO: {"step": np.arange(4.0), "value": value}})["data"]
    assert cells(next(t for t in traces if t["meta"].get("kind") == "zero")) == []


def test_a_median_of_exactly_zero_is_a_mark_at_the_edge_and_not_a_tick() -> None:
    item = {"min": 0.0, "q05": 0.0, "q95": 3.0, "max": 4.0, "finite": 9, "total": 9, "color": "map-exp"}
    items = [item | {"label": "a <b>", "median": 0.0}, item | {"label": "c", "median": 0.5}]
    traces = {t["meta"]["field"]: t for t in bind(spec("compare_ranges"), {}, items=items)["data"]}
    np.testing.assert_array_equal(numbers(traces["median_of"]["x"]), [np.nan, 0.5])
    assert traces["zero_of"]["y"] == ["a &lt;b>"]
    assert traces["zero_of"]["text"] == ["a &lt;b>: the median is exactly 0"]
    assert traces["zero_of"]["xaxis"] == "x2"


def test_a_relative_step_that_is_not_finite_is_named_as_an_eigenvalue_outside_the_boundary() -> None:
    names = {t["name"] for t in spec("relative_step")["data"] if t["meta"]["field"] == "nonfinite"}
    assert names == {"outside, or not finite"}


def test_top_eigenvalues_lists_non_finite_eigenvalues_first() -> None:
    value = np.tile(np.arange(10, dtype=np.float32), (5, 1))
    value[4, 2] = np.nan
    assert top_eigenvalues({"step": np.arange(5.0), "value": value}, 3) == [2, 8, 9]


def weights_at_zero() -> dict[str, Any]:
    """Two ratios that are infinite because their weights are 0 at first, and one because its gradient is infinite."""
    ratio, gradient = np.tile(np.arange(1, 7, dtype=np.float32), (4, 1)), np.ones((4, 6), np.float32)
    ratio[0, [0, 3]], ratio[2, 5], gradient[2, 5] = np.inf, np.inf, np.inf
    step = np.arange(1.0, 5.0)
    return {RATIO: {"step": step, "value": ratio}, "ssm/0/gradient": {"step": step, "value": gradient}}


def test_an_infinite_ratio_of_a_zero_weight_gets_its_own_mark_and_is_not_counted_as_non_finite() -> None:
    data = weights_at_zero()
    traces = {t["meta"]["field"]: t for t in bind(spec("grad_over_weight"), data)["data"]}
    assert traces["zero_weight"]["text"] == ["step 1: infinite: weight is 0 in eigenvalue 0 and 1 more"]
    assert traces["nonfinite"]["text"] == ["step 3: Infinity in eigenvalue 5"]
    np.testing.assert_array_equal(numbers(traces["median"]["y"]), np.array([4, 3.5, 3, 3.5], np.float32))
    assert numbers(traces["max"]["y"]).tolist() == [6, 6, 5, 6]
    assert top_eigenvalues(data[RATIO], 2, data["ssm/0/gradient"]) == [4, 5]
    assert top_eigenvalues(data[RATIO], 2) == [0, 3]


def test_heat_map_rows_are_not_marked_as_lost_while_the_gradient_is_finite() -> None:
    data = weights_at_zero()

    def rows() -> dict[str, Any]:
        found = bind(spec("grad_over_weight_heatmap"), data)["data"]
        return next(t for t in found if t["meta"]["field"] == "heat_rows")

    assert rows()["visible"]
    data["ssm/0/gradient"]["value"][2, 5] = 1
    assert not rows()["visible"]


def complex_eigenvalues(width: int = 3) -> dict[str, Any]:
    size = np.tile(np.linspace(0.5, 1.5, width, dtype=np.float32), (4, 1))
    angle = np.tile(np.linspace(-2, 2, width, dtype=np.float32), (4, 1)) + np.arange(4, dtype=np.float32)[:, None] / 10
    of = {"eigenvalue": size, "phase": angle, "rate": 1 - size, "phase_weight": 9 * angle}
    return {f"ssm/0/{kind}": {"step": np.arange(4.0), "value": values} for kind, values in of.items()}


def places(trace: dict[str, Any]) -> np.ndarray:
    return numbers(trace["x"]) + 1j * numbers(trace["y"])


def test_the_disc_shows_the_first_and_current_position_of_each_eigenvalue_above_the_real_axis() -> None:
    data = complex_eigenvalues()
    size, angle = data["ssm/0/eigenvalue"]["value"], data["ssm/0/phase"]["value"]
    found = bind(spec("unit_disc"), data, items=[{"key": "0", "column": 0, "label": "", "color": "line-0", "dash": "dot"}])[
        "data"
    ]
    traces = {t["meta"]["field"]: t for t in found}
    at = size * np.exp(1j * angle)
    np.testing.assert_allclose(places(traces["then"]), at[0].real + 1j * np.abs(at[0].imag), rtol=1e-5)
    np.testing.assert_allclose(places(traces["now"]), at[3].real + 1j * np.abs(at[3].imag), rtol=1e-5)
    np.testing.assert_allclose(places(traces["path"]), at[:, 0].real + 1j * np.abs(at[:, 0].imag), rtol=1e-5)
    np.testing.assert_allclose(np.abs(places(traces["boundary"])), 1)
    assert (places(traces["boundary"]).imag >= 0).all()
    assert places(traces["end"]) == places(traces["path"])[-1:]


def test_the_half_plane_shows_decay_on_the_left_and_counts_non_finite_eigenvalues() -> None:
    data = complex_eigenvalues()
    data["ssm/0/rate"]["value"][3, 1] = np.nan
    traces = {t["meta"]["field"]: t for t in bind(spec("half_plane"), data)["data"] if t["meta"].get("plane")}
    np.testing.assert_allclose(places(traces["then"]).real, [-0.5, 0, 0.5])
    assert (places(traces["now"])[[0, 2]].imag >= 0).all()
    assert np.isnan(places(traces["now"])[1])
    assert traces["lost"]["text"] == ["1 of 3 not finite at step 3"]
    assert set(numbers(traces["boundary"]["x"]) if isinstance(traces["boundary"]["x"], dict) else traces["boundary"]["x"]) == {0}


def test_a_plot_of_very_many_eigenvalues_shows_a_part_and_the_legend_states_which() -> None:
    found = bind(spec("unit_disc"), complex_eigenvalues(2048))["data"]
    now = next(t for t in found if t["meta"]["field"] == "now")
    assert now["name"] == "now (1 of 5)"
    assert now["customdata"] == list(range(0, 2048, 5))


def test_gate_lines_belong_to_the_gates_of_the_chosen_eigenvalues() -> None:
    gates = {f"ssm/0/gate_{part}": np.full((3, 4), scale, np.float32) * np.arange(1, 5) for part, scale in
             (("min", 1), ("mean", 2), ("max", 3))}  # fmt: skip
    data = {name: {"step": np.arange(3.0), "value": values} for name, values in gates.items()}
    items = [{"key": "7", "column": 7, "label": "", "color": "line-0", "dash": "dot"}]
    lines = [t for t in bind(spec("gates"), data, items=items, eigenvalues=8)["data"] if t["meta"].get("each")]
    assert [float(numbers(t["y"])[0]) for t in lines] == [4, 12, 8]
    alone = [t["name"] for t in bind(spec("gates"), data, eigenvalues=8)["data"] if t["meta"].get("each")]
    assert {name.split(",")[0] for name in alone} == {"λ 0", "λ 2", "λ 4", "λ 6"}, (
        "the lines must show the first eigenvalue of each gate"
    )


def test_an_alert_is_shown_only_on_the_chart_of_its_series() -> None:
    alert = {"step": 4, "series": "ssm/1/grad_over_weight", "severity": "critical", "message": "<img src=x onerror=alert(1)>"}
    data = {f"ssm/{layer}/grad_over_weight": {"step": np.arange(9.0), "value": np.ones((9, 2), np.float32)} for layer in (0, 1)}

    def shown(chart: str, layer: int) -> list[str]:
        traces = bind(spec(chart), data, layer=layer, alerts=[alert])["data"]
        return [text for t in traces if t["meta"]["field"] == "alerts" for text in t["text"] if text]

    assert shown("grad_over_weight", 1) == ["step 4: &lt;img src=x onerror=alert(1)>"]
    assert shown("grad_over_weight", 0) == shown("loss", 1) == []


def test_markup_in_names_is_escaped() -> None:
    items = [{"key": "7", "label": "<a href='javascript:x'>&", "color": "map-best", "dash": "dot"}]
    data = {"7:train/loss": {"step": np.arange(2.0), "value": np.ones(2, np.float32)}}
    trace = bind(spec("compare_loss"), data, items=items, colors={"map-best": "#123456"})["data"][0]
    assert trace["name"] == "&lt;a href='javascript:x'>&amp;"
    assert "<a" not in trace["hovertemplate"]
    assert trace["line"] == {"color": "#123456", "dash": "dot", "width": 1.5}


def test_a_map_without_an_assigned_colour_is_grey() -> None:
    items = [{"key": "7", "label": "mine", "color": "map-mine", "dash": "dot"}]
    data = {"7:train/loss": {"step": np.arange(2.0), "value": np.ones(2, np.float32)}}
    assert bind(spec("compare_loss"), data, items=items, colors=COLORS)["data"][0]["line"]["color"] == COLORS["muted"]


def test_the_median_of_a_step_ignores_non_finite_values() -> None:
    value = np.array([[1, np.nan, 5, 3], [np.inf, 2, 4, np.nan], [np.nan] * 4], np.float32)
    traces = bind(spec("weight"), {"ssm/0/weight": {"step": np.arange(3.0), "value": value}})["data"]
    middle = next(t for t in traces if t["meta"]["field"] == "median")
    np.testing.assert_array_equal(numbers(middle["y"]), np.array([3, 3, np.nan], np.float32))


def test_typed_arrays_are_sent_as_little_endian_with_their_shape() -> None:
    array = np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32)
    wire = encode(array)
    assert wire["shape"] == "2, 2"
    assert base64.b64decode(wire["bdata"]) == array.astype("<f4").tobytes()
    assert encode(np.arange(3))["dtype"] == "f8"


def test_every_chart_in_the_chart_tables_has_a_unique_name() -> None:
    rows = [chart.name for table in (run, layer, autopsy, several, theory, paper) for chart in table.CHARTS]
    assert len(rows) == len(set(rows))
    assert set(CHARTS) == set(rows)
    tables = {file.stem for file in (Path(figures.__file__).parent / "charts").glob("*.py")}
    assert tables == {"__init__", "parts", "shapes", "run", "layer", "autopsy", "several", "theory", "paper"}
