"""Starting points that the form for a new run offers. Each one trains on a CPU: a run within a minute or two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server.lifecycle.demo import DIGITS, GRID, SWEEP, THROWN
from stablessm_core.theory.systems import small_run


@dataclass(frozen=True)
class Preset:
    """A configuration with a title and a sentence about it, and the axes of a sweep if it is one."""

    title: str
    meaning: str
    base: dict[str, Any]
    grid: dict[str, list[Any]] = field(default_factory=dict)


LAYERS_GRID: dict[str, list[Any]] = {"model.layer": ["s4d", "lru", "mamba"], "train.seed": [0, 1, 2]}
PRESETS = {
    "first": Preset(
        "A first run",
        "A small model learns a memory that fades slowly, in seconds.",
        small_run("stable_ssm") | {"name": "first run", "tags": []},
    ),
    "digits": Preset("Digits", "A classifier reads images of digits pixel by pixel.", DIGITS | {"tags": []}),
    "diverging": Preset(
        "A run that diverges",
        "Plain SGD pushes an eigenvalue across the boundary; the page shows which one.",
        THROWN | {"tags": []},
    ),
    "maps": Preset(
        "Sweep: which map lives?", "Three maps at three learning rates with three seeds: 27 runs.", SWEEP | {"tags": []}, GRID
    ),
    "layers": Preset(
        "Sweep: three layers",
        "S4D, LRU and Mamba learn the same task, with three seeds: 9 runs.",
        SWEEP | {"name": "three layers", "tags": [], "model": {"d_model": 16}},
        LAYERS_GRID,
    ),
}
