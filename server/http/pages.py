"""The pages: each is rendered from the very JSON that its twin under /api answers with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader

from server.errors import ServiceError, TooMany, error_body
from server.http.api.alerts import all_alerts, run_alerts
from server.http.api.audit import Cursor, shown_audit
from server.http.api.compare import Compared, compare_runs
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.history import tracebacks_shown
from server.http.api.runs import Listed, RefusedFilter, find_run, run_page, run_shown
from server.http.api.series import run_catalogue
from server.http.api.sweeps import Listed as ListedSweeps
from server.http.api.sweeps import find_sweep
from server.http.api.tokens import token_page
from server.http.api.trash import Cursor as TrashCursor
from server.http.api.trash import shown_trash
from server.http.api.users import shown_me, user_page
from server.http.api.webhooks import webhook_page
from server.http.assets import Assets
from server.http.gate import COOKIE, Access, client_address, policy_with_inline, session_cookie, set_session
from server.http.schemas.queues import Placement
from server.http.schemas.runs import MAX_ID, RunId
from server.http.schemas.sweeps import SweepId
from server.http.theory import stable_maps, theory_figures
from server.runs import answers
from server.runs.checkpoints import run_checkpoints
from server.runs.history import run_history
from server.runs.sweeps import sweep_answer, sweep_page
from stablessm_core import __version__
from stablessm_core.config import RunConfig
from stablessm_core.maps import MAPS
from web.figures import series_of, small_charts

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


def _pages(request: Request) -> Pages:
    return request.app.state.pages  # type: ignore[no-any-return]


def _refused(error: ServiceError) -> dict[str, Any]:
    """The refusal for a page that shows it where the filter stands; `position` and `length` of the piece that is meant."""
    shown: dict[str, Any] = error_body(error.status, error.message, error.field, error.allowed)["error"]
    return {"field": None} | shown | {name: getattr(error, name, 0) for name in ("position", "length")}


@router.get("/")
def runs(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, listed: Listed
) -> Response:  # fmt: skip
    found: dict[str, Any] = {"runs": [], "next_cursor": None}
    error = None
    with database.read() as session:
        try:
            found = run_page(session, listed, principal, settings.lease_seconds)
        except RefusedFilter as refused:
            error = _refused(refused)
    filters = listed.model_dump()
    query = urlencode({k: v for k, v in filters.items() if v is not None})
    return _pages(request).render(
        "runs.html", title="Runs", json_url=f"/api/runs?{query}", runs=found, filters=filters, error=error,
        status=422 if error else 200,
    )  # fmt: skip


@router.get("/runs/{run_id}")
def run(run_id: RunId, request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        shown = run_shown(session, run_id, settings.lease_seconds)
        context: dict[str, Any] = {"series": run_catalogue(session, run_id), "alerts": run_alerts(session, run_id)}
        context |= {
            "tracebacks": tracebacks_shown(session, run_id),
            "checkpoints": run_checkpoints(session, run_id, settings),
            "history": run_history(session, run_id),
        }
    context |= {"small_charts": small_charts(), "series_of": series_of, "trash_hours": settings.trash_hours}
    if form := _form_in_question(shown, context["series"]["series"]):
        context |= {"form": form, "guarded": MAPS[form["map"]].guarded, "stable_maps": stable_maps(form["time"])}
    title = shown["name"] or f"Run {run_id}"
    return _pages(request).render("run.html", title=title, json_url=f"/api/runs/{run_id}", run=shown, **context)


@router.get("/compare")
def compare(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, chosen: Compared
) -> Response:  # fmt: skip
    filters = chosen.model_dump()
    query = urlencode({k: v for k, v in filters.items() if v is not None})
    result, error = None, None
    if chosen.given:
        with database.read() as session:
            try:
                result = compare_runs(session, chosen, principal, settings.lease_seconds)
            except ServiceError as refused:
                error = _refused(refused)
    json_url = f"/api/compare?{query}" if result else None
    status = 422 if error else 200
    return _pages(request).render(
        "compare.html", title="Compare", json_url=json_url, status=status, compare=result, query=filters, error=error
    )


@router.get("/sweeps")
def sweeps(request: Request, database: DatabaseDep, listed: ListedSweeps) -> Response:
    with database.read() as session:
        found = sweep_page(session, **listed.model_dump())
    query = urlencode(listed.model_dump(exclude_none=True))
    return _pages(request).render("sweeps.html", title="Sweeps", json_url=f"/api/sweeps?{query}", sweeps=found, filters=listed)


@router.get("/sweeps/{sweep_id}")
def sweep(sweep_id: SweepId, request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        shown = sweep_answer(session, find_sweep(session, sweep_id), settings.lease_seconds)
    title = shown["name"] or f"Sweep {sweep_id}"
    return _pages(request).render("sweep.html", title=title, json_url=f"/api/sweeps/{sweep_id}", sweep=shown)


@router.get("/new")
def new(
    request: Request, database: DatabaseDep, settings: SettingsDep, clone: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None
) -> Response:
    with database.read() as session:
        base = find_run(session, clone) if clone is not None else None
        prefill = dict(base.config) if base else None
        place = {"queue": base.queue, "priority": base.priority, "gpu": base.needs_gpu} if base else Placement().model_dump()
        workers = answers.worker_answers(session, settings.lease_seconds)
    defaults = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    maps = {name: list(map_.forms) for name, map_ in MAPS.items()}
    return _pages(request).render(
        "new.html", title="New run", schema=RunConfig.model_json_schema(), defaults=defaults, maps=maps, workers=workers,
        prefill=prefill, cloned_from=clone, place=place, placement=Placement.model_json_schema()["properties"],
    )  # fmt: skip


@router.get("/alerts")
def alerts(request: Request, database: DatabaseDep) -> Response:
    with database.read() as session:
        found = all_alerts(session)
    return _pages(request).render("alerts.html", title="Alerts", json_url="/api/alerts", alerts=found)


@router.get("/workers")
def workers(request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    with database.read() as session:
        known, queues = (
            answers.worker_answers(session, settings.lease_seconds),
            answers.queue_answers(session, settings.lease_seconds),
        )
    return _pages(request).render(
        "workers.html", title="Workers and queues", json_url="/api/workers", workers=known, queues=queues
    )


@router.get("/trash")
def trash(request: Request, database: DatabaseDep, settings: SettingsDep, cursor: TrashCursor = None) -> Response:
    with database.read() as session:
        shown = shown_trash(session, settings, cursor, TRASH_ROWS)
    return _pages(request).render("trash.html", title="Trash", json_url="/api/trash", trash=shown)


@router.get("/theory")
def theory(request: Request) -> Response:
    return _pages(request).render("theory.html", title="Theory", figures=theory_figures(), maps=MAPS.values())


@router.get("/docs")
def docs(request: Request) -> Response:
    return _pages(request).render("docs.html", title="API", json_url="/openapi.json", openapi=request.app.openapi())


@router.get("/login")
def login_form(request: Request, next: str = "/") -> Response:
    return _pages(request).login(_local(next), error=None)


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
        answer: Response = _pages(request).login(target, error=f"{error.message}; try again in a minute", status=429)
        answer.headers.update(error.headers or {})
        return answer
    if principal is None:
        return _pages(request).login(target, error="That is not a token of this server.", status=401)
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
    return _pages(request).render("me.html", title="You", json_url="/api/me", me=shown_me(database, principal))


@router.get("/access")
def access(request: Request, database: DatabaseDep, cursor: Cursor = None) -> Response:
    context = {
        "tokens": token_page(request, database)["tokens"],
        "users": user_page(database)["users"],
        "audit": shown_audit(request, database, cursor, AUDIT_ROWS),
        "webhooks": webhook_page(database)["webhooks"],
        "on_first": cursor is None,
    }
    return _pages(request).render("access.html", title="Access", json_url="/api/tokens", **context)


def _form_in_question(run: dict[str, Any], series: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The form of the layer in which the run diverged, else that of its first layer; None where no layer is known yet."""
    layer = (run["divergence"] or {}).get("layer")
    of_layer = [one["form"] for one in series if one["name"].startswith(f"ssm/{layer}/")]
    form = next((form for form in [*of_layer, *run["forms"]] if form is not None), None)
    return form if form is not None and form["map"] in MAPS else None


def _local(path: str) -> str:
    """A path of this server: no other host, no scheme, no backslash that a browser reads as a slash."""
    return (
        path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable() else "/"
    )
