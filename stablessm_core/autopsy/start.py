"""What the trial of a change begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stablessm_core.autopsy.bench import Bench
from stablessm_core.training.checkpoint import Checkpoint

Trial = tuple[Bench, dict[str, Any]]  # the changed bench, and the settings that the change corresponds to


@dataclass(frozen=True)
class Start:
    """state: the state from which the trial starts. fatal: the measured step, at which the run died."""

    bench: Bench
    state: Checkpoint
    fatal: int
