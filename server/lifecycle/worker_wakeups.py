"""Wakes a worker when a run is queued. It sends a Celery message without arguments that means "look at the queue".

The table of runs alone determines what is queued. The message is sent after the commit, and nothing waits for it. If the
message is lost, a worker sends another message within seconds, and no run is lost. The server sends messages, the workers
receive them, and both use the Celery settings below.
"""

from __future__ import annotations

import logging
import queue
import threading
from functools import lru_cache
from typing import Any

from server.logs import OncePerCause

WAKE = "stablessm.wake"
QUEUE = "stablessm"
EVENTS_CHANNEL = "stablessm:events"  # Redis channel for the live streams; a message is the id of a run with new events
EVENTS_NOTIFY = "stablessm_events"  # the channel of PostgreSQL's NOTIFY, for installations without Redis

log = logging.getLogger(__name__)
_importing = threading.Lock()  # celery replaces its module during its first import, so only one thread may import it at a time


def wake_workers(broker_url: str | None) -> None:
    """Tell one worker to look at the queue. Returns at once and never raises.

    Without a broker this does nothing, because the workers then poll the database.
    """
    if broker_url:
        _sender(broker_url).request()


def celery_app(broker_url: str) -> Any:
    """The Celery application of server and worker, with settings that keep a lost or repeated message harmless.

    - Early acknowledgement: lost runs are queued again from the database, so redelivery could only add duplicates.
    - No prefetch: no message waits behind a run that takes days.
    - Threads: a task only supervises a child process.
    - Remote control off: it is a command channel without authentication.
    - Socket and health timeouts: without them a half-open connection is never noticed.
    """
    with _importing:  # imported late, to save start-up time: only installations with a broker need Celery
        from celery import Celery

    app = Celery("stablessm", broker=broker_url, set_as_current=False)  # type: ignore[no-untyped-call]
    app.conf.update(
        broker_transport_options={
            "socket_timeout": 3,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 3,  # a silent connection is dropped after two intervals and a socket timeout, 9 s in total
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
def _sender(broker_url: str) -> _Sender:
    return _Sender(broker_url)


class _Sender:
    """Sends wake-ups from its own thread, so that an unavailable broker does not delay the request."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._requests: queue.Queue[None] = queue.Queue(maxsize=100)  # further requests are dropped
        self.lost = 0
        self._failures = OncePerCause()
        threading.Thread(target=self._send, name="worker-wakeups", daemon=True).start()

    def request(self) -> None:
        try:
            self._requests.put_nowait(None)
        except queue.Full:
            self.lost += 1

    def wait(self) -> None:
        """Wait until every wake-up requested so far is sent or lost."""
        self._requests.join()

    def _send(self) -> None:
        from kombu.exceptions import OperationalError

        app = celery_app(self._broker_url)
        broken: tuple[type[BaseException], ...] = (OperationalError, OSError, *app.connection_for_write().connection_errors)
        while True:
            self._requests.get()
            try:
                app.send_task(WAKE, retry=False)
            except broken as error:
                self.lost += 1
                if self._failures.is_news(error):
                    log.warning(
                        "wake-ups of workers are lost; the workers poll the queue meanwhile: %s",
                        error,
                        extra={"lost": self.lost},
                    )
            else:
                if missed := self._failures.worked():
                    log.info("wake-ups of workers arrive again", extra={"missed": missed})
            finally:
                self._requests.task_done()
