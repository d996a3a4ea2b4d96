"""How old is what one sees? From the end of a training step to the API, and to the pixel in a real browser.

    python -m benchmarks.live [--steps 1500] [--database-url postgresql+psycopg://...] [--broker-url redis://...]

Starts `stablessm serve` and a training process of its own that is the worker's, except that it writes down the time at which
each step ended. The API is asked for the newest loss every 5 ms; Chromium shows the run's page, whose script sets
`document.documentElement.dataset.lastStep` once a step has been drawn. All clocks are this machine's one clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

CONFIG: dict[str, Any] = {
    "name": "live benchmark",
    "task": {"name": "polynomial_memory"},
    "model": {"n_layers": 4, "d_model": 32, "d_state": 64, "reparameterization": {"name": "best"}},
    "train": {"batch_size": 32, "eval_every": 0, "checkpoint_every": 0, "device": "cpu"},
}
TARGETS = {"api": (0.25, None), "chart": (0.6, 1.5)}  # median, 95th percentile, in seconds
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
    with tempfile.TemporaryDirectory() as place:
        measure(Path(place), arguments)


def measure(place: Path, arguments: argparse.Namespace) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, token = f"http://127.0.0.1:{port}", "benchmark-token-" + os.urandom(16).hex()
    environment = {
        **os.environ,
        "STABLESSM_DATA_DIR": str(place / "state"),
        "STABLESSM_DATABASE_URL": arguments.database_url or f"sqlite:///{place / 'state' / 'stablessm.db'}",
        "STABLESSM_TOKEN": token,
        "OMP_NUM_THREADS": "1",
    }
    if arguments.broker_url:
        environment["STABLESSM_BROKER_URL"] = arguments.broker_url
    command = shutil.which("stablessm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "stablessm"
    (place / "state").mkdir()
    subprocess.run([command, "migrate"], env=environment, check=True, stdout=subprocess.DEVNULL)
    stamps = place / "stamps.json"
    with (place / "log").open("w") as log:
        server = subprocess.Popen([command, "serve", "--port", str(port)], env=environment, stdout=log, stderr=log)
        trainer = subprocess.Popen([sys.executable, "-m", "benchmarks.live", "--trainer", str(stamps)], env=environment)
    try:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            wait_for(client)
            api, drawn = watch(client, url, token, arguments.steps)
        trainer.wait(60)
    finally:
        for process in (trainer, server):
            process.terminate()
            process.wait(10)
    ended = {int(step): at for step, at in json.loads(stamps.read_text()).items()}
    report(ended, {"api": api, "chart": drawn}, arguments)


def wait_for(client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def watch(client: httpx.Client, url: str, token: str, steps: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(newest step, time it was first seen) from the API and from the page."""
    from playwright.sync_api import sync_playwright

    api: list[tuple[int, float]] = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.add_init_script(WATCH)
        page.goto(f"{url}/?token={token}")
        config = {**CONFIG, "train": {**CONFIG["train"], "steps": steps}}
        run = client.post("/api/runs", json=config).raise_for_status().json()["id"]
        page.goto(f"{url}/runs/{run}")
        poller = threading.Thread(target=poll, args=(client, run, steps, api))
        poller.start()
        while page.evaluate("Number(document.documentElement.dataset.lastStep ?? 0)") < steps:
            page.wait_for_timeout(200)
        drawn = [(int(step), float(at)) for step, at in page.evaluate("window.seen")]
        poller.join()
        browser.close()
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
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {sys.platform}")
    database = (arguments.database_url or "sqlite").split(":")[0]
    broker = (arguments.broker_url or "none").split(":")[0]
    print(f"{len(steps)} steps of {took * 1000:.1f} ms, 4 layers x 64 eigenvalues; database {database}, broker {broker}\n")
    print("| from the end of a step to | median s | p95 s | worst s | target median / p95 |")
    print("|---|---|---|---|---|")
    for name, events in seen.items():
        lags = []
        for step in steps[50:]:  # the page is still loading during the first ones
            at = next((t for newest, t in events if newest >= step), None)
            if at is not None:
                lags.append(at - ended[step])
        median, p95, worst = np.median(lags), np.percentile(lags, 95), max(lags)
        wanted = " / ".join("-" if t is None else f"{t:g}" for t in TARGETS[name])
        print(f"| {name} | {median:.3f} | {p95:.3f} | {worst:.3f} | {wanted} |")


def train(stamps: Path) -> None:
    """A worker of one run in this process, with the end of each step written down."""
    import torch

    from server.database.connection import Database
    from server.runs import lifecycle
    from server.settings import Settings
    from stablessm_core.tasks.requirements import available_data
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
