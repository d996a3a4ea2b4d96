"""The JSON of a run's forks and siblings in requests and responses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from server.http.schemas.queues import QueueChange
from server.http.schemas.runs import MAX_ID, Answer
from stablessm_core.spec.forking import ALLOWED
from stablessm_core.telemetry.statuses import Status
from stablessm_core.verdict.trouble import KINDS


class ForkRequest(QueueChange):
    """A new run from a checkpoint of another run. By default the new run waits in the same queue as the original."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"from_step": 400, "changes": {"optimizer.recurrent_lr": 0}}]})
    from_step: Annotated[int, Field(ge=0, le=MAX_ID)] | None = Field(
        None,
        description="Completed steps at the checkpoint; 0 for the initial weights. By default the newest checkpoint before the "
        "trouble began, with eigenvalues that the map can reach; 0 if there is none.",
    )
    changes: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description=f"New values by dotted path: {ALLOWED}. Without changes the fork is a replay, bit for bit.",
    )


class ForkAnswer(Answer):
    """A fork of the run, and its result compared with the original."""

    id: int
    url: str
    name: str | None
    status: Status
    from_step: int = Field(description="The step after which the fork differs from the original.")
    changes: dict[str, Any] = Field(description="The changed settings, by dotted path; empty for a replay.")
    said: str = Field(description="The changes as text.")
    step: int = Field(description="Completed steps; for a diverged fork, its fatal step.")
    steps: int | None
    loss: float | str | None = Field(description="The final training loss, or the newest recorded one.")
    unstable: dict[str, Any] | None
    outcome: str | None = Field(description="lives, dies, or open if not known yet; null if the original run did not diverge.")
    text: str | None = Field(description="What the fork shows about the original, as a sentence.")
    compare_url: str


class TroubleAnswer(Answer):
    """The beginning of a run's trouble."""

    step: int = Field(description="The first step that may be affected: the state after the steps before it is still good.")
    kind: str = Field(
        description="The first sign: an eigenvalue outside the boundary, a loss or gradient far above its level, a bad batch, a "
        "jump of the learning rate, or only the fatal step itself.",
        json_schema_extra={"enum": list(KINDS)},
    )


class ForkList(Answer):
    run_id: int
    died_at: int | None = Field(description="The original's fatal step.")
    trouble: TroubleAnswer | None = Field(description="Where the trouble of the original began; null if it had none.")
    fork_from: int = Field(
        description="The step after which a fork with the same map starts by default: the newest checkpoint before the trouble, "
        "or 0, the initial weights."
    )
    begins_at: int = Field(description="The same as `fork_from`.")
    forks: list[ForkAnswer] = Field(description="Newest first, at most 50.")


class SiblingAnswer(Answer):
    """A run with the same task, model shape and number of steps."""

    id: int
    url: str
    name: str | None
    status: Status
    step: int
    differs: dict[str, Any] = Field(description="The sibling's values of the fields that differ, by dotted path.")
    said: str = Field(description="The differences as text.")
    same_sweep: bool
    survived: bool = Field(description="True if it finished with a finite loss.")
    loss: float | str | None
    unstable: dict[str, Any] | None
    compare_url: str


class SiblingList(Answer):
    run_id: int
    siblings: list[SiblingAnswer] = Field(description="Survivors first, then the most similar runs; at most 20.")
