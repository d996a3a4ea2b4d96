"""The JSON of the runs in the trash."""

from __future__ import annotations

from pydantic import Field

from server.http.schemas.runs import Answer
from stablessm_core.telemetry.statuses import Status


class TrashedRun(Answer):
    """A run that can still be restored."""

    id: int
    name: str | None
    tags: list[str]
    status: Status
    task: str | None
    bytes_stored: int
    deleted_at: float
    deleted_by: str | None = Field(description="Name of the user who deleted it; `retention` if it was deleted automatically.")
    until: float = Field(description="The time at which it is deleted for good.")


class OccupiedAnswer(Answer):
    runs: int
    bytes_stored: int = Field(description="Bytes of recorded numbers in the database and of checkpoint files.")


class TrashAnswer(Answer):
    runs: list[TrashedRun]
    next_cursor: str | None = Field(description="Send it as `cursor` to get the next page; null on the last page.")
    hours: float = Field(description="How long a run stays in the trash.")
    kept: OccupiedAnswer = Field(description="All runs that are not in the trash.")
    trash: OccupiedAnswer = Field(description="All runs in the trash.")
