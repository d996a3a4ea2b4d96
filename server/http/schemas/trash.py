"""What the API answers about the trash."""

from __future__ import annotations

from pydantic import Field

from server.http.schemas.runs import Answer, Status


class TrashedRun(Answer):
    """A run that can still be brought back."""

    id: int
    name: str | None
    tags: list[str]
    status: Status
    task: str
    bytes_stored: int
    deleted_at: float
    deleted_by: str | None = Field(description="Who deleted it, by name; `retention` where it went by itself.")
    until: float = Field(description="From then on it is deleted for good.")


class OccupiedAnswer(Answer):
    runs: int
    bytes_stored: int = Field(description="Recorded numbers in the database, and checkpoint files.")


class TrashAnswer(Answer):
    runs: list[TrashedRun]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last one.")
    hours: float = Field(description="How long a run stays in the trash.")
    kept: OccupiedAnswer = Field(description="All runs that are not in the trash.")
    trash: OccupiedAnswer = Field(description="All runs in the trash.")
