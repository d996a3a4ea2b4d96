"""Receives wake-up messages with a Celery worker. Its only task makes the lanes look for queued runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import WorkController
from celery.worker.strategy import default as strategy

from server.lifecycle.worker_wakeups import QUEUE, WAKE, celery_app
from server.logs import OncePerCause
from worker.lanes import Lanes

AGAIN_SECONDS = 1.0
STOP_CHECK_SECONDS = 0.5

log = logging.getLogger(__name__)


def listen(broker_url: str, lanes: Lanes) -> None:
    """Run a Celery worker in this thread until `lanes.stop` is set and the worker's tasks have ended.

    Call this in a daemon thread: while the broker is unavailable, Celery keeps connecting and does not check `lanes.stop`.

    The Celery worker runs without its command line, so that this program keeps control of signals, logging and exit. An
    unreadable message ends the Celery worker. By then the message has left the queue, so this function starts a new Celery
    worker.
    """
    app = celery_app(broker_url)

    @app.task(name=WAKE, Strategy=f"{__name__}:ignore_unreadable")  # type: ignore[untyped-decorator]
    def wake() -> None:
        lanes.work()

    class StopWithLanes(bootsteps.StartStopStep):
        """Ends the Celery worker when the lanes stop, by raising WorkerShutdown in the timer of the Celery worker."""

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
        """Records each successful connection to the broker."""

        requires: Any = frozenset({"celery.worker.consumer.connection:Connection"})

        def start(self, _consumer: Any) -> None:
            quiet.failures.worked()

    app.steps["worker"].add(StopWithLanes)
    app.steps["consumer"].add(Connected)
    for name in _QuietRetries.LOGGERS:
        logging.getLogger(name).addFilter(quiet)
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)  # otherwise Celery logs a line for each wake-up message
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
            log.warning("Celery ended at a message that it could not read; starting it again")


class _QuietRetries(logging.Filter):
    """Logs each cause of a lost connection only once, because Celery retries as long as the broker is unavailable."""

    LOGGERS = ("celery.worker.consumer.consumer", "kombu.transport.redis")

    def __init__(self) -> None:
        super().__init__()
        self.failures = OncePerCause()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        given = record.args if isinstance(record.args, tuple) else ()
        return self.failures.is_news((record.msg, *map(str, given[:2])))  # without the third argument, the time of the retry


def ignore_unreadable(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """A message strategy for Celery that discards messages with an unreadable body instead of ending the worker."""
    handle = strategy(task, app, consumer)  # type: ignore[no-untyped-call]

    def message_handler(*message: Any) -> None:
        try:
            handle(*message)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidTaskError(f"its body cannot be read: {error}") from error

    return message_handler
