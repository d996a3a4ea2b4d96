"""Where telemetry goes: the sink protocol, and a sink that keeps everything in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.series import DERIVED_GROUPS, SO_FAR, SeriesSpec


@dataclass(frozen=True)
class Flush:
    """What became known since the last flush. `step`: last training step covered; `blocks`: raw (level 0) and coarser ones;
    `so_far`: the extremes of these steps over all layers, by the names in SO_FAR, never NaN, those that are known."""

    blocks: list[Block]
    alerts: list[Alert]
    step: int
    steps_per_second: float | None
    so_far: Mapping[str, float] = field(default_factory=dict)


class Sink(Protocol):
    """Where telemetry goes. Every call comes in order from the recorder's own thread; an exception costs that call's content
    (warned once, counted), never the training run."""

    def open(self, series: list[SeriesSpec]) -> None:
        """The catalogue; may be called again with additions."""

    def write(self, flush: Flush) -> None: ...

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        """A checkpoint is durable; every step up to `step` has been written before."""

    def truncate(self, to_step: int, reason: str) -> None:
        """Steps after `to_step` are taken back; recording goes on from `to_step + 1`."""

    def needed(self) -> Collection[int]:
        """Steps of the checkpoints that a resume would look for now, newer ones not being recorded yet. From any thread."""


@dataclass
class MemorySink:
    """Keeps a run's telemetry in memory, for training from Python without a service. `checkpoints`: (step, path, sha-256);
    `so_far`: the extremes over all steps that came, those taken back included."""

    catalogue: dict[str, SeriesSpec] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    checkpoints: list[tuple[int, Path, str]] = field(default_factory=list)
    rollbacks: list[tuple[int, str]] = field(default_factory=list)
    step: int = 0
    steps_per_second: float | None = None
    so_far: dict[str, float] = field(default_factory=dict)

    def open(self, series: list[SeriesSpec]) -> None:
        self.catalogue |= {s.name: s for s in series}

    def write(self, flush: Flush) -> None:
        self.blocks += flush.blocks
        self.alerts += flush.alerts
        self.step = flush.step
        self.steps_per_second = flush.steps_per_second or self.steps_per_second
        for name, value in flush.so_far.items():
            self.so_far[name] = SO_FAR[name](value, self.so_far.get(name, value))

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        self.checkpoints.append((step, path, sha256))

    def truncate(self, to_step: int, reason: str) -> None:
        self.rollbacks.append((to_step, reason))
        self.step = to_step
        self.checkpoints = [c for c in self.checkpoints if c[0] <= to_step]
        kept = [block for block in self.blocks if block.first_step <= to_step]
        self.blocks = [_up_to(block, to_step) for block in kept if block.level == 0 or block.last_step <= _whole(block, to_step)]

    def needed(self) -> Collection[int]:
        return [step for step, _, _ in self.checkpoints[-1:]]

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Recorded values of a series: steps int64 (points,), values float32 (points, width). KeyError for an unknown name."""
        wanted = self.catalogue[name]
        recorded = [s for s in self.catalogue.values() if s.group == wanted.group and not s.derived]
        if wanted not in recorded:
            raise KeyError(f"series {name!r} is derived; it is computed from its layer's weight, not recorded")
        first = sum(s.width for s in recorded[: recorded.index(wanted)])
        blocks = [b for b in self.blocks if b.group == wanted.group and b.level == 0]
        steps = [b.first_step + b.stride * np.arange(b.point_count, dtype=np.int64) for b in blocks]
        values = [b.values[first : first + wanted.width].T for b in blocks]
        if not blocks:
            return np.empty(0, np.int64), np.empty((0, wanted.width), np.float32)
        return np.concatenate(steps), np.concatenate(values)


def _whole(block: Block, to_step: int) -> int:
    # what follows from two steps comes one step late: of `to_step` itself it is not known where recording goes on
    return to_step - 1 if block.group.endswith(DERIVED_GROUPS) else to_step


def _up_to(block: Block, step: int) -> Block:
    count = min(block.point_count, (step - block.first_step) // block.stride + 1)
    return (
        Block(block.group, block.level, block.first_step, block.stride, block.values[..., :count]) if block.level == 0 else block
    )
