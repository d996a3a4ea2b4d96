"""The audit log, which records who changed what. Only administrators can read it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from server.access.audit import Audit, audit_list_json
from server.http.api.deps import DatabaseDep
from server.http.schemas.access import AuditList
from server.http.schemas.runs import MAX_ID

router = APIRouter(prefix="/api/audit", tags=["audit"])

Cursor = Annotated[int | None, Query(ge=1, le=MAX_ID, description="`next_cursor` of the previous page.")]


@router.get("", response_model=AuditList)
def index(
    request: Request,
    database: DatabaseDep,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    run_id: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Only writes to this run.")] = None,
) -> Any:
    """Writes and sign-ins, newest first, including refused requests. `waiting` counts rows that are not stored yet, and `lost`
    counts rows that could not be stored."""
    return audit_json(request, database, cursor, limit, run_id)


def audit_json(
    request: Request, database: DatabaseDep, cursor: int | None, limit: int, run_id: int | None = None
) -> dict[str, Any]:
    """The AuditList, including the rows that this process still has in memory."""
    audit: Audit = request.app.state.audit
    audit.flush()
    with database.read() as session:
        page = audit_list_json(session, cursor=cursor, limit=limit, run_id=run_id)
    return page | {"waiting": audit.waiting, "lost": audit.lost, "skipped": audit.skipped}
