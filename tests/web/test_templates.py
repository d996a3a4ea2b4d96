"""Pages show the right texts without JavaScript, and hostile names are shown as plain text."""

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from server.http.schemas.queues import QueueBody
from server.http.schemas.systems import EXAMPLE as EXAMPLE_SYSTEM
from server.http.schemas.verdict import EXAMPLE as VERDICT
from server.lifecycle.presets import PRESETS
from server.search.columns import DEFAULT, KNOWN, columns, value
from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layers import LAYERS
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.theory.systems import map_choices, section_defaults
from web import charts, figures, records
from web.formatting import FILTERS
from web.parallel import parallel_lines
from web.system_pictures import RATIOS, ratio_picture, start_picture

WEB = Path(figures.__file__).parent
EVIL = "<script>alert(1)</script>\"' onmouseover=alert(2) {{7*7}} &amp;"


class Tags(HTMLParser):
    """Collects every element of a page with its attributes, and the text of the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, attribute: str) -> Iterator[dict[str, str | None]]:
        return (attrs for _, attrs in self.tags if attribute in attrs)


PAPER_CLAIM: dict[str, Any] = {
    "id": "claim", "place": EVIL, "sentence": EVIL, "numbers": {"rates": [EVIL], "best": [EVIL]}, "verdict": "holds", "why": EVIL,
    "test": EVIL, "label": EVIL, "p": 0.01, "p_holm": 0.1, "report": "table2-paper", "source": "runs", "figure": 0,
    "ours": {"caption": EVIL, "rows": [[EVIL, EVIL], [EVIL, EVIL]]}, "sweeps": [3], "command": EVIL, "problems": [EVIL],
    "departures": [EVIL],
}  # fmt: skip
PAPER_REPORT = {"name": "table2-paper", "source": "runs", "seeds": 12, "size": "quick", "claims_changed": True,
                "other": {"source": "committed", "size": "quick", "seeds": 2}}  # fmt: skip
BEYOND: dict[str, Any] = {
    "name": "culprits", "title": EVIL, "question": EVIL, "command": EVIL, "report": "culprits", "source": "committed",
    "size": "quick", "seeds": 2, "findings": [EVIL], "tables": [PAPER_CLAIM["ours"]], "figures": 1, "sweeps": [3],
    "problems": [EVIL], "departures": [EVIL],
}  # fmt: skip


def asset(name: str) -> str:
    assert name == "palette.css" or (WEB / "static" / name).is_file(), name
    return f"/static/v/{name}"


@cache
def environment() -> Environment:
    """The templates of the pages, each compiled once for all tests."""
    # With StrictUndefined, a template that uses an undefined value fails instead of leaving an empty space.
    made = Environment(loader=FileSystemLoader(WEB / "templates"), autoescape=True, undefined=StrictUndefined)
    made.filters.update(FILTERS)
    return made


def render(template: str, **context: Any) -> Tags:
    frame = {
        "page": template.removesuffix(".html"),
        "version": "0.1",
        "assets": asset,
        "imports": lambda names: [],
        "plotly_url": "/p.js",
        "json_url": "/api/x",
    }
    html = environment().get_template(template).render(**{"title": EVIL, **frame, **context})
    return Tags(html)


def a_run(**changes: Any) -> dict[str, Any]:
    config = RunConfig.model_validate({"task": {"name": "digits"}, "tags": [EVIL[:50]]}).model_dump(mode="json")
    run: dict[str, Any] = {
        "id": 7,
        "kind": "trained",
        "project": EVIL,
        "bytes_stored": 1_234_567,
        "hidden": True,
        "url": "/runs/7",
        "name": EVIL,
        "tags": [EVIL],
        "notes": "",
        "status": "running",
        "status_reason": EVIL,
    }
    run |= {
        "config": config,
        "sweep_id": 1,
        "sweep_name": EVIL,
        "cloned_from": 2,
        "forked_from": None,
        "forked_at_step": None,
        "priority": 0,
        "created_at": 1e9,
        "started_at": 1e9,
        "finished_at": None,
    }
    run |= {
        "attempt": 1,
        "worker": "w",
        "host": EVIL,
        "gpu_name": EVIL,
        "user": EVIL,
        "user_id": 2,
        "cancel_requested": False,
        "seq": 5,
        "step": 400,
        "steps": 1000,
        "progress": 0.4,
        "alerts": 2,
    }
    run |= {
        "steps_per_second": 9.5,
        "eta_seconds": 60.0,
        "environment": {"device": EVIL},
        "result": None,
        "divergence": None,
        "forms": [Form.of_map("best", "discrete").data],
        "waits_for": EVIL,
    }
    return run | changes


ALERT = {
    "id": 1,
    "run_id": 7,
    "seq": 1,
    "attempt": 1,
    "kind": "nonfinite_loss",
    "severity": "critical",
    "step": 3,
    "series": "train/loss",
}
ALERT |= {"layer": 0, "eigenvalue": 31, "tensor": "loss", "value": "NaN", "message": EVIL, "created_at": 1e9}
USER = {"id": 2, "name": EVIL, "identity": EVIL + "@", "max_running": 1, "max_queued": None, "max_bytes": 10, "bytes": 5}
USER |= {"running": 1, "queued": 2, "may_change_all": True, "created_at": 1.0}
TOKEN = {"id": 3, "name": EVIL, "scope": "read", "state": "live", "user": EVIL, "names_users": False, "created_at": 1.0}
TOKEN |= {"expires_at": None, "last_used_at": None}
AUDIT = {"at": 1.0, "token_id": 3, "token_name": EVIL, "user_name": EVIL, "address": EVIL, "method": EVIL, "path": EVIL}
AUDIT |= {"status": 200, "run_id": 7}
WEBHOOK = {"id": 3, "url": EVIL, "format": "slack", "events": [EVIL], "state": "on", "failures": 0, "last_error": EVIL}
WEBHOOK |= {"last_sent_at": 1e9, "last_answer": EVIL, "created_at": 1.0}
SILENCE = {"id": 4, "run_id": 7, "project": EVIL, "kind": EVIL, "until": 1e9, "created_at": 1.0, "created_by": EVIL}
NOTIFICATION = {"id": 5, "kind": EVIL, "state": "sent", "count": 1000, "repeated": 1, "destination": EVIL, "answer": EVIL}
NOTIFICATION |= {"sent_at": None, "due_at": 1e9, "tries": 2}
LOST = {"step": 58, "layer": 0, "eigenvalue": 31, "tensor": EVIL, "value": "NaN"}
RECORD: dict[str, Any] = {
    "id": "0", "layer": 0, "name": EVIL, "eigenvalues": 64, "form": Form.of_map("best", "discrete").data, "gates": None,
    "kinds": ["grad_over_weight", "weight", "eigenvalue", "boundary_distance", "relative_step", "overflow_budget"],
    "module": EVIL, "note": EVIL,
}  # fmt: skip
SERIES = {
    "records": [RECORD],
    "series": [{"name": "train/loss", "width": 1, "unit": "", "meaning": "", "first_step": 1, "last_step": 9, "points": 9}],
}
PAST: dict[str, Any] = {
    "tracebacks": [{"attempt": 2, "text": f"Traceback\n  {EVIL}", "at": 1e9}],
    "log": {
        "pieces": [
            {"attempt": 1, "start": 0, "text": "training on cpu\n", "at": 1e9, "cut": 0},
            {"attempt": 2, "start": 1016, "text": EVIL, "at": 1e9, "cut": 1000},
        ],
        "next": 1016 + len(EVIL),
    },
    "history": {
        "events": [
            {"event": event, "status": status, "reason": reason, "at": 1e9, "step": step, "attempt": 1, "truncated_from": back}
            for event, status, reason, step, back in (
                ("submitted", "queued", "submitted", 0, None),
                ("requeued", "queued", EVIL, 30, 21),
                ("ended", "failed", "", 40, None),
            )
        ],
        "notifications": [NOTIFICATION],
    },
    "checkpoints": [
        {"step": 40, "attempt": 2, "size_bytes": 7000, "created_at": 1e9, "available": True, "url": "/api/runs/7/checkpoints/40",
         "host": EVIL, "sha256": "ab" * 32},
        {"step": 20, "attempt": 1, "size_bytes": None, "created_at": 1e9, "available": False, "url": None, "host": EVIL,
         "sha256": "cd" * 32},
    ],
}  # fmt: skip

CHARTS = {"small_charts": figures.small_charts(), "series_of": figures.series_of, "say": records, "trash_hours": 24.0}
SYSTEM = EXAMPLE_SYSTEM | {"title": EVIL, "equation": EVIL, "source": EVIL, "run": {"name": EVIL}}
OCCUPIED = {"runs": 3, "bytes_stored": 10_000_000}
TRASHED = {
    "id": 9, "name": EVIL, "tags": [EVIL], "status": "finished", "task": "digits", "bytes_stored": 12_345, "deleted_at": 1.0,
    "deleted_by": EVIL, "until": 2.0,
}  # fmt: skip
GROUP = {
    "key": {"optimizer.lr": 0.1},
    "runs": [7],
    "finite": 0,
    "total": 1,
    "label": EVIL,
    "rank": 1,
    "stable": 0,
    "unstable": 1,
    "unknown": 1,
    "lost": 1,
    "open": 1,
    "final_loss": dict.fromkeys(("median", "q25", "q75", "min", "max", "mean", "std")),
}
PAIR = {"label": EVIL, "of": 3, "pairs": 2, "lower": 0, "higher": 2, "only_reference": 1, "only_this": 1, "unmatched": 1}
PAIR |= {"median": "NaN", "q25": 0.1, "q75": 0.2}
CLAIMS = [  # more than the page shows at once
    {
        "asked": f"Does {EVIL} hold?",
        "verdict": "cannot tell",
        "reason": "3 seeds",
        "text": f"Cannot tell: 3 seeds of {EVIL}.",
        "p": p,
    }
    for p in (0.25, None, 1.0, 1.0, 1.0, 1.0, 1.0)
]
END = {"outcome": "stable", "loss": 0.5, "tokens_per_step": 10, "seconds_per_step": 0.1}


# template context of the run list, except for the runs
LIST: dict[str, Any] = {
    "orders": [(EVIL, EVIL)],
    "error": None, "total": 2, "counted": 100, "columns": columns([*DEFAULT, "notes", "duration", "layers"]), "value": value,
    "address": lambda **_: "/?q=x", "known": KNOWN, "default": DEFAULT, "paths": ["train.seed"], "compare": None, "explicit": "",
    "folds": {}, "seen": False,
}  # fmt: skip


def page(name: str) -> Tags:
    run = a_run(status="diverged", divergence=LOST, result={"train_loss": "NaN", "seconds": 3.0})
    schema = RunConfig.model_json_schema()
    config = run["config"]
    compare = {
        "runs": [run],
        "differences": [{"field": "optimizer.lr", "values": [EVIL, 0.1]}, {"field": EVIL, "values": [1, None]}],
        "differences_left_out": 3,
        "ends": [END | {"run_id": 7}, END | {"run_id": 8, "outcome": "lost", "loss": None}],
        "groups": [GROUP, GROUP | {"label": EVIL, "runs": [8], "rank": 2}],
        "paired": {"against": EVIL, "rows": [PAIR]},
        "claims": CLAIMS,
        "ranges": [],
        "pooled": [],
        "curves": {},
    }
    compare["runs"] = [run, run | {"id": 8}]
    compare |= {"total": 2, "drawn": [7, 8]}
    sweep = {
        "id": 1, "url": "/sweeps/1", "name": EVIL, "base": {}, "grid": {"optimizer.lr": [0.1, EVIL], EVIL: [1, 2]},
        "created_at": 1e9, "submitted_by": 3, "user": EVIL, "project": EVIL,
        "statuses": {"diverged": 1, "finished": 2, "running": 1}, "finite": 1, "total": 4,
        "runs": [run], "stable": 1, "unstable": 0, "lost": 2, "open": 1, "running": 1, "eta_seconds": 90.0,
        "search": {"method": "random", "trials": 4, "seed": 3, "space": {
            "optimizer.lr": {"distribution": "log_uniform", "low": 0.001, "high": 1.0},
            EVIL: {"distribution": "choice", "values": [1, EVIL]}},
            "halving": {"metric": "train/loss", "mode": None, "first_rung": 10, "factor": 3, "max_overflow_budget": 1.0}},
        "decisions": [
            {"run_id": 7, "rung": 1, "step": 10, "value": 0.1, "outcome": "continued", "reason": EVIL, "at": 1.0},
            {"run_id": 8, "rung": 1, "step": 10, "value": 0.2, "outcome": "behind", "reason": EVIL, "at": 2.0},
        ],
    }  # fmt: skip
    spread = dict.fromkeys(("median", "q25", "q75", "min", "max", "mean", "std"))
    counts = {"finite": 1, "stable": 0, "unstable": 1, "unknown": 0, "lost": 2, "open": 1, "total": 4}
    cells = [{**counts, "outcome": "lost", "loss": spread | {"median": 0.1, "q25": 0.1, "q75": "NaN"}, "runs": [1, 2]}] * 2
    grid = counts | {
        "sweep_id": 1, "axes": ["optimizer.lr", EVIL], "rows": {"path": "optimizer.lr", "values": [0.1, EVIL]},
        "columns": {"path": EVIL, "values": [1, EVIL]}, "cells": [cells, cells], "statuses": {"finished": 1},
    }  # fmt: skip
    contexts: dict[str, dict[str, Any]] = {
        "runs.html": {
            "tour": {"sweep_id": 1, "lost": run, "unstable": None, "stable": run},
            "runs": {"runs": [run, a_run(name=None)], "next_cursor": EVIL},
            "filters": {"q": EVIL, "status": None, "tag": EVIL, "sort": "-id", "limit": 50, "cursor": None},
            "views": [{"id": 1, "name": EVIL, "query": "q=x"}],
            **LIST,
        },
        "run.html": {
            "run": run,
            "series": SERIES,
            "alerts": {"alerts": [ALERT]},
            "verdict": VERDICT,
            **CHARTS,
            **PAST,
        },
        "compare.html": {
            "compare": compare,
            "query": {"runs": "7", "q": EVIL, "group_by": EVIL, "show": "runs"},
            "error": None,
            "missing": [99],
            "curves_url": f"/api/compare/curves?q={EVIL}",
            "claims_url": f"/api/compare/claims?q={EVIL}",
            "usual": "runs",
            "figures_url": f"/api/compare/figures/{{chart}}?q={EVIL}&",
            "figures_file": "compare",
            "lines": parallel_lines(compare),
            "metrics": [{"name": EVIL, "label": EVIL, "larger_is_better": True}],
        },
        "sweep.html": {
            "sweep": sweep,
            "grid": grid,
            "grid_query": "",
            "claims": CLAIMS,
            "claims_url": "/api/compare/claims?sweep=1",
        },
        "sweeps.html": {"sweeps": {"sweeps": [sweep], "next_cursor": 1}, "filters": {"q": EVIL, "project": EVIL, "cursor": None}},
        "new.html": {
            "schema": schema,
            "defaults": config,
            "maps": {name: list(map_.forms) for name, map_ in MAPS.items()},
            "layers": {"defaults": section_defaults(), "choices": map_choices()},
            "cloned_from": None,
            "presets": PRESETS,
            "chosen": "first",
            "grid": {EVIL: EVIL, "train.seed": "0, 1"},
            "errors": {EVIL: EVIL, "train.steps": EVIL, f"grid.{EVIL}": EVIL, "json": EVIL},
            "given": {"json": EVIL, "sweep-name": EVIL, f"grid.{EVIL}": EVIL},
            "workers": [{"alive": True}],
            "prefill": config | {"name": EVIL},
            "placement": QueueBody.model_json_schema()["properties"],
            "place": {"queue": EVIL, "priority": 3, "gpu": EVIL, "project": EVIL},
            "projects": [EVIL],
        },
        "workers.html": {
            "workers": [
                {
                    "id": EVIL,
                    "host": EVIL,
                    "alive": True,
                    "seen_at": 1.0,
                    "slots": 2,
                    "runs": [7],
                    "capabilities": {"gpus": [EVIL], "queues": [EVIL]},
                    "quarantine": {"kind": "disk", "reason": EVIL, "since": 1.0},
                },
            ],
            "queues": [
                {"name": EVIL, "paused": True, "queued": 3, "running": 1, "max_running": None, "oldest_at": 1.0, "workers": 0},
            ],
        },
        "alerts.html": {
            "alerts": {"alerts": [ALERT], "next_cursor": 5},
            "groups": [{"run_id": 7, "total": 9, "critical": 4, "newest": [1]}],
            "names": {7: EVIL},
            "kinds": KINDS,
            "filters": {
                "severity": None,
                "kind": EVIL,
                "run": 7,
                "after": EVIL,
                "before": EVIL,
                "q": EVIL,
                "cursor": 9,
                "group": "run",
            },
            "error": None,
            "address": lambda **changes: "/alerts",
        },
        "trash.html": {"trash": {"runs": [TRASHED], "next_cursor": EVIL, "hours": 24.0, "kept": OCCUPIED, "trash": OCCUPIED}},
        "systems.html": {
            "systems": {
                "d_model": 64,
                "systems": [SYSTEM, SYSTEM | {"name": "other", "maps": [], "native": None, "start": None}],
            },
            "starts": {SYSTEM["name"]: start_picture(SYSTEM["start"])},
            "ratios": {SYSTEM["name"]: ratio_picture(SYSTEM["gradient_over_weight"])},
            "decades": RATIOS,
        },
        "theory.html": {
            "theory": {
                "time": "discrete",
                "a": 1.0,
                "b": 0.5,
                "run": 7,
                "layer": 0,
                "record": "0",
                "step": 5,
                "label": EVIL,
                "map": "best",
                "figures": {"theory_map": {"data": [{"name": EVIL}], "layout": {}}},
            },
            "maps": MAPS.values(),
            "error": {"code": "invalid", "message": EVIL, "field": EVIL, "allowed": EVIL},
        },
        "paper.html": {
            "paper": {
                "claims": [PAPER_CLAIM],
                "counts": {"holds": 1},
                "claims_sha256": EVIL,
                "family_size": 19,
                "beyond": [BEYOND, BEYOND | {"name": "rates", "report": None}],
            },
            "beyond_figures": {
                "culprits": [{"chart": "paper_stability", "title": EVIL, "caption": EVIL, "figure": {"data": []}}]
            },
            "sections": [(EVIL, PAPER_REPORT, [PAPER_CLAIM, PAPER_CLAIM | {"id": "other", "report": None, "numbers": {}}])],
            "figures": {"claim": {"chart": "paper_finite", "title": EVIL, "caption": EVIL, "figure": {"data": [{"name": EVIL}]}}},
        },
        "me.html": {"me": {"token_id": 3, "token": EVIL, "scope": "submit", "user": USER}},
        "access.html": {
            "tokens": [TOKEN],
            "users": [USER],
            "audit": {"audit": [AUDIT], "waiting": 0, "lost": 0, "next_cursor": None},
            "on_first": True,
        },
        "webhooks.html": {
            "webhooks": [WEBHOOK, WEBHOOK | {"state": "off", "failures": 12, "format": "email", "last_sent_at": None}],
            "silences": [SILENCE, SILENCE | {"run_id": None}],
            "names": {7: EVIL},
            "kinds": KINDS,
            "mail": False,
        },
        "login.html": {"error": EVIL, "next": EVIL},
        "error.html": {"error": {"code": "not_found", "message": EVIL, "field": EVIL, "allowed": EVIL}},
    }
    return render(name, **contexts[name])


PAGES = [
    "runs.html",
    "run.html",
    "compare.html",
    "sweep.html",
    "sweeps.html",
    "new.html",
    "workers.html",
    "alerts.html",
    "trash.html",
    "systems.html",
    "theory.html",
    "paper.html",
    "me.html",
    "access.html",
    "webhooks.html",
    "login.html",
    "error.html",
]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.slow
def test_hostile_names_are_escaped_and_no_page_has_inline_scripts(name: str) -> None:
    tags = page(name)
    for tag, attrs in tags.tags:
        assert not any(a.startswith("on") for a in attrs), (tag, attrs)
        if tag == "script":
            assert attrs.get("src") or attrs.get("type") == "application/json"
        for link in ("href", "src", "action"):
            assert not (attrs.get(link) or "").lower().startswith(("javascript:", "http:", "https:", "//"))
    assert "<script>alert(1)" in tags.text + str([a for _, a in tags.tags])  # the hostile text is in a text or an attribute


@pytest.mark.parametrize("name", [p for p in PAGES if p != "login.html"])
@pytest.mark.slow
def test_every_field_has_a_label_and_every_id_is_unique(name: str) -> None:
    tags = page(name)
    ids = [attrs["id"] for attrs in tags.all("id")]
    assert len(ids) == len(set(ids))
    labelled = {attrs["for"] for attrs in tags.all("for")}
    for tag, attrs in tags.tags:
        if tag in ("input", "select") and attrs.get("type") != "hidden" and "id" in attrs:
            assert attrs["id"] in labelled, attrs


def test_the_run_page_explains_a_divergence_and_suggests_remedies_without_scripts() -> None:
    tags = render("run.html", run=a_run(status="diverged", divergence=LOST), verdict=VERDICT, series=SERIES,
                  alerts={"alerts": []}, **CHARTS, **PAST)  # fmt: skip
    text = re.sub(r"\s+", " ", tags.text)
    for said in (
        "Diverged at step 58, layer 0, eigenvalue 31", "an unstable eigenvalue overflowed, thrown by the optimizer's steps",
        VERDICT["summary"], VERDICT["events"][0]["text"], VERDICT["evidence"][0]["text"], VERDICT["try"][0]["because"],
    ):  # fmt: skip
        assert said in text
    assert "/new?clone=7&set=model.reparameterization.name=best" in [a["href"] for a in tags.all("href")]
    assert "gradient grows" not in text, "nothing is said that does not follow from the run's numbers"


def test_the_page_of_a_finished_run_states_that_eigenvalues_are_outside() -> None:
    unstable = VERDICT["unstable"]
    told = VERDICT | {"cause": None, "thrown_by": None, "events": [], "evidence": [], "try": []}
    run = a_run(status="finished", divergence=None, unstable=unstable)
    text = re.sub(
        r"\s+", " ", render("run.html", run=run, verdict=told, series=SERIES, alerts={"alerts": []}, **CHARTS, **PAST).text
    )
    assert "finished · 10 of 16 outside" in text
    assert "Finished, with eigenvalues outside" in text


def test_the_run_page_shows_history_log_and_checkpoints_without_scripts() -> None:
    tags = page("run.html")
    text = re.sub(r"\s+", " ", tags.text)
    for said in ("Traceback of attempt 2", "steps from 21 on were undone", "would resume from step 40", "7,000", "ababababab"):
        assert said in text
    assert "ended failed" in text, "an event without a reason must show its status"
    assert "— attempt 1 — training on cpu — 1,000 characters were dropped — — attempt 2 —" in text
    log = next(page("run.html").all("data-log-url"))
    assert (log["data-next"], log["data-attempt"]) == (str(1016 + len(EVIL)), "2"), (
        "the log must tell the script its next offset and attempt"
    )
    hrefs = [a["href"] for a in tags.all("href")]
    assert "/api/runs/7/checkpoints/40" in hrefs
    assert "/api/runs/7/checkpoints/20" not in hrefs
    assert "/api/runs/7/log?format=text" in hrefs


def test_the_run_page_passes_urls_to_its_scripts() -> None:
    root = next(page("run.html").all("data-run-id"))
    assert root["data-stream-url"] == "/api/runs/7/stream"
    assert root["data-series-url"] == "/api/runs/7/series"
    assert root["data-steps"] == "1000"


@pytest.mark.slow
def test_every_chart_on_a_page_is_defined() -> None:
    named = {attrs["data-chart"] for name in PAGES for attrs in page(name).all("data-chart")}
    assert named <= set(charts.CHARTS)
    assert {"loss", "grad_over_weight", "grad_over_weight_heatmap", "eigenvalue", "boundary_distance"} <= named


@pytest.mark.slow
def test_the_run_page_shows_accuracy_and_memory_charts_only_if_the_run_records_them() -> None:
    def shown(series: list[str]) -> dict[str, bool]:
        catalogue = SERIES | {"series": [SERIES["series"][0] | {"name": name} for name in series]}
        tags = render("run.html", run=a_run(), series=catalogue, alerts={"alerts": []}, **CHARTS, **PAST).tags
        frames = [attrs for tag, attrs in tags if tag == "figure"]
        charts = [str(attrs["data-chart"]) for _, attrs in tags if "data-chart" in attrs]
        return {name: "hidden" not in frame for name, frame in zip(charts, frames, strict=True)}

    small = [chart.name for chart in figures.small_charts()]
    recorded = ["train/loss", "eval/loss", "ssm/0/relative_step", "ssm/0/overflow_budget"]
    optional = ["eval/accuracy", "train/skipped", "train/scale", "system/host_memory_gib", "system/gpu_memory_gib"]
    without, with_all = shown(recorded), shown([*recorded, *optional])
    assert [name for name in without if name in small] == small
    of_run = [name for name in without if charts.CHARTS[name].scope == "run"]
    assert [name for name in of_run if not without[name]] == ["accuracy", "skipped", "scale", "host_memory", "gpu_memory"]
    assert all(with_all[name] for name in of_run)


def test_the_theory_page_has_a_row_for_every_map() -> None:
    tags = page("theory.html")
    discrete = [name for name, map_ in MAPS.items() if "discrete" in map_.forms]
    assert [attrs["data-map"] for attrs in tags.all("data-map")] == [*discrete, *MAPS]
    assert [attrs["data-toggle"] for attrs in tags.all("data-toggle")] == discrete
    assert "-1/(a w^2 + b)1 - 1/(a w^2 + b)" in re.sub(r"\s*\n\s*", "", tags.text)


def test_an_empty_list_of_runs_suggests_the_next_action() -> None:
    none = {"runs": {"runs": [], "next_cursor": None}, "views": []} | LIST
    tags = render("runs.html", **none, filters={"q": "", "sort": "-id"})
    assert "No runs yet" in tags.text
    assert "/new" in [a["href"] for a in tags.all("href")]
    filtered = render("runs.html", **none, filters={"q": "lr>1", "sort": "-id"})
    assert "No run matches" in filtered.text


def test_a_folded_sweep_is_one_row_that_opens_to_its_runs_and_escapes_its_name() -> None:
    fold = {"statuses": {"diverged": 2, "finished": 1}, "total": 3, "opened": True, "runs": [a_run(id=8)], "toggle": None}
    context = LIST | {
        "runs": {"runs": [a_run()], "next_cursor": None},
        "views": [],
        "filters": {"q": "", "sort": "-id", "cursor": None},
    }
    tags = render("runs.html", **context | {"folds": {1: fold}, "seen": True})
    assert [attrs["data-sweep-row"] for attrs in tags.all("data-sweep-row")] == ["1"]
    assert [attrs["data-run"] for attrs in tags.all("data-run")] == ["8"]
    assert EVIL in tags.text
    assert "3 runs: 2 diverged 1 finished" in re.sub(r"\s+", " ", tags.text)
    assert ["open" in attrs for tag, attrs in tags.tags if tag == "details" and attrs.get("class") == "intro"] == [False]


def test_an_empty_list_of_sweeps_explains_how_to_create_a_sweep() -> None:
    tags = render("sweeps.html", sweeps={"sweeps": [], "next_cursor": None}, filters={"q": "", "project": "", "cursor": None})
    assert "stablessm sweep" in tags.text
    assert "/new" in [a["href"] for a in tags.all("href")]


def test_the_bar_of_a_sweep_shows_every_run_once_and_labels_only_finite_runs_as_finite() -> None:
    tags = page("sweeps.html")
    parts = [(a["data-part"], a["x"], a["width"]) for tag, a in tags.tags if tag == "rect"]
    assert parts == [("finite", "0", "1"), ("nonfinite", "1", "1"), ("diverged", "2", "1"), ("running", "3", "1")]
    assert next(a for tag, a in tags.tags if tag == "svg" and "preserveaspectratio" in a)["viewbox"] == "0 0 4 1"
    assert "1 of 3 ended runs finite, 1 stable · 1 finished non-finite · 1 diverged · 1 running" in re.sub(r"\s+", " ", tags.text)


def test_the_sweep_page_links_its_table_as_files_and_loads_the_script_of_its_buttons() -> None:
    tags = page("sweep.html")
    links = [str(a["href"]) for a in tags.all("href")]
    assert [link.rpartition("=")[2] for link in links if "/table?" in link] == ["csv", "parquet", "markdown", "latex", "json"]
    assert "/static/v/lib/actions.js" in [a.get("src") for tag, a in tags.tags if tag == "script"]


def test_the_form_offers_every_field_of_the_configuration() -> None:
    paths = {attrs["data-path"] for attrs in page("new.html").all("data-path")}

    def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, inner in value.items():
            if isinstance(inner, dict):
                yield from leaves(inner, f"{prefix}{name}.")
            else:
                yield prefix + name

    assert {attrs["data-place"] for attrs in page("new.html").all("data-place")} == {"queue", "priority", "gpu", "project"}
    others = [section for name, section in LAYERS.items() if name != "stable_ssm"]
    sections = {f"model.layer.{option}" for section in others for option in section.model_fields}
    assert set(leaves(a_run()["config"])) - {"model.layer"} | sections - {"model.layer.inner"} <= paths
    assert {"model.layer.inner.name", "model.layer.inner.d_state"} <= paths


MODULES = sorted(p.relative_to(WEB / "static").as_posix() for p in (WEB / "static").rglob("*.js"))


@pytest.mark.parametrize("module", MODULES)
def test_javascript_modules_stay_small_insert_no_html_and_call_plotly_only_in_chart_js(module: str) -> None:
    source = (WEB / "static" / module).read_text()
    assert source.count("\n") <= 200
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)
    assert "Plotly." not in source or module == "chart/chart.js"
    for imported in re.findall(r'from "(.+?)"|import "(.+?)"', source):
        name = "".join(imported)
        assert name.startswith("."), name
        assert (WEB / "static" / module).parent.joinpath(name).is_file(), name


@pytest.mark.parametrize("template", ["runs.html", "compare.html"])
def test_a_refused_filter_marks_the_wrong_part_and_is_escaped(template: str) -> None:
    error = {"message": EVIL, "field": "q", "allowed": EVIL * 9, "position": 8, "length": 5}
    context = LIST | {"runs": {"runs": [], "next_cursor": None}, "views": [], "filters": {"q": "status=" + EVIL, "sort": "-id"}}
    if template == "compare.html":
        context = {"compare": None, "query": {"q": "status=" + EVIL}, "missing": []}
    tags = render(template, **(context | {"error": error}))
    assert any(attrs.get("data-refused") == "q" for attrs in tags.all("data-refused"))
    assert "mark" in [name for name, _ in tags.tags]
    assert EVIL in tags.text
