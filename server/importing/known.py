"""Finds out which run of the server a found run is, so that the numbers of two runs never mix.

A known run is the same only if it has the same value at every step that both have. A value counts as the same if the source has
it at that step, even if a later one replaced it. Otherwise the found run gets an identity of its own, which the first different
value determines. So the same source finds the same run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from server.importing.found_run import FoundRun, Unreadable
from server.importing.sending import messages
from stablessm_core.report.frames import CONTENT_TYPE, frame
from stablessm_core.report.link import Server
from stablessm_core.report.messages import to_bytes
from stablessm_core.report.sync import persist
from stablessm_core.telemetry.metrics import as_float32
from stablessm_core.telemetry.nonfinite import as_text

BODY_BYTES = 1 << 20
BRANCHES = 50  # runs that may begin alike


@dataclass
class Stored:
    """A run of the server beside a found run. other: (step, name, stored value, found value) of the first value that is not the
    same; None if all are. beyond: True if the run has points of the same series that the source lacks."""

    run_id: int
    other: tuple[int, str, float, float] | None = None
    beyond: bool = False

    def sentence(self) -> str:
        """What is different."""
        if self.other is None:
            return f"run {self.run_id} has points that this source lacks"
        step, name, stored, found = self.other
        return f"run {self.run_id} has another value at step {step:,} of {name}: {as_text(stored)} there, {as_text(found)} here"


@dataclass
class Identities:
    """The ids of the runs that this import has found so far."""

    project: str
    taken: set[str] = field(default_factory=set)

    def settle(self, server: Server, run: FoundRun, place: str) -> int | None:
        """Give the run its final identity, and return the number of the server's run; None if it is new there. place: where the
        run lies below the imported folder. Raises Unreadable, Refused, and OSError if the server does not answer."""
        found = self._settle(server, run, place)
        self.taken.add(run.id(self.project))
        return found

    def _settle(self, server: Server, run: FoundRun, place: str) -> int | None:
        newest = run.identity
        for former in run.former_identities:
            run.identity = former
            stored = self._stored(server, run)
            if stored is not None and stored.other is None and not stored.beyond:
                return stored.run_id
            if stored is not None:
                run.remarks.append(f"{stored.sentence()}; an earlier version imported it, and it stays as it is")
        run.identity = newest
        if run.id(self.project) in self.taken:  # another source of this import begins alike
            run.identity += f"\0{place}"
        different = ""
        for _ in range(BRANCHES):
            stored = self._stored(server, run)
            if stored is None or stored.other is None:
                if different:
                    run.remarks.append(f"{different}; this is " + ("a new run" if stored is None else f"run {stored.run_id}"))
                return None if stored is None else stored.run_id
            different = stored.sentence()
            step, name, _, value = stored.other
            run.identity += f"\0{step}\0{name}\0{as_text(value)}"
        raise Unreadable(f"{different}; more than {BRANCHES} runs begin alike, so no further one is opened")

    def _stored(self, server: Server, run: FoundRun) -> Stored | None:
        """The server's run with the id of this run; None if there is none, or if another source of this import has it."""
        if (run_id := run.id(self.project)) in self.taken:
            return None
        answer = _compare(server, run_id, b"")
        if answer["run_id"] is None:
            return None
        known, stored = set(answer["names"]), Stored(int(answer["run_id"]))
        for new, old in run.former_names.items():
            if new in run.names and old in known and new not in known and old not in run.names:
                run.rename(new, old)  # an earlier version stored the series under this name
        ends = {name: int(steps[-1]) for name, (steps, _) in run.series().items() if len(steps)}
        for body, names in _bodies(run):
            answer = _compare(server, run_id, body)
            last = max((ends[name] for name in names), default=-1)
            stored.beyond = stored.beyond or answer["unknown"] > 0 or answer["last_step"] > last
            for one in answer["first"]:
                other = int(one["step"]), str(one["name"]), float(one["stored"]), float(one["given"])
                if (stored.other is None or other[:2] < stored.other[:2]) and not _had(run, other):
                    stored.other = other
        return stored


def _had(run: FoundRun, other: tuple[int, str, float, float]) -> bool:
    """True if the source has the stored value at this step too."""
    values = as_float32(run.values_at(other[1], other[0]))
    return bool(np.any((values == np.float32(other[2])) | (np.isnan(values) & np.isnan(other[2]))))


def _bodies(run: FoundRun) -> Iterator[tuple[bytes, set[str]]]:
    """All points of the run in bodies that the server takes, each with the names of its series."""
    body, names = b"", set[str]()
    for message in messages(run):
        one = frame(to_bytes(message))
        if body and len(body) + len(one) > BODY_BYTES:
            yield body, names
            body, names = b"", set()
        body += one
        names |= message.values.keys()
    if body:
        yield body, names


def _compare(server: Server, run_id: str, body: bytes) -> dict[str, Any]:
    path = f"/api/ingest/runs/{run_id}/compare"
    return persist(lambda: server._request(path, body, {"Content-Type": CONTENT_TYPE}))
