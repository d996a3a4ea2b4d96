"""How old are the values that a user sees? Measures the delay from the end of a step until the API and the page show the step.

    python -m benchmarks.live [--steps 1500] [--database-url postgresql+psycopg://...] [--broker-url redis://...]

Starts `stablessm serve` and a training process like the worker's, which also records when each step ends. The benchmark process
reads the newest loss from the API every 5 ms. Chromium shows the run's page. When the page's script draws a step, it sets
`document.documentElement.dataset.lastStep`. All times come from the same clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.service import Serving, browser, machine, serving
from server.database.connection import Database

CONFIG: dict[str, Any] = {
    "name": "live benchmark",
    "task": {"name": "polynomial_memory"},
    "model": {"n_layers": 4, "d_model": 32, "d_state": 64, "reparameterization": {"name": "best"}},
    "train": {"batch_size": 32, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
}
TARGETS = {"api": (0.25, None), "chart": (0.6, 1.5)}  # promised median and 95th percentile of the delay, in seconds
WATCH = """
  window.seen = [];
  new MutationObserver(() => window.seen.push([Number(document.documentElement.dataset.lastStep), Date.now() / 1000]))
    .observe(document, {attributes: true, subtree: true, attributeFilter: ["data-last-step"]});
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--database-url", help="default: a new SQLite file")
    parser.add_argument("--broker-url")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer:
        return train(Path(arguments.trainer))
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    url = arguments.database_url or f"sqlite:///{folder / 'stablessm.db'}"
    database = Database(url)
    database.migrate()
    database.close()
    broker = {"broker_url": arguments.broker_url} if arguments.broker_url else {}
    stamps = folder / "stamps.json"
    with serving(url, folder, **broker) as server:
        command = [sys.executable, "-m", "benchmarks.live", "--trainer", str(stamps)]
        trainer = subprocess.Popen(command, env=server.environment | {"OMP_NUM_THREADS": "1"})
        try:
            headers = {"Authorization": f"Bearer {server.token}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
                api, drawn = watch(client, server, arguments.steps)
            trainer.wait(60)
        finally:
            trainer.terminate()
            trainer.wait(10)
    ended = {int(step): at for step, at in json.loads(stamps.read_text()).items()}
    report(ended, {"api": api, "chart": drawn}, arguments)


def watch(client: httpx.Client, server: Serving, steps: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Two lists of pairs (newest step, time at which this step was first seen): one from the API and one from the page."""
    api: list[tuple[int, float]] = []
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 1000})
        page.add_init_script(WATCH)
        page.goto(server.login_url)
        config = {**CONFIG, "train": {**CONFIG["train"], "steps": steps}}
        run = client.post("/api/runs", json=config).raise_for_status().json()["id"]
        page.goto(f"{server.url}/runs/{run}")
        poller = threading.Thread(target=poll, args=(client, run, steps, api))
        poller.start()
        while page.evaluate("Number(document.documentElement.dataset.lastStep ?? 0)") < steps:
            page.wait_for_timeout(200)
        drawn = [(int(step), float(at)) for step, at in page.evaluate("window.seen")]
        poller.join()
    return api, drawn


def poll(client: httpx.Client, run: int, steps: int, seen: list[tuple[int, float]]) -> None:
    newest = 0
    while newest < steps:
        answer = client.get(f"/api/runs/{run}/series/train/loss", params={"from_step": newest + 1})
        at = time.time()
        if answer.status_code == 200 and answer.json()["step"]:
            newest = answer.json()["step"][-1]
            seen.append((newest, at))
        time.sleep(0.005)


def report(ended: dict[int, float], seen: dict[str, list[tuple[int, float]]], arguments: argparse.Namespace) -> None:
    steps = np.array(sorted(ended))
    took = (ended[steps[-1]] - ended[steps[0]]) / (len(steps) - 1)
    print(machine())
    database = (arguments.database_url or "sqlite").split(":")[0]
    broker = (arguments.broker_url or "none").split(":")[0]
    print(f"{len(steps)} steps of {took * 1000:.1f} ms, 4 layers x 64 eigenvalues; database {database}, broker {broker}\n")
    print("| from the end of a step to | median s | p95 s | worst s | target median / p95 |")
    print("|---|---|---|---|---|")
    for name, events in seen.items():
        lags = []
        for step in steps[50:]:  # skip the first steps, during which the page still loads
            at = next((t for newest, t in events if newest >= step), None)
            if at is not None:
                lags.append(at - ended[step])
        median, p95, worst = np.median(lags), np.percentile(lags, 95), max(lags)
        wanted = " / ".join("-" if t is None else f"{t:g}" for t in TARGETS[name])
        print(f"| {name} | {median:.3f} | {p95:.3f} | {worst:.3f} | {wanted} |")


def train(stamps: Path) -> None:
    """Train one run in this process, as a worker does, and record the time at which each step ends."""
    import torch

    from server.lifecycle import transitions as lifecycle
    from server.settings import Settings
    from stablessm_core.spec.data_sets import available_data
    from worker.attempt import Attempt
    from worker.capabilities import report as capabilities
    from worker.capabilities import warm_up

    torch.set_num_threads(1)
    warm_up()
    ended: dict[int, float] = {}
    ask = Attempt._should_stop

    def timed(self: Attempt) -> str | None:
        ended[len(ended) + 1] = time.time()
        return ask(self)

    Attempt._should_stop = timed  # type: ignore[method-assign]
    settings = Settings.from_environment()
    known = capabilities() | {"data": available_data(settings.data_root)}
    database = Database(settings.database_url)
    claim = None
    while claim is None:
        with database.write() as session:
            claim = lifecycle.claim(session, "benchmark", known)
        time.sleep(0.05)
    order = {
        "run_id": claim.run_id,
        "attempt": claim.attempt,
        "config": claim.config,
        "checkpoints": [],
        "data_dir": str(settings.data_dir),
        "data_root": str(settings.data_root),
        "database_url": settings.database_url,
        "broker_url": settings.broker_url,
        "spool_bytes": 1 << 28,
    }
    Attempt(order).run(on_ready=lambda: None)
    stamps.write_text(json.dumps(ended))
    os._exit(0)


if __name__ == "__main__":
    main()
