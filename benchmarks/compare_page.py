"""How fast does Chromium show the page that compares many runs? Times the first draw of the lines, a toggle and a highlight.

    python -m benchmarks.compare_page [--runs 200] [--steps 2000] [--repeats 5] [--serve]

Fills a SQLite database with ended runs that differ in reparameterization map, learning rate and seed. Runs with the least
stable maps diverge at high learning rates. Then starts a server on the database and opens /compare with all runs. The browser's
own clock measures all times. The first draw is timed from the start of the navigation to the second frame after the lines are
drawn. A toggle or a highlight is timed from its event to the second frame after the event (without any work, two frames take 33
ms). The benchmark needs the test extras (playwright) and Chromium. With `--serve` it serves the runs and measures nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.service import Serving, browser, new_database, serving, submit_and_claim
from server.database.connection import Database
from server.database.models import Run, Sweep
from server.ingest.post import store
from server.lifecycle import transitions as lifecycle
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.forms import DERIVED, Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, layer_catalogue, layer_group, scalar
from stablessm_core.telemetry.sink import Flush

MAPS = ("direct", "relu", "clip", "exp", "softplus", "tanh", "best")
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WIDTH = 16
GRID = {"model.reparameterization.name": list(MAPS), "optimizer.lr": list(RATES), "train.seed": [0, 1, 2, 3, 4]}

CURVES = "document.querySelector('[data-curves-url]').dataset.lossUrl"
DRAWN = "document.querySelector('[data-chart=compare_loss]').dataset.drawnAt"
SIZE = f"async () => (await (await fetch({CURVES})).arrayBuffer()).byteLength"
TOGGLE = """async (selector) => {
  const box = document.querySelector(selector), start = performance.now();
  box.click();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start;
}"""
HIGHLIGHT = """async (selector) => {
  const row = document.querySelector(selector), start = performance.now();
  row.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help="only make the runs and serve them, until Ctrl-C")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, new_database("sqlite", Path(folder)) as database:
        began = time.perf_counter()
        fill(database, options.runs, options.steps)
        print(f"{options.runs} runs of {options.steps} steps made in {time.perf_counter() - began:.1f} s", flush=True)
        with serving(database, Path(folder)) as server:
            print(f"{server.url}/compare?sweep=1  (token {server.token})", flush=True)
            if options.serve:
                threading.Event().wait()
            measure(server, options.repeats)


def fill(database: Database, runs: int, steps: int) -> None:
    """Stores one sweep of ended runs with a falling, noisy loss. Most runs with the map direct or relu and a high learning rate
    end in NaN."""
    with database.write() as session:
        sweep = Sweep(base={"task": {"name": "polynomial_memory"}}, grid=GRID, name="maps by rate", created_at=time.time())
        session.add(sweep)
        session.flush()
        number = sweep.id
    cells = [(m, lr, seed) for seed in GRID["train.seed"] for lr in RATES for m in MAPS]
    for i in range(runs):
        one_run(database, number, *cells[i % len(cells)], steps)


def one_run(database: Database, sweep: int, map_name: str, lr: float, seed: int, steps: int) -> None:
    rng = np.random.default_rng([MAPS.index(map_name), RATES.index(lr), seed])
    model = {"reparameterization": {"name": map_name}, "d_state": WIDTH}
    config = {"task": {"name": "polynomial_memory"}, "name": f"{map_name} {lr:g} seed {seed}", "model": model}
    config |= {"optimizer": {"lr": lr}, "train": {"steps": steps, "seed": seed}}
    dies = map_name in ("direct", "relu") and lr >= 0.3 and seed != 1
    outside = map_name == "direct" and lr >= 0.03 and not dies
    done = int(steps * rng.uniform(0.1, 0.6)) if dies else steps
    claim = submit_and_claim(database, parse_config(config))
    run_id = claim.run_id
    form = Form.of_map(map_name, "discrete")
    t = np.arange(done)
    floor = 10 ** (-2 + abs(math.log10(lr / 0.03)) * 0.4 + MAPS.index(map_name) * 0.05)
    loss = floor + np.exp(-t * lr / 2) * np.exp(rng.normal(0, 0.25, done))
    if dies:
        loss[-1] = np.nan
    loss = np.maximum(loss * np.exp(rng.normal(0, 0.1, done)), 1e-6)
    weight = np.full((WIDTH, done), 0.5) + rng.normal(0, 0.01, (WIDTH, done))
    ratio = np.exp(rng.normal(-3, 1, (WIDTH, done)))
    if map_name == "softplus":
        weight[0, :200], ratio[0, :200] = 0, np.inf
    with np.errstate(all="ignore"):
        derived = [form.derive(kind, {"weight": weight}) for kind in DERIVED]
        groups = {
            SCALARS: (loss[None], loss[None]),
            layer_group(0): (p := np.concatenate([ratio, weight]), np.concatenate([p, *derived])),
        }
        blocks = []
        for group, (raw, all_columns) in groups.items():
            blocks += [
                Block(group, 0, 1, 1, raw.astype(np.float32)),
                *LevelBuilder(group, 1).feed(1, all_columns.astype(np.float32)),
            ]
    with database.write() as session:
        store(session, run_id, claim.attempt, CatalogueMessage([scalar(TRAIN_LOSS), *layer_catalogue(0, WIDTH, form)]))
        store(session, run_id, claim.attempt, Flush(blocks, [], done, 100.0))
    with database.write() as session:
        result = {"train_loss": "NaN" if dies else float(np.median(loss[-20:])), "seconds": done / 100}
        where = {"step": done, "layer": 0, "eigenvalue": 3, "tensor": "ssm.state", "value": "NaN"} if dies else None
        lifecycle.finish(session, run_id, claim.attempt, "diverged" if dies else "finished", "", result, where)
        run = session.get_one(Run, run_id)
        run.sweep_id = sweep
        run.nearest_distance, run.judged_at = (-0.2 if dies or outside else 0.01), time.time()
        run.unstable = {"eigenvalues": 3, "of": WIDTH, "worst_distance": -0.2} if outside else None


def measure(server: Serving, repeats: int) -> None:
    with browser() as chromium:
        context = chromium.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(server.login_url)
        rows: list[tuple[str, list[float]]] = []
        for name, query in (("groups by map", "show=groups"), ("a line per run", "show=runs")):
            first, data, shown = [], [], []
            for _ in range(repeats):
                page.goto(f"{server.url}/compare?sweep=1&{query}")
                page.wait_for_selector("[data-chart=compare_loss][data-drawn-at]")
                first.append(float(page.evaluate(f"Number({DRAWN})")))
                arrived = f"performance.getEntriesByName(new URL({CURVES}, location.href).href)[0]?.responseEnd ?? NaN"
                data.append(float(page.evaluate(arrived)))
                shown.append(float(page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")))
            rows += [(f"{name}: page is there", shown), (f"{name}: curves are there", data), (f"{name}: first draw", first)]
        boxes = [f"tr[data-run='{i}'] input" for i in range(5, 5 + repeats)]
        rows.append(("toggle one of all lines", [float(page.evaluate(TOGGLE, box)) for box in boxes]))
        trs = [f"tr[data-run='{i}']" for i in range(25, 25 + repeats)]
        rows.append(("highlight one of all lines", [float(page.evaluate(HIGHLIGHT, row)) for row in trs]))
        size = page.evaluate(SIZE)
    print(f"\nanswer with all curves: {size / 1e6:.2f} MB\n")
    print("| what | median ms | smallest | largest |\n| --- | ---: | ---: | ---: |")
    for name, times in rows:
        print(f"| {name} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")


if __name__ == "__main__":
    main()
