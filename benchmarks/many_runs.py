"""How fast does a real browser show the list of thousands of runs? Measures the first paint, filtering, sorting, the number of
requests and the layout shift.

    python -m benchmarks.many_runs [--runs 5000] [--rounds 7] [--database-url postgresql+psycopg://...] [--write FILE] [--serve]

Inserts runs directly into a database (a new SQLite file, or the empty database at --database-url) and starts `stablessm serve`
on it. `--serve` keeps the server running for manual inspection. Chromium's own clock measures the times. Filtering and sorting
are timed from the key press or click to the second frame after the rows are replaced.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import Rows, Serving, add_recorded_run, browser, fill, serving
from server.database.connection import Database
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar

STEPS = 150
MAPS = ("direct", "best", "softplus", "exp")
STATUSES = ("finished", "finished", "finished", "diverged", "failed", "cancelled")
TARGETS = {"first paint": 0.5, "filter": 0.3, "sort": 0.3}
FILTERS = ("reparam=best lr>=0.005", "status=diverged", "tag=tag3 OR seed=4", "task=polynomial_memory", "")
# resolves to the time from the key press or click to the second frame after the list was replaced, in milliseconds
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
        url = given.database_url or f"sqlite:///{folder}/stablessm.db"
        database = Database(url)
        database.migrate()
        now = time.time()
        fill(database, given.runs, lambda rows, run_id: add_run(rows, run_id, given.runs, now))
        database.close()
        with serving(url, Path(folder)) as server:
            if given.serve:
                print(server.login_url, flush=True)
                while True:
                    time.sleep(60)
            seen = measure(server, given.rounds)
    report = written(seen, given)
    print(report)
    if given.write:
        given.write.write_text(report, encoding="utf-8")


def add_run(rows: Rows, run_id: int, runs: int, now: float) -> None:
    """Append the rows of one run. Runs differ in map, learning rate, seed, status, tags and recorded values. All runs except
    the newest two have ended."""
    running, at = run_id > runs - 2, now - 600.0 * (runs - run_id)
    map_, status = MAPS[run_id % 4], "running" if running else STATUSES[run_id % len(STATUSES)]
    rate, seed = 10 ** -(run_id % 7 / 2), run_id % 5
    config = parse_config(
        {
            "task": {"name": "polynomial_memory"}, "model": {"reparameterization": {"name": map_}}, "optimizer": {"lr": rate},
            "train": {"seed": seed, "steps": STEPS},
        }
    ).model_dump(mode="json")  # fmt: skip
    form, died = Form.of_map(map_, "discrete").data, status == "diverged"
    run = {
        "id": run_id, "name": f"{map_} at {rate:.3g}, seed {seed}", "tags": [f"tag{run_id % 7}"], "config": config,
        "status": status, "created_at": at, "started_at": at + 5, "finished_at": None if running else at + 60 + run_id % 300,
        "step": 120 if running or died else STEPS, "forms": [form], "host": f"gpu{run_id % 3}",
        "result": None if running else {"train_loss": "NaN" if died else run_id % 97 / 10}, "compacted_at": at + 700,
        "largest_ratio": math.exp(run_id % 23 - 8), "nearest_distance": 0.1 / (1 + run_id % 50), "bytes_stored": 5000 + run_id,
        "divergence": {"step": 120, "layer": 0, "eigenvalue": 3, "tensor": "w.grad", "value": "NaN"} if died else None,
    }  # fmt: skip
    add_recorded_run(rows, run, [scalar(TRAIN_LOSS)], [(SCALARS, 1, PAYLOADS[run_id % len(PAYLOADS)])], STEPS)


def losses() -> list[bytes]:
    """Eight encoded loss curves, one of which becomes NaN."""
    rng = np.random.default_rng(1)
    curves = [np.exp(-np.linspace(0, k, STEPS) + rng.normal(0, 0.1, STEPS)).astype(np.float32)[None] for k in range(1, 9)]
    curves[3][0, 120:] = np.nan
    return [encode(curve) for curve in curves]


PAYLOADS = losses()


def measure(server: Serving, rounds: int) -> dict[str, list[float]]:
    """The measurements of each kind, by name: times in seconds, numbers of requests, and layout-shift scores of the browser."""
    seen: dict[str, list[float]] = {"first paint": [], "filter": [], "sort": [], "curves": [], "requests": [], "layout shift": []}
    with browser() as chromium:
        context = chromium.new_context(viewport={"width": 1440, "height": 900})
        context.add_init_script(SHIFTS)
        page = context.new_page()
        page.goto(server.login_url)
        for _ in range(rounds):
            requests: list[str] = []
            page.on("request", lambda request, to=requests: to.append(request.url))
            page.goto(f"{server.url}/", wait_until="load")
            page.locator("[data-drawn]").nth(49).wait_for()
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            seen["first paint"].append(
                page.wait_for_function(paint).json_value() / 1000
            )  # the browser records the first paint only after the frame
            sparks = "performance.getEntriesByType('resource').filter((r) => r.name.includes('/api/sparks'))"
            seen["curves"].append(page.evaluate(f"{sparks}[0].duration") / 1000)
            seen["requests"].append(len([url for url in requests if "/api/" in url]))
            seen["layout shift"].append(page.evaluate("window.shifted"))
            for text in FILTERS:
                page.fill("#q", text)
                seen["filter"].append(_until_changed(page, lambda: page.press("#q", "Enter")))
            for head in ("loss", "created", "lr"):
                link = f'th[data-column="{head}"] a'
                seen["sort"].append(_until_changed(page, lambda link=link: page.click(link)))
    return seen


def _until_changed(page: Any, act: Callable[[], object]) -> float:
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
        [*lines, "", "`curves`: the one request for the loss curves of all rows. `requests`: the number of API requests.", ""]
    )


if __name__ == "__main__":
    main()
