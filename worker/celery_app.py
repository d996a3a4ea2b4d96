"""The worker's end of the doorbell: a Celery worker whose only task says "look at the queue"."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery.worker import WorkController, state

from server.ring import QUEUE, WAKE, celery_app
from worker.workplace import Workplace


def listen(broker_url: str, workplace: Workplace) -> None:
    """Run a Celery worker in this thread until `workplace.stop` is set and its tasks have ended.

    The bare controller, not Celery's program: signals, logging and exit stay ours.
    """
    app = celery_app(broker_url)

    @app.task(name=WAKE)  # type: ignore[untyped-decorator]
    def wake() -> None:
        workplace.work()

    def leave() -> None:
        workplace.stop.wait()
        vars(state)["should_stop"] = 0  # the consumer's loop leaves at its next turn, within a second

    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)  # that a wake came and went says nothing
    threading.Thread(target=leave, name="celery-stop", daemon=True).start()
    controller: Any = WorkController
    controller(
        app=app,
        pool_cls="threads",
        concurrency=len(workplace.lanes),
        hostname=f"stablessm@{workplace.id}",
        queues=[QUEUE],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()
