"""A thousand viewers over twenty live runs, and one that stopped reading.

    python -m benchmarks.load_viewers '{"port", "token", "viewers", "runs", "seconds"}'    # the process of the viewers
    python -m benchmarks.load_viewers '{"url", "runs", "seconds", "data_dir"}'             # the process of the runs

Viewers are raw sockets in one event loop that look only at `id:` lines, so that their own cost stays small and apart. A run's
process writes one flush every 250 ms and notes when its transaction was committed; delay is from there to a viewer's socket.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.load_places import Row, child, percentiles, place, serving
from server import blocks, jobs
from server.db import Database
from stablessm_core.config import parse_config
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import TRAIN_LOSS, layer_catalogue, scalar
from worker.notify import publisher

RUNS, PERIOD, STEPS, WIDTH = 20, 0.25, 4, 64
WHOLE_EVENT = re.compile(rb"\nid: (\d+)\n")


def measure(url: str, folder: Path, *, seconds: float, viewers: int) -> list[Row]:
    with place(url, folder / "viewers") as database, serving(database, folder / "viewers") as server:
        runs = _start_runs(database)
        order = {"url": database.url, "runs": runs, "seconds": seconds + 20, "data_dir": str(folder)}
        writer = child("benchmarks.load_viewers", json.dumps(order))
        watch = {"port": server.port, "token": server.token, "viewers": viewers, "runs": runs, "seconds": seconds}
        watching = child("benchmarks.load_viewers", json.dumps(watch))
        assert watching.stdout is not None
        watching.stdout.readline()  # all are connected
        cpu, began = server.cpu_seconds(), time.monotonic()
        seen = json.loads(watching.stdout.readline())
        share, rss = (server.cpu_seconds() - cpu) / (time.monotonic() - began), server.rss_mib()
        watching.wait()
        committed = {(run, seq): at for run, seq, at in json.loads(writer.communicate()[0].splitlines()[-1])}
    pairs = [(committed[run, seq], at) for run, seq, at in seen["received"] if (run, seq) in committed]
    delays = [max(0.0, at - then) for then, at in pairs]
    return [
        Row(
            f"{seen['open']} viewers of {RUNS} runs, commit to receipt, {len(delays):,} events",
            percentiles(delays),
            "p99 < 300 ms",
        ),
        Row("events missed or repeated by a viewer", f"{seen['missed']}", "0"),
        Row("server, share of one core; resident", f"{share * 100:.0f} %; {rss:.0f} MiB", "< 30 %; < 300 MiB"),
        Row("share of one core of the viewers' own process", f"{seen['cpu'] * 100:.0f} %"),
        Row("a stalled viewer, reading again", seen["stalled"], "harms nobody"),
    ]


def _start_runs(database: Database) -> list[int]:
    config = parse_config({"task": {"name": "polynomial_memory"}})
    series = [scalar(TRAIN_LOSS), *layer_catalogue(0, WIDTH, "discrete")]
    runs = []
    for _ in range(RUNS):
        with database.write() as session:
            jobs.submit(session, config)
        with database.write() as session:
            claim = jobs.claim(session, "load", {"devices": ["cpu"], "data": {}})
            assert claim is not None
            blocks.store_catalogue(session, claim.run_id, claim.attempt, series)
            runs.append(claim.run_id)
    return runs


def write_runs(url: str, runs: list[int], seconds: float) -> list[tuple[int, int, float]]:
    """Flush every run each PERIOD, spread over it; (run, seq, time of commit) of each."""
    database, rng, committed = Database(url), np.random.default_rng(0), []
    publish = publisher(database, None)
    began, turn = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        due = turn * PERIOD / len(runs)
        if now < due:
            time.sleep(due - now)
        run, first = runs[turn % len(runs)], 1 + turn // len(runs) * STEPS
        part = [Block("scalars", 0, first, 1, np.ones((1, STEPS), np.float32)),
                Block("ssm/0", 0, first, 1, rng.random((2 * WIDTH, STEPS), np.float32))]  # fmt: skip
        with database.write() as session:
            seq = blocks.store_flush(session, run, 1, part, step=first + STEPS - 1)
        committed.append((run, seq, time.time()))
        publish(run)
        turn += 1
    database.close()
    return committed


async def watch(port: int, token: str, viewers: int, runs: list[int], seconds: float) -> dict[str, object]:
    """Open the viewers, then receive for `seconds`; a sample of what was received, and what each missed."""
    received: list[tuple[int, int, float]] = []
    missed = 0
    counting = False

    async def view(run: int, opened: asyncio.Semaphore, index: int) -> None:
        nonlocal missed
        async with opened:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(_request(port, run, token))
            await reader.readuntil(b"\nid: ")
        ready[index].set()
        tail, last = b"\nid: ", None
        while data := await reader.read(1 << 16):
            at, tail, end = time.time(), tail + data, 0
            for found in WHOLE_EVENT.finditer(tail):
                seq = int(found[1])
                missed += last is not None and seq != last + 1
                last = seq
                if counting:
                    received.append((run, seq, at))
                end = found.end()
            tail = tail[end:][-64:]  # an id line is shorter; its end may be still to come

    stalled = socket.create_connection(("127.0.0.1", port))
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.sendall(_request(port, runs[0], token))
    ready, opened = [asyncio.Event() for _ in range(viewers - 1)], asyncio.Semaphore(50)
    tasks = [asyncio.create_task(view(runs[i % len(runs)], opened, i)) for i in range(viewers - 1)]
    for event in ready:
        await asyncio.wait_for(event.wait(), 120)
    print("connected", flush=True)
    counting, cpu, began = True, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    counting, cpu = False, (time.process_time() - cpu) / (time.monotonic() - began)
    running = sum(not task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    return {"received": received[:: max(1, len(received) // 200_000)], "missed": missed, "open": running + 1, "cpu": cpu,
            "stalled": await asyncio.to_thread(_wake, stalled)}  # fmt: skip


def _wake(stalled: socket.socket) -> str:
    # what a viewer that read nothing all the while finds when it reads again
    stalled.settimeout(3)
    data = b""
    try:
        while len(data) < 1 << 26 and data.count(b"event: reset") == 0 and (more := stalled.recv(1 << 20)):
            data += more
    except TimeoutError:
        pass
    return f"{data.count(b'event: reset')} reset after {len(data) / 1e6:.1f} MB"


def _request(port: int, run: int, token: str) -> bytes:
    return (f"GET /api/runs/{run}/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
            "Accept: text/event-stream\r\n\r\n").encode()  # fmt: skip


def main() -> None:
    order = json.loads(sys.argv[1])
    if "url" in order:
        print(json.dumps(write_runs(order["url"], order["runs"], order["seconds"])))
    else:
        print(json.dumps(asyncio.run(watch(**order))), flush=True)


if __name__ == "__main__":
    main()
