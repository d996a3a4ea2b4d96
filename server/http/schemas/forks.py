"""What the API answers and takes about forks and siblings of a run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from server.http.schemas.queues import Replacement
from server.http.schemas.runs import MAX_ID, Answer, Status
from stablessm_core.forking import ALLOWED


class ForkRequest(Replacement):
    """A new run from a checkpoint of another; it waits where the original did unless told otherwise."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"from_step": 400, "changes": {"optimizer.recurrent_lr": 0}}]})
    from_step: Annotated[int, Field(ge=0, le=MAX_ID)] | None = Field(
        None,
        description="Steps done at the checkpoint; 0: the initial weights. Default: the last checkpoint before the fatal step "
        "whose eigenvalues the map can reach, or 0 where there is none.",
    )
    changes: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description=f"New values by dotted path: {ALLOWED}. None at all: a replay, bit for bit.",
    )


class ForkAnswer(Answer):
    """A fork of the run, and how it has fared."""

    id: int
    url: str
    name: str | None
    status: Status
    from_step: int = Field(description="The step after which it parts from the original.")
    changes: dict[str, Any] = Field(description="What it changed, by dotted path; empty for a replay.")
    said: str = Field(description="The same in words.")
    step: int = Field(description="Steps done; its fatal step where it diverged.")
    steps: int
    loss: float | str | None = Field(description="Training loss at its end, or the newest one recorded.")
    unstable: dict[str, Any] | None
    outcome: str | None = Field(description="lives, dies, or open while that is not known; null where the original lives itself.")
    text: str | None = Field(description="What it says about the original, in a sentence.")
    compare_url: str


class ForkList(Answer):
    run_id: int
    died_at: int | None = Field(description="The original's fatal step.")
    begins_at: int = Field(description="The step after which a fork with the same map would begin.")
    forks: list[ForkAnswer] = Field(description="The newest first, at most 50.")


class SiblingAnswer(Answer):
    """A run with the same task, model shape and steps."""

    id: int
    url: str
    name: str | None
    status: Status
    step: int
    differs: dict[str, Any] = Field(description="Its own values where the configurations differ, by dotted path.")
    said: str = Field(description="The same in words.")
    same_sweep: bool
    survived: bool = Field(description="It finished with a finite loss.")
    loss: float | str | None
    unstable: dict[str, Any] | None
    compare_url: str


class SiblingList(Answer):
    run_id: int
    siblings: list[SiblingAnswer] = Field(description="Those that survived first, then the most alike; at most 20.")
