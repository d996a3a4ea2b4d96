"""How fast is the API at a fixed rate of requests, on a database of thousands of runs?

    python -m benchmarks.load.api '{"port", "token", "runs", "seconds", "rate"}'    # the process that sends the requests

The benchmark inserts encoded blocks and the rows of ended runs directly into the database. It sends each request when the
request is due, even if earlier requests are still unanswered. Times start when the request is due, so that they include the
delay of a server that falls behind.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import service
from benchmarks.service import Row, Rows, child, new_database, percentiles, serving
from server.database.connection import Database
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, layer_catalogue, scalar

RATE, CONNECTIONS = 200, 64
WIDTH, LONG_EVERY = 64, 500  # one of LONG_EVERY runs has 4 layers and 2,000 steps; the others have 1 layer and 155 steps
MAPS = ("direct", "best", "softplus", "exp")
STATUSES = ("finished", "finished", "finished", "diverged", "failed", "cancelled")
MIX = (  # weight, name, path; {any} stands for any run, {long} for a long run
    (30, "run list, one page", "/api/runs?limit=50"),
    (8, "run list, next pages", "/api/runs?limit=50&cursor={cursor}"),
    (8, "run list, filtered", "/api/runs?q=reparam%3Dbest%20status%3Ddiverged&limit=50"),
    (6, "run list, sorted by loss", "/api/runs?sort=loss&limit=50"),
    (12, "one run", "/api/runs/{any}"),
    (12, "one series", "/api/runs/{any}/series/train/loss"),
    (6, "one eigenvalue of 2,000 steps", "/api/runs/{long}/series/ssm/0/grad_over_weight?eigenvalues=7"),
    (6, "catalogue", "/api/runs/{any}/series"),
    (2, "heat map of a layer, 64 x 2,000", "/api/runs/{long}/series/ssm/1/grad_over_weight?format=typed"),
    (5, "alerts", "/api/alerts?limit=50"),
    (5, "run page", "/runs/{any}"),
)


def measure(url: str, folder: Path, *, runs: int, seconds: float) -> list[Row]:
    with new_database(url, folder / "api") as database:
        began = time.monotonic()
        values = fill(database, runs)
        filled = time.monotonic() - began
        with serving(database, folder / "api") as server:
            order = {"port": server.port, "token": server.token, "runs": runs, "seconds": seconds, "rate": RATE}
            cpu, began = server.cpu_seconds(), time.monotonic()
            asking = child("benchmarks.load.api", json.dumps(order))
            seen: dict[str, Any] = json.loads(asking.communicate()[0].splitlines()[-1])
            share = (server.cpu_seconds() - cpu) / (time.monotonic() - began)
            rss = server.rss_mib()
    times: dict[str, list[float]] = seen["times"]
    everything = [t for part in times.values() for t in part]
    rows = [
        Row(
            f"{len(everything):,} requests, {RATE}/s, {runs:,} runs, {values / 1e6:.0f} M values",
            percentiles(everything),
            "p99 < 100 ms",
        ),
        Row("answers that were not 200", str(seen["bad"]), "0"),
        Row("server, share of one core; resident", f"{share * 100:.0f} %; {rss:.0f} MiB"),
        Row("filling the database", f"{filled:.0f} s", "< 150 s"),
    ]
    return rows + [Row(f"of these: {name}", percentiles(part)) for name, part in times.items() if part]


def fill(database: Database, runs: int) -> int:
    """Insert ended runs with all their data. Returns the total number of recorded values."""
    rng = np.random.default_rng(1)
    kinds = {long: _payloads(rng, 2000 if long else 155) for long in (False, True)}
    total = 0

    def add_run(rows: Rows, run_id: int) -> None:
        nonlocal total
        long = run_id % LONG_EVERY == 1
        total += _add_run(rows, run_id, 4 if long else 1, 2000 if long else 155, kinds[long])

    service.fill(database, runs, add_run)
    return total


def _payloads(rng: np.random.Generator, steps: int) -> list[tuple[bytes, bytes]]:
    loss = lambda: encode(np.exp(rng.normal(0, 1, (1, steps))).astype(np.float32))  # noqa: E731
    layer = lambda: encode(np.exp(rng.normal(-6, 2, (2 * WIDTH, steps))).astype(np.float32))  # noqa: E731
    return [(loss(), layer()) for _ in range(4)]


def _add_run(rows: Rows, run_id: int, layers: int, steps: int, payloads: list[tuple[bytes, bytes]]) -> int:
    map_, now, form = MAPS[run_id % 4], time.time() - 1e6 + run_id, Form.of_map(MAPS[run_id % 4], "discrete")
    run = {
        "id": run_id, "name": f"run {run_id}", "tags": [f"tag{run_id % 7}"], "config": _config(map_, layers),
        "status": STATUSES[run_id % len(STATUSES)], "created_at": now, "started_at": now, "finished_at": now + 60, "step": steps,
        "result": {"train_loss": run_id % 97 / 10}, "compacted_at": now + 120, "forms": [form.data],
    }  # fmt: skip
    catalogue = [scalar(TRAIN_LOSS), *(s for i in range(layers) for s in layer_catalogue(i, WIDTH, form))]
    loss, layer = payloads[run_id % len(payloads)]
    blocks = [(SCALARS, 1, loss), *((f"ssm/{i}", 2 * WIDTH, layer) for i in range(layers))]
    service.add_recorded_run(rows, run, catalogue, blocks, steps)
    return steps * (1 + layers * 2 * WIDTH)


def _config(map_: str, layers: int) -> dict[str, Any]:
    model = {"n_layers": layers, "d_state": WIDTH, "reparameterization": {"name": map_}}
    return parse_config({"task": {"name": "polynomial_memory"}, "model": model}).model_dump(mode="json")


async def ask(port: int, token: str, runs: int, seconds: float, rate: float) -> dict[str, Any]:
    """Send random requests from MIX, each when it is due. Returns the requests' durations in seconds, by name, and the number
    of requests that did not return 200."""
    chance, bad = random.Random(0), 0
    times: dict[str, list[float]] = {name: [] for _, name, _ in MIX}
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(None)
    head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"

    async def get(path: str) -> tuple[int, bytes]:
        connection = await idle.get()
        try:
            for _ in range(2):
                fresh = connection is None
                try:
                    connection = connection or await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
                    reader, writer = connection
                    writer.write(f"GET {path} HTTP/1.1\r\n{head}".encode())
                    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
                    return int(answer[9:12]), await reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionError):
                    connection = None  # the server closes idle connections after some seconds
                    if fresh:
                        raise
            return 0, b""
        finally:
            idle.put_nowait(connection)

    cursor = json.loads((await get("/api/runs?limit=50"))[1])["next_cursor"]
    long = [run for run in range(1, runs + 1) if run % LONG_EVERY == 1]

    async def one(due: float, name: str, path: str) -> None:
        nonlocal bad
        chosen = path.replace("{any}", str(chance.randint(1, runs))).replace("{long}", str(chance.choice(long)))
        status, _ = await get(chosen.replace("{cursor}", cursor))
        bad += status != 200
        times[name].append(time.monotonic() - due)

    await asyncio.gather(*(one(time.monotonic(), name, path) for _, name, path in MIX))  # warm up caches
    for part in times.values():
        part.clear()
    began, tasks = time.monotonic(), []
    for i in range(int(seconds * rate)):
        due = began + i / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        _, name, path = chance.choices(MIX, weights=[weight for weight, _, _ in MIX])[0]
        tasks.append(asyncio.create_task(one(due, name, path)))
    await asyncio.gather(*tasks)
    return {"times": times, "bad": bad}


def main() -> None:
    print(json.dumps(asyncio.run(ask(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
