"""The worker's side of the wake-ups: a Celery worker whose only task says "look at the queue"."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import WorkController
from celery.worker.strategy import default as strategy

from server.logs import OncePerCause
from server.runs.worker_wakeups import QUEUE, WAKE, celery_app
from worker.lanes import Lanes

AGAIN_SECONDS = 1.0
STOP_CHECK_SECONDS = 0.5

log = logging.getLogger(__name__)


def listen(broker_url: str, lanes: Lanes) -> None:
    """Run a Celery worker in this thread until `lanes.stop` is set and its tasks have ended.

    While the broker is away Celery tries to connect and does not look at `lanes.stop`: call this in a daemon thread.

    This is Celery's worker without its command line, so that signals, logging and exit stay ours. A message that Celery cannot
    read at all ends it; the message is then gone from the queue, and a new worker is started here.
    """
    app = celery_app(broker_url)

    @app.task(name=WAKE, Strategy=f"{__name__}:take")  # type: ignore[untyped-decorator]
    def wake() -> None:
        lanes.work()

    class StopWithLanes(bootsteps.StartStopStep):
        """Ends the worker when the lanes stop: Celery lets a task that its timer calls raise WorkerShutdown."""

        requires: Any = frozenset({"celery.worker.components:Timer"})

        def start(self, worker: Any) -> None:
            self.timer = worker.timer.call_repeatedly(STOP_CHECK_SECONDS, self.check)

        def stop(self, *_: Any) -> None:
            self.timer.cancel()

        def check(self) -> None:
            if lanes.stop.is_set():
                raise WorkerShutdown(0)

    quiet = _QuietRetries()

    class Connected(bootsteps.StartStopStep):
        """Told by Celery after each connection to the broker."""

        requires: Any = frozenset({"celery.worker.consumer.connection:Connection"})

        def start(self, _consumer: Any) -> None:
            quiet.failures.worked()

    app.steps["worker"].add(StopWithLanes)
    app.steps["consumer"].add(Connected)
    for name in _QuietRetries.LOGGERS:
        logging.getLogger(name).addFilter(quiet)
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)  # a line for each wake-up says nothing
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
            log.warning("Celery ended at a message that it could not read; it listens again")


class _QuietRetries(logging.Filter):
    """Lets each cause of a lost or refused connection through once: Celery tries again and again while the broker is away."""

    LOGGERS = ("celery.worker.consumer.consumer", "kombu.transport.redis")

    def __init__(self) -> None:
        super().__init__()
        self.failures = OncePerCause()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        given = record.args if isinstance(record.args, tuple) else ()
        return self.failures.is_news((record.msg, *map(str, given[:2])))  # the third says when it tries again


def take(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """How Celery takes a message of this task in: one with an unreadable body is thrown away and does not end the worker."""
    handle = strategy(task, app, consumer)  # type: ignore[no-untyped-call]

    def message_handler(*message: Any) -> None:
        try:
            handle(*message)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidTaskError(f"its body cannot be read: {error}") from error

    return message_handler
