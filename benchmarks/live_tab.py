"""What does an open tab of a live run cost? 20 updates a second of 64 eigenvalues, the visible charts drawn, in Chromium.

    python -m benchmarks.live_tab [--seconds 60] [--rate 20] [--width 64] [--history 2000]

Trains nothing: a thread stores one step at a time through the functions that store what a worker records. Chromium shows the
page of the run, scrolled to the charts of the layer; DevTools say how long its main thread had work, and how much memory is in
use after a collection of garbage.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.long_run import ARGUMENTS, command, environment, served, url_of
from server.database.connection import Database
from server.runs import lifecycle
from server.series.recording import store_catalogue, store_flush
from stablessm_core.config import parse_config
from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block

SCALARS = (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)
STEPS = 100_000  # that the run is said to have: more than are written
PARTS = ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
SETTLE = 15  # seconds before the clock starts: the first drawings of every chart
COUNT = """() => { window.updates = 0;
  new PerformanceObserver((list) => { window.updates += list.getEntries().length; }).observe({type: "mark"}); }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--history", type=int, default=2000, help="steps recorded before the page is opened")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([command(), "migrate"], env=environment(folder), check=True, stdout=subprocess.DEVNULL)
        run = LiveRun(url_of(folder), given.width)
        run.write(given.history)
        with served(folder) as url:
            print("\n".join(measure(url, run, given.seconds, given.rate)))
        run.close()


class LiveRun:
    """A claimed run of one layer whose next steps are stored on demand."""

    def __init__(self, url: str, width: int) -> None:
        self.database, self.width, self.step = Database(url), width, 0
        self.rng = np.random.default_rng(0)
        self.weight = np.linspace(0.2, 3.0, width)
        model = {"n_layers": 1, "d_state": width, "reparameterization": {"name": "best"}}
        config = parse_config({"name": "live", "task": {"name": "polynomial_memory"}, "model": model, "train": {"steps": STEPS}})
        with self.database.write() as session:
            lifecycle.submit(session, config)
        with self.database.write() as session:
            claim = lifecycle.claim(session, "benchmark", {"devices": ["cpu"]})
        assert claim is not None
        self.run, self.attempt = claim.run_id, claim.attempt
        form = Form.of_map("best", "discrete")
        catalogue = [names.scalar(name) for name in SCALARS] + names.layer_catalogue(0, width, form)
        catalogue += names.following_catalogue(0, width, form, length=config.task.sequence_length(), every_eigenvalue=True)
        with self.database.write() as session:
            store_catalogue(session, self.run, self.attempt, catalogue)

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
            store_flush(session, self.run, self.attempt, blocks, (), self.step, 20.0)
            if self.step % 50 == 0:
                lifecycle.heartbeat(session, self.run, self.attempt)

    def close(self) -> None:
        self.database.close()


def measure(url: str, run: LiveRun, seconds: float, rate: float) -> list[str]:
    playwright, stop = import_module("playwright.sync_api"), threading.Event()
    writer = threading.Thread(target=write, args=(run, rate, stop))
    writer.start()
    with playwright.sync_playwright() as play:
        path = os.environ.get("CHROMIUM_PATH", "/usr/bin/chromium")
        with play.chromium.launch(executable_path=path, args=ARGUMENTS) as browser:
            page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
            page.goto(f"{url}/workers?token={'t' * 32}")
            page.goto(f"{url}/runs/1")
            page.wait_for_selector("[data-chart='weight'][data-drawn]", state="attached", timeout=120_000)
            page.locator("form[data-controls]").evaluate("(form) => form.scrollIntoView()")
            page.wait_for_timeout(SETTLE * 1000)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})  # what it works, not what it waits for a core
            page.evaluate(COUNT)
            heap = [memory(session)]
            before, first, begun = metrics(session), run.step, time.perf_counter()
            for _ in range(4):
                page.wait_for_timeout(seconds * 250)
                after, took, steps = metrics(session), time.perf_counter() - begun, run.step - first
                heap.append(memory(session))  # its own cost counts in all quarters but the last
            drawn = page.evaluate("window.updates")
            stop.set()
            writer.join()
    share = {name: 100 * (after[name] - before[name]) / took for name in PARTS}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return [
        f"{machine}; {run.width} eigenvalues, up to step {run.step:,}",
        f"{steps / took:.1f} updates/s stored; drawn {drawn / took:.1f} times/s over all charts, for {took:.0f} s",
        f"main thread {share['TaskDuration']:.1f} % of a core (script {share['ScriptDuration']:.1f}, "
        f"style {share['RecalcStyleDuration']:.1f}, layout {share['LayoutDuration']:.1f})",
        f"heap {', '.join(f'{megabytes:.1f}' for megabytes in heap)} MB",
    ]


def write(run: LiveRun, rate: float, stop: threading.Event) -> None:
    due = time.perf_counter()
    while not stop.is_set():
        run.write()
        due = max(due + 1 / rate, time.perf_counter() - 1)  # what a busy second held up is not made good for ever
        time.sleep(max(0.0, due - time.perf_counter()))


def metrics(session: Any) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


def memory(session: Any) -> float:
    session.send("HeapProfiler.collectGarbage")
    return metrics(session)["JSHeapUsedSize"] / 1e6


if __name__ == "__main__":
    main()
