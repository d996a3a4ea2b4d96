"""Copies the output of a training process from its log file to the database, during training and after its end.

The worker reads the file, so the training process is not delayed. The file is also the buffer: it grows while the database is
unavailable, and afterwards the worker continues where it stopped. The worker skips text that the database would not keep
anyway.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.lifecycle.logs import KEPT_FIRST, KEPT_LAST, append_log, log_end
from worker.redaction import Redactor
from worker.writer import DATABASE_AWAY

SHIP_SECONDS = 0.5
READ_BYTES = 64 << 10
LINE_CHARACTERS = 8 << 10  # maximum length of a line; longer lines are cut
CRASH_BYTES = 32 << 10
CRASH = b"Fatal Python error"  # first words of the interpreter's crash report

log = logging.getLogger(__name__)


class LogShipper(threading.Thread):
    """Copies the log of one attempt; text of earlier attempts in the file is skipped."""

    def __init__(self, database: Database, run_id: int, attempt: int, path: Path, redactor: Redactor) -> None:
        super().__init__(name=f"log-{run_id}", daemon=True)
        self._database, self._run_id, self._attempt, self._path, self._redactor = database, run_id, attempt, path, redactor
        self._begin = self._read_to = path.stat().st_size if path.exists() else 0  # position in the file
        self._end: int | None = None  # position in the run's log
        self._left_out = 0  # bytes skipped after the last stored text
        self._in_long_line = False
        self._finishing = threading.Event()
        self._shipping = threading.Lock()

    def run(self) -> None:
        while True:
            finishing = self._finishing.wait(SHIP_SECONDS)
            try:
                self.ship(to_the_end=finishing)
            except LeaseLost:
                return  # a later attempt has begun, or the run was deleted
            except DATABASE_AWAY as error:
                log.debug("the log waits: %s", error)
                time.sleep(SHIP_SECONDS)
                continue
            except Exception:
                log.exception("the log is not shipped", extra={"run": self._run_id, "attempt": self._attempt})
                return
            if finishing:
                return

    def ship(self, *, to_the_end: bool = False) -> None:
        """Store the output since the last call; with `to_the_end`, including an incomplete last line. Raises LeaseLost."""
        with self._shipping:
            while (batch := self._next(to_the_end=to_the_end)) is not None:
                text, left_out, read_to, in_long_line = batch
                if text:
                    self._store(text, left_out)
                self._left_out = 0 if text else self._left_out + left_out
                self._read_to, self._in_long_line = read_to, in_long_line

    def finish(self, wait: float = 0.0) -> None:
        """After the process has ended: store the remaining output and end the thread. The caller waits at most `wait`
        seconds."""
        self._finishing.set()
        if wait:
            self.join(wait)

    def crash_report(self) -> str:
        """The crash report of the interpreter, or "" if there is none."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._begin, size - CRASH_BYTES))
                _, found, report = file.read().rpartition(CRASH)
        except OSError:
            return ""
        return self._redactor.redact((found + report).decode(errors="replace")).strip() if found else ""

    def _store(self, text: str, left_out: int) -> None:
        if self._end is None:
            with self._database.read() as session:
                self._end = log_end(session, self._run_id)
        with self._database.write() as session:
            start = self._end + self._left_out + left_out
            self._end = append_log(session, self._run_id, self._attempt, start, text)

    def _next(self, *, to_the_end: bool) -> tuple[str, int, int, bool] | None:
        """(text to store, bytes skipped before it, position after the read text, True if that position is inside a long line);
        None if there is no new text."""
        try:
            with self._path.open("rb") as file:
                size, begin = file.seek(0, 2), self._read_to
                if size - begin > KEPT_LAST and (self._end or 0) >= KEPT_FIRST:
                    begin = size - KEPT_LAST
                file.seek(begin)
                data = file.read(READ_BYTES)
        except OSError:
            return None  # the file does not exist yet, or cannot be read
        left_out, in_long_line = begin - self._read_to, self._in_long_line
        if data and (left_out or in_long_line):  # the position is inside a line, so also skip the rest of that line
            rest = data.find(b"\n") + 1 or len(data)
            in_long_line = not data[:rest].endswith(b"\n")
            left_out, begin, data = left_out + rest, begin + rest, data[rest:]
            if not data:
                return "", left_out, begin, in_long_line
        whole = data.rfind(b"\n") + 1
        if not whole and (to_the_end or len(data) == READ_BYTES):
            whole = len(data)
            in_long_line = not to_the_end
        if not whole:
            return None
        return self._text(data[:whole]), left_out, begin + whole, in_long_line

    def _text(self, data: bytes) -> str:
        lines = data.decode(errors="replace").removesuffix("\n").split("\n")
        return "".join(f"{_limited(self._redactor.redact_log_line(line))}\n" for line in lines)


def _limited(text: str) -> str:
    if len(text) <= LINE_CHARACTERS:
        return text
    return f"{text[:LINE_CHARACTERS]} … {len(text) - LINE_CHARACTERS:,} characters more"
