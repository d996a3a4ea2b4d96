"""What a user may use: runs that wait and bytes that are kept are refused at submission; what runs, when a run is claimed."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.models import Run, User
from server.errors import Invalid, TooMany


def check_quota(session: Session, user_id: int | None, count: int) -> None:
    """Raises TooMany or Invalid when `count` more queued runs would be more than the user's quota."""
    user = session.get(User, user_id) if user_id is not None else None
    if user is None:
        return
    if user.max_queued is not None:
        waiting = session.scalar(select(func.count()).where(Run.user_id == user.id, Run.status == "queued")) or 0
        if waiting + count > user.max_queued:
            raise TooMany(
                f"{waiting:,} runs of {user.name} wait already, and {count:,} more would exceed the quota max_queued",
                field="max_queued", allowed=f"at most {user.max_queued:,} queued runs of this user",
                headers={"Retry-After": "60"},
            )  # fmt: skip
    if user.max_bytes is not None:
        kept = int(session.scalar(select(func.sum(Run.bytes_stored)).where(Run.user_id == user.id)) or 0)
        if kept >= user.max_bytes:
            raise Invalid(
                f"the runs of {user.name} occupy {kept:,} bytes, which reaches the quota max_bytes",
                field="max_bytes", allowed=f"fewer than {user.max_bytes:,} bytes kept: delete runs, or ask for a larger quota",
            )  # fmt: skip


def full_users(session: Session) -> dict[int, int]:
    """The users whose quota of running runs is used up, each with that quota."""
    running = select(func.count()).where(Run.user_id == User.id, Run.status == "running").scalar_subquery()
    chosen = select(User.id, User.max_running).where(User.max_running.is_not(None), running >= User.max_running)
    return {number: most for number, most in session.execute(chosen) if most is not None}
