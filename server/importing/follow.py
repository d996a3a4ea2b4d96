"""Keeps importing the files that programs still write: what is new since the last look is sent, and nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from server.importing.counting import Totals
from server.importing.found_run import FoundRun, Points, Unreadable
from server.importing.importer import Source
from server.importing.known import Identities
from server.importing.sending import about, end_of, messages, name_loss, opening
from server.importing.sources import find_sources
from stablessm_core.report.frames import frame
from stablessm_core.report.link import Frames, Opened, Server
from stablessm_core.report.messages import to_bytes
from stablessm_core.report.sync import persist, send_frames

PAUSE = 1.0  # seconds between two looks at the files
BEAT = 10.0  # seconds after which a run without news tells the server that it goes on
Signature = tuple[tuple[str, int, int], ...]


@dataclass
class _Open:
    """A run that is open on the server. loss: what `name_loss` returned. sent: what it has. beat: when it was last told
    anything."""

    run: FoundRun
    opened: Opened
    frames: Frames
    loss: str | None
    sent: dict[str, Points] = field(default_factory=dict)
    beat: float = 0.0
    ended: bool = False


class Following:
    """say: receives a line about each run and what becomes of it. refuse: receives a sentence about what cannot be read."""

    def __init__(
        self, server: Server, project: str, loss: str | None, tags: list[str], say: Callable[[str], None],
        refuse: Callable[[str], None], totals: Totals,
    ) -> None:  # fmt: skip
        self.totals = totals
        self._server, self._project, self._loss, self._tags, self._say, self._refuse = server, project, loss, tags, say, refuse
        self._identities = Identities(project)
        self._open: dict[tuple[Path, int], _Open] = {}
        self._seen: dict[Path, Signature] = {}
        self._wrong: list[str] = []  # what could not be read at the last look

    def follow(self, path: Path, step: str | None, until_idle: float | None) -> None:
        """Import what is there and what is added, until Ctrl-C, or until nothing is new for `until_idle` seconds. Raises Refused
        or OSError."""
        news = time.monotonic()
        try:
            while until_idle is None or time.monotonic() - news < until_idle:
                if self.look(path, step):
                    news = time.monotonic()
                self._heartbeats()
                time.sleep(PAUSE if until_idle is None else min(PAUSE, max(0.05, until_idle / 4)))
        except KeyboardInterrupt:
            self._say("stopped")
        self.look(path, step)
        for one in self._open.values():
            self._end(one)
        for sentence in self._wrong:
            self._refuse(sentence)

    def look(self, path: Path, step: str | None) -> bool:
        """Send what is new. True if something was."""
        wrong: list[str] = []
        self.totals.passed_over.clear()
        try:
            sources = find_sources(path, step, wrong.append, self.totals.passed_over.append, growing=True)
        except Unreadable as error:
            sources, wrong = [], [*wrong, str(error)]
        news = False
        for source in sources:
            signature = _signature(source)
            if self._seen.get(source.what) == signature:
                continue
            try:
                for number, run in enumerate(source.read(lambda _: None)):
                    news = self._send(source, number, run, path) or news
                self._seen[source.what] = signature
            except (Unreadable, FileNotFoundError) as error:
                wrong.append(str(error))
        self._wrong = wrong
        self.totals.read = sum(len(source.files) for source in sources if source.what in self._seen)
        return news

    def _send(self, source: Source, number: int, run: FoundRun, path: Path) -> bool:
        if not run.names:
            return False  # what tells it from others is not written yet
        loss = name_loss(run, self._loss)
        one = self._open.get((source.what, number))
        if one is None:
            place = source.what.relative_to(path).as_posix() if path.is_dir() else source.what.name
            known = self._identities.settle(self._server, run, f"{place}\0{number}")
            asked = opening(run, self._project, self._tags) | {"resume": "allow"}
            opened = persist(lambda: self._server.open_run(asked))
            one = self._open[source.what, number] = _Open(run, opened, Frames(self._server, opened), loss)
            more = "" if known is None else " (known; only new numbers are added)"
            self._say(f"{source.what}: {run.tool} run {run.name!r}{more}: {opened.url}")
            self.totals.runs += 1
        elif one.ended:
            return False
        else:
            _keep_names(run, one.run)
        return self._send_new(one, run, source)

    def _send_new(self, one: _Open, run: FoundRun, source: Source) -> bool:
        count = 0
        for message in messages(run, one.sent):
            send_frames(one.frames, frame(to_bytes(message)))
            count += sum(map(len, message.values.values()))
        one.run, one.sent = run, run.series()
        if count:
            one.beat = time.monotonic()
            self.totals.values += count
            self._say(f"{source.what}: {count:,} new points")
        return count > 0

    def _heartbeats(self) -> None:
        for one in self._open.values():
            if not one.ended and time.monotonic() - one.beat > BEAT:
                persist(lambda one=one: self._server.post(one.opened, b""))  # type: ignore[misc]
                one.beat = time.monotonic()

    def _end(self, one: _Open) -> None:
        if one.ended:
            return
        one.run.count_losses()
        self.totals.left_out += one.run.left_out
        self.totals.changed += one.run.changed
        for sentence in about(one.run, one.loss):
            self._say(f"  {sentence}")
        send_frames(one.frames, frame(to_bytes(end_of(one.run))))
        one.ended = True


def _keep_names(run: FoundRun, before: FoundRun) -> None:
    """Give the series of a run that is read again the names that they have on the server."""
    run.identity = before.identity
    for new, old in run.former_names.items():
        if new in run.names and old in before.names and new not in before.names and old not in run.names:
            run.rename(new, old)


def _signature(source: Source) -> Signature:
    """What changes when a program writes to the files; SQLite writes to a file beside the database first."""
    found = []
    beside = [path.with_name(path.name + "-wal") for path in source.files]
    inside = [one for path in source.files if path.name == "meta.yaml" for one in path.parent.rglob("*")]
    for path in (*source.files, *beside, *inside):
        with suppress(OSError):
            known = path.stat()
            found.append((str(path), known.st_size, known.st_mtime_ns))
    return tuple(found)
