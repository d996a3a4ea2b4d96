"""Logging: one line per event, with run and attempt if known, as JSON for machines or as key=value for a terminal.

STABLESSM_LOG selects the format: json, text, or auto (text on a terminal, else JSON). No line contains a secret: anything that
looks like a secret is replaced, even in tracebacks and URLs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Any

FORMATS = ("auto", "json", "text")
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
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "text":
            line = " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())
            return without_secrets(f"{line}\n{trace}" if trace else line)
        fields |= {"trace": trace} if trace else {}
        return json.dumps({key: _plain(value) for key, value in fields.items()}, ensure_ascii=False)


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
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(always))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)


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
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)
