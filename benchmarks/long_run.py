"""How fast does Chromium open the page of a very long run: 1,000,000 steps, 8 layers, 256 eigenvalues per layer?

    python -m benchmarks.long_run make FOLDER [--steps 1000000] [--layers 8] [--width 256]
    python -m benchmarks.long_run measure FOLDER [--repeat 5]

`make` does not train. It writes every raw block and every level through the functions that store a worker's records. Every
value of layer 0 is noise. The values of the other layers are constant, so that the file stays small: each of these layers has
as many rows as layer 0, but shorter payloads. One ratio of layer 0 is NaN. `measure` starts `stablessm serve` on the folder and
prints a table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import browser, serving, submit_and_claim
from server.database.connection import Database
from server.ingest.post import store
from server.lifecycle import transitions as lifecycle
from stablessm_core.report.messages import CatalogueMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.forms import DERIVED, Form
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.stability import overflow_budget, relative_step

BLOCK = 2048  # number of steps in a raw block after compaction
NOISE = 8  # number of different blocks of noise, used in rotation
NAN_AT = (654_321, 77)  # step and eigenvalue of the only NaN
SCALARS = (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)
ZOOMS = {"300,000 steps": (100_000, 400_000), "100,000 steps": (200_000, 300_000), "3,000 steps": (500_000, 503_000)}
DRAWN = "[data-chart='%s'][data-drawn]"
ZOOM = """([low, high]) => new Promise((done) => {
  const loss = document.querySelector('[data-chart="loss"]');
  const heat = document.querySelector('[data-chart="grad_over_weight_heatmap"]');
  heat.scrollIntoView();
  setTimeout(() => {
    const start = performance.now();
    const seen = () => {
      const x = heat.data?.[0]?.x ?? [];
      return x.length > 100 && x[0] >= low - (high - low) / 50 && x[x.length - 1] <= high + (high - low) / 50;
    };
    const look = () => (seen() ? done(performance.now() - start) : requestAnimationFrame(look));
    Plotly.relayout(loss, {"xaxis.range[0]": low, "xaxis.range[1]": high}).then(look);
  }, 1000);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "measure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    if given.what == "make":
        given.folder.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        run_id = make(url_of(given.folder), given.steps, given.layers, given.width)
        print(f"run {run_id} of {given.steps:,} steps in {time.perf_counter() - begun:.0f} s")
    else:
        print("\n".join(measure(given.folder, given.repeat)))


def make(url: str, steps: int, layers: int, width: int) -> int:
    """Write the run. Returns its id."""
    database = Database(url)
    database.migrate()
    model = {"n_layers": layers, "d_state": width, "reparameterization": {"name": "best"}}
    body = {"name": "long", "task": {"name": "polynomial_memory"}, "model": model, "train": {"steps": steps}}
    config = parse_config(body)
    claim = submit_and_claim(database, config)
    form, length = Form.of_map("best", "discrete"), config.task.sequence_length()
    catalogue = [names.scalar(name) for name in SCALARS]
    for layer in range(layers):
        catalogue += names.layer_catalogue(layer, width, form)
        catalogue += names.following_catalogue(layer, width, form, length=length, every_eigenvalue=True)
    with database.write() as session:
        store(session, claim.run_id, claim.attempt, CatalogueMessage(catalogue))
    groups = [names.SCALARS, *(names.layer_group(layer) for layer in range(layers))]
    derived = [names.derived_group(layer) for layer in range(layers)]
    builders = {group: LevelBuilder(group, 1) for group in (*groups, *derived)}
    noise, still = _noise(width, form), [_still(width, form)]
    following = {group: _following(noise if group == derived[0] else still, width, length) for group in derived}
    for first in range(1, steps + 1, BLOCK):
        count = min(BLOCK, steps - first + 1)
        at = np.arange(first, first + count)
        blocks: list[Block] = []
        for group in groups:
            if group == names.SCALARS:
                values = _scalars(at, steps)
            elif group == names.layer_group(0):
                values = noise[first // BLOCK % NOISE][:, :count].copy()
                values[:width] *= np.float32(np.exp(first / steps))
                if first <= NAN_AT[0] < first + count and width > NAN_AT[1]:
                    values[NAN_AT[1], NAN_AT[0] - first] = np.nan
            else:
                values = still[0][:, :count]
            recorded = len(values) if group == names.SCALARS else 2 * width
            blocks += [Block(group, 0, first, 1, np.ascontiguousarray(values[:recorded]))]
            blocks += builders[group].feed(first, values)
        for group, pieces in following.items():  # these series need the next step, so their newest step is missing
            blocks += builders[group].feed(first, pieces[first // BLOCK % len(pieces)][:, : min(count, steps - first)])
        with database.write() as session:
            store(session, claim.run_id, claim.attempt, Flush(blocks, [], int(at[-1]), 100.0))
    with database.write() as session:
        lifecycle.finish(session, claim.run_id, claim.attempt, "finished", "")
    database.close()
    return claim.run_id


def measure(folder: Path, repeat: int) -> list[str]:
    """The lines of a table about the page of run 1: times to open the page with a cold and a warm cache, numbers of requests,
    megabytes sent, and times to zoom."""
    lines = ["| | median | from | to |", "| --- | ---: | ---: | ---: |"]
    with serving(url_of(folder), folder) as server:
        found: dict[str, list[float]] = {}
        for _ in range(repeat):
            with browser() as chromium:
                page = chromium.new_context(viewport={"width": 1280, "height": 1000}).new_page()
                page.goto(f"{server.url}/workers?token={server.token}")
                for state in ("cold", "warm", "warm"):
                    for name, value in opened(page, f"{server.url}/runs/1").items():
                        found.setdefault(f"{state}: {name}", []).append(value)
                for name, (low, high) in ZOOMS.items():
                    found.setdefault(f"zoom to {name}: all visible charts, s", []).append(zoomed(page, low, high))
    for name, values in found.items():
        lines.append(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")
    return lines


def opened(page: Any, url: str) -> dict[str, float]:
    """The seconds from the navigation until charts are drawn, the number of requests, and the megabytes sent."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    wire, requests = [0.0], [0]
    session.on("Network.loadingFinished", lambda event: wire.__setitem__(0, wire[0] + event["encodedDataLength"]))
    session.on("Network.requestWillBeSent", lambda _: requests.__setitem__(0, requests[0] + 1))
    page.goto(url, wait_until="commit")
    page.wait_for_selector(DRAWN % "loss")
    first = page.evaluate("performance.now()") / 1000
    page.wait_for_selector(DRAWN % "grad_over_weight_heatmap")
    every = page.evaluate("performance.now()") / 1000
    page.wait_for_selector(DRAWN % "weight", state="attached")
    session.detach()
    return {"first chart, s": first, "heat map, s": every, "requests": requests[0], "MB": wire[0] / 1e6}


def zoomed(page: Any, low: int, high: int) -> float:
    """The time from a change of the loss chart's range until the heat map shows the new range at full resolution, in
    seconds."""
    return float(page.evaluate(ZOOM, [low, high])) / 1000


def _noise(width: int, form: Form) -> list[np.ndarray]:
    # for each block, float32 (4 * width, BLOCK) with the rows of ratio, weight, eigenvalue and boundary distance
    rng = np.random.default_rng(0)
    start = np.linspace(0.2, 3.0, width)[:, None]
    pieces = []
    for _ in range(NOISE):
        ratio = np.exp(rng.standard_normal((width, BLOCK), np.float32) - 3)
        weight = (start + 0.05 * rng.standard_normal((width, BLOCK))).astype(np.float32)
        pieces.append(_with_derived(ratio, weight, form))
    return pieces


def _still(width: int, form: Form) -> np.ndarray:
    weight = np.repeat(np.linspace(0.2, 3.0, width, dtype=np.float32)[:, None], BLOCK, axis=1)
    return _with_derived(weight / 10, weight, form)


def _with_derived(ratio: np.ndarray, weight: np.ndarray, form: Form) -> np.ndarray:
    derived = [form.derive(kind, {"weight": weight.astype(np.float64)}) for kind in DERIVED]
    return np.concatenate([ratio, weight, *derived]).astype(np.float32)


def _following(pieces: list[np.ndarray], width: int, length: int) -> list[np.ndarray]:
    # float32 (width + 1, BLOCK): relative step and overflow budget; the last relative step uses the next block in the rotation
    lambda_, distance = (slice((2 + i) * width, (3 + i) * width) for i in range(2))
    found = []
    for piece, after in zip(pieces, pieces[1:] + pieces[:1], strict=True):
        whole = np.concatenate([piece, after[:, :1]], axis=1).astype(np.float64)
        moved = relative_step(whole[lambda_].T, whole[distance].T).T
        budget = overflow_budget(length, whole[distance, :-1].min(axis=0, keepdims=True))
        found.append(np.concatenate([moved, budget]).astype(np.float32))
    return found


def _scalars(at: np.ndarray, steps: int) -> np.ndarray:
    rng = np.random.default_rng(int(at[0]))
    loss = np.exp(-at / steps * 4) * np.exp(0.1 * rng.standard_normal(len(at)))
    return np.stack([loss, np.full(len(at), 1e-3), np.exp(rng.standard_normal(len(at)))]).astype(np.float32)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder.resolve() / 'stablessm.db'}"


if __name__ == "__main__":
    main()
