"""The run page is correct before any script has run, and screen readers can read its charts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.web import test_templates as pages
from web.figures import spec


def run_page(**changes: Any) -> pages.Tags:
    context = {"series": pages.SERIES, "alerts": {"alerts": [pages.ALERT]}, "verdict": pages.VERDICT}
    return pages.render("run.html", run=pages.a_run(**changes), **context, **pages.CHARTS, **pages.PAST)


def test_the_header_shows_the_servers_extremes_over_all_layers_and_steps() -> None:
    numbers = {"largest_ratio": 43.2, "largest_relative_step": 2.5, "nearest_distance": -0.01, "overflow_budget": 0.75}
    result = {"train_loss": 0.125, "eval_accuracy": 0.5}
    shown = "".join(run_page(status="finished", result=result, started_at=10.0, finished_at=15.0, **numbers).text.split())
    for said in ("Largest |grad|/|w| 43.2", "Largest relative step 2.5", "Nearest to boundary", "0.01", "Overflow budget 0.75",
                 "Loss 0.125", "Eval accuracy 50 %", "took 5 s", "extremes over all layers and all steps"):  # fmt: skip
        assert said.replace(" ", "") in shown


def test_the_header_shows_tags_and_notes() -> None:
    shown = run_page(tags=["paper"], notes="seed 3 <again>").text
    assert "paper" in shown
    assert "seed 3 <again>" in shown
    assert not [attrs for _, attrs in run_page(notes="").tags if attrs.get("class") == "run-notes"]


def test_plots_have_the_role_group_because_they_contain_buttons() -> None:
    shown = run_page()
    plots = [attrs for _, attrs in shown.tags if "data-chart" in attrs]
    assert plots
    assert {attrs["role"] for attrs in plots} == {"group"}
    names = [tag for tag, _ in shown.tags]
    titles = {after for tag, after in pairwise(names) if tag == "figcaption"}
    assert titles == {"h2", "h3"}, "charts are one heading level below the page title, or below the title of their section"


def test_the_heat_map_marks_non_finite_values_of_its_own_series() -> None:
    assert "nonfinite" in [trace["meta"]["field"] for trace in spec("grad_over_weight_heatmap")["data"]]
