"""Stores the posts of programs that report their runs, under the fence of their attempts.

A post may be repeated: steps that are stored already change nothing. A post also counts as a heartbeat, and it sets a lost run
back to running. A post for a run that has ended completes the run's numbers; it changes neither the status nor the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sqlalchemy.orm import Session

from server.access.scopes import INGEST
from server.access.tokens import Principal
from server.database.connection import Database
from server.errors import FENCED, Conflict, Forbidden, NotFound, Unavailable
from server.ingest.blocks import PlacesCache
from server.ingest.post import Post, Stored, locked_row
from server.lifecycle.event_wakeups import Publish
from server.lifecycle.reported import REPORTED
from server.lifecycle.submitters import check_own
from stablessm_core.report.messages import Received

MAX_WAITING = 64 << 20  # bytes of the posts that wait or are being stored; further posts are refused
LEAST = 64 << 10  # bytes that a small post counts
THREADS = {"sqlite": 2, "postgresql": 4}  # on SQLite, one thread checks the next post while the other one stores


class Reports:
    """Stores posts in its own threads, so that waiting posts keep no thread from other requests.

    On SQLite, which has one writer, posts wait for each other here: a lock is passed on at once, and SQLite's retries are not.
    """

    def __init__(self, database: Database, publish: Publish) -> None:
        self.database, self._publish = database, publish
        self._places = PlacesCache()
        self.threads = ThreadPoolExecutor(THREADS[database.dialect], "reports")
        self._waiting = 0  # bytes; only the event loop changes it
        self._turn: AbstractContextManager[Any] = threading.Lock() if database.dialect == "sqlite" else nullcontext()

    def store(self, run_id: int, attempt: int, principal: Principal, messages: Sequence[Received]) -> Stored:
        """Store all messages, or none of them. No messages: a heartbeat.

        Raises BadFrame for a message that the run cannot have, Conflict with the code `fenced` if `attempt` is not the run's
        newest attempt, NotFound, Forbidden.
        """
        with self._turn, self.database.write() as session:
            post = Post(session, _own_row(session, run_id, attempt, principal), self._places)
            post.apply(messages)
            stored = post.finish()
        post.keep_places()
        if stored.changed:
            self.announce(run_id)
        return stored

    def check_room(self, size: int = 0) -> None:
        """Raises Unavailable if too many posts wait for one more of `size` bytes."""
        if self._waiting + max(LEAST, size) > MAX_WAITING:
            raise Unavailable("too many posts wait already; try again", headers={"Retry-After": "2"})

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Count a post of this many bytes as waiting. Raises Unavailable if too many posts wait already."""
        self.check_room(size)
        self._waiting += max(LEAST, size)
        try:
            yield
        finally:
            self._waiting -= max(LEAST, size)

    def close(self) -> None:
        """End the threads after the posts that they store now."""
        self.threads.shutdown(cancel_futures=True)

    def announce(self, run_id: int) -> None:
        """Tell all servers that the run has new events."""
        self._publish(run_id)


def _own_row(session: Session, run_id: int, attempt: int, principal: Principal) -> Any:
    """The row of a run that the principal may write, locked until the end of the transaction."""
    row = locked_row(session, run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}", field="run_id")
    check_reporter(principal, row)
    if row.deleted_at is not None:
        raise NotFound(f"run {run_id} is in the trash", field="run_id")
    if row.attempt != attempt:
        raise Conflict(
            f"attempt {attempt} of run {run_id} is over: the run was opened again as attempt {row.attempt}", code=FENCED,
            field="X-Attempt", allowed=f"{row.attempt}, from the program that opened the run last",
        )  # fmt: skip
    return row


def check_reporter(principal: Principal, run: Any) -> None:
    """Check that the principal may report this run. Raises Forbidden, and Conflict for a run that our workers train.

    run: a run or a row with its columns id, kind, submitted_by and user_id. A token of the scope ingest may write only the runs
    that it opened.
    """
    if principal.scope == INGEST and run.submitted_by != principal.token_id:
        raise Forbidden(f"run {run.id} was opened with another token", field="run_id", allowed="runs that this token opened")
    check_own(principal, run)
    if run.kind != REPORTED:
        raise Conflict(f"run {run.id} is trained by our workers", field="run_id", allowed="runs of POST /api/ingest/runs")
