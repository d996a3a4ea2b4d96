"""How fast can eight runs be stored at the same time? Each run has its own process, with a worker's recorder, levels, writer
and fence.

    python -m benchmarks.load.ingest '{"url", "data_dir", "seconds", "rate"}'    # the process of one run

Each process records the values of a training run with 4 layers of 64 eigenvalues, at a fixed number of steps per second. The
values are ratios, weights, states, norms and scalars, and every column changes at each step. If storing were too slow, the
number of recorded steps that are not yet in the database would grow.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from sqlalchemy import make_url, text

from benchmarks.recording import full, join
from benchmarks.service import Row, child, new_database, recorded_values, stored_bytes
from benchmarks.workload import make_values
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import RunConfig, parse_config

RUNS, PROMISED = 8, 1_000_000
MARGIN = 1.05  # the recorded rate divided by the promised rate


def measure(url: str, folder: Path, *, seconds: float) -> list[Row]:
    with new_database(url, folder / "ingest") as database, contextlib.ExitStack() as stack:
        config = {"task": {"name": "polynomial_memory"}, "model": {"n_layers": 4, "d_state": 64},
                  "train": {"steps": 10_000_000, "on_nonfinite": "continue"}}  # fmt: skip
        with database.write() as session:
            for _ in range(RUNS):
                lifecycle.submit(session, parse_config(config))
        order = json.dumps({"url": database.url, "data_dir": str(folder / "ingest"), "seconds": seconds})
        processes = [child("benchmarks.load.ingest", order) for _ in range(RUNS)]
        for process in processes:  # otherwise the process would wait forever for its database after the database is dropped
            stack.callback(process.kill)
        for process in processes:  # all processes start to record at the same time, when the last process is ready
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        samples, engine = _sample(database, processes)
        reports = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
        values = recorded_values(database)  # count the values in the database, not the values sent to it
        took = max(one["ended"] for one in reports) - min(one["started"] for one in reports)
        begun, over = max(one["progress"][0][0] for one in reports), min(one["progress"][-1][0] for one in reports)
        stored = samples[(samples[:, 0] > begun) & (samples[:, 0] < over)]
        recorded = sum(np.interp(stored[:, 0], *np.array(one["progress"]).T) for one in reports)
        backlog = recorded - stored[:, 1]
        third = max(1, len(backlog) // 3)
        early, late = backlog[third : 2 * third].mean(), backlog[-third:].mean()
        cpu = sum(one["cpu"] for one in reports) / took
        dropped, lost = sum(one["dropped"] for one in reports), sum(one["values"] for one in reports) - values
        with database.read() as session:
            dead, live = session.execute(
                text("SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relname = 'blocks'")
            ).one()
        size = stored_bytes(database)
    return [
        Row(f"{RUNS} runs, values/s stored over {took:.0f} s", f"{values / took:,.0f}", f">= {PROMISED:,}"),
        Row("steps not yet stored, all runs: middle third, last third", f"{early:.0f}, {late:.0f}", "no growth"),
        Row("longest wait of one step for the database", f"{max(o['longest'] for o in reports) * 1e3:.0f} ms"),
        Row("steps dropped, values missing in the database", f"{dropped}, {lost}", "0, 0"),
        Row("cores used: the eight recording processes, PostgreSQL for them", f"{cpu:.2f}, {engine / took:.2f}"),
        Row("bytes of the database per value", f"{size / values:.2f}"),
        Row("rows of `blocks` afterwards: live, dead", f"{live:,}, {dead:,}"),
    ]


def _sample(database: Database, processes: list[subprocess.Popen[str]]) -> tuple[np.ndarray, float]:
    """Pairs (time, number of steps stored by all runs), about two per second until the processes end, and the CPU time of
    PostgreSQL in seconds."""
    samples = []
    name = make_url(database.url).database
    used: dict[int, tuple[float, float]] = {}  # CPU time of each PostgreSQL backend process, in seconds: first and last sample
    while any(process.poll() is None for process in processes):
        with database.read() as session:
            samples.append((time.time(), float(session.scalar(text("SELECT sum(step) FROM runs")) or 0)))
            pids = session.scalars(text("SELECT pid FROM pg_stat_activity WHERE datname = :name"), {"name": name}).all()
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                now = sum(psutil.Process(pid).cpu_times()[:2])
                used[pid] = (used.get(pid, (now, now))[0], now)
        time.sleep(0.4)
    return np.array(samples), sum(last - first for first, last in used.values())


def _moving(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """The rows with a random walk in each column that was constant, because real norms and states change at every step."""
    table = torch.stack(rows).numpy()
    still = (table == table[0]).all(axis=0)
    rng = np.random.default_rng(9)
    walk = np.cumsum(rng.normal(0, 0.02, (len(table), still.sum())), axis=0) + rng.normal(0, 0.05, (len(table), still.sum()))
    table[:, still] = np.exp(walk)
    return list(torch.from_numpy(table))


def main() -> None:
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    claim, database, writer = join(order["url"], Path(order["data_dir"]).resolve())
    recorder, rows = full(RunConfig.model_validate(claim.config), writer, make_values())
    rows = _moving(rows)
    # number of values in a row that are stored; norms and final states are used only by the detectors, so they are not counted
    columns = sum(series.width for group in recorder._groups.values() for series in group)
    rate = PROMISED * MARGIN / RUNS / columns
    print("ready", flush=True)
    sys.stdin.readline()
    progress, longest, started, step = [], 0.0, time.time(), 0
    cpu = time.process_time()
    while (now := time.time() - started) < order["seconds"]:
        due = int(now * rate)
        while step < due:
            step += 1
            at = time.perf_counter()
            recorder.record(step, rows[step % len(rows)])
            longest = max(longest, time.perf_counter() - at)
        progress.append((time.time(), step))
        time.sleep(0.005)
    recorder.close()
    writer.wait_stored()
    ended = time.time()
    cpu = time.process_time() - cpu
    print(json.dumps({"started": started, "ended": ended, "values": step * columns, "cpu": cpu,
                      "progress": progress[:: 1 + len(progress) // 500], "longest": longest,  # a pipe holds only 64 KiB
                      "dropped": recorder.dropped + recorder.errors}), flush=True)  # fmt: skip
    database.close()
    os._exit(0)


if __name__ == "__main__":
    main()
