"""The form for a new run or sweep. Without scripts, the form is posted here: a valid form queues the runs, and any other form
is shown again with the given values and every error beside its field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import ValidationError

from server.errors import Invalid, ServiceError
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import find_run
from server.http.form_fields import JSON_FIELD, form_config, form_place, form_values
from server.http.page_templates import pages_of
from server.http.schemas.queues import QueueBody, queue_columns
from server.http.schemas.runs import MAX_ID, Project
from server.lifecycle import answers
from server.lifecycle.presets import PRESETS
from server.lifecycle.reported import check_trained
from server.lifecycle.submission import submit_run
from server.lifecycle.sweep_submission import submit_sweep
from server.search.completion import project_names
from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError, Problem, describe_errors
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.paths import with_settings
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.theory.systems import map_choices, section_defaults, small_run

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MAX_FIELDS = 2000
MAX_CHECKED = 300  # values of a grid that are checked one by one
FIRST: dict[str, Any] = {"task": {"name": "polynomial_memory"}}


class Place(QueueBody):
    """Where a new run waits, and to which project it belongs."""

    project: Project = ""


async def _form(request: Request) -> dict[str, str]:
    try:
        pairs = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise Invalid("the form has too many fields", field="body", allowed=f"at most {MAX_FIELDS} fields") from None
    return dict(pairs)  # of a check box and the hidden field before it, the last one counts


@router.get("/new")
def new(
    request: Request, database: DatabaseDep, settings: SettingsDep, clone: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    layer: Annotated[str | None, Query(max_length=100)] = None, preset: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:  # fmt: skip
    """The form for a new run, filled in from the run `clone`, with a small run of `layer`, or with a preset."""
    base, grid, place = FIRST, {}, None
    if clone is not None:
        with database.read() as session:
            run = find_run(session, clone)
            check_trained(run)
            base = dict(run.config)
            place = {"queue": run.queue, "priority": run.priority, "gpu": run.needs_gpu, "project": run.project}
    elif preset:
        if preset not in PRESETS:
            raise Invalid(f"preset is {preset[:40]!r}{did_you_mean(preset, PRESETS)}", field="preset", allowed=", ".join(PRESETS))
        base, grid = PRESETS[preset].base, PRESETS[preset].grid
    elif layer in LAYERS:
        base = small_run(layer)
    return _page(request, database, settings, base, grid, place=place, cloned_from=clone, chosen=preset)


@router.post("/new")
def submit(
    request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep,
    form: Annotated[dict[str, str], Depends(_form)],
) -> Response:  # fmt: skip
    """Queue the run or sweep of a posted form, or fill the form from its JSON field."""
    if "fill" in form:
        return _filled(request, database, settings, form.get(JSON_FIELD, ""))
    base, grid = form_config(form)
    place = form_place(form)
    problems = problems_of(base, grid)
    try:
        given = {"queue": place["queue"] or "default", "gpu": place["gpu"], "project": place["project"]} | _priority(place)
        queue = Place.model_validate(given)
    except ValidationError as error:
        problems += describe_errors(error, Place)
    owner: dict[str, Any] = {"submitted_by": principal.token_id, "user_id": principal.user_id}
    if not problems:
        owner |= {"queue_columns": queue_columns(queue), "project": queue.project}
        try:
            if grid:
                name = form.get("sweep-name", "").strip()[:200] or None
                sweep, _ = submit_sweep(database, settings, base, grid=grid, name=name, **owner)
                return RedirectResponse(f"/sweeps/{sweep}", 303)
            run, _ = submit_run(database, settings, parse_config(base), **owner)
            return RedirectResponse(f"/runs/{run.id}", 303)
        except ServiceError as error:
            problems = [(error.field or "", error.message, error.allowed)]
    return _page(request, database, settings, base, grid, place=place, problems=problems, given=form)


@router.post("/new/check")
def check(body: Annotated[dict[str, Any], Body()]) -> Response:
    """Every problem of a configuration, or of {base, grid}; the script of the form shows them all at once."""
    base, grid = _parts({name: value for name, value in body.items() if name != "project"})
    found = problems_of(base, grid)
    return JSONResponse({"problems": [{"field": f, "message": m, "allowed": a} for f, m, a in found]})


def problems_of(base: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> list[Problem]:
    """Every problem of the configuration; of a sweep, also the problems that a single value of an axis causes."""
    first = {path: values[0] for path, values in grid.items() if values}
    found = _problems(base, first, first)
    known = {field for field, _, _ in found}
    others = [(path, value) for path, values in grid.items() for value in values[1:]]
    for path, value in others[:MAX_CHECKED]:
        new_ones = [problem for problem in _problems(base, first | {path: value}, first) if problem[0] not in known]
        found += new_ones
        known |= {field for field, _, _ in new_ones}
    return found


def _problems(base: Mapping[str, Any], setting: Mapping[str, Any], grid: Mapping[str, Any]) -> list[Problem]:
    try:
        parse_config(with_settings(base, setting))
    except ConfigError as error:
        return [(f"grid.{field}" if field in grid else field, message, allowed) for field, message, allowed in error.problems]
    return []


def _priority(place: Mapping[str, str]) -> dict[str, Any]:
    text = place["priority"]
    return {"priority": int(text) if text.lstrip("-").isdecimal() and len(text) < 10 else text} if text else {}


def _parts(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The base and the grid of a request, which may also be a single configuration."""
    base, grid = (given.get("base"), given.get("grid") or {}) if "base" in given else (given, {})
    if not isinstance(base, dict) or not isinstance(grid, dict):
        raise Invalid("this is neither a configuration nor {base, grid}", field="json", allowed="a JSON object")
    if any(not isinstance(values, list) for values in grid.values()):
        raise Invalid("the values of an axis are not a list", field="json", allowed='such as {"train.seed": [0, 1]}')
    return base, grid


def _filled(request: Request, database: Any, settings: Any, text: str) -> Response:
    """The form, filled from JSON: a configuration, or {base, grid}; both may have a project."""
    place = Place().model_dump()
    try:
        given = json.loads(text)
        if isinstance(given, dict) and isinstance(given.get("project"), str):
            place["project"] = given.pop("project")
        if isinstance(given, dict) and "search" in given:
            raise Invalid("the form cannot be filled with a search", field="json", allowed="a configuration, or {base, grid}")
        base, grid = _parts(given if isinstance(given, dict) else {"base": None})
        problems = problems_of(base, grid)
    except (ValueError, RecursionError) as error:
        base, grid, problems = FIRST, {}, [("json", f"this is not JSON: {error}"[:200], None)]
    except Invalid as error:
        base, grid, problems = FIRST, {}, [("json", error.message, error.allowed)]
    shown = {JSON_FIELD: text} if problems else {}
    return _page(request, database, settings, base, grid, place=place, problems=problems, given=shown)


def _page(
    request: Request, database: Any, settings: Any, base: Mapping[str, Any], grid: Mapping[str, list[Any]], *,
    place: Mapping[str, Any] | None = None, cloned_from: int | None = None, chosen: str | None = None,
    problems: Sequence[Problem] = (), given: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """The form with these values. given: the texts of a refused form, which are shown again as they were."""
    with database.read() as session:
        workers = answers.workers_json(session, settings.lease_seconds)
        projects = project_names(session)
    defaults = RunConfig.model_validate(FIRST).model_dump(mode="json")
    errors: dict[str, str] = {}
    for field, message, allowed in problems:
        errors.setdefault(field, message if not allowed or allowed in message else f"{message} (allowed: {allowed})")
    prefill = None if base is FIRST else form_values(base, defaults)
    return pages_of(request).render(
        "new.html", title="New run", schema=RunConfig.model_json_schema(), defaults=defaults, workers=workers, prefill=prefill,
        maps={name: list(map_.forms) for name, map_ in MAPS.items()}, cloned_from=cloned_from,
        place=place or Place().model_dump(), projects=projects,
        layers={"defaults": section_defaults(), "choices": map_choices()}, placement=QueueBody.model_json_schema()["properties"],
        grid={path: ", ".join(json.dumps(value) for value in values) for path, values in grid.items()}, presets=PRESETS,
        chosen=chosen, errors=errors, given=given or {}, status=422 if errors else 200,
    )  # fmt: skip
