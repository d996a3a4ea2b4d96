"""The sink protocols, which define how telemetry is stored, and a sink that keeps everything in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from stablessm_core.telemetry.blocks import Block, PackedBlock
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.series import DERIVED_GROUPS, SO_FAR, SeriesSpec


@dataclass(frozen=True)
class Flush:
    """The new telemetry since the last flush.

    step: the last training step covered. blocks: raw blocks (level 0) and blocks of higher levels. so_far: the known extremes
    of these steps over all layers, keyed by the names in SO_FAR, never NaN.
    """

    blocks: Sequence[Block | PackedBlock]
    alerts: list[Alert]
    step: int
    steps_per_second: float | None
    so_far: Mapping[str, float] = field(default_factory=dict)


class Sink(Protocol):
    """Stores telemetry. The flush thread makes all calls, in order. If a call raises an exception, only the data of that call
    is lost, and the run continues. Failed calls are counted, and the first failure is logged as a warning."""

    def open(self, series: list[SeriesSpec]) -> None:
        """Store the catalogue. May be called again with additional series."""

    def write(self, flush: Flush) -> None: ...


class ResumableSink(Sink, Protocol):
    """A sink of a run that resumes from its checkpoints."""

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        """Record a durable checkpoint. Every step up to `step` has already been written."""

    def truncate(self, to_step: int, reason: str) -> None:
        """Delete the steps after `to_step`; recording continues at `to_step + 1`."""

    def needed_checkpoints(self) -> Collection[int]:
        """Steps of the checkpoints that a resume would need now. Newer checkpoints may not be stored yet. Thread-safe."""


@dataclass
class MemorySink:
    """Keeps a run's telemetry in memory, for training from Python without a service.

    checkpoints: (step, path, sha-256). so_far: the extremes over all steps, including those deleted by `truncate`.
    """

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
        self.blocks += [Block(b.group, b.level, b.first_step, b.stride, b.values) for b in flush.blocks]
        for alert in flush.alerts:
            self._keep(alert)
        self.step = flush.step
        self.steps_per_second = flush.steps_per_second or self.steps_per_second
        for name, value in flush.so_far.items():
            self.so_far[name] = SO_FAR[name](value, self.so_far.get(name, value))

    def _keep(self, alert: Alert) -> None:
        if alert.lasted > 1:  # replace the alert that this alert extends
            for i in reversed(range(len(self.alerts))):
                if self.alerts[i].event == alert.event:
                    self.alerts[i] = alert
                    return
        self.alerts.append(alert)

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        self.checkpoints.append((step, path, sha256))

    def truncate(self, to_step: int, reason: str) -> None:
        self.rollbacks.append((to_step, reason))
        self.step = to_step
        self.checkpoints = [c for c in self.checkpoints if c[0] <= to_step]
        kept = [block for block in self.blocks if block.first_step <= to_step]
        self.blocks = [_up_to(block, to_step) for block in kept if block.level == 0 or block.last_step <= _whole(block, to_step)]

    def needed_checkpoints(self) -> Collection[int]:
        return [step for step, _, _ in self.checkpoints[-1:]]

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Recorded values of a series: steps int64 (points,), values float32 (points, width).

        Raises KeyError for an unknown or derived series.
        """
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
    # a cross-step series is one step behind: its value at `to_step` is not known yet when recording continues
    return to_step - 1 if block.group.endswith(DERIVED_GROUPS) else to_step


def _up_to(block: Block, step: int) -> Block:
    count = min(block.point_count, (step - block.first_step) // block.stride + 1)
    return (
        Block(block.group, block.level, block.first_step, block.stride, block.values[..., :count]) if block.level == 0 else block
    )
