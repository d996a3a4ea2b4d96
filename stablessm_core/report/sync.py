"""Sends the file of a run to the server. May be repeated: what is stored already is not stored twice."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

from stablessm_core.report.frames import frame
from stablessm_core.report.link import Frames, Refused, Server
from stablessm_core.report.messages import EndMessage, MetricsMessage, from_bytes, to_bytes
from stablessm_core.report.outbox import SUFFIX, NotARunFile, RunFile, in_use, read_run_file
from stablessm_core.telemetry.sink import Flush

TRIES = 5
Answer = TypeVar("Answer")
SYNCED = ".synced"  # added to the name of a file that is stored completely


class StillRunning(ValueError):
    """The process that writes the file still runs."""


@dataclass(frozen=True)
class Synced:
    """What became of a file. refused: frames that the server can never store. damaged: the byte of the first bad frame."""

    url: str
    records: int
    last_step: int
    refused: int
    damaged: int | None
    last_refusal: str = ""


def sync_files(
    paths: list[Path], url: str, token: str | None, say: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Send the files of runs among the paths and in the directories among them. Returns the exit status of the command
    `stablessm sync`: 0 if everything is stored.

    say, complain: receive a line about each file, and a line about each problem.
    """
    failed = 0
    files = run_files(paths)
    for file in files:
        try:
            done = sync_file(file, Server(url, token))
        except (StillRunning, NotARunFile, Refused, OSError) as error:
            failed += 1
            complain(f"{file}: {_words(error, url)}")
            continue
        say(f"{file}: {done.records:,} records, up to step {done.last_step:,}: {done.url}")
        if done.damaged is not None:
            complain(f"{file}: damaged from byte {done.damaged:,} on; what follows is lost")
        if done.refused:
            failed += 1
            complain(f"{file}: the server refused {done.refused:,} records: {done.last_refusal}")
    if not files:
        complain("no files of runs there")
    return 1 if failed or not files else 0


def run_files(paths: list[Path]) -> list[Path]:
    """The files of runs among the paths and in the directories among them, oldest first."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted((p for p in path.rglob(f"*{SUFFIX}") if p.is_file()), key=lambda p: p.stat().st_mtime)
        else:
            found.append(path)
    return found


def sync_file(path: Path, server: Server) -> Synced:
    """Send all records of the file. A file without an end gets one: its process was killed.

    Raises StillRunning, NotARunFile, Refused, or OSError if the server does not answer.
    """
    if in_use(path):
        raise StillRunning(f"{path} is still being written by its program")
    file = read_run_file(path)
    for other in path.parent.glob(f"*-{glob.escape(file.opening['id'][:8])}-*{SUFFIX}"):
        if in_use(other):  # opening the run here would end the attempt of that program
            raise StillRunning(f"{path} belongs to a run that another program continues now, in {other}")
    cut = file.opening.get("from_step") is not None  # the run has not reached the server since it went back to this step
    # its process was killed, and a later one may have ended the run; or it is sent again, which must not open the run again
    complete = not cut and (not _has_end(file) or path.name.endswith(SYNCED))
    opened = server.open_run(file.opening | {"resume": "complete" if complete else "allow"})
    if cut:
        with suppress(OSError):
            file.drop_from_step()
    frames = Frames(server, opened)
    body, count, last_step, last_logged, ended = b"", 0, 0, 0, False
    rows = _Rows()
    for record in file.records():
        count += 1
        with suppress(ValueError, KeyError, TypeError):
            message = from_bytes(record)
            ended = ended or isinstance(message, EndMessage)
            if isinstance(message, Flush):
                last_step = max(last_step, message.step)
                rows.add(message)
            elif isinstance(message, MetricsMessage):
                last_logged = max([last_logged, *message.steps])
        body += frame(record)
        if len(body) > opened.body_bytes // 2:
            send_frames(frames, body)
            body = b""
    last_step = last_step or last_logged  # a run without a model has only the steps of its numbers
    if not ended:
        reason = f"the process ended without a word after step {last_step:,}{rows.missing(file.opening)}"
        body += frame(to_bytes(EndMessage("failed", reason)))
    send_frames(frames, body)
    server.close()
    if not frames.refused and path.suffix == SUFFIX:
        with suppress(OSError):
            path.rename(path.with_name(path.name + SYNCED))
    return Synced(opened.url, count, last_step, frames.refused, file.damaged, frames.last_refusal)


class _Rows:
    """Counts the steps with a row in the file, by the group of series that has the most."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, int, int]] = {}  # group -> number of rows, first step, last step

    def add(self, flush: Flush) -> None:
        for block in flush.blocks:
            if block.level == 0:
                count, first, _ = self._of.get(block.group, (0, block.first_step, 0))
                self._of[block.group] = count + block.point_count, first, block.last_step

    def missing(self, opening: dict[str, Any]) -> str:
        """The number of steps between the first and the last row that have no row, in words; "" if the file has no row."""
        if not self._of:
            return ""
        count, first, last = max(self._of.values())
        every = (opening.get("how") or {}).get("every") or 1
        return f"; {max(0, (last - first) // every + 1 - count):,} steps missing"


def _has_end(file: RunFile) -> bool:
    for record in file.records():
        with suppress(ValueError, KeyError, TypeError):
            if isinstance(from_bytes(record), EndMessage):
                return True
    return False


def send_frames(frames: Frames, body: bytes) -> None:
    """Send all frames of the body. Raises Refused or OSError."""
    while body:
        body = body[persist(partial(frames.send, body)) :]


def persist(request: Callable[[], Answer]) -> Answer:
    """The answer to the request, which is repeated a few times while the server is away or not ready. Raises Refused or
    OSError."""
    for wait in _pauses():
        try:
            return request()
        except Refused as refused:
            if not refused.transient or wait is None:
                raise
            sleep(refused.retry_after or wait)
        except OSError:
            if wait is None:
                raise
            sleep(wait)
    raise AssertionError


def _words(error: Exception, url: str) -> str:
    if isinstance(error, Refused):
        return f"{url} refuses it: {error}"
    if isinstance(error, OSError) and not error.filename:
        return f"{url} does not answer: {error.strerror or error}"
    return str(error)


def _pauses() -> Iterator[float | None]:
    for i in range(TRIES - 1):
        yield 0.5 * 2**i
    yield None
