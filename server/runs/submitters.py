"""Who submitted a run, by name, and whether somebody may change it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import and_, case, func, literal, or_, select

from server.access.tokens import Principal
from server.access.users import OWNER, OWNER_NAME
from server.database.models import Run, Token, User
from server.errors import Forbidden

_RUN = Run.__table__.c
_BY_OWNER = or_(_RUN.user_id == OWNER, and_(_RUN.user_id.is_(None), _RUN.submitted_by.is_(None)))
# An older program names no user: then the token's name is the best there is. Nobody has a row before somebody needs it.
SUBMITTER: Any = func.coalesce(
    select(User.name)
    .where(User.id == func.coalesce(_RUN.user_id, case((_RUN.submitted_by.is_(None), OWNER))))
    .correlate(Run.__table__)
    .scalar_subquery(),
    case((_BY_OWNER, literal(OWNER_NAME))),
    select(Token.name).where(Token.id == _RUN.submitted_by).correlate(Run.__table__).scalar_subquery(),
    literal(""),
)


@lru_cache(256)  # it is part of lists whose statements are kept
def mine(principal: Principal) -> Any:
    """The condition that a run is this principal's."""
    if principal.user_id is not None:
        return _BY_OWNER if principal.user_id == OWNER else _RUN.user_id == principal.user_id
    return and_(_RUN.user_id.is_(None), _RUN.submitted_by == principal.token_id)


def is_own(principal: Principal, run: Run) -> bool:
    """Whether the run is this principal's; one without a user, from before there were any, is its token's."""
    if run.user_id is not None:
        return run.user_id == principal.user_id
    return run.submitted_by == principal.token_id and not principal.named


def check_own(principal: Principal, *runs: Run) -> None:
    """Raises Forbidden unless all runs are the principal's own, or it may change those of others."""
    if principal.may("admin") or principal.may_change_all:
        return
    for run in runs:
        if not is_own(principal, run):
            raise Forbidden(
                f"run {run.id} was submitted by somebody else", field="run_id",
                allowed="your own runs; an administrator can grant you others' (may_change_all)",
            )  # fmt: skip
