"""The designs of the studies: which runs they train, and how these runs differ from the paper's.

A design consists of parts. Each part is one sweep over variants (`model` sections), learning rates and seeds. Every variant of a
part starts at the same eigenvalues with the same seeds, so runs of equal seed and rate are pairs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

SIZES = ("full", "quick")
PRESETS = ("paper", "released")


@dataclass(frozen=True)
class Part:
    """One sweep of a design.

    base: the run configuration without model, learning rate and seed. variants: label -> `model` section. trained: the metric of
    a run's result and the bound that it must pass, above for accuracies and below for losses. exploratory: no claim rests on it.
    """

    name: str
    base: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    rates: tuple[float, ...]
    metric: str = "eval_loss"
    trained: tuple[str, float] | None = None
    exploratory: bool = False
    seeds: int | None = None  # fewer or more seeds than the rest of the design


@dataclass(frozen=True)
class Design:
    """The runs of a study. departures: sentences that say how its runs differ from the paper's."""

    study: str
    preset: str | None
    size: str
    title: str
    parts: tuple[Part, ...]
    departures: tuple[str, ...]
    seeds: int
    chance: str = ""
    minutes: float = 2.0  # on two idle cores

    @property
    def signature(self) -> str:
        """Twelve digits that change if the runs of the design change. The number of seeds does not matter."""
        parts = [[p.name, p.base, p.variants, p.rates, p.trained] for p in self.parts]
        text = json.dumps([self.study, self.preset, self.size, parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def grid(self, part: Part) -> dict[str, list[Any]]:
        """The grid of a part's sweep."""
        return {
            "model": [dict(section) for section in part.variants.values()],
            "optimizer.lr": list(part.rates),
            "train.seed": list(range(part.seeds or self.seeds)),
        }

    def with_seeds(self, seeds: int) -> Design:
        """The same design with another number of seeds."""
        return replace(self, seeds=seeds)

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(len(p.variants) * len(p.rates) * (p.seeds or self.seeds) for p in self.parts)


def scaled(full_steps: int, steps: int, seeds: int) -> str:
    """The sentence about the steps and seeds of the quick size."""
    return f"Quick size: {steps} steps instead of {full_steps}, and {seeds} seeds instead of 12."


def train(steps: int, batch_size: int, **more: Any) -> dict[str, Any]:
    """A `train` section without evaluations during training and without checkpoints."""
    return {"steps": steps, "batch_size": batch_size, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"} | more
