"""Runs every plant of the families, several at a time, and writes one line of JSON per run."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.verdicts.families import development, held_out
from benchmarks.verdicts.families.drawing import Family
from benchmarks.verdicts.families.trial import family_trial
from stablessm_core.telemetry.nonfinite import json_safe

GROUPS = ("development", "opened", "held_out")


def _opened(family: Family) -> Family:
    """The family in the group "opened" if it was looked at after the first reading of the held-out families. A hash of its name
    decided which half that was."""
    looked_at = hashlib.sha256(family.name.encode()).digest()[0] % 2 == 0
    return replace(family, group="opened") if looked_at else family


FAMILIES = (*development.FAMILIES, *(_opened(family) for family in held_out.FAMILIES))


def chosen(groups: Sequence[str], named: Sequence[str], limit: int | None) -> list[tuple[Family, int]]:
    """(family, number) of every plant, round by round one of each family. named: parts of names; empty means all. limit: of the
    number of plants of a family."""
    families = [one for one in FAMILIES if one.group in groups]
    families = [one for one in families if not named or any(part.lower() in one.name.lower() for part in named)]
    most = max((one.share for one in families), default=0)
    return [(one, i) for i in range(min(most, limit or most)) for one in families if i < one.share]


def run(plants: Sequence[tuple[Family, int]], seed: int, processes: int, **parts: bool) -> list[dict[str, Any]]:
    """The results of the plants, by family and number. A plant whose trial failed has the field `error`."""
    began, results = time.monotonic(), []
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_be_quiet) as pool:
        waiting = [pool.submit(_tried, family.group, family.name, seed, number, parts) for family, number in plants]
        for done in as_completed(waiting):
            results.append(done.result())
            if len(results) % 25 == 0:
                print(f"{len(results)} of {len(plants)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return sorted(results, key=lambda one: (one["group"], one["family"], one["number"]))


def _be_quiet() -> None:
    import logging
    import warnings

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def _tried(group: str, name: str, seed: int, number: int, parts: dict[str, bool]) -> dict[str, Any]:
    family = next(one for one in FAMILIES if (one.group, one.name) == (group, name))
    began = time.perf_counter()
    try:
        return family_trial(family, seed, number, **parts)
    except Exception as error:  # noqa: BLE001 - one failed trial must not cost the others; it is counted and shown
        said = f"{type(error).__name__}: {error}"
        known = {
            "group": group,
            "family": name,
            "place": family.place,
            "number": number,
            "error": said,
            "where": traceback.format_exc(limit=-4),
        }
        return known | {"seconds": round(time.perf_counter() - began, 1)}


def store(target: Path, seed: int, results: Sequence[dict[str, Any]], seconds: float) -> None:
    """Write the results, one line per run."""
    lines = ",\n".join(json.dumps(json_safe(result)) for result in results)
    target.write_text(f'{{"seed": {seed}, "seconds": {seconds:.0f}, "results": [\n{lines}\n]}}\n')
