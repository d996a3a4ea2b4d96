"""What an autopsy is given, and the form of its findings. This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stablessm_core.spec.config import RunConfig


class SavedState(NamedTuple):
    """A checkpoint: the state of a run after the steps 1..`step`. sha256: the recorded hash of the file, or None if unknown."""

    step: int
    path: Path
    sha256: str | None = None


class RecordedRow(NamedTuple):
    """The loss and the norm of the gradient of a step, float32 values exactly as recorded; they may be NaN or infinite."""

    loss: float
    grad_norm: float


class Trouble(NamedTuple):
    """The step at which the trouble began, and what shows it: one of `words.KINDS`.

    step: the state after the steps 1 to `step` - 1 is free of the trouble. shown: the first recorded step that shows the trouble;
    None if it is `step`.
    """

    step: int
    kind: str
    shown: int | None = None

    @property
    def first_shown(self) -> int:
        return self.step if self.shown is None else self.shown


@dataclass(frozen=True, kw_only=True)
class AutopsyRequest:
    """One autopsy.

    step: the step that is trained with instruments, 1..train.steps. rows: the recorded rows by step; some may be missing.
    checkpoints: the run's own checkpoints, newest first; those of later steps are ignored. origin: for a fork, the checkpoint
    of the other run from which it began. lowered: the steps at which `train.on_warning` lowered the rates. environment: the
    environment of the run as it was recorded. seconds: the time that the autopsy may take. memory: the bytes that it may need
    for copies of the run's tensors, in addition to what training needs. scratch: a folder for temporary files. plan: where the
    trouble began, judged with the findings so far; the trials are planned with its answer.
    """

    config: RunConfig
    data_root: Path
    step: int
    rows: Mapping[int, RecordedRow]
    checkpoints: tuple[SavedState, ...] = ()
    origin: SavedState | None = None
    trouble: Trouble | None = None
    lowered: tuple[int, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 60.0
    memory: int = 2 << 30
    scratch: Path | None = None
    plan: Callable[[dict[str, Any]], Trouble | None] | None = None


# the findings whose values are measured; a refused autopsy has None in their place
MEASURED = (
    "fatal",
    "loss",
    "batch",
    "replayed",
    "onset",
    "gradient",
    "form",
    "hidden_state",
    "first_nonfinite",
    "instruments",
    "modules",
    "float64",
    "trouble",
    "counterfactuals",
    "evidence_changed",
)


def refused(
    step: int, reason: str, *, from_step: int | None = None, bits_equal: bool | None = None, seconds: float = 0.0
) -> dict[str, Any]:
    """The findings of an autopsy without a result. reason: one sentence for users."""
    about = {"step": step, "from_step": from_step, "bits_equal": bits_equal, "refused": reason, "seconds": seconds}
    return about | dict.fromkeys(MEASURED)
