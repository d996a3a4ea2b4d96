"""The run page says what is true before any script has run, and its charts can be read by those who do not see them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.web import test_templates as pages
from web.figures import spec


def run_page(**changes: Any) -> pages.Tags:
    context = {"series": pages.SERIES, "alerts": {"alerts": [pages.ALERT]}, "verdict": pages.VERDICT}
    return pages.render("run.html", run=pages.a_run(**changes), **context, **pages.CHARTS, **pages.PAST)


def test_the_header_s_extremes_are_of_all_layers_and_steps_and_come_from_the_server() -> None:
    numbers = {"largest_ratio": 43.2, "largest_relative_step": 2.5, "nearest_distance": -0.01, "overflow_budget": 0.75}
    result = {"train_loss": 0.125, "eval_accuracy": 0.5}
    shown = "".join(run_page(status="finished", result=result, started_at=10.0, finished_at=15.0, **numbers).text.split())
    for said in ("Largest |grad|/|w| 43.2", "Largest relative step 2.5", "Nearest to boundary", "0.01", "Overflow budget 0.75",
                 "Loss 0.125", "Eval accuracy 50 %", "Took 5 s", "extremes over all layers and all steps"):  # fmt: skip
        assert said.replace(" ", "") in shown


def test_plots_are_groups_because_they_hold_buttons() -> None:
    shown = run_page()
    plots = [attrs for _, attrs in shown.tags if "data-chart" in attrs]
    assert plots
    assert {attrs["role"] for attrs in plots} == {"group"}
    names = [tag for tag, _ in shown.tags]
    titles = {after for tag, after in pairwise(names) if tag == "figcaption"}
    assert titles == {"h2"}, "a chart's title comes right below the page's"


def test_the_heat_map_marks_non_finite_values_of_its_own_series() -> None:
    assert "nonfinite" in [trace["meta"]["field"] for trace in spec("grad_over_weight_heatmap")["data"]]
