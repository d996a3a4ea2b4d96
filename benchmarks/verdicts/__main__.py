"""Plants faults in short runs, and counts how many verdicts are right, say that they cannot tell, or are wrong.

    python -m benchmarks.verdicts [--seed 0] [--faults 202] [--quick 8] [--processes 2] [--results FILE.json]

Kind, place, time and size of each fault are drawn with the seed, across layers, optimizers, maps, precision and
`telemetry.every`. Each run is trained in memory and judged twice: from its recorded numbers alone, and with the findings of an
autopsy. The truth is established by training again without the fault, and not by the verdict (`benchmarks.verdicts.truth`). For
each run that dies, every change that the verdict offers is followed. The results are written as JSON, and as the tables of
docs/verdict.md with --write. With --quick N only N faults are planted, the advice is not followed, and the exit status is 1 if
a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.verdicts.faults import TOTAL, drawn
from benchmarks.verdicts.grading import WRONG
from benchmarks.verdicts.page import WAYS, tables, write
from benchmarks.verdicts.trial import trial

RESULTS = Path(__file__).parents[1] / "results" / "verdicts_cpu.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=TOTAL)
    parser.add_argument("--quick", type=int, help="Plant only so many faults, and fail if a verdict is wrong.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-autopsy", action="store_true")
    parser.add_argument("--results", type=Path, help=f"Default: {RESULTS.name}; nothing with --quick.")
    parser.add_argument("--write", action="store_true", help="Write the tables into docs/verdict.md.")
    arguments = parser.parse_args()
    quick = arguments.quick is not None
    results = run(
        arguments.seed,
        arguments.quick if quick else arguments.faults,
        processes=arguments.processes,
        autopsy=not arguments.no_autopsy,
        advice=not quick,
    )
    print(tables(results))
    target = arguments.results or (None if quick else RESULTS)
    if target is not None:
        target.write_text(json.dumps({"seed": arguments.seed, "results": results}, indent=1) + "\n")
    if arguments.write:
        write(results)
    if quick:
        sys.exit(any(result[way]["grade"] == WRONG for result in results for way in WAYS if way in result))


def run(seed: int, count: int, *, processes: int, autopsy: bool, advice: bool) -> list[dict[str, Any]]:
    """The results of `count` plants, in their order."""
    kinds, began, results = drawn(seed, count), time.monotonic(), []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting = [pool.submit(trial, kind, seed, i, autopsy=autopsy, advice=advice) for i, kind in enumerate(kinds)]
        for done in as_completed(waiting):
            results.append(done.result())
            if len(results) % 10 == 0:
                print(f"{len(results)} of {count}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return sorted(results, key=lambda result: result["number"])


if __name__ == "__main__":
    main()
