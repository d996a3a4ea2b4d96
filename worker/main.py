"""The worker: claims queued runs and trains each in a process of its own, woken by polling the database or by Celery.

It never imports torch itself. SIGTERM or Ctrl-C: runs checkpoint and go back to the queue, every process is gone within 8 s.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from pathlib import Path
from types import FrameType

import click

from server.logs import start_logging
from server.parent_death import die_with_parent
from server.runs.queues import MAX_NAME, QUEUE_PATTERN
from server.settings import LEASES, Settings, make_private
from worker.gpus import GpuError
from worker.lanes import Lanes
from worker.metrics import serve_metrics

POLL_SECONDS = 0.25
BROKER_POLL_SECONDS = 2.0  # a message may wake a worker that cannot train the run, and never wake the one that can

log = logging.getLogger("worker")


def _queue_names(_context: click.Context, _parameter: click.Parameter, given: str | None) -> list[str] | None:
    if given is None:
        return None
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("names no queue; allowed are names separated by commas, or leave it out for every queue")
    for name in names:
        if len(name) > MAX_NAME or not re.match(QUEUE_PATTERN, name):
            raise click.BadParameter(f"{name[:80]!r}; allowed are letters, digits, . _ -, at most {MAX_NAME}")
    return names


@click.command()
@click.option("--database-url", help="Default: STABLESSM_DATABASE_URL, else SQLite in the data directory.")
@click.option("--broker-url", help="Redis to be woken by. Default: STABLESSM_BROKER_URL, else the database is polled.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="State: checkpoints, logs, spool. Default: STABLESSM_DATA_DIR.")
@click.option("--data-root", type=click.Path(path_type=Path), help="Data sets. Default: STABLESSM_DATA.")
@click.option(
    "--slots",
    envvar="STABLESSM_SLOTS",
    type=click.IntRange(1, 64),
    help="Runs trained at a time. Default: STABLESSM_SLOTS, else one per GPU that is free at the start, else 1.",
)
@click.option(
    "--queues",
    envvar="STABLESSM_QUEUES",
    callback=_queue_names,
    metavar="NAME,...",
    help="Queues to take runs from. Default: STABLESSM_QUEUES, else every queue.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(*LEASES),
    help="A run without a sign of life for so long is given to another worker. The same on every worker and server. "
    "Default: STABLESSM_LEASE_SECONDS, else 25.",
)
@click.option("--spool-mib", type=click.IntRange(1), default=2048, help="Disk per run while the database is away. Default: 2048.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Prometheus metrics of this worker; 0 takes a free one. Default: none."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Where: whoever reaches it reads them, no token.")
@click.option("--parent-pid", type=int, help="Process that starts this one: stop when it is gone.")
def main(
    database_url: str | None,
    broker_url: str | None,
    data_dir: Path | None,
    data_root: Path | None,
    slots: int | None,
    queues: list[str] | None,
    lease_seconds: float | None,
    spool_mib: int,
    metrics_port: int | None,
    metrics_host: str,
    parent_pid: int | None,
) -> None:
    """Train queued runs."""
    start_logging()
    if parent_pid is not None:
        die_with_parent(parent_pid)
    given = {"database_url": database_url, "broker_url": broker_url, "data_dir": data_dir, "data_root": data_root}
    try:
        settings = Settings.from_environment(**given, lease_seconds=lease_seconds)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    make_private(settings.data_dir)
    try:
        lanes = Lanes(settings, slots=slots, spool_bytes=spool_mib << 20, queues=queues)
    except GpuError as error:
        raise click.ClickException(str(error)) from None
    if metrics_port is not None:
        serve_metrics(metrics_host, metrics_port, settings.data_dir, lanes.counts, lanes.writes)

    def asked(_number: int, _frame: FrameType | None) -> None:
        lanes.stop.set()  # a second signal changes nothing: Ctrl-C reaches us from the terminal and from our parent

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    if settings.broker_url:
        # before any thread sends a wake-up: celery replaces its module on import, and two threads at once see half of it
        from worker.celery_app import listen
    lanes.open()
    way = "Celery" if settings.broker_url else "polling"
    log.info("worker %s with %d slots, woken by %s", lanes.id, len(lanes), way)
    pollers = _start_polling(lanes, BROKER_POLL_SECONDS if settings.broker_url else POLL_SECONDS)
    if settings.broker_url:
        threading.Thread(target=listen, args=(settings.broker_url, lanes), name="celery", daemon=True).start()
    lanes.stop.wait()
    log.info("stopping")
    for poller in pollers:
        poller.join()
    lanes.close()
    log.info("worker stopped")
    logging.shutdown()
    os._exit(0)  # what is left are daemon threads; none of them may hold up the exit


def _start_polling(lanes: Lanes, seconds: float) -> list[threading.Thread]:
    """Threads that look into the database themselves, one per lane."""

    def poll() -> None:
        while not lanes.stop.wait(seconds):
            lanes.work()

    threads = [threading.Thread(target=poll, name=f"lane-{number}", daemon=True) for number in range(len(lanes))]
    for thread in threads:
        thread.start()
    return threads
