"""The JSON of a run's log, checkpoints and status changes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import ConfigDict, Field

from server.http.schemas.runs import MAX_ID, Answer
from server.http.schemas.webhooks import NotificationAnswer
from stablessm_core.telemetry.statuses import Status

Step = Annotated[int, Path(ge=0, le=MAX_ID, description="Step of the checkpoint.", examples=[100])]
Happened = Literal["submitted", "started", "rolled_back", "cancel_requested", "requeued", "resumed", "ended", "lost", "found"]


class LogPiece(Answer):
    attempt: int
    start: int = Field(description="Position of its first character in the run's log.")
    text: str
    at: float = Field(description="The time of its last line.")
    cut: int = Field(description="Number of characters missing before this piece, because they were deleted or are not shown.")


class TracebackAnswer(Answer):
    """The traceback of a failed attempt, with shortened paths and without secrets."""

    attempt: int
    text: str
    at: float


class LogAnswer(Answer):
    """The output of the run's training processes in order: the first 64 KiB and the last 192 KiB."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": 1, "status": "running", "next": 47, "tracebacks": [],
                    "pieces": [{"attempt": 1, "start": 0, "text": "2025-11-21T08:00:01Z info worker.attempt: training\n",
                                "at": 1763712001.7, "cut": 0}],
                }
            ]
        }
    )  # fmt: skip
    run_id: int
    status: Status = Field(description="Status of the run. After its end, at most one more piece follows, within two seconds.")
    pieces: list[LogPiece]
    next: int = Field(description="Send it as `after` to get newer text.")
    tracebacks: list[TracebackAnswer]


class CheckpointAnswer(Answer):
    step: int = Field(description="Completed steps. A run that resumes from it starts with the next step.")
    attempt: int
    sha256: str
    size_bytes: int | None = Field(description="null if neither the database nor this server knows the size.")
    created_at: float
    host: str | None = Field(description="The host that wrote it; null for runs of older versions.")
    available: bool = Field(description="True if this server can send the file.")
    before_trouble: bool | None = Field(
        description="True if the checkpoint precedes the step at which the run's trouble began; null if the run has no trouble."
    )
    url: str | None = Field(description="Address for downloading it; null if only another machine has it.")


class CheckpointList(Answer):
    run_id: int
    checkpoints: list[CheckpointAnswer] = Field(description="The checkpoints from which the run can resume, newest first.")


class HistoryEvent(Answer):
    seq: int
    at: float
    event: Happened
    status: Status = Field(description="The status after this event.")
    reason: str
    attempt: int
    step: int = Field(description="Completed steps at this event.")
    truncated_from: int | None = Field(
        description="If not null, the recorded numbers of this step and all later steps were deleted."
    )
    worker: str | None = Field(description="The worker that held the run; null if none did, and for runs of older versions.")


class AttemptAnswer(Answer):
    attempt: int
    worker: str | None
    host: str | None
    started_at: float
    ended_at: float | None
    from_step: int = Field(description="Completed steps at its start.")
    to_step: int | None = Field(description="Completed steps at its end.")
    status: Status = Field(description='Status of the run after the attempt; "queued" if another attempt follows.')
    reason: str


class HistoryAnswer(Answer):
    run_id: int
    events: list[HistoryEvent] = Field(description="Oldest first.")
    attempts: list[AttemptAnswer] = Field(description="The attempts whose start is among these events.")
    notifications: list[NotificationAnswer] = Field(
        description="The newest 200 messages about the run, oldest first: those sent, those that wait, and those held back."
    )
