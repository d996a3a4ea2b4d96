"""How long after a program has sent its steps does the chart on an open page show them, compared with a run of our own?

    python -m benchmarks.ingest_chart [--seconds 30] [--rate 4] [--database-url postgresql+psycopg://...]

Chromium shows the page of a run. The benchmark stores a few steps at a time: of a reported run by a post, of a trained run
through the functions with which a worker stores. The page notes when its chart of the loss has drawn a step. The time runs from
the start of the post, or of the transaction, to that moment.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ingest import LIVE_WIDTH, bodies, layer, open_run, post
from benchmarks.live import WATCH
from benchmarks.live_tab import LiveRun
from benchmarks.service import POSTGRES, Serving, browser, machine, new_database, percentiles, serving
from server.database.connection import Database
from server.lifecycle.event_wakeups import publisher
from stablessm_core.report.frames import CONTENT_TYPE

STEPS = 5  # that are stored at a time
FIRST_STEPS = 20  # stores before the measurement, so that the page has drawn its charts
PATIENCE = 120.0  # seconds that the page has for the last steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each measurement")
    parser.add_argument("--rate", type=float, default=4.0, help="stores per second")
    parser.add_argument("--database-url", default=POSTGRES, help="the PostgreSQL server; an empty text measures SQLite alone")
    given = parser.parse_args()
    print(machine(), flush=True)
    for name, url in [("SQLite", None)] + [("PostgreSQL", given.database_url)] * bool(given.database_url):
        with tempfile.TemporaryDirectory() as folder, new_database(url, Path(folder)) as database:
            limits = {"ingest_posts_per_minute": "0", "ingest_mib_per_minute": "0"}
            own = LiveRun(database, LIVE_WIDTH)
            with serving(database, Path(folder), **limits) as server, browser() as chromium:
                page = chromium.new_context(viewport={"width": 1400, "height": 900}).new_page()
                page.add_init_script(WATCH)
                page.goto(server.login_url, timeout=120_000)
                run, store = reported(server)
                print(f"{name}, reported: {delays(page, server, run, store, given.seconds, given.rate)}", flush=True)
                store = trained(own, database)
                print(f"{name}, trained: {delays(page, server, own.run, store, given.seconds, given.rate)}", flush=True)
    print(machine())


def reported(server: Serving) -> tuple[int, Callable[[], int]]:
    """A reported run, and a function that posts its next steps and returns the last of them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    path, attempt = open_run(connection, server, layer(LIVE_WIDTH))
    source = bodies(LIVE_WIDTH, STEPS, 1)
    last, posted = 0, time.monotonic()

    def store() -> int:
        nonlocal last, posted
        body, _ = next(source)
        if time.monotonic() - posted > 1.0:  # the server may have closed it while the page was loading
            connection.close()
        post(connection, server, path, body, CONTENT_TYPE, attempt)
        posted = time.monotonic()
        last += STEPS
        return last

    return int(path.split("/")[4]), store


def trained(run: LiveRun, database: Database) -> Callable[[], int]:
    """A function that stores and announces the next steps of a run as a worker does, and returns the last of them."""
    publish = publisher(database, None)

    def store() -> int:
        run.write(STEPS)
        publish(run.run)
        return run.step

    return store


def delays(page: Any, server: Serving, run: int, store: Callable[[], int], seconds: float, rate: float) -> str:
    """How long after each store the chart of the run's page shows its last step."""
    for _ in range(FIRST_STEPS):
        last = store()
    page.goto(f"{server.url}/runs/{run}", timeout=120_000)
    wait_for(page, last)
    sent: list[tuple[int, float]] = []
    begun = time.time()
    while time.time() - begun < seconds:
        at = time.time()
        sent.append((store(), at))
        page.wait_for_timeout(max(1.0, 1000 * (begun + len(sent) / rate - time.time())))
    wait_for(page, sent[-1][0])
    seen = page.evaluate("window.seen")
    found = [next(at for shown, at in seen if shown >= step) - before for step, before in sent]
    return f"{len(found)} times {STEPS} steps, {rate:g} a second: on the chart after {percentiles(found)}"


def wait_for(page: Any, step: int) -> None:
    """Wait until the chart shows the step. Raises RuntimeError after PATIENCE seconds."""
    ends = time.monotonic() + PATIENCE
    while page.evaluate("window.seen.at(-1)?.[0] ?? 0") < step:
        if time.monotonic() > ends:
            raise RuntimeError(f"after {PATIENCE:g} s the chart does not show step {step}: {page.evaluate('window.seen.at(-1)')}")
        page.wait_for_timeout(50)


if __name__ == "__main__":
    main()
