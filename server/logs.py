"""Logging: one line per event, with run and attempt if known, as JSON for machines or as key=value for a terminal.

A traceback is part of the line, with its line breaks escaped. A warning or error that repeats is logged once, and then once a
minute with the number of repetitions.

STABLESSM_LOG selects the format: json, text, or auto (text on a terminal, else JSON). No line contains a secret: anything that
looks like a secret is replaced, even in tracebacks and URLs.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

FORMATS = ("auto", "json", "text")
REPEAT_SECONDS = 60.0
_LINE_BREAKS = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_SECRETS = (
    (re.compile(r"(\bssm_)[A-Za-z0-9_-]{8,}"), r"\1..."),  # the tokens that the server creates
    (re.compile(r"([?&]token=)[^&\s\"'\\]+"), r"\1..."),
    (re.compile(r"(\b[a-z][a-z0-9+.]*://[^\s:/@\"']*:)[^\s@/\"']+@"), r"\1...@"),  # the password in a URL
    (re.compile(r"(?i)(\b(?:bearer|authorization:|stablessm_session=)\s*)(?!bearer\b)[\w.~+/=:-]{8,}"), r"\1..."),
)


class LineFormatter(logging.Formatter):
    """Formats a line: time, level, logger, the fields of `always`, the event's fields (run, attempt, ...), msg, traceback."""

    def __init__(self, always: dict[str, object] | None = None, form: str | None = None) -> None:
        super().__init__()
        self._always, self._form = always or {}, form or _form()

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fields: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), "logger": record.name, **self._always}
        fields |= {key: value for key, value in vars(record).items() if key not in _ORDINARY and not key.startswith("_")}
        fields["msg"] = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        if self._form == "text":
            line = " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())
            return without_secrets(f"{line} trace={_quoted(trace)}" if trace else line)
        fields |= {"trace": trace} if trace else {}
        return _dump({key: _plain(value) for key, value in fields.items()})


class CountingHandler(logging.StreamHandler[Any]):
    """Writes to standard error. Repetitions of a warning or error are counted, and written at most once in REPEAT_SECONDS.

    Two records are the same if logger, level, message, exception and fields agree. `repeated` is the number of records since
    the previous line that were not written.
    """

    def __init__(self, stream: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._seen: dict[tuple[object, ...], _Repeats] = {}  # in the order of the last written line

    def emit(self, record: logging.LogRecord) -> None:
        # the caller has acquired the handler's lock
        now = self._clock()
        self._write_overdue(now)
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        key = _cause(record)
        known = self._seen.get(key)
        if known is not None:
            known.count, known.last = known.count + 1, self._frozen(record)
            return
        self._seen[key] = _Repeats(self._frozen(record), now)
        super().emit(record)

    def close(self) -> None:
        """Write the counts that are still open."""
        with contextlib.suppress(ValueError):  # the stream is closed already
            self._write_overdue(float("inf"))
        super().close()

    def _frozen(self, record: logging.LogRecord) -> logging.LogRecord:
        """A copy of the record that does not keep the frames of its exception alive."""
        kept = copy.copy(record)
        if record.exc_info:
            kept.exc_text, kept.exc_info = logging.Formatter().formatException(record.exc_info), None
        return kept

    def _write_overdue(self, now: float) -> None:
        while self._seen:
            key = next(iter(self._seen))
            if now - self._seen[key].written < REPEAT_SECONDS:
                return
            repeats = self._seen.pop(key)
            if repeats.count:
                repeats.last.repeated = repeats.count
                super().emit(repeats.last)
                self._seen[key] = _Repeats(repeats.last, now)


@dataclass
class _Repeats:
    last: logging.LogRecord
    written: float
    count: int = 0


class OncePerCause:
    """Decides whether a repeated failure is logged. Each cause is logged once until the work succeeds again."""

    def __init__(self) -> None:
        self.failures = 0  # number of failures since the last success
        self._said: set[str] = set()

    def is_news(self, cause: object) -> bool:
        self.failures += 1
        new = str(cause) not in self._said
        self._said.add(str(cause))
        return new

    def worked(self) -> int:
        """Record a success and return the number of failures since the previous success."""
        failures, self.failures = self.failures, 0
        self._said.clear()
        return failures


def start_logging(**always: object) -> None:
    """Log to standard error. `always` is added to every line of this process."""
    handler = CountingHandler()
    handler.setFormatter(LineFormatter(always))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    log_uncaught()


def log_uncaught() -> None:
    """Log warnings and uncaught exceptions of every thread, each as one line."""
    logging.captureWarnings(True)
    sys.excepthook = _log_exception
    threading.excepthook = _log_thread_exception


def _log_thread_exception(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is not None and not isinstance(given.exc_value, SystemExit):
        _log_exception(given.exc_type, given.exc_value, given.exc_traceback)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("stablessm").critical("uncaught exception: %s", kind.__name__, exc_info=(kind, error, trace))


def without_secrets(text: str) -> str:
    """The text with tokens, passwords in URLs and session cookies replaced."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _form() -> str:
    form = os.environ.get("STABLESSM_LOG") or "auto"
    if form not in FORMATS:
        raise ValueError(f"STABLESSM_LOG is {form[:40]!r}; allowed: {', '.join(FORMATS)}")
    return ("text" if sys.stderr.isatty() else "json") if form == "auto" else form


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | None) else without_secrets(str(value))


def _quoted(text: str) -> str:
    return text if text and text.isprintable() and not set(text) & set(' "=') else _dump(text)


def _dump(value: object) -> str:
    """The value as JSON in one line: the line breaks of Unicode, which JSON allows in strings, are also escaped."""
    return json.dumps(value, ensure_ascii=False).translate(_LINE_BREAKS)


def _cause(record: logging.LogRecord) -> tuple[object, ...]:
    fields = tuple((key, str(value)) for key, value in vars(record).items() if key not in _ORDINARY and key != "repeated")
    error = record.exc_info[1] if record.exc_info else None
    return record.name, record.levelno, record.getMessage(), type(error), str(error), fields
