"""The table of docs/systems.md: what every layer learns in 600 steps with its native map and with `best`.

    python -m benchmarks.systems_600 [--data-dir DIR] [--layers mamba,s5] [--tasks recall digits] [--sweeps 1 2 3]

Submits ordinary runs to a running service, as `stablessm reproduce systems --quick` does, but with 600 steps. The scores and the
records of the eigenvalues are those of these runs, at a learning rate of 0.01. The largest learning rate at which every seed
stays finite is read from the grid of `benchmarks.float64_deaths` with the same model, task and number of steps, so that no cell
is trained twice. --sweeps reads the sweeps of an earlier call instead of submitting runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.float64_deaths import read as read_deaths
from stablessm_core.client import Client, find_server
from stablessm_core.spec.layers import LAYERS
from studies.progress import wait_for_sweeps
from studies.systems import QUICK, Row, parse_layers, read, submit
from studies.systems_text import systems_text

STEPS = 600
GRID = Path(__file__).parent / "results" / "float64_deaths_600.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--layers", type=parse_layers, default=list(LAYERS))
    parser.add_argument("--tasks", nargs="+", choices=list(QUICK.tasks), default=list(QUICK.tasks))
    parser.add_argument("--sweeps", type=int, nargs="+")
    parser.add_argument("--grid", type=Path, default=GRID)
    options = parser.parse_args()
    tasks = {column: task for column, task in QUICK.tasks.items() if column in options.tasks}
    size = replace(QUICK, name="600 steps", tasks=tasks, steps=STEPS, rates=())
    url, token = find_server(options.data_dir)
    with Client(url, token) as client:
        sweeps = options.sweeps or submit(client, size, options.layers)
        print("sweeps", *sweeps, file=sys.stderr)
        wait_for_sweeps(client, sweeps, lambda line: print(line, file=sys.stderr, flush=True))
        rows = read(client, size, sweeps)
    add_rates(rows, read_deaths(options.grid))
    print(systems_text(rows, size))


def add_rates(rows: Iterable[Row], deaths: Iterable[dict[str, Any]]) -> None:
    """Count the finite runs and all runs of the grid at each learning rate in the row with the same layer and map."""
    by_row = {(row.layer, row.map): row for row in rows}
    for record in deaths:
        row = by_row.get((record["layer"], record["map"]))
        if row is not None:
            finite, total = row.rates.get(record["lr"], (0, 0))
            row.rates[record["lr"]] = finite + (record["died"] is None), total + 1


if __name__ == "__main__":
    main()
