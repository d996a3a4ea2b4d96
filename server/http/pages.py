"""The pages. Each page is rendered from the same JSON that its endpoint under /api returns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.compare.claims import claims_json
from server.compare.compare_metrics import metrics_of
from server.compare.comparison import default_groups, default_view, drawn_runs, run_settings_json
from server.compare.sweep_grid import grid_json
from server.compare.sweeps import sweep_json, sweep_list_json
from server.database.models import AlertRow, Run
from server.database.payloads import DamagedPayload
from server.errors import ServiceError
from server.http.api.alerts import AlertQuery, alerts_json, all_alerts_json, conditions_of, run_alerts_json
from server.http.api.audit import Cursor, audit_json
from server.http.api.compare import CompareQuery, OnPage, compared_runs, comparison_json, without_missing
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.forks import fork_list_json, sibling_list_json
from server.http.api.free_metrics import metrics_json
from server.http.api.history import history_json, log_start_json, tracebacks_json
from server.http.api.paper import claim_figures, paper_json, paper_sections
from server.http.api.runs import find_run, run_json
from server.http.api.series import catalogue_json
from server.http.api.sweeps import Axis, find_sweep, requested_grid, sweep_claims
from server.http.api.sweeps import Listed as ListedSweeps
from server.http.api.systems import systems_json
from server.http.api.theory import Asked as AskedTheory
from server.http.api.theory import Theory, theory_json
from server.http.api.tokens import tokens_json
from server.http.api.trash import Cursor as TrashCursor
from server.http.api.trash import trash_json
from server.http.api.users import me_json, users_json
from server.http.api.verdict import verdict_json
from server.http.api.webhooks import webhooks_json
from server.http.beyond import beyond_figures
from server.http.page_templates import pages_of, refusal_json
from server.http.schemas.runs import RunId
from server.http.schemas.sweeps import SweepId
from server.lifecycle import answers
from server.lifecycle.answers import ALERTS
from server.lifecycle.autopsies import autopsy_json
from server.lifecycle.checkpoints import checkpoints_json
from server.lifecycle.forking import trouble_of
from server.search.alert_filters import alert_groups, run_names
from server.series.forms import freezable, other_maps, run_forms_json
from server.series.memory_function import memory_json
from server.webhooks.silences import run_silences_json, silences_json
from stablessm_core.maps import MAPS
from stablessm_core.spec.forking import summarize_changes
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.how import how_of
from web import records
from web.figures import series_of, small_charts
from web.memory_picture import memory_picture
from web.parallel import parallel_lines
from web.system_pictures import RATIOS, ratio_picture, start_picture

log = logging.getLogger("stablessm.server")
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

AUDIT_ROWS = 50
SWEEP_ROWS = 200  # the list of runs shows the other runs of a larger sweep
TRASH_ROWS = 100


@router.get("/runs/{run_id}")
def run(run_id: RunId, request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        shown = run_json(session, run_id, settings.lease_seconds)
        context: dict[str, Any] = {"series": catalogue_json(session, run_id), "alerts": run_alerts_json(session, run_id)}
        context |= {
            "tracebacks": tracebacks_json(session, run_id),
            "log": log_start_json(session, run_id),
            "history": history_json(session, run_id),
            "verdict": _verdict(session, run_id),
        }
        found = find_run(session, run_id)
        context["metrics"] = metrics_json(session, found)
        context["silences"] = run_silences_json(session, found)
        context["memory"] = memory_json(session, found)
        context["memory_picture"] = memory_picture(context["memory"])
        context["autopsy"] = autopsy_json(session, found, on=settings.autopsy)
        trouble = trouble_of(session, found)
        context |= {
            "checkpoints": checkpoints_json(session, run_id, settings, trouble),
            "forks": fork_list_json(session, found, settings, trouble),
            "fork_summary": summarize_changes(found.fork_changes or {}),
        }
        if context["forks"]["died_at"] is not None:
            context["siblings"] = sibling_list_json(session, found)
        forms = run_forms_json(found)
        parent = session.get(Run, shown["forked_from"] or shown["cloned_from"] or 0)
        context["parent"] = parent.id if parent else None
        context["settings"] = run_settings_json(found, parent)
        context |= {"fork_maps": other_maps(forms), "freezable": freezable(forms), "how": how_of(found).data}
    context |= {"small_charts": small_charts(), "series_of": series_of, "say": records, "trash_hours": settings.trash_hours}
    context |= {"figures_url": f"/api/runs/{run_id}/figures/{{chart}}?", "figures_file": f"run-{run_id}"}
    return pages_of(request).render("run.html", title=_run_title(shown), json_url=f"/api/runs/{run_id}", run=shown, **context)


@router.get("/compare")
def compare(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, chosen: OnPage
) -> Response:  # fmt: skip
    result, error, missing, metrics = None, None, [], []
    if chosen.given:
        with database.read() as session:
            try:
                missing = without_missing(session, chosen)
                found = compared_runs(session, chosen, principal) if chosen.given else []
                if chosen.group_by is None:  # an empty value means no groups
                    chosen.group_by = default_groups(found)
                result = comparison_json(session, found, chosen, settings.lease_seconds, curves=False, thin=True)
                metrics = metrics_of(session, drawn_runs(found))
                if chosen.metric and chosen.metric not in {one["name"] for one in metrics}:
                    chosen.metric = ""  # some run does not have it
            except ServiceError as why:
                error = refusal_json(why)
    asked = chosen.model_dump(exclude_none=True, by_alias=True)
    query = {name: asked[name] for name in CompareQuery.model_fields if name in asked}
    json_url = f"/api/compare?{urlencode(query)}" if result and chosen.given else None
    context: dict[str, Any] = {"compare": result, "query": asked, "missing": missing, "metrics": metrics}
    context["curves_url"] = f"/api/compare/curves?{urlencode({name: asked[name] for name in chosen.given})}"
    context["claims_url"] = f"/api/compare/claims?{urlencode(query)}"
    context["lines"] = parallel_lines(result) if result else None
    context["usual"] = default_view(result["runs"], result["groups"]) if result else "runs"
    context |= {"figures_url": f"/api/compare/figures/{{chart}}?{urlencode(query)}&", "figures_file": "compare"}
    return pages_of(request).render(
        "compare.html", title="Compare", json_url=json_url, status=422 if error else 200, error=error, **context
    )


@router.get("/sweeps")
def sweeps(request: Request, database: DatabaseDep, listed: ListedSweeps) -> Response:
    with database.read() as session:
        found = sweep_list_json(session, **listed.model_dump())
    query = urlencode(listed.model_dump(exclude_none=True))
    return pages_of(request).render("sweeps.html", title="Sweeps", json_url=f"/api/sweeps?{query}", sweeps=found, filters=listed)


@router.get("/sweeps/{sweep_id}")
def sweep(
    sweep_id: SweepId, request: Request, database: DatabaseDep, settings: SettingsDep, rows: Axis = None, columns: Axis = None
) -> Response:
    with database.read() as session:
        found = find_sweep(session, sweep_id)
        shown = sweep_json(session, found, settings.lease_seconds, most=SWEEP_ROWS)
        grid = requested_grid(session, found, rows, columns)
        claims = sweep_claims(session, sweep_id)
    asked = {"rows": grid.row, "columns": grid.column}
    context: dict[str, Any] = {
        "grid": grid_json(grid),
        "grid_query": (grid_query := urlencode({k: v for k, v in asked.items() if v is not None})),
        "claims": claims_json(claims),
        "claims_url": f"/api/compare/claims?sweep={sweep_id}",
        "figures_url": f"/api/sweeps/{sweep_id}/figures/{{chart}}?{grid_query}&",
        "figures_file": f"sweep-{sweep_id}",
    }
    title = shown["name"] or f"Sweep {sweep_id}"
    return pages_of(request).render("sweep.html", title=title, json_url=f"/api/sweeps/{sweep_id}", sweep=shown, **context)


class AlertPage(AlertQuery):
    """The filter of the alerts, and how the page shows them."""

    group: Literal["run", ""] = ""  # "run": the alerts of each run as one row


@router.get("/alerts")
def alerts(
    request: Request, database: DatabaseDep, principal: PrincipalDep, asked: Annotated[AlertPage, Query()]
) -> Response:  # fmt: skip
    error, groups = None, []
    found: dict[str, Any] = {"alerts": [], "next_cursor": None}
    with database.read() as session:
        try:
            conditions = conditions_of(asked, database.dialect, principal)
            if asked.group:
                groups = alert_groups(session, conditions)
                shown = [number for group in groups for number in group["newest"]]
                found["alerts"] = alerts_json(session, ALERTS.where(AlertRow.id.in_(shown)).order_by(AlertRow.id.desc()))
            else:
                found = all_alerts_json(session, asked, conditions)
        except ServiceError as why:
            error = refusal_json(why)
        names = run_names(session, {alert["run_id"] for alert in found["alerts"]})
    set_ = asked.model_dump(exclude_defaults=True, exclude_none=True)
    filters = dict.fromkeys(AlertPage.model_fields, "") | set_
    return pages_of(request).render(
        "alerts.html", title="Alerts", json_url=_address("/api/alerts", set_ | {"group": ""}), alerts=found, groups=groups,
        names=names, kinds=KINDS, filters=filters, error=error, status=422 if error else 200,
        address=lambda **changes: _address("/alerts", set_ | changes),
    )  # fmt: skip


@router.get("/workers")
def workers(request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        known, queues = (
            answers.workers_json(session, settings.lease_seconds),
            answers.queues_json(session, settings.lease_seconds),
        )
    return pages_of(request).render(
        "workers.html", title="Workers and queues", json_url="/api/workers", workers=known, queues=queues
    )


@router.get("/trash")
def trash(request: Request, database: DatabaseDep, settings: SettingsDep, cursor: TrashCursor = None) -> Response:
    with database.read() as session:
        shown = trash_json(session, settings, cursor, TRASH_ROWS)
    return pages_of(request).render("trash.html", title="Trash", json_url="/api/trash", trash=shown)


@router.get("/theory")
def theory(request: Request, database: DatabaseDep, asked: AskedTheory) -> Response:
    """The curves of all maps. If a parameter is invalid, the page shows the error and the default curves."""
    error = None
    with database.read() as session:
        try:
            answer = theory_json(session, asked)
        except ServiceError as why:
            error, answer = refusal_json(why), theory_json(session, Theory())
    query = urlencode(asked.model_dump(exclude_none=True))
    return pages_of(request).render(
        "theory.html", title="Theory", json_url=f"/api/theory?{query}", theory=answer, maps=MAPS.values(), error=error,
        status=422 if error else 200, figures_file="theory", figures_url=f"/api/theory/figures/{{chart}}?{query * (not error)}&",
    )  # fmt: skip


@router.get("/systems")
def systems(request: Request) -> Response:
    shown = systems_json()
    context: dict[str, Any] = {
        "systems": shown,
        "starts": {one["name"]: start_picture(one["start"]) for one in shown["systems"] if one["start"]},
        "ratios": {one["name"]: ratio_picture(one["gradient_over_weight"]) for one in shown["systems"]},
        "decades": RATIOS,
    }
    return pages_of(request).render("systems.html", title="Systems", json_url="/api/systems", **context)


@router.get("/paper")
def paper(request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        shown, reports = paper_json(session, settings)
    return pages_of(request).render(
        "paper.html", title="The paper", json_url="/api/paper", paper=shown, sections=paper_sections(shown),
        figures=claim_figures(shown, reports), beyond_figures=beyond_figures(reports), figures_file="paper",
    )  # fmt: skip


@router.get("/docs")
def docs(request: Request) -> Response:
    return pages_of(request).render("docs.html", title="API", json_url="/openapi.json", openapi=request.app.openapi())


@router.get("/me")
def me(request: Request, database: DatabaseDep, principal: PrincipalDep) -> Response:
    return pages_of(request).render("me.html", title="You", json_url="/api/me", me=me_json(database, principal))


@router.get("/access")
def access(request: Request, database: DatabaseDep, cursor: Cursor = None) -> Response:
    context = {
        "tokens": tokens_json(request, database)["tokens"],
        "users": users_json(database)["users"],
        "audit": audit_json(request, database, cursor, AUDIT_ROWS),
        "on_first": cursor is None,
    }
    return pages_of(request).render("access.html", title="Access", json_url="/api/tokens", **context)


@router.get("/webhooks")
def webhooks(request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    context = {"webhooks": webhooks_json(database)["webhooks"], "mail": settings.smtp_host is not None}
    with database.read() as session:
        context |= {"silences": silences_json(session)["silences"]}
        runs = {one["run_id"] for one in context["silences"] if one["run_id"]}
        names = dict(session.execute(select(Run.id, Run.name).where(Run.id.in_(runs))).all())
    return pages_of(request).render(
        "webhooks.html", title="Notifications", json_url="/api/webhooks", names=names, kinds=KINDS, **context
    )


def _address(path: str, query: Mapping[str, Any]) -> str:
    """The address of the path with the set parameters of the query."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{path}?{text}" if text else path


def _run_title(run: dict[str, Any]) -> str:
    """The page's title: the run's status, its unstable eigenvalues, and its name. static/run/header.js updates the title."""
    outside = run["unstable"] if run["status"] != "diverged" else None
    parts = [
        run["status"],
        f"{outside['eigenvalues']} of {outside['of']} outside" if outside else "",
        run["name"] or f"run {run['id']}",
    ]
    return " · ".join(part for part in parts if part)


def _verdict(session: Session, run_id: int) -> dict[str, Any] | None:
    """The run's VerdictAnswer. None if the run's values cannot be read; the page then shows everything else."""
    try:
        return verdict_json(session, run_id)
    except (DamagedPayload, LookupError, ValueError) as error:
        log.warning("the page has no verdict: %s", error, extra={"run": run_id})
        return None
