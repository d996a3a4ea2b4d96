"""How does the resident memory (RSS) of the server and of a worker change under a load that lasts an hour?

    python -m benchmarks.load memory --minutes 60

A real worker trains short runs, one after another, on PostgreSQL. Meanwhile four threads read pages, series, tables and files of
these runs as fast as RATE requests per second, and a viewer follows a live run. The runs differ, so caches fill up. The table
shows the RSS every five minutes. The slope is fitted to the samples of the second half, because the caches fill in the first.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil

from benchmarks.service import Row, Serving, new_database, serving

RATE, READERS, QUEUED = 10.0, 4, 3
EVERY = 300.0  # seconds between two rows of the table
SAMPLES = 10.0  # seconds between two samples
MAPS = ("direct", "best", "softplus", "exp")
PATHS = (  # {run} stands for an ended run, {other} for another
    "/", "/runs/{run}", "/runs/{run}", "/compare?runs={run},{other}", "/systems", "/theory", "/alerts", "/workers", "/sweeps",
    "/api/runs?limit=50", "/api/runs?q=map%3Dbest&sort=loss", "/api/runs/{run}", "/api/runs/{run}/series",
    "/api/runs/{run}/series/train/loss", "/api/runs/{run}/series/ssm/0/grad_over_weight?format=typed",
    "/api/runs/{run}/series/ssm/0/boundary_distance?eigenvalues=1,2,3", "/api/runs/{run}/history", "/api/alerts?limit=50",
    "/api/runs/{run}/log", "/metrics", "/api/workers",
)  # fmt: skip


@dataclass
class Tally:
    """What the readers have counted, and the ended runs that they read."""

    ended: list[int] = field(default_factory=list)
    answers: int = 0
    failed: int = 0  # answers with a status of 500 or more, and requests without an answer
    events: int = 0


def measure(url: str, folder: Path, *, minutes: float) -> list[Row]:
    every = min(EVERY, minutes * 60 / 3)
    with (
        new_database(url, folder / "memory") as database,
        serving(database, folder / "memory", runs_per_minute="0") as server,
        _worker(server, folder) as worker,
        _load(server) as tally,
    ):
        samples = _sample(server.process, worker, minutes * 60, every, tally)
    seconds, mib = samples[:, 0], samples[:, 1:]
    rows = []
    for at in np.arange(0.0, minutes * 60 + 1, every):
        near = int(np.argmin(np.abs(seconds - at)))
        now = mib[near]
        rows.append(Row(f"RSS after {seconds[near] / 60:.0f} min: server; worker; (its processes, shared pages counted once)",
                        f"{now[0]:.0f}; {now[1]:.0f}; {now[2]:.0f} MiB"))  # fmt: skip
    late = seconds >= seconds[-1] / 2
    slopes = [float(np.polyfit(seconds[late] / 3600, mib[late, column], 1)[0]) for column in (0, 1)]
    return [
        *rows,
        Row("slope over the second half: server; worker", f"{slopes[0]:+.1f}; {slopes[1]:+.1f} MiB per hour"),
        Row("runs ended; answers; failed answers; live events",
            f"{len(tally.ended)}; {tally.answers:,}; {tally.failed}; {tally.events:,}"),
    ]  # fmt: skip


@contextlib.contextmanager
def _worker(server: Serving, folder: Path) -> Iterator[psutil.Process]:
    with (folder / "worker.log").open("a") as log:
        process = subprocess.Popen([sys.executable, "-m", "worker"], env=server.environment, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(120)


@contextlib.contextmanager
def _load(server: Serving) -> Iterator[Tally]:
    tally, stop = Tally(), threading.Event()
    threads = [threading.Thread(target=_read, args=(server, tally, stop, number)) for number in range(READERS)]
    threads += [threading.Thread(target=work, args=(server, tally, stop)) for work in (_submit, _watch)]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _client(server: Serving) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=120)


def _submit(server: Serving, tally: Tally, stop: threading.Event) -> None:
    """Keep QUEUED runs in the queue, and list the ended runs."""
    with _client(server) as client:
        open_runs: set[int] = set()
        for number in itertools.count():
            while len(open_runs) < QUEUED:
                config = {"task": {"name": "polynomial_memory"}, "optimizer": {"lr": 0.001 * (1 + number % 20)},
                          "model": {"reparameterization": {"name": MAPS[number % len(MAPS)]}},
                          "train": {"steps": 300 + number % 7, "seed": number}}  # fmt: skip
                open_runs.add(client.post("/api/runs", json=config).raise_for_status().json()["id"])
            for run in sorted(open_runs):
                if client.get(f"/api/runs/{run}").json()["status"] not in ("queued", "running"):
                    open_runs.remove(run)
                    tally.ended.append(run)
            if stop.wait(0.5):
                return


def _read(server: Serving, tally: Tally, stop: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    with _client(server) as client:
        while not stop.wait(READERS / RATE):
            runs = tally.ended or [1]
            path = chance.choice(PATHS).replace("{run}", str(chance.choice(runs))).replace("{other}", str(chance.choice(runs)))
            try:
                tally.failed += client.get(path).status_code >= 500
            except httpx.TransportError:
                tally.failed += 1
            tally.answers += 1


def _watch(server: Serving, tally: Tally, stop: threading.Event) -> None:
    """Follow the newest run until it ends, then the next."""
    with _client(server) as client:
        while not stop.wait(0.5):
            newest = (tally.ended or [0])[-1] + 1
            with contextlib.suppress(httpx.TransportError), client.stream("GET", f"/api/runs/{newest}/stream") as answer:
                for line in answer.iter_lines():
                    tally.events += line.startswith("id:")
                    if stop.is_set() or newest in tally.ended:
                        break


def _sample(server: psutil.Process, worker: psutil.Process, seconds: float, every: float, tally: Tally) -> np.ndarray:
    """Rows of (seconds, RSS of the server, of the worker, memory of the worker's children), in MiB."""
    began, found, said = time.monotonic(), [], -1
    while True:
        now = time.monotonic() - began
        children = sum(_share(child) for child in worker.children(recursive=True))
        found.append((now, _rss(server), _rss(worker), children))
        if now // every > said:
            said = int(now // every)
            print(f"{now / 60:.0f} min: server {found[-1][1]:.0f}, worker {found[-1][2]:.0f}, its processes {children:.0f} MiB; "
                  f"{len(tally.ended)} runs, {tally.answers:,} answers", file=sys.stderr, flush=True)  # fmt: skip
        if now >= seconds:
            return np.array(found)
        time.sleep(min(SAMPLES, every / 10, max(0.0, seconds - now)))


def _rss(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(process.memory_info().rss) / 2**20
    return 0.0


def _share(process: psutil.Process) -> float:
    """The process's share of memory in MiB: a page that several forked processes share counts once altogether."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return float(process.memory_full_info().pss) / 2**20
    return 0.0
