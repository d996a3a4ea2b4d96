"""How fast do live events reach a thousand viewers of twenty runs, while one more viewer never reads from its socket?

    python -m benchmarks.load.viewers '{"port", "token", "viewers", "runs", "seconds", "out"}'    # the process of the viewers
    python -m benchmarks.load.viewers '{"url", "runs"}'                                           # the process of the runs

The process of the runs writes one flush per run every 250 ms until its stdin closes, and records the time of each commit. The
viewers are plain sockets, watched with one epoll object. The delay of an event is the time from its commit until its last byte
arrives at the viewer's socket, according to the kernel's time stamp. After the arrival, some time passes until the viewers'
process reads the event. This time is not part of the server's delay and has its own row in the table.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from benchmarks.service import Row, Serving, child, new_database, percentiles, serving, submit_and_claim
from server.database.connection import Database
from server.ingest.post import store
from server.lifecycle.event_wakeups import publisher
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import TRAIN_LOSS, layer_catalogue, scalar
from stablessm_core.telemetry.sink import Flush

RUNS, PERIOD, STEPS, WIDTH = 20, 0.25, 4, 64
OPENING = 50  # number of viewers that connect at the same time
PATIENCE = 60.0  # maximum time to wait until all viewers are connected and until the stalled viewer is dropped, in seconds
SO_TIMESTAMPNS = 35  # Linux option that adds the arrival time of received data to the ancillary data
STAMP = struct.Struct("qq")


def measure(url: str, folder: Path, *, seconds: float, viewers: int) -> list[Row]:
    with new_database(url, folder / "viewers") as database, serving(database, folder / "viewers") as server:
        runs = _start_runs(database)
        writer = child("benchmarks.load.viewers", json.dumps({"url": database.url, "runs": runs}))
        watch = {"port": server.port, "token": server.token, "viewers": viewers, "runs": runs, "seconds": seconds}
        out = folder / "received.npy"
        watching = child("benchmarks.load.viewers", json.dumps(watch | {"out": str(out)}))
        assert watching.stdout is not None
        watching.stdout.readline()  # this line means that all viewers are connected
        cpu, began = server.cpu_seconds(), time.monotonic()
        watching.stdout.readline()  # this line means that the viewers' measurement is over
        spent, window = server.cpu_seconds() - cpu, time.monotonic() - began
        seen = json.loads(watching.stdout.readline())
        wrote = json.loads(writer.communicate()[0].splitlines()[-1])
        counted = _counters(server)
        peak = _peak_mib(server)
    received = np.load(out)
    committed = {(run, seq): at for run, seq, at in wrote["committed"]}
    then = np.array([committed[run, seq] for run, seq in received[:, :2].astype(int).tolist()])
    delay, own = np.maximum(received[:, 2] - then, 0.0), received[:, 3] - received[:, 2]
    beside = received[:, 0] == runs[0]  # events of the run that the stalled viewer watches
    return [
        Row(
            f"{seen['open']} viewers of {RUNS} runs, commit to arrival, {len(delay):,} events",
            percentiles(delay),
            "p99 < 300 ms",
        ),
        Row("events missed or repeated by a viewer", f"{seen['missed']}; {seen['repeated']}", "0"),
        Row("server, share of one core; peak memory", f"{spent / window:.0%}; {peak:.0f} MiB", "< 30 %; < 300 MiB"),
        Row("server, CPU per delivered event of {:.0f} kB".format(seen["bytes"] / len(delay) / 1e3),
            f"{spent / len(delay) * 1e6:.0f} us"),
        Row("a viewer that reads nothing", f"{seen['stalled']}; {counted}", "harms nobody"),
        Row("the others of its run; of other runs", f"{percentiles(delay[beside])}; {percentiles(delay[~beside])}"),
        Row("how late the viewers' process read what had arrived", percentiles(own)),
        Row("share of one core: viewers; runs", f"{seen['cpu']:.0%}; {wrote['cpu']:.0%} ({wrote['rate']:.0f} commits/s)"),
    ]  # fmt: skip


def _counters(server: Serving) -> str:
    headers = {"Authorization": f"Bearer {server.token}"}
    page = httpx.get(f"http://127.0.0.1:{server.port}/metrics", headers=headers, timeout=30).text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("stablessm_live_"))
    return ", ".join(f"{name} {float(values[f'stablessm_live_{name}_total']):.0f}" for name in ("stalled", "resets"))


def _peak_mib(server: Serving) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _start_runs(database: Database) -> list[int]:
    config = parse_config({"task": {"name": "polynomial_memory"}})
    series = [scalar(TRAIN_LOSS), *layer_catalogue(0, WIDTH, Form.of_map("best", "discrete"))]
    runs = []
    for _ in range(RUNS):
        claim = submit_and_claim(database, config)
        with database.write() as session:
            store(session, claim.run_id, claim.attempt, CatalogueMessage(series))
        runs.append(claim.run_id)
    return runs


def write_runs(url: str, runs: list[int]) -> dict[str, object]:
    """Store one flush of every run per PERIOD, at evenly spaced times, until stdin closes. Returns (run, seq, time of commit)
    for each flush."""
    database, rng, committed = Database(url), np.random.default_rng(0), []
    publish = publisher(database, None)
    began, cpu = time.monotonic(), time.process_time()
    for turn in itertools.count():
        due = began + turn * PERIOD / len(runs)
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            break
        run, first = runs[turn % len(runs)], 1 + turn // len(runs) * STEPS
        part = [Block("scalars", 0, first, 1, np.ones((1, STEPS), np.float32)),
                Block("ssm/0", 0, first, 1, rng.random((2 * WIDTH, STEPS), np.float32))]  # fmt: skip
        with database.write() as session:
            post = store(session, run, 1, Flush(part, [], first + STEPS - 1, None))
            assert post is not None
            seq = post.finish().seq
        committed.append((run, seq, time.time()))
        publish(run)
    database.close()
    took = time.monotonic() - began
    return {"committed": committed, "rate": len(committed) / took, "cpu": (time.process_time() - cpu) / took}


@dataclass
class View:
    """One viewer. tail: the received bytes of an event that is still incomplete."""

    run: int
    socket: socket.socket
    tail: bytes = b""
    last: int | None = None

    def events(self, data: bytes) -> list[int]:
        """The numbers of the events that these bytes complete."""
        data, begin, found = self.tail + data, 0, []
        while (at := data.find(b"\nid: ", begin)) >= 0 and (end := data.find(b"\n\n", at)) >= 0:
            number = data[at + 5 : data.index(b"\n", at + 5)]
            if b"." not in number:  # an id with a dot means that more frames of the event follow
                found.append(int(number))
            begin = end
        self.tail = data[at:] if at >= 0 else data[max(begin, len(data) - 4) :]
        return found


class Watch:
    """All viewers, watched with one epoll object."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.views: dict[int, View] = {}
        self.poller = select.epoll()
        self.received: list[tuple[int, int, float, float]] = []  # run, event number, time of arrival, time of reading
        self.counting = False
        self.missed = self.repeated = self.bytes = 0
        self.stalled: socket.socket | None = None
        self.dropped: float | None = None

    def open(self, run: int) -> socket.socket:
        viewer = socket.create_connection(("127.0.0.1", self.port))
        viewer.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        viewer.sendall(self._request(run))
        viewer.setblocking(False)
        self.views[viewer.fileno()] = View(run, viewer)
        self.poller.register(viewer, select.EPOLLIN)
        return viewer

    def stall(self, run: int) -> None:
        """Connect a viewer that never reads. Small packets and a very small receive buffer simulate a distant viewer."""
        self.stalled = socket.socket()
        self.stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.stalled.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self.stalled.connect(("127.0.0.1", self.port))
        self.stalled.sendall(self._request(run))
        self.poller.register(self.stalled, 0)  # epoll always reports errors and hang-ups

    def receive(self, seconds: float) -> None:
        """Wait at most `seconds` for data, and receive once from each socket that has data."""
        for fd, _ in self.poller.poll(seconds):
            view = self.views.get(fd)
            if view is None:
                self.dropped = time.monotonic()
                self.poller.unregister(fd)
                continue
            data, ancillary, _, _ = view.socket.recvmsg(1 << 18, 64)
            read = time.time()
            if not data:
                self.poller.unregister(fd)
                del self.views[fd]
                continue
            whole, part = STAMP.unpack(ancillary[0][2])
            for seq in view.events(data):
                if view.last is not None:
                    self.missed += max(0, seq - view.last - 1)
                    self.repeated += seq <= view.last
                view.last = seq
                if self.counting:
                    self.received.append((view.run, seq, whole + part * 1e-9, read))
            self.bytes += len(data) * self.counting

    def _request(self, run: int) -> bytes:
        return (f"GET /api/runs/{run}/stream HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
                "Accept: text/event-stream\r\n\r\n").encode()  # fmt: skip


def watch(port: int, token: str, viewers: int, runs: list[int], seconds: float, out: str) -> dict[str, object]:
    """Open the viewers, then receive for `seconds`. Writes the received events to the file `out`."""
    everyone = Watch(port, token)
    everyone.stall(runs[0])
    stalled_since, deadline = time.monotonic(), time.monotonic() + PATIENCE
    for first in range(0, viewers - 1, OPENING):
        for i in range(first, min(first + OPENING, viewers - 1)):
            everyone.open(runs[i % len(runs)])
        while any(view.last is None for view in everyone.views.values()):
            assert time.monotonic() < deadline, f"{len(everyone.views)} viewers are open, not all of them have been answered"
            everyone.receive(1.0)
    print("connected", flush=True)
    everyone.counting, cpu, began = True, time.process_time(), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        everyone.receive(left)
    everyone.counting, cpu = False, (time.process_time() - cpu) / (time.monotonic() - began)
    print("over", flush=True)
    running = len(everyone.views) + 1
    while everyone.dropped is None and time.monotonic() < began + seconds + PATIENCE:
        everyone.receive(1.0)
    np.save(out, np.array(everyone.received))
    stalled = f"dropped after {everyone.dropped - stalled_since:.0f} s" if everyone.dropped else "still connected"
    return {"open": running, "cpu": cpu, "missed": everyone.missed, "repeated": everyone.repeated,
            "bytes": everyone.bytes, "stalled": stalled}  # fmt: skip


def main() -> None:
    order = json.loads(sys.argv[1])
    print(json.dumps(write_runs(**order) if "url" in order else watch(**order)), flush=True)


if __name__ == "__main__":
    main()
