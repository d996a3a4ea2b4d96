"""The run page is correct before any script has run, and screen readers can read its charts."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.web import test_templates as pages
from web.figures import spec
from web.formatting import number

VERDICT_OF_FINISHED = pages.VERDICT | {"cause": None, "thrown_by": None, "events": [], "try": [], "unstable": None}


def run_page(verdict: dict[str, Any] = pages.VERDICT, **changes: Any) -> pages.Tags:
    context = {"series": pages.SERIES, "alerts": {"alerts": [pages.ALERT]}, "verdict": verdict}
    return pages.render("run.html", run=pages.a_run(**changes), **context, **pages.CHARTS, **pages.PAST)


def test_the_header_shows_the_servers_extremes_over_all_layers_and_steps() -> None:
    numbers = {"largest_ratio": 43.2, "largest_relative_step": 2.5, "nearest_distance": 0.01, "overflow_budget": 0.75}
    result = {"train_loss": 0.125, "eval_accuracy": 0.5}
    shown = "".join(run_page(status="finished", result=result, started_at=10.0, finished_at=15.0, **numbers).text.split())
    for said in ("Largest |grad|/|w| 43.2", "Largest relative step 2.5", "Nearest to boundary", "0.01", "Overflow budget 0.75",
                 "Loss 0.125", "Evaluation accuracy 50 %", "took 5 s", "extremes over all layers and all steps"):  # fmt: skip
        assert said.replace(" ", "") in shown


def test_the_header_names_the_farthest_eigenvalue_once_one_is_outside_and_hides_an_accuracy_that_the_task_does_not_have() -> None:
    numbers = {"largest_ratio": 1.0, "largest_relative_step": 2.0, "overflow_budget": 0.5}
    outside = run_page(nearest_distance=-1.38, result={"eval_loss": 0.25}, **numbers)
    shown = "".join(outside.text.split())
    assert "Farthestoutside1.38" in shown
    assert "Evaluationloss0.25" in shown
    assert "Nearesttoboundary0.5" in "".join(run_page(nearest_distance=0.5, **numbers).text.split())
    assert all("hidden" in attrs for attrs in outside.all("data-known"))
    assert not any("hidden" in attrs for attrs in run_page(result={"eval_accuracy": 0.5}, nearest_distance=0.5).all("data-known"))


def badge(**changes: Any) -> tuple[str, set[str]]:
    """The text of the run's badge, and the marks that its colour depends on."""
    tags = run_page(nearest_distance=0.5, **changes)
    attributes = next(attrs for attrs in tags.all("data-status") if "status" in (attrs.get("class") or ""))
    text = re.sub(r"\s+", " ", tags.text)
    return text[text.index("finished") :].split("ended")[0].strip(), attributes.keys() & {
        "data-lost",
        "data-worse",
        "data-unstable",
    }


@pytest.mark.parametrize("loss", ["NaN", math.nan, "Infinity"])
def test_the_badge_of_a_finished_run_is_green_only_if_its_evaluation_is_finite(loss: Any) -> None:
    lost = badge(status="finished", result={"train_loss": 0.1, "eval_loss": loss})
    assert lost == (f"finished · evaluation {number(loss)}", {"data-lost"})
    assert badge(status="finished", result={"train_loss": 0.1, "eval_loss": 0.2}) == ("finished", set())


def test_a_finished_run_whose_loss_ended_above_its_start_says_so_and_is_not_green() -> None:
    worse = VERDICT_OF_FINISHED | {"evidence": [{"text": "9 x its start", "loss": 9.0, "loss_at_start": 1.0}]}
    tags = run_page(status="finished", nearest_distance=0.5, verdict=worse)
    assert "data-worse" in next(attrs for attrs in tags.all("data-status") if "status" in (attrs.get("class") or ""))
    text = re.sub(r"\s+", " ", tags.text)
    assert "finished · loss above its start" in text
    assert "Finished, with a loss far above its start" in text
    assert "warning" in (next(tags.all("data-verdict"))["class"] or "")


def test_the_result_counts_lowered_rates_with_rollbacks_and_omits_an_accuracy_that_the_task_does_not_have() -> None:
    shown = re.sub(
        r"\s+", "", run_page(status="finished", result={"eval_accuracy": None, "rollbacks": 3}, nearest_distance=0.5).text
    )
    assert "rollbacksandloweredrates3" in shown
    assert "eval_accuracy" not in shown


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


def reported_page(records: list[dict[str, Any]], **changes: Any) -> pages.Tags:
    how = dict.fromkeys(("optimizer", "lr", "momentum", "nesterov", "grad_clip", "length", "every", "precision", "total_steps"))
    run = pages.a_run(kind="reported", config={}, reported_config={pages.EVIL: pages.EVIL}, steps=None, progress=None, **changes)
    settings = [{"field": f"config.{pages.EVIL}", "value": pages.EVIL, "default": None, "parent": None}]
    context = {"series": pages.SERIES | {"records": records}, "alerts": {"alerts": []}, "verdict": None}
    return pages.render("run.html", run=run, how=how, settings=settings, **context, **pages.CHARTS, **pages.PAST)


def test_the_page_of_a_reported_run_without_a_total_shows_the_step_and_no_bar() -> None:
    tags = reported_page([pages.RECORD | {"name": "backbone.layers.0"}], step=1203)
    text = re.sub(r"\s+", " ", tags.text)
    assert "step 1,203" in text
    assert "of None" not in text
    assert not list(tags.all("data-progress"))
    assert next(tags.all("data-steps"))["data-steps"] == ""
    assert "0 · backbone.layers.0" in text
    for word in ("AdamW", "Resume", "Clone", "Replay", "Fork"):
        assert word not in text
    assert not [attrs for _, attrs in tags.tags if "onmouseover" in attrs]


def test_the_page_of_a_reported_run_without_layers_hides_the_charts_of_layers() -> None:
    tags = reported_page([])
    assert "Nothing to watch here" in tags.text
    charts = [(attrs, tag) for tag, attrs in tags.tags if tag == "figure"]
    hidden = sum("hidden" in attrs for attrs, _ in charts)
    assert hidden > len(charts) / 2
