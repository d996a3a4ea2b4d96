"""Removes secrets, absolute paths and terminal control codes from a worker's texts.

Everybody who may read runs sees the runs' reasons, alerts, logs, tracebacks and environment, but should not see the locations
of folders. Paths inside known folders are shown relative to these folders. Of other paths, only the last part is shown.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

from server.logs import without_secrets

_END = r"(?=[/\s\"'`,;:()<>\[\]{}|]|$)"
_PART = r"[^\s/\"'`,;:()<>\[\]{}|]"
_ELSEWHERE = re.compile(rf"(?:(?<![\w.~/…>-])/(?!/)|(?<![\w.~/…>:-])//+)(?:{_PART}+/+)+({_PART}*)")
_LOCAL_URL = re.compile(rf"(\b[a-z][a-z0-9+.]*://)/+(?:{_PART}+/+)+({_PART}*)")
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Redactor:
    """Redacts texts from this machine, whose folders it knows."""

    def __init__(self, data_dir: Path, data_root: Path) -> None:
        program = Path(__file__).resolve().parent.parent
        folders = {  # folder -> the text that replaces it
            data_root: "STABLESSM_DATA",
            data_dir: "",
            program: "",
            Path(os.path.expanduser("~")): "~",
            **{Path(sysconfig.get_path(name)): "" for name in ("platlib", "purelib", "stdlib")},
        }
        known = sorted(
            ((str(folder), name) for folder, name in folders.items() if folder.is_absolute() and len(folder.parts) > 1),
            key=_longest_first,
        )
        self._known = [(_folder_pattern(folder), f"{name}/" if name else "", name or Path(folder).name) for folder, name in known]

    def redact(self, text: str) -> str:
        """The text without secrets, absolute paths and control characters; line breaks are kept."""
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _TERMINAL.sub("", re.sub(r"\r\n?", "\n", text)))
        text = without_secrets(text)
        for pattern, inside, itself in self._known:
            text = pattern.sub(lambda found, inside=inside, itself=itself: inside if found[1] else itself, text)  # type: ignore[misc]
        text = _LOCAL_URL.sub(r"\1…/\2", text)
        return _ELSEWHERE.sub(r"…/\1", text)

    def redact_values(self, value: Any) -> Any:
        """The JSON value with every string redacted; keys do not change."""
        if isinstance(value, dict):
            return {key: self.redact_values(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_values(one) for one in value]
        return self.redact(value) if isinstance(value, str) else value

    def redact_log_line(self, line: str) -> str:
        """A redacted line of output. A line of the JSON log becomes plain text, with its traceback below."""
        try:
            event = json.loads(line) if line.startswith('{"time"') else None
        except ValueError:
            event = None
        if not isinstance(event, dict):
            return self.redact(line)
        known = {name: event.pop(name, "") for name in ("time", "level", "logger", "msg", "trace", "run", "attempt")}
        text = f"{known['time']} {known['level']} {known['logger']}: {known['msg']}"
        text += "".join(f" {name}={value}" for name, value in event.items())
        return self.redact(f"{text}\n{known['trace']}" if known["trace"] else text)


def _folder_pattern(folder: str) -> re.Pattern[str]:
    # a folder such as "/data" is also the end of "/mnt/data"; longer paths are unambiguous
    left = r"(?<![\w.~/-])" if folder.count("/") == 1 else ""
    return re.compile(rf"{left}{re.escape(folder)}{_END}(/+)?")


def _longest_first(entry: tuple[str, str]) -> int:
    return -len(entry[0])
