"""The quotas of a user. Queued runs and stored bytes are checked at submission, running runs when a run is claimed."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.models import Run, User
from server.errors import Invalid, TooMany
from server.lifecycle.reported import TRAINED


def check_quota(session: Session, user_id: int | None, count: int) -> None:
    """Check the user's quota for `count` more queued runs. Raises TooMany or Invalid if the quota does not allow these runs."""
    user = session.get(User, user_id) if user_id is not None else None
    if user is None:
        return
    if user.max_queued is not None:
        waiting = session.scalar(select(func.count()).where(Run.user_id == user.id, Run.status == "queued")) or 0
        if waiting + count > user.max_queued:
            raise TooMany(
                f"{waiting:,} runs of {user.name} are already waiting, and {count:,} more would exceed the quota max_queued",
                field="max_queued", allowed=f"at most {user.max_queued:,} queued runs of this user",
                headers={"Retry-After": "60"},
            )  # fmt: skip
    _check_bytes(session, user)


def check_bytes(session: Session, user_id: int | None) -> None:
    """Check that the user's runs may occupy more bytes. Raises Invalid if they have reached the quota."""
    if user_id is not None and (user := session.get(User, user_id)) is not None:
        _check_bytes(session, user)


def _check_bytes(session: Session, user: User) -> None:
    if user.max_bytes is not None:
        kept = int(session.scalar(select(func.sum(Run.bytes_stored)).where(Run.user_id == user.id)) or 0)
        if kept >= user.max_bytes:
            raise Invalid(
                f"the runs of {user.name} occupy {kept:,} bytes, which reaches the quota max_bytes",
                field="max_bytes", allowed=f"fewer than {user.max_bytes:,} stored bytes: delete runs, or request a larger quota",
            )  # fmt: skip


def full_users(session: Session) -> dict[int, int]:
    """The users who have reached their quota of running runs, as {user id: quota}."""
    training = (Run.status == "running", Run.kind == TRAINED)
    running = select(func.count()).where(Run.user_id == User.id, *training).scalar_subquery()
    chosen = select(User.id, User.max_running).where(User.max_running.is_not(None), running >= User.max_running)
    return {number: most for number, most in session.execute(chosen) if most is not None}
