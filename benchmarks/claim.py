"""How long does a worker take to claim the next run while thousands of runs of many submitters wait?

Fills an empty database (SQLite in a temporary folder, or a PostgreSQL database of its own that is dropped afterwards) with
queued runs of SUBMITTERS tokens in two queues and two priorities, then claims one after the other as a worker does, and prints
median and 99th percentile of the whole transaction, commit included.

    python -m benchmarks.claim --postgres postgresql+psycopg://127.0.0.1:5432/postgres
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import psycopg
from sqlalchemy import insert, make_url

from server.database.connection import Database
from server.database.models import Run
from server.runs import lifecycle
from server.runs.queues import change_queue
from stablessm_core.config import parse_config

SUBMITTERS, CLAIMS = 100, 300
CAPABILITIES = {"devices": ["cpu"], "data": {}, "queues": ["default", "night"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", help="Server on which a database may be created.")
    parser.add_argument("--queued", type=int, nargs="*", default=[10_000, 50_000])
    arguments = parser.parse_args()
    print("| engine | queued runs | submitters | median ms | p99 ms |\n| --- | --- | --- | --- | --- |")
    for queued in arguments.queued:
        with tempfile.TemporaryDirectory() as folder:
            report("SQLite", f"sqlite:///{Path(folder) / 'claim.db'}", queued)
        if arguments.postgres:
            name, server = f"stablessm_claim_{uuid.uuid4().hex[:8]}", make_url(arguments.postgres)
            admin = server.set(drivername="postgresql").render_as_string(hide_password=False)
            with psycopg.connect(admin, autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"')
                try:
                    report("PostgreSQL", server.set(database=name).render_as_string(hide_password=False), queued)
                finally:
                    connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def report(engine: str, url: str, queued: int) -> None:
    database = Database(url)
    database.migrate()
    median, late = np.percentile(np.array(claims(database, queued)) * 1e3, [50, 99])
    print(f"| {engine} | {queued:,} | {SUBMITTERS} | {median:.1f} | {late:.1f} |", flush=True)
    database.close()


def claims(database: Database, queued: int) -> list[float]:
    """Seconds of each of CLAIMS claims in a migrated, empty database, which is filled first."""
    fill(database, queued)
    seconds: list[float] = []
    running: list[int] = []
    for number in range(CLAIMS):
        begun = time.perf_counter()
        with database.write() as session:
            claim = lifecycle.claim(session, f"worker {number % 8}", CAPABILITIES)
        seconds.append(time.perf_counter() - begun)
        assert claim is not None
        if number >= 8:  # eight slots: as many runs end as begin
            with database.write() as session:
                lifecycle.finish(session, running.pop(0), 1, "finished")
        running.append(claim.run_id)
    return seconds


def fill(database: Database, queued: int) -> None:
    """Half in each queue, a third more urgent, a tenth that this worker cannot train."""
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
