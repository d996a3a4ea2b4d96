"""The name of a run's submitter, and who may change the run."""

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
# Runs that older versions stored have no user, so the name of their token is used. The table `users` may not have a row for the
# owner yet.
SUBMITTER: Any = func.coalesce(
    select(User.name)
    .where(User.id == func.coalesce(_RUN.user_id, case((_RUN.submitted_by.is_(None), OWNER))))
    .correlate(Run.__table__)
    .scalar_subquery(),
    case((_BY_OWNER, literal(OWNER_NAME))),
    select(Token.name).where(Token.id == _RUN.submitted_by).correlate(Run.__table__).scalar_subquery(),
    literal(""),
)


@lru_cache(256)  # equal principals get the same condition object, so that cached statements can be reused
def owned_by(principal: Principal) -> Any:
    """The condition that a run belongs to this principal."""
    if principal.user_id is not None:
        return _BY_OWNER if principal.user_id == OWNER else _RUN.user_id == principal.user_id
    return and_(_RUN.user_id.is_(None), _RUN.submitted_by == principal.token_id)


def is_own(principal: Principal, run: Run) -> bool:
    """True if the run belongs to this principal. A run that was stored before users existed belongs to its token."""
    if run.user_id is not None:
        return run.user_id == principal.user_id
    return run.submitted_by == principal.token_id and not principal.named


def check_own(principal: Principal, *runs: Run) -> None:
    """Raises Forbidden unless all runs belong to the principal, or the principal may change the runs of other users."""
    if principal.may("admin") or principal.may_change_all:
        return
    for run in runs:
        if not is_own(principal, run):
            raise Forbidden(
                f"run {run.id} was submitted by another user", field="run_id",
                allowed="your own runs; an administrator can allow you to change those of others (may_change_all)",
            )  # fmt: skip
