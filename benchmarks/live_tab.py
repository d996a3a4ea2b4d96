"""How much CPU time and memory does a browser tab with a live run need? Chromium draws 64 eigenvalues 20 times per second.

    python -m benchmarks.live_tab [--seconds 60] [--rate 20] [--width 64] [--history 2000]

The benchmark does not train. A thread stores one step at a time through the functions that store a worker's records. Chromium
shows the first screen of the run's page, which has the loss and three charts of the layer. DevTools reports how long the main
thread was busy, and how much memory is still in use after a garbage collection. The kernel reports the CPU time of Chromium's
renderer, which includes the threads that paint and compose the page, and of all Chromium processes together.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.service import Serving, browser, machine, new_database, serving, submit_and_claim
from server.database.connection import Database
from server.ingest.post import store
from server.lifecycle import transitions as lifecycle
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.sink import Flush

SCALARS = (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)
STEPS = 100_000  # number of steps in the run's configuration; the benchmark writes fewer steps
PARTS = ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
SETTLE = 15  # wait before the measurement, in seconds; meanwhile every chart is drawn for the first time
COUNT = """() => { window.updates = 0;
  new PerformanceObserver((list) => { window.updates += list.getEntries().length; }).observe({type: "mark"}); }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--history", type=int, default=2000, help="steps recorded before the page is opened")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, new_database("sqlite", Path(folder)) as database:
        run = LiveRun(database, given.width)
        run.write(given.history)
        with serving(database, Path(folder)) as server:
            print("\n".join(measure(server, run, given.seconds, given.rate)))


class LiveRun:
    """A claimed run with one layer. `write` stores its next steps."""

    def __init__(self, database: Database, width: int) -> None:
        self.database, self.width, self.step = database, width, 0
        self.rng = np.random.default_rng(0)
        self.weight = np.linspace(0.2, 3.0, width)
        model = {"n_layers": 1, "d_state": width, "reparameterization": {"name": "best"}}
        config = parse_config({"name": "live", "task": {"name": "polynomial_memory"}, "model": model, "train": {"steps": STEPS}})
        claim = submit_and_claim(database, config)
        self.run, self.attempt = claim.run_id, claim.attempt
        form = Form.of_map("best", "discrete")
        catalogue = [names.scalar(name) for name in SCALARS] + names.layer_catalogue(0, width, form)
        catalogue += names.following_catalogue(0, width, form, length=config.task.sequence_length(), every_eigenvalue=True)
        with self.database.write() as session:
            store(session, self.run, self.attempt, CatalogueMessage(catalogue))

    def write(self, count: int = 1) -> None:
        first = self.step + 1
        at = np.arange(first, first + count)
        noise = self.rng.standard_normal((2, self.width, count))
        ratio, weight = np.exp(0.3 * noise[0] - 3), self.weight[:, None] + 0.01 * noise[1]
        loss = np.exp(-at / 20_000) * np.exp(0.1 * self.rng.standard_normal(count))
        scalars = np.stack([loss, np.full(count, 1e-3), np.exp(0.2 * self.rng.standard_normal(count))])
        groups = {names.SCALARS: scalars, names.layer_group(0): np.concatenate([ratio, weight])}
        blocks = [Block(group, 0, first, 1, np.ascontiguousarray(values, np.float32)) for group, values in groups.items()]
        self.step += count
        with self.database.write() as session:
            store(session, self.run, self.attempt, Flush(blocks, [], self.step, 20.0))
            if self.step % 50 == 0:
                lifecycle.heartbeat(session, self.run, self.attempt)


def measure(server: Serving, run: LiveRun, seconds: float, rate: float) -> list[str]:
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(run, rate, stop))
    writer.start()
    with browser() as chromium:
        page = chromium.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.goto(f"{server.url}/workers?token={server.token}")
        page.goto(f"{server.url}/runs/1")
        page.wait_for_selector("[data-chart='weight'][data-drawn]", state="attached", timeout=120_000)
        page.wait_for_timeout(SETTLE * 1000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # measure CPU time, which excludes waiting for a core
        page.evaluate(COUNT)
        heap = [memory(session)]
        used, before, first, begun = chromium_seconds(), metrics(session), run.step, time.perf_counter()
        for _ in range(4):
            page.wait_for_timeout(seconds * 250)
            after, took, steps = metrics(session), time.perf_counter() - begun, run.step - first
            heap.append(memory(session))  # the CPU time includes every garbage collection except the last one
        spent = {name: 100 * (seconds - used[name]) / took for name, seconds in chromium_seconds().items()}
        drawn = page.evaluate("window.updates")
        stop.set()
        writer.join()
    share = {name: 100 * (after[name] - before[name]) / took for name in PARTS}
    return [
        f"{machine()}; {run.width} eigenvalues, up to step {run.step:,}",
        f"{steps / took:.1f} updates/s stored; drawn {drawn / took:.1f} times/s over all charts, for {took:.0f} s",
        f"renderer {spent['renderer']:.1f} % of a core, all processes of Chromium {spent['all']:.1f} %",
        f"main thread {share['TaskDuration']:.1f} % of a core (script {share['ScriptDuration']:.1f}, "
        f"style {share['RecalcStyleDuration']:.1f}, layout {share['LayoutDuration']:.1f})",
        f"heap {', '.join(f'{megabytes:.1f}' for megabytes in heap)} MB",
    ]


def write(run: LiveRun, rate: float, stop: threading.Event) -> None:
    due = time.perf_counter()
    while not stop.is_set():
        run.write()
        due = max(due + 1 / rate, time.perf_counter() - 1)  # after a delay, catch up on at most one second of missed steps
        time.sleep(max(0.0, due - time.perf_counter()))


def chromium_seconds() -> dict[str, float]:
    """CPU seconds of the renderer processes and of all processes of this benchmark's Chromium."""
    spent = {"renderer": 0.0, "all": 0.0}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            arguments, times = process.cmdline(), process.cpu_times()
            if "chrom" not in arguments[0]:
                continue
            spent["all"] += times.user + times.system
            if "--type=renderer" in arguments:
                spent["renderer"] += times.user + times.system
    return spent


def metrics(session: Any) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


def memory(session: Any) -> float:
    session.send("HeapProfiler.collectGarbage")
    return metrics(session)["JSHeapUsedSize"] / 1e6


if __name__ == "__main__":
    main()
