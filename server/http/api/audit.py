"""The audit log: who changed what. For administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from server.access.audit import Audit, audit_page
from server.http.api.deps import DatabaseDep
from server.http.schemas.access import AuditList
from server.http.schemas.runs import MAX_ID

router = APIRouter(prefix="/api/audit", tags=["audit"])

Cursor = Annotated[int | None, Query(ge=1, le=MAX_ID, description="`next_cursor` of the page before.")]


@router.get("", response_model=AuditList)
def index(
    request: Request,
    database: DatabaseDep,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    run_id: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Only writes to this run.")] = None,
) -> Any:
    """Writes and sign-ins, newest first, refused ones included. `waiting` and `lost` count rows that are not stored (yet)."""
    return shown_audit(request, database, cursor, limit, run_id)


def shown_audit(
    request: Request, database: DatabaseDep, cursor: int | None, limit: int, run_id: int | None = None
) -> dict[str, Any]:
    """AuditList, with what this process has noted until now."""
    audit: Audit = request.app.state.audit
    audit.flush()
    with database.read() as session:
        page = audit_page(session, cursor=cursor, limit=limit, run_id=run_id)
    return page | {"waiting": audit.waiting, "lost": audit.lost, "skipped": audit.skipped}
