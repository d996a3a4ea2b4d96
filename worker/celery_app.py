"""The worker's side of the wake-ups: a Celery worker whose only task says "look at the queue"."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker import WorkController, state
from celery.worker.strategy import default as strategy

from server.runs.worker_wakeups import QUEUE, WAKE, celery_app
from worker.lanes import Lanes

AGAIN_SECONDS = 1.0

log = logging.getLogger(__name__)


def listen(broker_url: str, lanes: Lanes) -> None:
    """Run a Celery worker in this thread until `lanes.stop` is set and its tasks have ended.

    The bare controller, not Celery's program: signals, logging and exit stay ours. It ends at a message that is no message at
    all, which is then no longer in the queue, and is started again.
    """
    app = celery_app(broker_url)

    @app.task(name=WAKE, Strategy=f"{__name__}:take")  # type: ignore[untyped-decorator]
    def wake() -> None:
        lanes.work()

    def leave() -> None:
        lanes.stop.wait()
        vars(state)["should_stop"] = 0  # the consumer's loop leaves at its next turn, within a second

    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)  # that a wake came and went says nothing
    threading.Thread(target=leave, name="celery-stop", daemon=True).start()
    controller: Any = WorkController
    while not lanes.stop.is_set():
        controller(
            app=app,
            pool_cls="threads",
            concurrency=len(lanes),
            hostname=f"stablessm@{lanes.id}",
            queues=[QUEUE],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        ).start()
        if not lanes.stop.wait(AGAIN_SECONDS):
            log.warning("Celery ended at what it could not read; it listens again")


def take(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """Celery's way to take a message in, to which one with an unreadable body is one more to throw away, not the worker's end."""
    handle = strategy(task, app, consumer)  # type: ignore[no-untyped-call]

    def message_handler(*message: Any) -> None:
        try:
            handle(*message)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidTaskError(f"its body cannot be read: {error}") from error

    return message_handler
