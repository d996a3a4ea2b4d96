"""The saved views of each user. A view is a name for a query of the list of runs (filter, order, columns)."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from server.database.fence import insert_into
from server.database.models import View

MAX_VIEWS = 100  # maximum number of views per user


def views_json(session: Session, user_id: int) -> list[dict[str, Any]]:
    """The ViewAnswer of each view of the user, sorted by name."""
    found = session.scalars(select(View).where(View.user_id == user_id).order_by(func.lower(View.name), View.id))
    return [_view_json(view) for view in found]


def save_view(session: Session, user_id: int, name: str, query: str) -> dict[str, Any]:
    """Save a view. An existing view with the same name is replaced. Raises ValueError if the user has too many views."""
    own = select(func.count()).where(View.user_id == user_id, View.name != name)
    if (session.scalar(own) or 0) >= MAX_VIEWS:
        raise ValueError(f"you have {MAX_VIEWS} views already")
    values = {"user_id": user_id, "name": name, "query": query, "created_at": time.time()}
    statement = insert_into(session, View).values(values)
    session.execute(statement.on_conflict_do_update(index_elements=["user_id", "name"], set_={"query": query}))
    return _view_json(session.scalars(select(View).where(View.user_id == user_id, View.name == name)).one())


def delete_view(session: Session, user_id: int, view_id: int) -> bool:
    """Delete a view; returns True if the user had this view."""
    gone = session.execute(delete(View).where(View.id == view_id, View.user_id == user_id).returning(View.id))
    return gone.scalar_one_or_none() is not None


def _view_json(view: View) -> dict[str, Any]:
    return {"id": view.id, "name": view.name, "query": view.query, "created_at": view.created_at}
