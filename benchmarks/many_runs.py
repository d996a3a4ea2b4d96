"""The list of runs in a real browser, on a database of thousands: first paint, filtering, sorting, requests, layout shift.

    python -m benchmarks.many_runs [--runs 5000] [--rounds 7] [--database-url postgresql+psycopg://...] [--write FILE] [--serve]

Starts `stablessm serve` on a database that it fills through the models: a new SQLite file, or an empty database that is named.
`--serve` leaves it running for a look by hand. Times are those of Chromium's own clock, from the key to the second frame after
the rows are there.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import insert

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, Run, SeriesRow, Transition
from stablessm_core.config import parse_config
from stablessm_core.forms import Form
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar

STEPS = 150
MAPS = ("direct", "best", "softplus", "exp")
STATUSES = ("finished", "finished", "finished", "diverged", "failed", "cancelled")
TARGETS = {"first paint": 0.5, "filter": 0.3, "sort": 0.3}
FILTERS = ("reparam=best lr>=0.005", "status=diverged", "tag=tag3 OR seed=4", "task=polynomial_memory", "")
# resolves with the milliseconds from the call to the second frame after the list was replaced
CHANGED = """() => new Promise((resolve) => {
  const observer = new MutationObserver((seen) => {
    if (!seen.some((m) => [...m.addedNodes].some((n) => n.dataset?.part === "list"))) return;
    observer.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - window.began)));
  });
  observer.observe(document.querySelector("main"), {childList: true});
})"""
SHIFTS = """window.shifted = 0; new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});
addEventListener("keydown", () => (window.began = performance.now()), true);
addEventListener("mousedown", () => (window.began = performance.now()), true);"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--database-url", help="an empty database; default: a new SQLite file")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stablessm-many-") as folder:
        url = given.database_url or f"sqlite:///{folder}/state/stablessm.db"
        database = Database(url)
        database.migrate()
        fill(database, given.runs)
        database.close()
        with serving(url, Path(folder)) as (address, token):
            if given.serve:
                print(f"{address}/?token={token}", flush=True)
                while True:
                    time.sleep(60)
            seen = measure(address, token, given.rounds)
    report = written(seen, given)
    print(report)
    if given.write:
        given.write.write_text(report, encoding="utf-8")


def fill(database: Database, runs: int) -> None:
    """Ended runs that differ in map, rate, seed, status, tags and numbers, each with a recorded loss; the newest two train."""
    rng, now = np.random.default_rng(1), time.time()
    losses = [np.exp(-np.linspace(0, k, STEPS) + rng.normal(0, 0.1, STEPS)).astype(np.float32)[None] for k in range(1, 9)]
    losses[3][0, 120:] = np.nan
    payloads = [encode(loss) for loss in losses]
    for start in range(1, runs + 1, 500):
        rows: dict[Any, list[dict[str, Any]]] = {Run: [], SeriesRow: [], BlockRow: [], AlertRow: [], Transition: []}
        for run_id in range(start, min(start + 500, runs + 1)):
            _add(rows, run_id, now - 600.0 * (runs - run_id), payloads, running=run_id > runs - 2)
        with database.write() as session:
            for table, some in rows.items():
                if some:
                    session.execute(insert(table.__table__), some)
    if database.dialect == "postgresql":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('runs', 'id'), {runs})")
            connection.exec_driver_sql("ANALYZE")


def _add(rows: dict[Any, list[dict[str, Any]]], run_id: int, at: float, payloads: list[bytes], *, running: bool) -> None:
    map_, status = MAPS[run_id % 4], "running" if running else STATUSES[run_id % len(STATUSES)]
    rate, seed = 10 ** -(run_id % 7 / 2), run_id % 5
    config = parse_config(
        {
            "task": {"name": "polynomial_memory"}, "model": {"reparameterization": {"name": map_}}, "optimizer": {"lr": rate},
            "train": {"seed": seed, "steps": STEPS},
        }
    ).model_dump(mode="json")  # fmt: skip
    form, died = Form.of_map(map_, "discrete").data, status == "diverged"
    rows[Run].append({
        "id": run_id, "name": f"{map_} at {rate:.3g}, seed {seed}", "tags": [f"tag{run_id % 7}"], "config": config,
        "status": status, "created_at": at, "started_at": at + 5, "finished_at": None if running else at + 60 + run_id % 300,
        "attempt": 1, "seq": 3, "step": 120 if running or died else STEPS, "forms": [form], "host": f"gpu{run_id % 3}",
        "result": None if running else {"train_loss": "NaN" if died else run_id % 97 / 10}, "compacted_at": at + 700,
        "largest_ratio": math.exp(run_id % 23 - 8), "nearest_distance": 0.1 / (1 + run_id % 50), "bytes_stored": 5000 + run_id,
        "divergence": {"step": 120, "layer": 0, "eigenvalue": 3, "tensor": "w.grad", "value": "NaN"} if died else None,
    })  # fmt: skip
    item = scalar(TRAIN_LOSS)
    rows[SeriesRow].append({"run_id": run_id, "name": item.name, "group_name": item.group, "column_offset": 0, "width": 1,
                            "unit": item.unit, "derived": False, "form": None})  # fmt: skip
    rows[BlockRow].append({"run_id": run_id, "group_name": SCALARS, "level": 0, "first_step": 1, "last_step": STEPS, "stride": 1,
                           "point_count": STEPS, "column_count": 1, "attempt": 1, "seq": 2,
                           "payload": payloads[run_id % len(payloads)]})  # fmt: skip
    rows[Transition] += [{"run_id": run_id, "seq": seq, "status": state, "reason": "", "attempt": 1, "step": 0, "at": at}
                         for seq, state in ((1, "queued"), (3, status))]  # fmt: skip
    if died:
        rows[AlertRow].append({"run_id": run_id, "seq": 2, "attempt": 1, "kind": "nonfinite_loss", "severity": "critical",
                               "step": 120, "series": TRAIN_LOSS, "tensor": "", "value": "NaN", "message": "the loss is NaN",
                               "created_at": at})  # fmt: skip


@contextmanager
def serving(url: str, folder: Path) -> Iterator[tuple[str, str]]:
    """(address, token) of `stablessm serve` on the database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address, token = f"http://127.0.0.1:{port}", "benchmark-token-" + os.urandom(16).hex()
    state = folder / "state"
    state.mkdir(exist_ok=True)
    named = {"STABLESSM_DATA_DIR": str(state), "STABLESSM_DATABASE_URL": url, "STABLESSM_TOKEN": token}
    command = [sys.executable, "-m", "server", "serve", "--port", str(port)]
    # a training process would write into the runs that seem to train: they belong to nobody, and stay for longer than this takes
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **named, "STABLESSM_LEASE_SECONDS": "600"}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not _answers(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.1)
        yield address, token
    finally:
        server.terminate()
        server.wait(30)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz").is_success
    except httpx.TransportError:
        return False


def measure(address: str, token: str, rounds: int) -> dict[str, list[float]]:
    """Seconds by what was done (a number of another unit says so in its name)."""
    seen: dict[str, list[float]] = {"first paint": [], "filter": [], "sort": [], "curves": [], "requests": [], "layout shift": []}
    executable = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_init_script(SHIFTS)
        page = context.new_page()
        page.goto(f"{address}/?token={token}")
        for _ in range(rounds):
            requests: list[str] = []
            page.on("request", lambda request, to=requests: to.append(request.url))
            page.goto(f"{address}/", wait_until="load")
            page.locator("[data-drawn]").nth(49).wait_for()
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            seen["first paint"].append(page.wait_for_function(paint).json_value() / 1000)  # it is noted after the frame
            sparks = "performance.getEntriesByType('resource').filter((r) => r.name.includes('/api/sparks'))"
            seen["curves"].append(page.evaluate(f"{sparks}[0].duration") / 1000)
            seen["requests"].append(len([url for url in requests if "/api/" in url]))
            seen["layout shift"].append(page.evaluate("window.shifted"))
            for text in FILTERS:
                page.fill("#q", text)
                seen["filter"].append(_until_changed(page, lambda: page.press("#q", "Enter")))
            for head in ("loss", "created", "lr"):
                place = f'th[data-column="{head}"] a'
                seen["sort"].append(_until_changed(page, lambda place=place: page.click(place)))
        browser.close()
    return seen


def _until_changed(page: Page, act: Any) -> float:
    page.evaluate(f"() => {{ window.changed = ({CHANGED})() }}")
    act()
    return float(page.evaluate("window.changed")) / 1000


def written(seen: dict[str, list[float]], given: argparse.Namespace) -> str:
    kind = (given.database_url or "sqlite").partition(":")[0]
    lines = [
        "# The list of many runs",
        "",
        f"`python -m benchmarks.many_runs --runs {given.runs} --rounds {given.rounds}` on {time.strftime('%Y-%m-%d')}, database "
        f"{kind}; Chromium and server share the machine.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; load average {os.getloadavg()[0]:.1f}"
        + (" (other work was going on: not final figures)" if os.getloadavg()[0] > 2 else ""),
        "",
        "| what | best | median | worst | target |",
        "|---|---|---|---|---|",
    ]
    for name, values in seen.items():
        unit = "" if name in ("requests", "layout shift") else " s"
        target = f"{TARGETS[name]} s" if name in TARGETS else {"layout shift": "0.05"}.get(name, "-")
        seconds = " | ".join(f"{of(values):.3f}{unit}" for of in (min, statistics.median, max))
        lines.append(f"| {name} | {seconds} | {target} |")
    return "\n".join(
        [*lines, "", "`curves` is the one request for the loss curves of all rows; `requests` those to the API.", ""]
    )


if __name__ == "__main__":
    main()
