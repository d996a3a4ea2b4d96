"""Takes all screenshots in docs/ from a real installation: `python docs/pictures.py [NAME ...]`.

The script starts `stablessm up --demo` on an empty data directory, opens Chromium, records the first run until it diverges
(make-run.webp), and takes screenshots of the pages of ended runs.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from stablessm_core.client import Client

DOCS = Path(__file__).parent
RECORDING = "make-run.webp"
RECORDED_WIDTH = 1000  # width of the recording in pixels, about the width of a README on GitHub
LONGEST_PAUSE = 2500  # maximum time per frame in milliseconds, so that the wait while the worker loads torch is short
PAUSE_AT_END = 4000  # time for which the last frame is shown, in milliseconds; long enough to read the verdict
# name of the picture file: path of the page, colour scheme, size of the window in pixels
PAGES: dict[str, tuple[str, str, tuple[int, int]]] = {
    "diverged-run-page.png": ("/runs/1", "light", (1280, 1850)),
    "autopsy.png": ("/runs/1#autopsy", "light", (1280, 1130)),
    "run-page-dark.png": ("/runs/19", "dark", (1280, 1740)),
    "compare-page.png": ("/compare?runs=1,10,19", "light", (1280, 1275)),
    "theory-page.png": ("/theory", "light", (1280, 1080)),
    "systems-page.png": ("/systems", "light", (1280, 1500)),
    "paper-page.png": ("/paper", "light", (1280, 1500)),
}
# name of the picture file: layer of the small run that is trained for the picture, colour scheme
SYSTEMS = {
    "s4d-run-page.png": ("s4d", "light"),
    "mamba-run-page.png": ("mamba", "dark"),
    "gla-run-page.png": ("gla", "light"),
    "rwkv6-run-page.png": ("rwkv6", "dark"),
}
SMALL_RUN = {"task": {"name": "polynomial_memory", "length": 40}, "train": {"steps": 300, "batch_size": 8, "device": "cpu"}}


class Recorder:
    """Takes a sequence of screenshots of a page and stores the time of each screenshot."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[tuple[float, bytes]] = []

    def watch(self, until: Callable[[], bool], seconds: float) -> None:
        """Takes screenshots until `until` returns true or the given number of seconds has passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            self.frames.append((time.monotonic(), self.page.screenshot(type="jpeg", quality=92)))
            self.page.wait_for_timeout(60)

    def rest(self, seconds: float) -> None:
        self.watch(lambda: False, seconds)

    def save(self, target: Path) -> None:
        """Writes the screenshots as one animated picture. Equal consecutive screenshots become one frame."""
        pictures: list[Image.Image] = []
        times: list[float] = []
        for moment, data in self.frames:
            picture = Image.open(io.BytesIO(data)).convert("RGB")
            picture = picture.resize(
                (RECORDED_WIDTH, round(picture.height * RECORDED_WIDTH / picture.width)), Image.Resampling.LANCZOS
            )
            if not pictures or picture.tobytes() != pictures[-1].tobytes():
                pictures.append(picture)
                times.append(moment)
        shown = [round(1000 * (after - before)) for before, after in itertools.pairwise(times)]
        durations = [min(LONGEST_PAUSE, milliseconds) for milliseconds in shown] + [PAUSE_AT_END]
        pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=75, method=6)


def record(page: Page, url: str, target: Path) -> None:
    """Records the first run of the demo: the list of runs, the run's page until the run has diverged, and the verdict."""
    recorder = Recorder(page)
    page.goto(url)
    recorder.rest(1.0)
    page.get_by_role("link", name="direct, lr 0.2, seed 0").first.click()
    recorder.watch(lambda: step(page) >= 1 or status(page) == "diverged", 60)
    scroll(page, "[data-controls]")
    recorder.watch(lambda: status(page) == "diverged", 60)
    recorder.rest(2.0)
    page.evaluate("() => window.scrollTo({top: 0, behavior: 'smooth'})")
    recorder.rest(3.0)
    recorder.save(target)


def photograph(page: Page, address: str, target: Path) -> None:
    page.goto(address, wait_until="networkidle")
    drawn, still = 0, 0
    charts = page.locator("[data-chart]").count()
    while still < 4:  # until no chart has been drawn for two seconds
        page.wait_for_timeout(500)
        before, drawn = drawn, page.locator(".main-svg").count()
        still = still + 1 if before == drawn and (drawn or not charts) else 0
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # MAXCOVERAGE keeps the rare colours of thin lines; k-means then adjusts the palette to the backgrounds
    picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(target, optimize=True)


def scroll(page: Page, selector: str) -> None:
    page.evaluate("(s) => document.querySelector(s).scrollIntoView({behavior: 'smooth', block: 'start'})", selector)


def step(page: Page) -> int:
    return int(page.evaluate("() => Number(document.documentElement.dataset.lastStep || 0)"))


def status(page: Page) -> str:
    return str(page.evaluate("() => document.querySelector('[data-verdict]')?.dataset.verdict ?? ''"))


def wait_for_runs(page: Page, url: str, path: str) -> None:
    """Waits until all runs up to the largest number in `path` have ended, because a run's page also shows its siblings."""
    last = max((int(number) for number in re.findall(r"\d+", path)), default=0)
    while True:
        runs: list[dict[str, Any]] = page.request.get(f"{url}/api/runs").json()["runs"]
        if not any(run["id"] <= last and run["status"] in ("queued", "running") for run in runs):
            return
        time.sleep(1)


def wait_for_autopsies(page: Page, url: str, path: str) -> None:
    """Waits for the autopsies of the diverged runs in `path`. Asks for them, because others wait until no run trains."""
    for number in re.findall(r"\d+", path):
        autopsy = f"{url}/api/runs/{number}/autopsy"
        if page.request.get(f"{url}/api/runs/{number}").json()["status"] != "diverged":
            continue
        if page.request.get(autopsy).json()["state"] == "queued":
            page.request.post(autopsy, data={})
        while page.request.get(autopsy).json()["state"] in ("queued", "running"):
            time.sleep(1)


def main(names: list[str]) -> None:
    names = names or [RECORDING, *PAGES, *SYSTEMS]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        command = [sys.executable, "-m", "server", "up", "--demo", "--port", str(port), "--data-dir", f"{place}/state"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert started.stdout is not None
            address = next(found for line in started.stdout if (found := re.search(r"http://\S+", line)))[0]
            url = address.partition("/?")[0]
            chromium = os.environ.get("CHROMIUM_PATH", "/usr/bin/chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 880})
            page.goto(address)
            if RECORDING in names:
                record(page, url, DOCS / RECORDING)
            wait_for_runs(page, url, " ".join(PAGES[name][0] for name in names if name in PAGES))
            for name in names:
                if name in SYSTEMS:
                    layer, scheme = SYSTEMS[name]
                    config = SMALL_RUN | {"model": {"layer": layer, "d_model": 16, "n_layers": 1, "mlp_expansion": 0}}
                    made = Client(url, address.rpartition("=")[2]).submit(config)
                    wait_for_runs(page, url, str(made["id"]))
                    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    page.set_viewport_size({"width": 1280, "height": 2500})
                    photograph(page, f"{url}/runs/{made['id']}", DOCS / name)
                if name in PAGES:
                    path, scheme, (width, height) = PAGES[name]
                    if path.startswith("/runs/"):
                        wait_for_autopsies(page, url, path)
                    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    page.set_viewport_size({"width": width, "height": height})
                    photograph(page, url + path, DOCS / name)
            browser.close()
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(20)


if __name__ == "__main__":
    main(sys.argv[1:])
