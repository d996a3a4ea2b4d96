"""What is in the batch of a step, compared with the usual batches of the run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from stablessm_core.autopsy.bench import Bench
from stablessm_core.autopsy.deadline import Refused
from stablessm_core.tasks.base import IGNORED

OTHERS = 32  # maximum number of other batches
FEW = 3  # minimum number of steps before the trouble whose batches tell what is usual
ABOVE = 3.0  # largest magnitude divided by the usual one: at this ratio a batch is larger than usual
OTHERS_SECONDS = 1.0  # maximum time for them


def check_reproducible(bench: Bench, step: int) -> None:
    """Raise Refused if the task gives two different batches for one step."""
    config = bench.config.train
    first, second = (bench.task.batch(step, config.batch_size, config.seed, bench.device) for _ in range(2))
    for name, a, b in zip(("input", "target"), first, second, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(_bits(a), _bits(b)):
            raise Refused(
                f"The task {bench.config.task.name!r} is not reproducible: asked twice for the batch of step {step}, it gave "
                f"two different {name}s. A batch must depend only on the seed and the step."
            )


def batch_facts(bench: Bench, step: int) -> dict[str, Any]:
    """The largest finite magnitudes of the step's input and target, the median of those of other steps, the non-finite counts,
    and the classes. Magnitudes are None for tokens and classes."""
    config = bench.config.train
    batch = bench.task.batch(step, config.batch_size, config.seed, bench.device)
    largest = [_largest(t) for t in batch]
    bad = [0 if not t.is_floating_point() else int(t.numel() - t.isfinite().sum()) for t in batch]
    usual: list[list[float]] = [[], []]
    began = perf_counter()
    for other in _others(step, config.steps):
        if perf_counter() - began > OTHERS_SECONDS:
            break
        for seen, t in zip(usual, bench.task.batch(other, config.batch_size, config.seed, bench.device), strict=True):
            if (magnitude := _largest(t)) is not None:
                seen.append(magnitude)
    median = [statistics.median(seen) if seen else None for seen in usual]
    return {
        "largest_input": largest[0], "largest_target": largest[1], "usual_input": median[0], "usual_target": median[1],
        "nonfinite_input": bad[0], "nonfinite_target": bad[1], "nonfinite": sum(bad),
        "classes": _classes(batch[1], bench.task.output_size),
    }  # fmt: skip


def _classes(y: Tensor, of: int) -> dict[str, Any] | None:
    """The classes in a target, apart from the ignored ones; None if the target is no class. of: the number of classes."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        return None
    scored = y[y != IGNORED]
    ends = (int(scored.min()), int(scored.max())) if scored.numel() else (None, None)
    return {
        "smallest": ends[0], "largest": ends[1], "ignored": y.numel() - scored.numel(), "count": y.numel(), "of": of,
    }  # fmt: skip


def usual_sizes(bench: Bench, before: int) -> tuple[float | None, float | None]:
    """The usual largest magnitudes of input and target; None for tokens and classes.

    The median over the steps 1..`before`. If these are fewer than FEW, the smallest of the run's first batches, because larger
    ones may be part of the trouble.
    """
    config = bench.config.train
    steps = _others(before + 1, config.steps) if before >= FEW else range(1, min(OTHERS, config.steps) + 1)
    batches = [bench.task.batch(step, config.batch_size, config.seed, bench.device) for step in steps]
    sizes = [[_largest(batch[part]) for batch in batches] for part in (0, 1)]
    known = [[size for size in of if size is not None and math.isfinite(size) and size > 0] for of in sizes]
    level = statistics.median if before >= FEW else min
    return level(known[0]) if known[0] else None, level(known[1]) if known[1] else None


class ScaledBatches:
    """Batches whose input or target is divided so that its largest magnitude is usual, if it was ABOVE times the usual one."""

    def __init__(self, batches: Callable[[int], tuple[Tensor, Tensor]], usual: tuple[float | None, float | None]) -> None:
        self._batches, self._usual = batches, usual

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        x, y = self._batches(step)
        return _scaled(x, self._usual[0]), _scaled(y, self._usual[1])

    def scales(self, step: int) -> bool:
        """Whether the batch of this step is scaled."""
        return any(_is_above(t, usual) for t, usual in zip(self._batches(step), self._usual, strict=True))


def _scaled(t: Tensor, usual: float | None) -> Tensor:
    if usual is None or not _is_above(t, usual):
        return t
    return t * (usual / t.abs().max().double()).to(t.dtype)


def _is_above(t: Tensor, usual: float | None) -> bool:
    largest = _largest(t)
    return usual is not None and largest is not None and bool(t.isfinite().all()) and largest > ABOVE * usual


def _others(step: int, steps: int) -> list[int]:
    """Other steps, spread over 1..`step`; after it if there are none before."""
    last = step - 1
    if last < 1:
        return list(range(step + 1, min(step + OTHERS, steps) + 1))
    count = min(OTHERS, last)
    return sorted({1 + round(i * (last - 1) / max(1, count - 1)) for i in range(count)})


def _largest(t: Tensor) -> float | None:
    if not t.is_floating_point():
        return None
    finite = t[t.isfinite()]
    return float(finite.abs().max()) if finite.numel() else math.nan


def _bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8) if t.dim() and t.is_floating_point() else t
