"""Plants faults in short runs, and counts how many verdicts are right, say that they cannot tell, or are wrong.

    python -m benchmarks.verdicts [--seed 0] [--faults 202] [--processes 2]
    python -m benchmarks.verdicts --quick 8
    python -m benchmarks.verdicts --only 17 35

Kind, place, time and size of each fault are drawn with the seed, across layers, optimizers, maps, precision and
`telemetry.every`. Each run is trained in this process and judged twice: from its recorded numbers alone, and with the findings
of an autopsy. The truth is established by training again without the fault, and not by the verdict
(`benchmarks.verdicts.truth`). For each run that dies, every change that the verdict offers is followed.

The results of a seed are written to benchmarks/results, and a report there shows all seeds that have results. The rules of the
verdict were chosen on the seeds of `page.CHOSEN_ON`. With --quick N only the first N faults are planted, the advice is not
followed, nothing is written, and the exit status is 1 if a verdict is wrong. With --only, the complete results of the faults with
these numbers are printed as JSON; together with --quick, these faults are the only ones among the first N.

    python -m benchmarks.verdicts --families [held_out development "part of a name"] [--limit N] [--no-advice] [--reveal]

With --families, the runs come from the families of faults of `benchmarks.verdicts.families`, also in loops that a user wrote, and
`benchmarks.verdicts.audit` checks every sentence of each verdict. A verdict with a false sentence is wrong. The results go to
benchmarks/results/families_cpu_seed_*.json and families_cpu.md, and a table to docs/verdict.md. Held-out families are named only
with --reveal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import benchmarks.verdicts.families  # noqa: F401 - first: it puts plug-ins on the path before they are listed
from benchmarks.verdicts.faults import TOTAL, Kind, drawn
from benchmarks.verdicts.grading import WRONG
from benchmarks.verdicts.page import WAYS, tables, write
from benchmarks.verdicts.trial import trial
from stablessm_core.telemetry.nonfinite import json_safe

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=TOTAL)
    parser.add_argument("--quick", type=int, metavar="N")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-autopsy", action="store_true", help="Judge from recorded numbers only.")
    parser.add_argument("--results", type=Path, help="Write only this JSON file.")
    parser.add_argument("--families", nargs="*", metavar="NAME", help="Families: groups, or parts of names. None: held_out.")
    parser.add_argument("--limit", type=int, help="Maximum number of runs of a family.")
    parser.add_argument("--no-advice", action="store_true", help="Do not follow the advice.")
    parser.add_argument("--reveal", action="store_true", help="Print the families by their names, with every false sentence.")
    arguments = parser.parse_args()
    if arguments.families is not None:
        run_families(arguments)
        return
    kinds = drawn(arguments.seed, arguments.quick or arguments.faults)
    chosen = {number: kind for number, kind in enumerate(kinds) if number in (arguments.only or range(len(kinds)))}
    parts = {"autopsy": not arguments.no_autopsy, "advice": not arguments.quick}
    results = run(arguments.seed, chosen, arguments.processes, **parts)
    if arguments.only and not arguments.quick:
        print(json.dumps(json_safe(results), indent=1))
        return
    print(tables(results))
    if arguments.quick:
        sys.exit(any(result[way]["grade"] == WRONG for result in results for way in WAYS if way in result))
    target = arguments.results or RESULTS / f"verdicts_cpu_seed_{arguments.seed}.json"
    lines = ",\n".join(json.dumps(json_safe(result)) for result in results)  # one line per fault
    target.write_text(f'{{"seed": {arguments.seed}, "results": [\n{lines}\n]}}\n')
    if arguments.results is None:
        write(RESULTS)


def run_families(arguments: argparse.Namespace) -> None:
    """Train, judge and audit the runs of families, and write or print their tables."""
    from benchmarks.verdicts.families import study
    from benchmarks.verdicts.families import tables as of_families

    groups = [name for name in arguments.families if name in study.GROUPS]
    named = [name for name in arguments.families if name not in study.GROUPS]
    began = time.monotonic()
    plants = study.chosen(groups or (study.GROUPS if named else ("held_out",)), named, arguments.limit)
    parts = {"autopsy": not arguments.no_autopsy, "advice": not arguments.no_advice}
    results = study.run(plants, arguments.seed, arguments.processes, **parts)
    seconds = time.monotonic() - began
    print(of_families.report(results, names=arguments.reveal))
    whole = not named and arguments.limit is None
    target = arguments.results or (RESULTS / f"families_cpu_seed_{arguments.seed}.json" if whole else None)
    if target is not None:
        study.store(target, arguments.seed, results, seconds)
    if whole and arguments.results is None:
        of_families.write(results, RESULTS, arguments.seed, seconds)
        of_families.write_page(results)


def run(seed: int, kinds: Mapping[int, Kind], processes: int, **parts: bool) -> list[dict[str, Any]]:
    """The results of the plants with these numbers, in their order. parts: as of `trial`."""
    began, results = time.monotonic(), []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting = [pool.submit(trial, kind, seed, number, **parts) for number, kind in kinds.items()]
        for done in as_completed(waiting):
            results.append(done.result())
            if len(results) % 10 == 0:
                print(f"{len(results)} of {len(kinds)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return sorted(results, key=lambda result: int(result["number"]))


if __name__ == "__main__":
    main()
