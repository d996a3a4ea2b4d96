"""What the API answers and takes about queues: where a run waits, and what holds for all runs of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.runs.queues import DEFAULT_QUEUE, MAX_NAME, QUEUE_PATTERN
from stablessm_core.section import Section, Text

MAX_PRIORITY = 100

QueueName = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=QUEUE_PATTERN)]
QueuePath = Annotated[QueueName, Path(description="Name of the queue.", examples=["default"])]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
GpuName = Annotated[Text, StringConstraints(max_length=MAX_NAME)]

PRIORITY = "Higher starts first."
QUEUE = "Only workers that serve this queue take the run."
GPU = "Part of a GPU's name, such as H200, letter case ignored: only workers with such a GPU take the run. Empty for any machine."


class Placed(BaseModel):
    """Where a run waits, as query parameters: what determines its numbers is in the body alone."""

    queue: QueueName = Field(DEFAULT_QUEUE, description=QUEUE)
    priority: Priority = Field(0, description=PRIORITY)
    gpu: GpuName = Field("", description=GPU)


class Placement(Section):
    """The same in a body."""

    queue: QueueName = Field(DEFAULT_QUEUE, description=QUEUE)
    priority: Priority = Field(0, description=PRIORITY)
    gpu: GpuName = Field("", description=GPU)


class Replacement(Section):
    """The same where what is left out stays as it is."""

    queue: QueueName | None = Field(None, description=QUEUE)
    priority: Priority | None = Field(None, description=PRIORITY)
    gpu: GpuName | None = Field(None, description=GPU)


def columns(place: Placed | Placement | Replacement) -> dict[str, Any]:
    """A place as columns of the run: what was given of it, and what is not left to stay as it is."""
    names = {"queue": "queue", "priority": "priority", "gpu": "needs_gpu"}
    given = {column: getattr(place, name) for name, column in names.items()}
    return {column: value for column, value in given.items() if value is not None}


class QueuePatch(Section):
    """What can be changed of a queue; fields left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 2, "paused": False}]})
    max_running: Annotated[int, Field(ge=0, le=10_000)] | None = Field(None, description="Runs at a time; null for no limit.")
    paused: bool = Field(False, description="While true nothing starts from this queue; what runs goes on.")


class QueueAnswer(BaseModel):
    """A queue: what waits, what runs, and what holds it back."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "default", "max_running": None, "paused": False, "running": 1, "queued": 12, "oldest_at": 1763712000.0,
                 "workers": 2}
            ]
        }
    )  # fmt: skip
    name: str
    max_running: int | None = Field(description="Runs at a time; null for no limit.")
    paused: bool
    running: int
    queued: int
    oldest_at: float | None = Field(description="Since when the run waits that has waited longest.")
    workers: int = Field(description="Living workers that serve it.")


class QueueList(BaseModel):
    queues: list[QueueAnswer]
