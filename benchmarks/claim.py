"""How long does a worker take to claim the next run while thousands of runs from many submitters are queued?

Fills a new database with queued runs, submitted with SUBMITTERS tokens to two queues and with two priorities. Then claims one
run after another, as a worker does. Prints the median and the 99th percentile of the duration of a claim's transaction,
including the commit.

    python -m benchmarks.claim --postgres postgresql+psycopg://127.0.0.1:5432/postgres
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from sqlalchemy import insert

from benchmarks.service import new_database
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.lifecycle.queues import change_queue
from stablessm_core.spec.config import parse_config

SUBMITTERS, CLAIMS = 100, 300
CAPABILITIES = {"devices": ["cpu"], "data": {}, "queues": ["default", "night"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", help="Server on which a database may be created.")
    parser.add_argument("--queued", type=int, nargs="*", default=[10_000, 50_000])
    arguments = parser.parse_args()
    print("| engine | queued runs | submitters | median ms | p99 ms |\n| --- | --- | --- | --- | --- |")
    for queued in arguments.queued:
        for server in (None, arguments.postgres) if arguments.postgres else (None,):
            with tempfile.TemporaryDirectory() as folder, new_database(server, Path(folder)) as database:
                median, late = np.percentile(np.array(claims(database, queued)) * 1e3, [50, 99])
            engine = "PostgreSQL" if server else "SQLite"
            print(f"| {engine} | {queued:,} | {SUBMITTERS} | {median:.1f} | {late:.1f} |", flush=True)


def claims(database: Database, queued: int) -> list[float]:
    """Fills the new database, then claims CLAIMS runs. Returns the duration of each claim, in seconds."""
    fill(database, queued)
    seconds: list[float] = []
    running: list[int] = []
    for number in range(CLAIMS):
        begun = time.perf_counter()
        with database.write() as session:
            claim = lifecycle.claim(session, f"worker {number % 8}", CAPABILITIES)
        seconds.append(time.perf_counter() - begun)
        assert claim is not None
        if number >= 8:  # eight runs train at the same time; after the first eight claims, one run ends for each claim
            with database.write() as session:
                lifecycle.finish(session, running.pop(0), 1, "finished")
        running.append(claim.run_id)
    return seconds


def fill(database: Database, queued: int) -> None:
    """Queues the runs, half of them in each queue. A third have a higher priority. A tenth need a GPU that the worker lacks."""
    config = parse_config({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    rows = [
        {"tags": [], "config": config, "queue": ("default", "night")[n % 2], "priority": (0, 0, 5)[n % 3],
         "created_at": time.time(), "submitted_by": n % SUBMITTERS + 1, "needs_gpu": "H200" if n % 10 == 0 else ""}
        for n in range(queued)
    ]  # fmt: skip
    with database.write() as session:
        for first in range(0, queued, 5000):
            session.execute(insert(Run), rows[first : first + 5000])
        change_queue(session, "night", {"max_running": 4})


if __name__ == "__main__":
    main()
