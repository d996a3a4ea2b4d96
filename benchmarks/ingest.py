"""How much can one server core store of the runs that other programs report?

    python -m benchmarks.ingest [--seconds 20] [--clients 100] [--viewers 20] [--database-url postgresql+psycopg://...]

Measures on SQLite and on PostgreSQL: recorded values per second of the server's CPU time, with ten records of 24 kB in a post and
with one record of 1 MB; the answering times of clients that post once a second while live pages are open; and the time from the
start of a post until an open page has its points. The gradient ratios are noise, and the weights move by small steps, as they do
in a training. The coarse levels are sent too, but only recorded values are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import POSTGRES, Serving, machine, new_database, percentiles, serving
from stablessm_core.report.frames import CONTENT_TYPE, pack
from stablessm_core.report.messages import COMPUTES_ALERTS, CatalogueMessage, EnvironmentMessage, to_bytes
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, SeriesSpec, layer_catalogue, layer_group, scalar
from stablessm_core.telemetry.sink import Flush

FORM = Form("exp", "discrete", "none")
POINTS = 128
SMALL, LARGE = 32, 1536  # eigenvalues of a layer: 8,320 and 393,344 values in a record, about 24 kB and 1 MB
LIVE_WIDTH, LIVE_POINTS = 64, 50  # a client with 50 steps a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--database-url", default=POSTGRES, help="the PostgreSQL server")
    given = parser.parse_args()
    print(machine(), flush=True)
    for name, url in (("SQLite", None), ("PostgreSQL", given.database_url)):
        with tempfile.TemporaryDirectory() as folder, new_database(url, Path(folder)) as database:
            limits = {"ingest_posts_per_minute": "0", "ingest_mib_per_minute": "0", "runs_per_minute": "0"}
            with serving(database, Path(folder), **limits) as server:
                for width, each in ((SMALL, 10), (LARGE, 1)):
                    print(f"{name}: {throughput(server, width, each, given.seconds)}", flush=True)
                print(f"{name}: {asyncio.run(crowd(server, given.clients, given.viewers, given.seconds))}", flush=True)
    print(machine())


def throughput(server: Serving, width: int, each: int, seconds: float) -> str:
    """One client posts as fast as it is answered, `each` records in a post."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    path, attempt = open_run(connection, server, layer(width))
    source = bodies(width, POINTS, each)
    values = posted = sent = 0
    cpu, begun, building = server.cpu_seconds(), time.perf_counter(), 0.0
    while time.perf_counter() - begun - building < seconds:
        at = time.perf_counter()
        body, count = next(source)
        building += time.perf_counter() - at
        post(connection, server, path, body, CONTENT_TYPE, attempt)
        values, posted, sent = values + count, posted + 1, sent + len(body)
    wall, cpu = time.perf_counter() - begun - building, server.cpu_seconds() - cpu
    return (
        f"{each} x {sent / posted / each / 1e3:,.0f} kB a post: {values / cpu / 1e6:.1f} M values/s per core of the server, "
        f"{values / wall / 1e6:.1f} M values/s by the clock, {1e3 * wall / posted:.1f} ms a post"
    )


def layer(width: int) -> list[SeriesSpec]:
    return [scalar(TRAIN_LOSS), *layer_catalogue(0, width, FORM)]


def bodies(width: int, points: int, each: int) -> Iterator[tuple[bytes, int]]:
    """Bodies of `each` records that follow on each other, with the number of their recorded values."""
    rng, first, weight = np.random.default_rng(0), 1, np.random.default_rng(1).standard_normal((width, 1), np.float32)
    builders = {group: LevelBuilder(group, 1) for group in (SCALARS, layer_group(0))}
    while True:
        records = []
        for _ in range(each):
            scalars = rng.random((1, points), np.float32)
            ratio = np.exp(rng.standard_normal((width, points), np.float32))
            weights = weight + np.cumsum(1e-3 * rng.standard_normal((width, points), np.float32), axis=1)
            recorded, weight = np.concatenate([ratio, weights]), weights[:, -1:]
            blocks = [Block(SCALARS, 0, first, 1, scalars), Block(layer_group(0), 0, first, 1, recorded)]
            blocks += builders[SCALARS].feed(first, scalars)
            blocks += builders[layer_group(0)].feed(
                first, np.concatenate([recorded, weights, weights])
            )  # stands for derived columns
            records.append(to_bytes(Flush(blocks, [], first + points - 1, 50.0)))
            first += points
        yield pack(records), each * points * (2 * width + 1)


def open_run(connection: http.client.HTTPConnection, server: Serving, series: list[SeriesSpec]) -> tuple[str, int]:
    """The path of a new run's records, and its attempt."""
    about = json.dumps({"id": str(uuid.uuid4()), "project": "benchmark"}).encode()
    run = post(connection, server, "/api/ingest/runs", about, "application/json", 0)
    path = f"/api/ingest/runs/{run['run_id']}/records"
    # as `stablessm.watch`, which computes the alerts itself
    described = [EnvironmentMessage({COMPUTES_ALERTS: True}), CatalogueMessage(series)]
    post(connection, server, path, pack(map(to_bytes, described)), CONTENT_TYPE, run["attempt"])
    return path, run["attempt"]


def post(
    connection: http.client.HTTPConnection, server: Serving, path: str, body: bytes, kind: str, attempt: int
) -> dict[str, Any]:  # fmt: skip
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": kind, "X-Attempt": str(attempt)}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (200, 201):
        raise RuntimeError(f"{answer.status}: {text[:300]!r}")
    found: dict[str, Any] = json.loads(text)
    return found


async def crowd(server: Serving, clients: int, viewers: int, seconds: float) -> str:
    """Clients that post once a second, spread evenly, while the pages of the first runs are open."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    runs = [open_run(connection, server, layer(LIVE_WIDTH)) for _ in range(clients)]
    ready = [
        body for body, _ in (next(source) for source in [bodies(LIVE_WIDTH, LIVE_POINTS, 1)] for _ in range(int(seconds) + 1))
    ]
    sent: dict[tuple[int, int], float] = {}
    shown: list[float] = []
    watching = [asyncio.create_task(watch(server, i, runs[i][0], sent, shown)) for i in range(min(viewers, clients))]
    await asyncio.sleep(1.0)
    cpu, begun = server.cpu_seconds(), time.perf_counter()
    answered = await asyncio.gather(*(client(server, i, clients, run, ready, sent) for i, run in enumerate(runs)))
    cpu, wall = server.cpu_seconds() - cpu, time.perf_counter() - begun
    await asyncio.sleep(1.0)
    for task in watching:
        task.cancel()
    times = [one for own in answered for one in own]
    return (
        f"{clients} clients, one post of {len(ready[0]) / 1e3:.0f} kB a second, {viewers} live pages: answered after "
        f"{percentiles(times)}; points on the open pages after {percentiles(shown)}; the server used {cpu / wall:.2f} cores"
    )


async def client(
    server: Serving, number: int, of: int, run: tuple[str, int], ready: list[bytes], sent: dict[tuple[int, int], float]
) -> list[float]:
    """Posts one body a second, and returns the answering times."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.sleep(number / of)
    times, begun = [], time.perf_counter()
    for second, body in enumerate(ready):
        await asyncio.sleep(max(0.0, begun + second - time.perf_counter()))
        at = time.perf_counter()
        sent[number, (second + 1) * LIVE_POINTS] = at
        head = f"POST {run[0]} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
        head += f"Content-Type: {CONTENT_TYPE}\r\nX-Attempt: {run[1]}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        text = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(text[:300])
        times.append(time.perf_counter() - at)
    writer.close()
    return times


async def watch(server: Serving, number: int, path: str, sent: dict[tuple[int, int], float], shown: list[float]) -> None:
    """Reads the live stream that the run's page reads, and notes how long after the start of a post its points arrive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
    run = path.split("/")[4]
    head = f"GET /api/runs/{run}/stream HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    writer.write(head.encode())
    kind = b""
    while line := await reader.readline():
        if line.startswith(b"event: "):
            kind = line[7:].strip()
        elif line.startswith(b"data: ") and kind == b"points":
            at = sent.get((number, json.loads(line[6:])["step"]))
            if at is not None:
                shown.append(time.perf_counter() - at)


if __name__ == "__main__":
    main()
