"""How long does it take to submit a sweep, and to open its pages? Prints the times on SQLite and on PostgreSQL.

    python -m benchmarks.sweep_times [--cells 100 500 2000] [--repeats 3] [--postgres URL]

Each request goes through the whole application in this process, without a network: `POST /api/sweeps` with a grid of learning
rates and seeds, then the sweep's JSON, page and comparison. The median of the repeats is printed, in seconds. `--postgres ""`
leaves PostgreSQL out; the default is TEST_POSTGRES_URL or the local server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service import POSTGRES, new_database
from server.http.app import create_app
from server.settings import Settings

TOKEN = "token-of-the-benchmark-0123456789"
SEEDS = 10
PROMISED = {500: 2.0}  # seconds for the submission, by number of cells
PATHS = {"its JSON": "/api/sweeps/{id}", "its page": "/sweeps/{id}", "its comparison": "/compare?sweep={id}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--postgres", default=os.environ.get("TEST_POSTGRES_URL", POSTGRES))
    options = parser.parse_args()
    print("| database | cells | submission | " + " | ".join(PATHS) + " | promised submission |")
    print("| --- |" + " ---: |" * (len(PATHS) + 3))
    for server in ("sqlite", options.postgres):
        if server:
            asyncio.run(_measure(server, options.cells, options.repeats))


async def _measure(server: str, sizes: list[int], repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder, new_database(server, Path(folder)) as database:
        app = create_app(Settings(data_dir=Path(folder) / "state", database_url=database.url, token=TOKEN, runs_per_minute=0))
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers, timeout=300) as client,
        ):
            for cells in sizes:
                found = [await _times(client, cells) for _ in range(repeats)]
                medians = [f"{statistics.median(times):.2f}" for times in zip(*found, strict=True)]
                promised = f"{PROMISED[cells]:g}" if cells in PROMISED else ""
                print(f"| {database.dialect} | {cells:,} | {' | '.join(medians)} | {promised} |", flush=True)


async def _times(client: httpx.AsyncClient, cells: int) -> list[float]:
    """Seconds for the submission and for each of PATHS."""
    rates = [1e-3 * (i + 1) for i in range(-(-cells // SEEDS))]
    body: dict[str, Any] = {"base": {"task": {"name": "polynomial_memory"}}}
    body["grid"] = {"optimizer.lr": rates, "train.seed": list(range(SEEDS))}
    start = time.perf_counter()
    made = (await client.post("/api/sweeps", json=body)).raise_for_status().json()
    times = [time.perf_counter() - start]
    for path in PATHS.values():
        start = time.perf_counter()
        (await client.get(path.format(id=made["id"]))).raise_for_status()
        times.append(time.perf_counter() - start)
    await client.post(f"/api/sweeps/{made['id']}/cancel")
    return times


if __name__ == "__main__":
    main()
