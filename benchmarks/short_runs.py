"""How many short runs does a worker train in a minute, and how long is a lane idle between two runs?

RUNS runs of 100 steps are queued in a new database when one real worker starts. Each row of the table describes a worker with
one or two lanes, whose training processes are either spawned (as on systems without a fork server) or forked. A gap lasts from
the time at which the database stores the end of a run until just before the first step of the lane's next run. Runs per minute
are counted from the end of the first run to the end of the last run. The losses of all rows must agree bit by bit.

    python -m benchmarks.short_runs
    python -m benchmarks.short_runs --postgres postgresql+psycopg://127.0.0.1:5432/postgres
    python -m benchmarks.short_runs --dying       # every run dies: what do autopsies cost?

With --dying, every run dies after a few steps. The table compares a worker without autopsies (off), a worker with autopsies as
they are (on), and one whose autopsies do not wait for training to pause (at once), which is what a queue of many dead runs leads
to. The workers take turns, because the speed of a machine changes. `autopsies` is the number that ended before the last run.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select

from benchmarks.service import new_database
from server.database.connection import Database
from server.database.models import AutopsyRow, Run, Transition
from server.lifecycle import transitions as lifecycle
from server.series.reading import read_series
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.series import TRAIN_LOSS

SEEDS = 4
CONFIG = {
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"d_model": 16, "d_state": 8},
    "train": {"steps": 100, "batch_size": 16, "eval_every": 0},
}
DYING = CONFIG | {
    "model": {"d_model": 16, "d_state": 8, "reparameterization": {"name": "direct"}},
    "optimizer": {"lr": 0.3},
}
AUTOPSIES = {"off": "", "on": "", "at once": "import worker.autopsies\nworker.autopsies.WAIT_SECONDS = 0.0\n"}
WORKER = {
    "forked": "from worker.main import main; main()",
    "spawned": """
import worker.process_pool as pool
def refuse(_environment):
    raise pool.ForkRefused("the benchmark asks for spawned processes")
pool.ForkServer = refuse
from worker.main import main
main()
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", help="Server on which a database may be created. Default: SQLite.")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--ways", nargs="*", default=list(WORKER), choices=list(WORKER))
    parser.add_argument("--dying", action="store_true", help="Let every run die, and compare workers with and without autopsies.")
    parser.add_argument("--turns", type=int, default=5, help="Number of turns of each worker with --dying.")
    arguments = parser.parse_args()
    machine = f"{os.cpu_count()} {platform.machine()} cores, {platform.system()} {platform.release()}"
    versions = f"Python {platform.python_version()}, torch {version('torch')}, {'PostgreSQL' if arguments.postgres else 'SQLite'}"
    print(f"{machine}, {versions}; {arguments.runs} runs of 100 steps\n")
    if arguments.dying:
        compare_autopsies(arguments)
        return
    print("| training processes | lanes | runs a minute | gap: median | p90 | largest | load average before, after |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    bits: set[tuple[str, ...]] = set()
    for way in arguments.ways:
        for lanes in arguments.lanes:
            load = os.getloadavg()[0]
            with tempfile.TemporaryDirectory() as folder, new_database(arguments.postgres, Path(folder)) as database:
                rate, gaps, losses = measure(
                    database, Path(folder), WORKER[way], lanes, arguments.runs, CONFIG, "finished"
                )  # fmt: skip
            bits.add(losses)
            median, late, most = np.percentile(np.array(gaps), [50, 90, 100]) * 1e3
            print(
                f"| {way} | {lanes} | {rate:.1f} | {median:,.0f} ms | {late:,.0f} ms | {most:,.0f} ms "
                f"| {load:.1f}, {os.getloadavg()[0]:.1f} |",
                flush=True,
            )
    print(f"\nThe losses of each seed are {'bitwise equal in all rows' if len(bits) == 1 else 'DIFFERENT'}.")
    sys.exit(len(bits) != 1)


def compare_autopsies(arguments: argparse.Namespace) -> None:
    """Print the runs per minute of workers with and without autopsies, if every run dies."""
    lanes, rates, done = arguments.lanes[0], {name: list[float]() for name in AUTOPSIES}, dict.fromkeys(AUTOPSIES, 0)
    for _ in range(arguments.turns):
        for name, before in AUTOPSIES.items():
            with tempfile.TemporaryDirectory() as folder, new_database(arguments.postgres, Path(folder)) as database:
                os.environ["STABLESSM_AUTOPSY"] = "off" if name == "off" else "on"
                program = before + WORKER["forked"]
                rate, _, _ = measure(database, Path(folder), program, lanes, arguments.runs, DYING, "diverged")
                with database.read() as session:
                    ended = select(func.count()).where(AutopsyRow.state == "done")
                    done[name] += session.scalar(ended) or 0
            rates[name].append(rate)
    print(f"| autopsies | runs a minute, {arguments.turns} turns | median, relative to off | autopsies done |")
    print("| --- | --- | --- | --- |")
    for name, found in rates.items():
        relative = np.median(np.array(found) / np.array(rates["off"]))
        print(f"| {name} | {', '.join(f'{rate:.1f}' for rate in found)} | {relative:.3f} | {done[name]} |")


def measure(
    database: Database, folder: Path, program: str, lanes: int, runs: int, config: dict[str, Any], status: str
) -> tuple[float, list[float], tuple[str, ...]]:
    """The number of runs per minute, the gaps in seconds, and for each seed a digest of the losses. status: how every run
    ends."""
    with database.write() as session:
        for number in range(runs):
            seed = {"train": config["train"] | {"seed": number % SEEDS}}
            lifecycle.submit(session, parse_config(config | seed))
    options = ["--database-url", database.url, "--data-dir", str(folder), "--slots", str(lanes)]
    command = [sys.executable, "-c", program, *options]
    log = folder / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"STABLESSM_LOG": "json"})
    try:
        while worker.poll() is None and not all_ended(database):
            time.sleep(0.2)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    finished = select(Transition.run_id, Transition.at).where(Transition.status == status)
    with database.read() as session:
        ends = {run_id: at for run_id, at in session.execute(finished)}  # noqa: C416 - to mypy, rows are not pairs
    if len(ends) != runs:
        sys.exit(f"{runs - len(ends)} runs have not ended as expected:\n{log.read_text(errors='replace')[-4000:]}")
    losses = tuple(digest(database, seed, runs) for seed in range(SEEDS))
    in_order = sorted(ends.values())
    return 60 * (runs - 1) / (in_order[-1] - in_order[0]), gaps_of(log, ends), losses


def all_ended(database: Database) -> bool:
    with database.read() as session:
        return not session.scalar(select(func.count()).where(Run.status.in_(("queued", "running"))))


def gaps_of(log: Path, ends: dict[int, float]) -> list[float]:
    """The gaps between consecutive runs of a lane, in seconds: from the end of a run to the first step of the next run."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun = {
        line["run"]: datetime.datetime.fromisoformat(line["time"]).timestamp() for line in lines if line["msg"] == "training"
    }
    gaps: list[float] = []
    last: dict[int, int] = {}
    for line in lines:
        if line["msg"] == "claimed":
            if (before := last.get(line["lane"])) is not None:
                gaps.append(begun[line["run"]] - ends[before])
            last[line["lane"]] = line["run"]
    return gaps


def digest(database: Database, seed: int, runs: int) -> str:
    """A digest of the losses of all runs with this seed."""
    losses = hashlib.sha256()
    for run_id in range(seed + 1, runs + 1, SEEDS):
        with database.read() as session:
            data = read_series(session, run_id, TRAIN_LOSS, max_points=1_000_000)
        assert data.value is not None
        losses.update(np.ascontiguousarray(data.value, np.float32).tobytes())
    return losses.hexdigest()


if __name__ == "__main__":
    main()
