"""Suggestions for a filter: the fields, the possible values of fields with few values, and the values that occur in this
installation's runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run, SeriesRow
from server.lifecycle.submitters import SUBMITTER
from server.search.filter_fields import all_names, field
from server.search.filter_syntax import spelled_field
from stablessm_core.telemetry.series import LAYER_GROUPS

RECENT_RUNS, MAX_METRICS = 200, 300  # the scalars of this many newest runs are suggested, and at most this many
MAX_VALUES = 100  # maximum number of suggested values per field
_TEXTS: dict[str, Any] = {
    "host": Run.host, "gpu_name": Run.gpu_name, "queue": Run.queue, "submitted_by": SUBMITTER,
    "project": Run.project, "task": Run.config[("task", "name")].as_string(),
}  # fmt: skip


def fields_json(session: Session) -> list[dict[str, Any]]:
    """The FieldAnswer of every field of the filter language, short names first."""
    dialect = session.get_bind().dialect.name
    own = {name: _few(session, column) for name, column in _TEXTS.items()} | {"tag": _tags(session, dialect)}
    metrics = [{"name": name, "kind": "number", "values": []} for name in _metrics(session)]
    return [
        {"name": name, "kind": known.kind, "values": own.get(name) or _values(known.kind, known.values)}
        for name in dict.fromkeys(all_names())
        for known in [field(name, dialect)]
    ] + metrics


def project_names(session: Session) -> list[str]:
    """The names of the projects with the most runs."""
    return _few(session, Run.project)


def _metrics(session: Session) -> list[str]:
    """The scalars of the newest runs, as a filter spells them."""
    newest = select(Run.id).where(NOT_IN_TRASH).order_by(Run.id.desc()).limit(RECENT_RUNS)
    scalar = and_(SeriesRow.width == 1, SeriesRow.derived.is_(False), SeriesRow.group_name.not_like(f"{LAYER_GROUPS}%"))
    names = select(SeriesRow.name).where(SeriesRow.run_id.in_(newest), scalar).group_by(SeriesRow.name)
    often = names.order_by(func.count().desc(), SeriesRow.name).limit(MAX_METRICS)
    return [spelled_field(name) for name in session.scalars(often)]


def _values(kind: str, few: tuple[str, ...]) -> list[str]:
    return ["true", "false"] if kind == "flag" else list(few)


def _few(session: Session, column: Any) -> list[str]:
    text = column.label("text")
    found = select(text).where(NOT_IN_TRASH).group_by(text).order_by(func.count().desc(), text).limit(MAX_VALUES)
    return [value for value in session.scalars(found) if value]


def _tags(session: Session, dialect: str) -> list[str]:
    elements = func.jsonb_array_elements_text if dialect == "postgresql" else func.json_each
    tags = elements(Run.tags).table_valued("value", joins_implicitly=True)
    found = select(tags.c.value).select_from(Run, tags).where(NOT_IN_TRASH).group_by(tags.c.value)
    return list(session.scalars(found.order_by(func.count().desc(), tags.c.value).limit(MAX_VALUES)))
