"""Ringing the doorbell: a Celery message without arguments that says "look at the queue". The runs table is the truth.

Whoever commits a queued run rings afterwards and never waits for it: a lost ring costs seconds (the sweeper rings again), never
a run. Both ends of the wire, the server that rings and the worker that listens, take their Celery settings from here.
"""

from __future__ import annotations

import logging
import queue
import threading
from functools import lru_cache
from typing import Any

WAKE = "stablessm.wake"
QUEUE = "stablessm"
EVENTS_CHANNEL = "stablessm:events"  # Redis pub/sub: the id of a run that has news
EVENTS_NOTIFY = "stablessm_events"  # the same through Postgres NOTIFY, where no Redis is

log = logging.getLogger(__name__)
_importing = threading.Lock()  # celery replaces its module while it is first imported: two threads at once see half of it


def ring(broker_url: str | None) -> None:
    """Wake one worker. Returns at once and never raises; without a broker the workers poll, so there is nothing to do."""
    if broker_url:
        _bell(broker_url).press()


def celery_app(broker_url: str) -> Any:
    """The Celery application of both ends, with the settings that keep a lost or repeated message harmless.

    Early acknowledgement, because redelivery could only add duplicates to what the reaper brings back anyway; no prefetch, so no
    message waits behind a run of days; threads, because a task only supervises a child process; remote control off, because it
    is an unauthenticated command channel; socket and health timeouts, because without them a half-open connection is for ever.
    """
    with _importing:
        from celery import Celery

    app = Celery("stablessm", broker=broker_url, set_as_current=False)  # type: ignore[no-untyped-call]
    app.conf.update(
        broker_transport_options={
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 5,
            "visibility_timeout": 3600,
            "global_keyprefix": "stablessm:",
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_default_queue=QUEUE,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_pool="threads",
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_ignore_result=True,
        result_backend=None,
        task_serializer="json",
        accept_content=["json"],
    )
    return app


@lru_cache(maxsize=8)
def _bell(broker_url: str) -> _Bell:
    return _Bell(broker_url)


class _Bell:
    """Sends from a thread of its own: a broker that is down or hangs must not hold up the request that has just been stored."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._presses: queue.Queue[None] = queue.Queue(maxsize=100)  # while the broker is away more would only pile up
        self.lost = 0
        threading.Thread(target=self._send, name="bell", daemon=True).start()

    def press(self) -> None:
        try:
            self._presses.put_nowait(None)
        except queue.Full:
            self.lost += 1

    def settle(self) -> None:
        """Wait until every press so far was sent or lost."""
        self._presses.join()

    def _send(self) -> None:
        from kombu.exceptions import OperationalError

        app = celery_app(self._broker_url)
        broken: tuple[type[BaseException], ...] = (OperationalError, OSError, *app.connection_for_write().connection_errors)
        while True:
            self._presses.get()
            try:
                app.send_task(WAKE, retry=False)
            except broken as error:
                self.lost += 1
                log.warning("ring lost, the sweeper will ring again: %s", error, extra={"lost": self.lost})
            finally:
                self._presses.task_done()
