"""The pages: each is rendered from the very JSON that its twin under /api answers with."""

from __future__ import annotations

import logging
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader
from sqlalchemy.orm import Session

from server.database.models import Run
from server.database.payloads import DamagedPayload
from server.errors import ServiceError, TooMany, error_body
from server.http.api.alerts import all_alerts, run_alerts
from server.http.api.audit import Cursor, shown_audit
from server.http.api.compare import CompareQuery, OnPage, compare_runs, compared_runs, without_missing
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.forks import fork_list, sibling_list
from server.http.api.history import log_begin, tracebacks_shown
from server.http.api.runs import find_run, run_shown
from server.http.api.series import run_catalogue
from server.http.api.sweeps import Axis, asked_grid, find_sweep
from server.http.api.sweeps import Listed as ListedSweeps
from server.http.api.systems import system_list
from server.http.api.theory import Asked as AskedTheory
from server.http.api.theory import Theory, theory_answer
from server.http.api.tokens import token_page
from server.http.api.trash import Cursor as TrashCursor
from server.http.api.trash import shown_trash
from server.http.api.users import shown_me, user_page
from server.http.api.verdict import verdict_shown
from server.http.api.webhooks import webhook_page
from server.http.assets import Assets
from server.http.gate import COOKIE, Access, client_address, policy_with_inline, session_cookie, set_session
from server.http.schemas.queues import Placement
from server.http.schemas.runs import MAX_ID, RunId
from server.http.schemas.sweeps import SweepId
from server.http.systems import map_choices, section_defaults, small_run
from server.runs import answers
from server.runs.checkpoints import run_checkpoints
from server.runs.comparison import settings_beside, usual_groups, usually_shown
from server.runs.history import run_history
from server.runs.sweep_grid import grid_answer
from server.runs.sweeps import sweep_answer, sweep_page
from server.series.forms import forms_of_run, freezable, other_maps
from stablessm_core import __version__
from stablessm_core.config import RunConfig
from stablessm_core.forking import said
from stablessm_core.layers.registry import LAYERS
from stablessm_core.maps import MAPS
from web import records
from web.figures import series_of, small_charts
from web.formatting import FILTERS
from web.parallel import parallel_lines
from web.system_pictures import RATIOS, ratio_picture, start_picture

log = logging.getLogger("stablessm.server")
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MAX_FORM_BYTES = 4096
AUDIT_ROWS = 50
TRASH_ROWS = 100


class Pages:
    """The templates and what every one of them is given."""

    def __init__(self, assets: Assets) -> None:
        folder = Path(str(files("web"))) / "templates"
        self.assets = assets
        self.templates = Environment(loader=FileSystemLoader(folder), autoescape=True)
        self.templates.filters.update(FILTERS)

    def render(
        self, template: str, *, title: str, json_url: str | None = None, status: int = 200, **context: Any
    ) -> HTMLResponse:
        page = template.removesuffix(".html")
        html = self.templates.get_template(template).render(
            page=page, title=title, json_url=json_url, version=__version__, assets=self.assets.url,
            plotly_url=self.assets.plotly_url, **context,
        )  # fmt: skip
        return HTMLResponse(html, status)

    def error(self, request: Request, status: int, error: dict[str, Any], headers: dict[str, str]) -> Response:
        if status == 401:
            answer = self.login(request.url.path, error=None, status=401)
        else:
            answer = self.render("error.html", title=str(status), status=status, error=error)
        answer.headers.update(headers)
        return answer

    def login(self, next_path: str, *, error: str | None, status: int = 200) -> HTMLResponse:
        # static files are behind the gate too, so this page carries its own styles
        answer = self.render("login.html", title="Sign in", status=status, error=error, next=next_path)
        answer.headers["Content-Security-Policy"] = policy_with_inline(bytes(answer.body).decode())
        return answer


def pages_of(request: Request) -> Pages:
    return request.app.state.pages  # type: ignore[no-any-return]


def refused(error: ServiceError) -> dict[str, Any]:
    """The refusal for a page that shows it where the filter stands; `position` and `length` of the piece that is meant."""
    shown: dict[str, Any] = error_body(error.status, error.message, error.field, error.allowed)["error"]
    return {"field": None} | shown | {name: getattr(error, name, 0) for name in ("position", "length")}


@router.get("/runs/{run_id}")
def run(run_id: RunId, request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        shown = run_shown(session, run_id, settings.lease_seconds)
        context: dict[str, Any] = {"series": run_catalogue(session, run_id), "alerts": run_alerts(session, run_id)}
        context |= {
            "tracebacks": tracebacks_shown(session, run_id),
            "log": log_begin(session, run_id),
            "checkpoints": run_checkpoints(session, run_id, settings),
            "history": run_history(session, run_id),
            "verdict": _verdict(session, run_id),
        }
        found = find_run(session, run_id)
        context |= {"forks": fork_list(session, found, settings), "fork_said": said(found.fork_changes or {})}
        if context["forks"]["died_at"] is not None:
            context["siblings"] = sibling_list(session, found)
        forms = forms_of_run(found)
        parent = session.get(Run, shown["forked_from"] or shown["cloned_from"] or 0)
        context["parent"] = parent.id if parent else None
        context["settings"] = settings_beside(found.config, parent.config if parent else None)
        context |= {"fork_maps": other_maps(forms), "freezable": freezable(forms)}
    context |= {"small_charts": small_charts(), "series_of": series_of, "say": records, "trash_hours": settings.trash_hours}
    context |= {"figures_url": f"/api/runs/{run_id}/figures/{{chart}}?", "figures_file": f"run-{run_id}"}
    return pages_of(request).render("run.html", title=_run_title(shown), json_url=f"/api/runs/{run_id}", run=shown, **context)


@router.get("/compare")
def compare(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, chosen: OnPage
) -> Response:  # fmt: skip
    result, error, missing = None, None, []
    if chosen.given:
        with database.read() as session:
            try:
                missing = without_missing(session, chosen)
                found = compared_runs(session, chosen, principal) if chosen.given else []
                if chosen.group_by is None:  # an empty one asks for no groups
                    chosen.group_by = usual_groups(found)
                result = compare_runs(session, found, chosen, settings.lease_seconds, curves=False)
            except ServiceError as why:
                error = refused(why)
    asked = chosen.model_dump(exclude_none=True, by_alias=True)
    query = {name: asked[name] for name in CompareQuery.model_fields if name in asked}
    json_url = f"/api/compare?{urlencode(query)}" if result and chosen.given else None
    context: dict[str, Any] = {"compare": result, "query": asked, "missing": missing}
    context["curves_url"] = f"/api/compare/curves?{urlencode({name: asked[name] for name in chosen.given})}"
    context["lines"] = parallel_lines(result) if result else None
    context["usual"] = usually_shown(result["runs"], result["groups"]) if result else "runs"
    context |= {"figures_url": f"/api/compare/figures/{{chart}}?{urlencode(query)}&", "figures_file": "compare"}
    return pages_of(request).render(
        "compare.html", title="Compare", json_url=json_url, status=422 if error else 200, error=error, **context
    )


@router.get("/sweeps")
def sweeps(request: Request, database: DatabaseDep, listed: ListedSweeps) -> Response:
    with database.read() as session:
        found = sweep_page(session, **listed.model_dump())
    query = urlencode(listed.model_dump(exclude_none=True))
    return pages_of(request).render("sweeps.html", title="Sweeps", json_url=f"/api/sweeps?{query}", sweeps=found, filters=listed)


@router.get("/sweeps/{sweep_id}")
def sweep(
    sweep_id: SweepId, request: Request, database: DatabaseDep, settings: SettingsDep, rows: Axis = None, columns: Axis = None
) -> Response:
    with database.read() as session:
        found = find_sweep(session, sweep_id)
        shown = sweep_answer(session, found, settings.lease_seconds)
        grid = asked_grid(session, found, rows, columns)
    asked = {"rows": grid.row, "columns": grid.column}
    context: dict[str, Any] = {
        "grid": grid_answer(grid),
        "grid_query": (grid_query := urlencode({k: v for k, v in asked.items() if v is not None})),
        "figures_url": f"/api/sweeps/{sweep_id}/figures/{{chart}}?{grid_query}&",
        "figures_file": f"sweep-{sweep_id}",
    }
    title = shown["name"] or f"Sweep {sweep_id}"
    return pages_of(request).render("sweep.html", title=title, json_url=f"/api/sweeps/{sweep_id}", sweep=shown, **context)


@router.get("/new")
def new(
    request: Request, database: DatabaseDep, settings: SettingsDep, clone: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    layer: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:  # fmt: skip
    """The form, filled in with the run `clone`, or with a small run of a layer."""
    with database.read() as session:
        base = find_run(session, clone) if clone is not None else None
        prefill = dict(base.config) if base else None
        if layer in LAYERS and base is None:
            prefill = RunConfig.model_validate(small_run(layer)).model_dump(mode="json")
        place = {"queue": base.queue, "priority": base.priority, "gpu": base.needs_gpu} if base else Placement().model_dump()
        workers = answers.worker_answers(session, settings.lease_seconds)
    defaults = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    maps = {name: list(map_.forms) for name, map_ in MAPS.items()}
    return pages_of(request).render(
        "new.html", title="New run", schema=RunConfig.model_json_schema(), defaults=defaults, maps=maps, workers=workers,
        layers={"defaults": section_defaults(), "choices": map_choices()},
        prefill=prefill, cloned_from=clone, place=place, placement=Placement.model_json_schema()["properties"],
    )  # fmt: skip


@router.get("/alerts")
def alerts(request: Request, database: DatabaseDep) -> Response:
    with database.read() as session:
        found = all_alerts(session)
    return pages_of(request).render("alerts.html", title="Alerts", json_url="/api/alerts", alerts=found)


@router.get("/workers")
def workers(request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        known, queues = (
            answers.worker_answers(session, settings.lease_seconds),
            answers.queue_answers(session, settings.lease_seconds),
        )
    return pages_of(request).render(
        "workers.html", title="Workers and queues", json_url="/api/workers", workers=known, queues=queues
    )


@router.get("/trash")
def trash(request: Request, database: DatabaseDep, settings: SettingsDep, cursor: TrashCursor = None) -> Response:
    with database.read() as session:
        shown = shown_trash(session, settings, cursor, TRASH_ROWS)
    return pages_of(request).render("trash.html", title="Trash", json_url="/api/trash", trash=shown)


@router.get("/theory")
def theory(request: Request, database: DatabaseDep, asked: AskedTheory) -> Response:
    """A choice that is refused is said where it was made, above the curves without it."""
    error = None
    with database.read() as session:
        try:
            answer = theory_answer(session, asked)
        except ServiceError as why:
            error, answer = refused(why), theory_answer(session, Theory())
    query = urlencode(asked.model_dump(exclude_none=True))
    return pages_of(request).render(
        "theory.html", title="Theory", json_url=f"/api/theory?{query}", theory=answer, maps=MAPS.values(), error=error,
        status=422 if error else 200, figures_file="theory", figures_url=f"/api/theory/figures/{{chart}}?{query * (not error)}&",
    )  # fmt: skip


@router.get("/systems")
def systems(request: Request) -> Response:
    shown = system_list()
    context: dict[str, Any] = {
        "systems": shown,
        "starts": {one["name"]: start_picture(one["start"]) for one in shown["systems"] if one["start"]},
        "ratios": {one["name"]: ratio_picture(one["gradient_over_weight"]) for one in shown["systems"]},
        "decades": RATIOS,
    }
    return pages_of(request).render("systems.html", title="Systems", json_url="/api/systems", **context)


@router.get("/docs")
def docs(request: Request) -> Response:
    return pages_of(request).render("docs.html", title="API", json_url="/openapi.json", openapi=request.app.openapi())


@router.get("/login")
def login_form(request: Request, next: str = "/") -> Response:
    return pages_of(request).login(_local(next), error=None)


@router.post("/login")
async def login(request: Request) -> Response:
    """The token typed into the form; the gate lets this path through and nothing else."""
    body = (await request.body())[:MAX_FORM_BYTES].decode("utf-8", "replace")
    form = {key: values[0] for key, values in parse_qs(body).items()}
    access, target = request.app.state.access, _local(form.get("next", "/"))
    assert isinstance(access, Access)
    try:
        principal = await access.recognise(form.get("token", "").strip(), client_address(request.scope))
    except TooMany as error:
        answer: Response = pages_of(request).login(target, error=f"{error.message}; try again in a minute", status=429)
        answer.headers.update(error.headers or {})
        return answer
    if principal is None:
        return pages_of(request).login(target, error="That is not a token of this server.", status=401)
    request.state.principal = principal  # the audit log names who signed in
    answer = RedirectResponse(target, 303)
    # the server itself never sees TLS: a trusted proxy says so, and a browser in its Origin
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    set_session(answer, access.sessions, principal, secure=secure)
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Ends this browser's session, for every copy of its cookie; a token that must not be used any more is revoked."""
    access, cookie = request.app.state.access, session_cookie(request.headers)
    if cookie is not None and access.token_cache.asks:
        await access.sessions.end(cookie)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.get("/me")
def me(request: Request, database: DatabaseDep, principal: PrincipalDep) -> Response:
    return pages_of(request).render("me.html", title="You", json_url="/api/me", me=shown_me(database, principal))


@router.get("/access")
def access(request: Request, database: DatabaseDep, cursor: Cursor = None) -> Response:
    context = {
        "tokens": token_page(request, database)["tokens"],
        "users": user_page(database)["users"],
        "audit": shown_audit(request, database, cursor, AUDIT_ROWS),
        "webhooks": webhook_page(database)["webhooks"],
        "on_first": cursor is None,
    }
    return pages_of(request).render("access.html", title="Access", json_url="/api/tokens", **context)


def _run_title(run: dict[str, Any]) -> str:
    """Its status before its name, as static/run_header.js goes on writing it."""
    outside = run["unstable"] if run["status"] != "diverged" else None
    said = [
        run["status"],
        f"{outside['eigenvalues']} of {outside['of']} outside" if outside else "",
        run["name"] or f"run {run['id']}",
    ]
    return " · ".join(part for part in said if part)


def _verdict(session: Session, run_id: int) -> dict[str, Any] | None:
    """VerdictAnswer; None where its numbers cannot be read: the page shows the rest."""
    try:
        return verdict_shown(session, run_id)
    except (DamagedPayload, LookupError, ValueError) as error:
        log.warning("a page without its verdict: %s", error, extra={"run": run_id})
        return None


def _local(path: str) -> str:
    """A path of this server: no other host, no scheme, no backslash that a browser reads as a slash."""
    return (
        path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable() else "/"
    )
