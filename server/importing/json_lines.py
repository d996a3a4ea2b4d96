"""Reads JSON lines: one object in each line, with a number under a name such as step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable, as_float, parse_json
from server.importing.importer import Candidate, Claimed, Importer, group_of
from server.importing.steps import step_key, whole

TOOL = "JSON lines"
SUFFIXES = (".jsonl", ".ndjson")
TIMES = ("timestamp", "_timestamp", "wall_time", "time")  # of a line, if the number is a time after the year 2000
FIRST_LINES = 100
YEAR_2000 = 946_684_800


def lines_of(path: Path, run: FoundRun, advance: Advance, *, growing: bool) -> Iterator[dict[str, Any]]:
    """The objects in the lines of a file. What is no object is counted; the last line of a growing file may be unfinished."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            advance(len(line))
            if not line.strip():
                continue
            try:
                found = parse_json(line.decode("utf-8-sig"))
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    run.left_out["lines that are no JSON"] += 1
                elif not growing:
                    run.remarks.append(f"{path}: line {number:,} is not whole; the file is read up to there")
                continue
            if isinstance(found, dict):
                yield found
            else:
                run.left_out["lines that are no JSON objects"] += 1


def _claim(file: Candidate) -> Path | None:
    promised = file.path.suffix.lower() in SUFFIXES
    if not promised and not file.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return None
    lines = lines_of(file.path, FoundRun(TOOL, ""), lambda _: None, growing=True)
    some = [found for found, _ in zip(lines, range(FIRST_LINES), strict=False)]
    stepped = [found for found in some if len(found) > 1 and step_key(list(found)) is not None]
    if len(stepped) >= (1 if promised else 2):  # one object alone is any JSON
        return file.path
    if promised:
        raise Unreadable(f"{file.path}: none of its first objects has a number called step, global_step, iteration or epoch")
    return None


def _read(file: Claimed, advance: Advance) -> Iterator[FoundRun]:
    run = FoundRun(TOOL, "", file.name, group=group_of(file.name))
    key = file.step
    for found in lines_of(file.path, run, advance, growing=file.growing):
        key = key or step_key(list(found))
        step = None if key is None else whole(found.get(key))
        if step is None:
            run.left_out["lines without a whole number as step"] += 1
            continue
        if not run.identity:
            run.identity = _identity(file.path, found)
        _add(run, step, found, str(key))
    if file.step is not None and not run.identity:
        raise Unreadable(f"{file.path}: no object has a whole number called {file.step!r}")
    run.identity = run.identity or f"{file.path.resolve()}\0"
    yield run


def _add(run: FoundRun, step: int, found: dict[str, Any], key: str) -> None:
    for name, value in found.items():
        if name in TIMES and isinstance(value, int | float) and value > YEAR_2000:
            run.saw(as_float(value))
        elif name != key:
            run.add_json(name, step, value)


def _identity(path: Path, first: dict[str, Any]) -> str:
    known = ""
    with suppress(TypeError, ValueError):
        known = json.dumps(first, sort_keys=True)
    return f"{path.resolve()}\0{hashlib.sha256(known.encode(errors='replace')).hexdigest()}"


IMPORTER = Importer("JSON lines with a number called step", _claim, _read)
