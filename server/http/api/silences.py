"""A silence stops the messages about a run, a project or a kind of event until it ends.

Users may silence their own runs. Administrators may silence everything.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.models import SilenceRow
from server.errors import Conflict, Forbidden, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.runs import find_run
from server.http.schemas.webhooks import MAX_SILENCE_SECONDS, SilenceAnswer, SilenceId, SilenceList, SilenceRequest
from server.lifecycle.submitters import check_own
from server.webhooks.groups import end_silence
from server.webhooks.silences import MAX_SILENCES, add_silence, silence_json, silences_json

router = APIRouter(prefix="/api/silences", tags=["silences"])


@router.post("", status_code=201, response_model=SilenceAnswer)
def create(wanted: SilenceRequest, database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Send no messages about a run, a project or a kind of event until a time. The alerts themselves are still stored."""
    now = time.time()
    if not now < wanted.until <= now + MAX_SILENCE_SECONDS:
        raise Invalid(
            f"{wanted.until:.0f} is not a time within the next year", field="until", allowed=f"{now:.0f} to a year later"
        )
    with database.write() as session:
        _check_may_change(session, principal, wanted.run_id)
        current = select(func.count()).select_from(SilenceRow).where(SilenceRow.until > now)
        if (session.scalar(current) or 0) >= MAX_SILENCES:
            raise Conflict(f"there are already {MAX_SILENCES:,} silences", field="silences", allowed=f"at most {MAX_SILENCES:,}")
        return silence_json(add_silence(session, **wanted.model_dump(), created_by=principal.user or principal.name))


@router.get("", response_model=SilenceList)
def index(database: DatabaseDep) -> Any:
    """The silences that have not ended."""
    with database.read() as session:
        return silences_json(session)


@router.delete("/{silence_id}", status_code=204)
def delete(silence_id: SilenceId, database: DatabaseDep, principal: PrincipalDep) -> None:
    """End a silence now."""
    with database.write() as session:
        silence = session.get(SilenceRow, silence_id)
        if silence is None:
            raise NotFound(f"there is no silence {silence_id}", field="silence_id")
        if not principal.may("admin"):  # an administrator may also end a silence of a run in the trash
            _check_may_change(session, principal, silence.run_id)
        end_silence(session, silence, time.time())
        session.delete(silence)


def _check_may_change(session: Session, principal: Principal, run_id: int | None) -> None:
    """Raises NotFound if there is no such run, and Forbidden unless the principal may silence it, or everything."""
    if run_id is not None:
        check_own(principal, find_run(session, run_id))
    elif not principal.may("admin"):
        raise Forbidden("only an administrator may silence a project or a kind of event", field="scope", allowed="admin")
