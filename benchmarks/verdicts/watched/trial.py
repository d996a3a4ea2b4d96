"""One plant in a watched loop, from its draw to the grade of its verdict."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.verdicts.families.drawing import FamilyPlant
from benchmarks.verdicts.watched.loop import train_loop
from benchmarks.verdicts.watched.recorded import Watched, read_watched, watched_run_and_source
from stablessm_core.verdict import judge

DRAWS = 20


def watched_trial(draw: Callable[[random.Random], FamilyPlant], seed: random.Random) -> tuple[FamilyPlant, Watched, Any]:
    """(plant, its record, its verdict) of the first draw that is a plant: without its fault, the loop lives."""
    for _ in range(DRAWS):
        plant = draw(seed)
        watched = record(plant)
        if plant.must_die and not watched.died:
            continue
        if watched.died and not plant.causes and plant.watched and plant.watched["fault"] == "none":
            continue  # it was to be healthy
        if plant.causes and watched.loop.options["fault"] != "none" and record(plant, fault="none").died:
            continue
        run, source = watched_run_and_source(watched)
        return plant, watched, judge(run, source)
    raise RuntimeError(f"none of {DRAWS} draws is a plant of its family")


def record(plant: FamilyPlant, **changes: Any) -> Watched:
    """The record of the plant's loop."""
    assert plant.watched is not None
    with tempfile.TemporaryDirectory() as folder:
        return read_watched(train_loop(plant.watched | changes, Path(folder)), Path(folder))
