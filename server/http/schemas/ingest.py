"""The answers to programs that report a run."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from server.http.schemas.runs import Answer
from stablessm_core.report.frames import LIMITS


class LimitsAnswer(Answer):
    """What one post may contain. A larger post is refused with 413, a larger record with 422."""

    body_bytes: int = Field(description="The whole body.")
    record_bytes: int = Field(description="One record.")
    decoded_bytes: int = Field(description="All blocks of a body after decompression.")
    records: int = Field(description="Frames in a body.")
    keys: int = Field(description="Free metrics of a run.")


class OpenAnswer(Answer):
    """An open run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": 12,
                    "attempt": 1,
                    "url": "/runs/12",
                    "next_step": 1,
                    "lease_seconds": 60.0,
                    "limits": vars(LIMITS),
                    "server_time": 1763712000.0,
                    "clock_offset_seconds": -0.4,
                }
            ]
        }
    )
    run_id: int
    attempt: int = Field(description="Send it as `X-Attempt` with every post. Opening the run again ends this attempt.")
    url: str = Field(description="The run's page.")
    next_step: int = Field(description="The step after the last stored step.")
    lease_seconds: float = Field(description="A run without a post for this long is `lost` until its next post.")
    limits: LimitsAnswer
    server_time: float
    clock_offset_seconds: float | None = Field(
        description="The program's clock minus the server's; null if the request has no `client_time`."
    )


class RecordsAnswer(Answer):
    """What is stored after a post."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seq": 41, "stored_through": 640, "stop_requested": False}]})
    seq: int = Field(description="Number of the run's newest event.")
    stored_through: int = Field(description="The last stored step.")
    stop_requested: bool = Field(description="True if somebody asked the run to stop. The program decides what it does.")


class DifferenceAnswer(Answer):
    """A value that is not the stored value of its step."""

    step: int
    name: str
    stored: float | str = Field(description="The value in the run. NaN and the infinities are texts.")
    given: float | str = Field(description="The value in the records.")


class CompareAnswer(Answer):
    """How records differ from what is stored of a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": 12, "url": "/runs/12", "names": [], "differing": 1, "unknown": 0, "last_step": 640,
                    "first": [{"step": 3, "name": "train/loss", "stored": 0.5, "given": 0.7}],
                }
            ]
        }
    )  # fmt: skip
    run_id: int | None = Field(description="null if the id is unknown.")
    url: str | None = Field(description="The run's page.")
    names: list[str] = Field(description="The run's series, if the body has no records.")
    differing: int = Field(description="Values that are not the stored values of their steps.")
    first: list[DifferenceAnswer] = Field(description="The first 100 of them.")
    unknown: int = Field(description="Steps between the first and the last given one that are stored and were not given.")
    last_step: int = Field(description="The last stored step of the given names; -1 if there is none.")
