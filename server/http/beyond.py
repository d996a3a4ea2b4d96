"""What we measured beyond the paper: the largest stable rates, and what killed the runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.http.paper_reports import Shown
from stablessm_core.telemetry.nonfinite import json_safe
from studies.culprits_report import STUDY as CULPRITS
from studies.culprits_report import deaths_of_arms, findings_of, summary
from studies.paper.rates import STUDY as RATES
from studies.paper.words import tables as tables_of
from web.charts import CHARTS
from web.paper_figures import paper_figure

QUESTIONS = {
    RATES: "Up to which learning rate does each seed survive, with each map?",
    CULPRITS: "Who killed the run: the eigenvalues, other weights, or float32's arithmetic?",
}
TITLES = {RATES: "Largest stable learning rates, seed by seed", CULPRITS: "Who kills a state-space model?"}


def beyond_json(reports: Mapping[str, Shown]) -> list[dict[str, Any]]:
    """One BeyondAnswer per study, also if there is no report yet."""
    return [_study(name, *reports.get(name, (None, None))) for name in QUESTIONS]


def beyond_figures(reports: Mapping[str, Shown]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each study with a report: {chart, title, caption, figure with data}."""
    return {
        name: [
            {
                "chart": figure["chart"], "title": CHARTS[figure["chart"]].title, "caption": figure["caption"],
                "figure": json_safe(paper_figure(figure)),
            }
            for figure in reports[name][0]["figures"]
        ]
        for name in QUESTIONS
        if name in reports
    }  # fmt: skip


def _study(name: str, report: Mapping[str, Any] | None, source: str | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "name": name, "title": TITLES[name], "question": QUESTIONS[name], "command": f"stablessm reproduce {name}",
        "report": None, "source": source, "size": None, "seeds": None, "findings": [], "tables": [], "figures": 0, "deaths": [],
        "sweeps": [], "problems": [], "departures": [],
    }  # fmt: skip
    if report is None:
        return answer
    of_culprits = findings_of(report) if name == CULPRITS else None
    return answer | {
        "report": name,
        "size": report["size"],
        "seeds": report["seeds"],
        "findings": report.get("findings", []) if of_culprits is None else summary(of_culprits),
        "tables": [{"caption": caption[0].upper() + caption[1:], "rows": rows} for caption, rows in tables_of(report)],
        "figures": len(report["figures"]),
        "deaths": [] if of_culprits is None else deaths_of_arms(of_culprits.cells),
        "sweeps": [one["id"] for one in report["sweeps"]] if source == "runs" else [],
        "problems": report["problems"],
        "departures": report["departures"],
    }
