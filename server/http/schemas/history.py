"""What the API answers about a run's past: its log, its checkpoints, its changes of status."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import ConfigDict, Field

from server.http.schemas.runs import MAX_ID, Answer, Status

Step = Annotated[int, Path(ge=0, le=MAX_ID, description="Step of the checkpoint.", examples=[100])]
Happened = Literal["submitted", "started", "rolled_back", "cancel_requested", "requeued", "resumed", "ended"]


class LogPiece(Answer):
    attempt: int
    start: int = Field(description="Position of its first character in the run's log.")
    text: str
    at: float = Field(description="When its last line came.")
    cut: int = Field(description="Characters before it that are not kept, or not shown.")


class TracebackAnswer(Answer):
    """Where in the program an attempt failed. Paths are short, secrets are replaced."""

    attempt: int
    text: str
    at: float


class LogAnswer(Answer):
    """What the run's training processes printed, in order: its first 64 KiB and its last 192 KiB."""

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
    status: Status = Field(description="The run's; after its end at most one more piece comes, within two seconds.")
    pieces: list[LogPiece]
    next: int = Field(description="Give it as `after` for what comes later.")
    tracebacks: list[TracebackAnswer]


class CheckpointAnswer(Answer):
    step: int = Field(description="Steps done; a run that goes on from it begins with the next.")
    attempt: int
    sha256: str
    size_bytes: int | None = Field(description="null where neither the database nor this server knows it.")
    created_at: float
    host: str | None = Field(description="Where it was written; null for runs of older versions.")
    available: bool = Field(description="Whether this server can give the file.")
    url: str | None = Field(description="Where to download it; null while it lies on another machine only.")


class CheckpointList(Answer):
    run_id: int
    checkpoints: list[CheckpointAnswer] = Field(description="Those the run can go on from, the newest first.")


class HistoryEvent(Answer):
    seq: int
    at: float
    event: Happened
    status: Status = Field(description="From then on.")
    reason: str
    attempt: int
    step: int = Field(description="Steps done then.")
    truncated_from: int | None = Field(description="What was recorded from this step on was taken back.")
    worker: str | None = Field(description="Who had the run; null for nobody, and for runs of older versions.")


class AttemptAnswer(Answer):
    attempt: int
    worker: str | None
    host: str | None
    started_at: float
    ended_at: float | None
    from_step: int = Field(description="Steps done when it began.")
    to_step: int | None = Field(description="Steps done when it ended.")
    status: Status = Field(description='The run\'s when the attempt ended: "queued" if it goes on in another one.')
    reason: str


class HistoryAnswer(Answer):
    run_id: int
    events: list[HistoryEvent] = Field(description="The oldest first.")
    attempts: list[AttemptAnswer] = Field(description="Those that begin among these events.")
