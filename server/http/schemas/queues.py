"""The JSON of queues in requests and responses: the queue of a run, and the settings of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.lifecycle.queues import DEFAULT_QUEUE, MAX_NAME, QUEUE_PATTERN
from stablessm_core.spec.section import Section, Text

MAX_PRIORITY = 100

QueueName = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=QUEUE_PATTERN)]
QueuePath = Annotated[QueueName, Path(description="Name of the queue.", examples=["default"])]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
GpuName = Annotated[Text, StringConstraints(max_length=MAX_NAME)]

PRIORITY = "Runs with a higher priority start first."
QUEUE = "Only workers that serve this queue take the run."
GPU = "Part of a GPU's name in any letter case, such as H200: only workers with such a GPU take the run. Empty for any machine."


class QueueQuery(BaseModel):
    """The queue, priority and GPU of a run as query parameters. These parameters do not affect the training, which depends only
    on the body."""

    queue: QueueName = Field(DEFAULT_QUEUE, description=QUEUE)
    priority: Priority = Field(0, description=PRIORITY)
    gpu: GpuName = Field("", description=GPU)


class QueueBody(Section):
    """The queue, priority and GPU of a run in a body."""

    queue: QueueName = Field(DEFAULT_QUEUE, description=QUEUE)
    priority: Priority = Field(0, description=PRIORITY)
    gpu: GpuName = Field("", description=GPU)


class QueueChange(Section):
    """The queue, priority and GPU of a run in a body; omitted fields do not change."""

    queue: QueueName | None = Field(None, description=QUEUE)
    priority: Priority | None = Field(None, description=PRIORITY)
    gpu: GpuName | None = Field(None, description=GPU)


def queue_columns(chosen: QueueQuery | QueueBody | QueueChange) -> dict[str, Any]:
    """The columns of the run that these fields set; null fields are left out."""
    names = {"queue": "queue", "priority": "priority", "gpu": "needs_gpu"}
    given = {column: getattr(chosen, name) for name, column in names.items()}
    return {column: value for column, value in given.items() if value is not None}


class QueuePatch(Section):
    """The settings of a queue that can be changed. Omitted fields do not change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 2, "paused": False}]})
    max_running: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="How many runs may run at once; null for no limit."
    )
    paused: bool = Field(False, description="If true, no run starts from this queue; running runs continue.")


class QueueAnswer(BaseModel):
    """A queue: its waiting and running runs, and its limits."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "default", "max_running": None, "paused": False, "running": 1, "queued": 12, "oldest_at": 1763712000.0,
                 "workers": 2}
            ]
        }
    )  # fmt: skip
    name: str
    max_running: int | None = Field(description="How many runs may run at once; null for no limit.")
    paused: bool
    running: int
    queued: int
    oldest_at: float | None = Field(description="When the longest waiting run began to wait.")
    workers: int = Field(description="The number of live workers that take runs from it.")


class QueueList(BaseModel):
    queues: list[QueueAnswer]
