"""Submits sweeps: a grid of settings or a search becomes runs, which are checked and inserted together.

Work that cells share is done once: a requirement is checked once for all runs that have it, and all rows of a table are inserted
in a few statements.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sqlalchemy import Table, insert, literal, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import insert_into
from server.database.models import Run, SearchRow, Sweep, Transition
from server.errors import Conflict, Invalid
from server.lifecycle.answers import alive_workers
from server.lifecycle.submission import check_room, check_trainable
from server.lifecycle.transitions import run_values
from server.lifecycle.worker_wakeups import wake_workers
from server.settings import Settings
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import with_settings
from stablessm_core.spec.search import Halving, LogUniform, Search, Uniform, search_axes, trial_settings
from stablessm_core.spec.search import Integer as IntegerSpace

MAX_GRID_RUNS = 2000


def submit_sweep(
    database: Database, settings: Settings, base: dict[str, Any], *, grid: dict[str, list[Any]] | None = None,
    search: Search | None = None, name: str | None = None, key: str | None = None, submitted_by: int | None = None,
    user_id: int | None = None, queue_columns: Mapping[str, Any] | None = None, project: str = "",
) -> tuple[int, bool]:  # fmt: skip
    """Queue all runs of a new sweep, or none of them. Returns the number of the sweep, and True if the sweep is new.

    Raises Invalid if a run is invalid, Conflict if `key` belongs to another sweep, TooMany if too many runs wait.
    """
    columns = {"queue": "default"} | dict(queue_columns or {})
    stored = key and _stored_key(key, submitted_by, user_id, columns)
    asked = {"base": base, "grid": search_axes(search) if search else grid, "search": search and search.model_dump(mode="json")}
    with database.read() as session:  # before the checks: a repeated request must succeed although the queue is full by now
        known = stored and _known(session, stored, asked, str(key))
    if known:
        return known, False
    cells = _trials(base, search) if search else expand(base, grid or {})
    configs = [_named(config, setting) for setting, config in cells]
    if search and search.halving:
        _check_rungs(search.halving, configs)
    with database.read() as session:
        check_room(session, settings, len(configs), user_id)
        workers = alive_workers(session, settings.lease_seconds)
    for config in {_requirements(config): config for config in configs}.values():
        check_trainable(config, workers, database, settings, queue=columns["queue"])
    now = time.time()
    owner: dict[str, Any] = {"submitted_by": submitted_by, "user_id": user_id, "project": project}
    rows = [run_values(config, **owner, **columns) | {"created_at": now} for config in configs]
    with database.write() as session:
        sweep = _insert_sweep(session, asked, name, stored or None, submitted_by, now)
        if sweep is None:  # the same request was stored in the meantime
            return _known(session, str(stored), asked, str(key)) or 0, False
        _insert_runs(session, sweep, rows, now)
    for _ in configs[:8]:
        wake_workers(settings.broker_url)
    return sweep, True


def expand(base: dict[str, Any], grid: Mapping[str, list[Any]]) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    """Every combination of the grid's values, as (settings, configuration). Raises Invalid if a combination is invalid."""
    size = 1
    for path, values in grid.items():
        if not values:
            raise Invalid(f"grid.{path} has no values", field=f"grid.{path}", allowed="a list of at least one value")
        size *= len(values)
    if size > MAX_GRID_RUNS:
        raise Invalid(f"the grid has {size:,} combinations", field="grid", allowed=f"at most {MAX_GRID_RUNS:,} combinations")
    combinations = itertools.product(*grid.values())
    return _parsed(base, (dict(zip(grid, values, strict=True)) for values in combinations), "grid")


def _trials(base: dict[str, Any], search: Search) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    """Every trial of the search, as (settings, configuration). Raises Invalid."""
    for path, space in search.space.items():
        if isinstance(space, LogUniform | Uniform | IntegerSpace) and space.low > space.high:
            raise Invalid(
                f"search.space.{path}: low is {space.low:g}, high is {space.high:g}", field=f"search.space.{path}.low",
                allowed=f"low <= {space.high:g}",
            )  # fmt: skip
    return _parsed(base, trial_settings(search), "search.space")


def _parsed(
    base: dict[str, Any], cells: Iterable[dict[str, Any]], field_of_paths: str
) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    for setting in cells:
        try:
            yield setting, parse_config(with_settings(base, setting))
        except ConfigError as error:
            field, message, allowed = error.problems[0]
            given = ", ".join(f"{path}={value!r}" for path, value in setting.items())[:300]
            shown = f"{field_of_paths}.{field}" if field in setting else field
            raise Invalid(f"{field}: {message} (with {given})", field=shown, allowed=allowed) from None


def _check_rungs(halving: Halving, configs: Iterable[RunConfig]) -> None:
    """Raises Invalid unless every trial reaches the first rung and, if evaluations decide, is evaluated by then."""
    for config in configs:
        if halving.first_rung >= config.train.steps:
            raise Invalid(
                f"search.halving.first_rung is {halving.first_rung}, but a trial has {config.train.steps} steps",
                field="search.halving.first_rung", allowed=f"less than {config.train.steps}",
            )  # fmt: skip
        every = config.train.eval_every
        if halving.metric.startswith("eval/") and not 0 < every <= halving.first_rung:
            raise Invalid(
                f"search.halving.metric is {halving.metric}, but a trial is evaluated "
                + (f"for the first time at step {every}" if every else "at its end only"),
                field="search.halving.first_rung", allowed="a step at which train.eval_every has caused an evaluation",
            )  # fmt: skip


def _requirements(config: RunConfig) -> tuple[str, str, str]:
    """Runs with equal requirements can be trained by the same workers."""
    return config.task.model_dump_json(), config.train.device, config.train.scan_backend


def _insert_sweep(
    session: Session, asked: Mapping[str, Any], name: str | None, key: str | None, submitted_by: int | None, now: float
) -> int | None:
    """The number of the new sweep; None if a sweep with this idempotency key exists."""
    values = {"base": asked["base"], "grid": asked["grid"], "name": name, "submitted_by": submitted_by, "created_at": now}
    statement = insert_into(session, Sweep).values(idempotency_key=key, **values)
    number: int | None = session.scalar(statement.on_conflict_do_nothing(index_elements=["idempotency_key"]).returning(Sweep.id))
    if number is not None and asked["search"] is not None:
        ended = None if asked["search"]["halving"] else now  # without rungs there is nothing to decide
        session.execute(insert(SearchRow).values(sweep_id=number, search=asked["search"], ended_at=ended))
    return number


def _insert_runs(session: Session, sweep: int, rows: list[dict[str, Any]], now: float) -> None:
    """Insert queued runs in this order, and the first row of each run's history."""
    session.execute(insert(cast(Table, Run.__table__)), [row | {"sweep_id": sweep, "seq": 1} for row in rows])
    first = {"seq": 1, "status": "queued", "reason": "submitted", "attempt": 0, "step": 0, "at": now}
    submitted = select(Run.id, *(literal(value) for value in first.values())).where(Run.sweep_id == sweep)
    session.execute(insert(cast(Table, Transition.__table__)).from_select(["run_id", *first], submitted))


def _stored_key(key: str, submitted_by: int | None, user_id: int | None, columns: Mapping[str, Any]) -> str:
    """The stored form of an idempotency key. It depends on the token, the user and the queue, as the key of a run does."""
    return "sha256:" + hashlib.sha256(json.dumps([submitted_by, user_id, columns["queue"], key]).encode()).hexdigest()


def _known(session: Session, stored: str, asked: Mapping[str, Any], key: str) -> int | None:
    """The sweep that an earlier request with this key submitted; None if there is none. Raises Conflict if it is a different
    sweep."""
    found = session.execute(
        select(Sweep.id, Sweep.base, Sweep.grid, SearchRow.search).outerjoin(SearchRow).where(Sweep.idempotency_key == stored)
    ).one_or_none()
    if found is None:
        return None
    if _spelled([found.base, found.grid, found.search]) != _spelled([asked["base"], asked["grid"], asked["search"]]):
        raise Conflict(
            f"{key!r}: this idempotency key belongs to sweep {found.id}, which is configured differently",
            field="Idempotency-Key", allowed="the same body, or a new key",
        )  # fmt: skip
    return int(found.id)


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _named(config: RunConfig, setting: dict[str, Any]) -> RunConfig:
    if config.name is not None and "name" in setting:
        return config
    text = " ".join(f"{path.removesuffix('.name').split('.')[-1]}={_short(value)}" for path, value in setting.items())
    name = f"{config.name} {text}" if config.name else text
    return config.model_copy(update={"name": name[:200]})


def _short(value: Any) -> Any:
    """A drawn number with six digits; every other value unchanged."""
    return float(f"{value:.6g}") if isinstance(value, float) and len(repr(value)) > 12 else value
