"""The running worker: its lanes claim queued runs and train them, woken by polling the database or by Celery.

The worker process never imports torch. After SIGTERM or Ctrl-C, runs write a checkpoint and return to the queue, and every
process ends within 8 s.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from server.settings import Settings
from worker.lanes import Lanes
from worker.metrics import serve_metrics
from worker.process_pool import ProcessPool

POLL_SECONDS = 0.25
# time between polls with a broker, in seconds; polling is needed because a message may wake a worker that cannot train the run
BROKER_POLL_SECONDS = 2.0

log = logging.getLogger("worker")


def run_worker(
    settings: Settings,
    processes: ProcessPool,
    *,
    spool_bytes: int,
    queues: list[str] | None,
    metrics_host: str,
    metrics_port: int | None,
) -> NoReturn:
    """Train queued runs until SIGTERM or SIGINT, then end this process."""
    lanes = Lanes(settings, processes, spool_bytes=spool_bytes, queues=queues)
    if metrics_port is not None:
        serve_metrics(metrics_host, metrics_port, settings.data_dir, lanes.counts, lanes.writes)

    def stop(_number: int, _frame: FrameType | None) -> None:
        lanes.stop.set()  # a second signal has no effect: Ctrl-C reaches this process from the terminal and from its parent

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if settings.broker_url:
        # imported only with a broker, and before any thread sends a wake-up: celery replaces its module on import, and two
        # threads that import it at the same time would see it half-finished
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
    os._exit(0)  # only daemon threads still run, and they must not delay the exit


def _start_polling(lanes: Lanes, seconds: float) -> list[threading.Thread]:
    """Starts one thread per lane. Each thread looks for queued runs in the database every `seconds` seconds."""

    def poll() -> None:
        while not lanes.stop.wait(seconds):
            lanes.work()

    threads = [threading.Thread(target=poll, name=f"lane-{number}", daemon=True) for number in range(len(lanes))]
    for thread in threads:
        thread.start()
    return threads
