"""Sends a run of another tool to a server, as its own program would have reported it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.importing.found_run import FoundRun, Unreadable
from stablessm_core.outside.metrics import RECORD_BYTES, VALUE_BYTES
from stablessm_core.report.frames import frame
from stablessm_core.report.link import Frames, Opened, Refused, Server
from stablessm_core.report.messages import EndMessage, MetricsMessage, to_bytes
from stablessm_core.report.sync import persist, send_frames
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.telemetry.free_json import Refused as WrongJson
from stablessm_core.telemetry.free_json import check_json
from stablessm_core.telemetry.limits import MAX_NOTES, MAX_REASON, MAX_RUN_NAME, MAX_TAG, MAX_TAGS
from stablessm_core.telemetry.metrics import MAX_METRICS, MAX_STEPS, MAX_VALUES
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.series import TRAIN_LOSS

OBVIOUS = (TRAIN_LOSS, "train_loss", "train.loss", "train-loss", "loss/train", "training_loss", "loss")  # the first one counts
POST_BYTES = 512 << 10


@dataclass(frozen=True)
class Sent:
    """known: the server had steps of the run before. refused: why the server can never store some of the numbers."""

    url: str
    known: bool
    refused: str


def name_loss(run: FoundRun, asked: str | None) -> str | None:
    """Rename the series of the training loss to `train/loss`, which pages and comparisons show first. Returns its old name.

    asked: its name; None takes an obvious one, or none. Raises Unreadable if the run has no such series.
    """
    if asked is None:
        lower = {name.lower(): name for name in reversed(run.names)}
        found = next((lower[name] for name in OBVIOUS if name in lower), None)
    elif asked in run.names:
        found = asked
    else:
        has = f"it has {listed(run.names)}" if run.names else "it has none"
        raise Unreadable(f"no series is called {asked!r}{did_you_mean(asked, run.names)}; {has}")
    if found is not None and found != TRAIN_LOSS:
        if TRAIN_LOSS in run.names:
            raise Unreadable(f"{asked!r} cannot become {TRAIN_LOSS}, because another series has this name")
        run.rename(found, TRAIN_LOSS)
    return found


def send_run(server: Server, run: FoundRun, project: str, tags: list[str], advance: Callable[[int], None]) -> Sent:
    """Store the run. What the server has already is not stored twice, and a run that has ended keeps its end.

    advance: receives the number of points that were sent. Raises Refused, or OSError if the server does not answer.
    """
    opened = _open(server, opening(run, project, tags))
    frames = Frames(server, opened)
    body, points = b"", 0
    for message in messages(run):
        body += frame(to_bytes(message))
        points += sum(map(len, message.values.values()))
        if len(body) > min(POST_BYTES, opened.body_bytes // 2):
            send_frames(frames, body)
            advance(points)
            body, points = b"", 0
    reason = f"imported from {run.tool}" + (f": {run.reason}" if run.reason else "")
    send_frames(frames, body + frame(to_bytes(EndMessage(run.status, reason[:MAX_REASON]))))
    advance(points)
    return Sent(opened.url, opened.next_step > 1, frames.last_refusal)


def opening(run: FoundRun, project: str, tags: list[str]) -> dict[str, Any]:
    """The request that opens the run. What the server would refuse is cut off or left out, and the run remarks on it."""
    began = "" if run.started_at is None else time.strftime("; it began at %Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_at))
    notes = f"Imported from {run.tool}{began}." + (f"\n\n{run.notes}" if run.notes else "")
    return {
        "id": run.id(project),
        "project": project,
        "name": _clean(run.name)[:MAX_RUN_NAME] or None,
        "config": _config(run),
        "tags": list(dict.fromkeys(tag for one in (*tags, *run.tags) if (tag := _clean(one)[:MAX_TAG])))[:MAX_TAGS],
        "notes": _clean(notes, "\n\t")[:MAX_NOTES],
        "how": {},  # nothing is known, but an archive of the run needs the field
        "layers": [],
        "resume": "complete",
    }


def _open(server: Server, asked: dict[str, Any]) -> Opened:
    try:
        return server.open_run(asked)
    except Refused as refused:
        if not refused.transient:
            raise
    return persist(lambda: server.open_run(asked))


def messages(run: FoundRun) -> Iterator[MetricsMessage]:
    """All points of the run, in messages that the server accepts. Series with the same steps share their messages."""
    together: dict[bytes, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, (steps, values) in run.series().items():
        together.setdefault(steps.tobytes(), {})[name] = steps, values
    for group in together.values():
        steps = next(iter(group.values()))[0]
        names = list(group)[:MAX_METRICS]
        at_once = max(1, min(MAX_STEPS, MAX_VALUES // len(names), RECORD_BYTES // (VALUE_BYTES * len(names))))
        for i in range(0, len(steps), at_once):
            part = slice(i, i + at_once)
            yield MetricsMessage(steps[part].tolist(), {name: group[name][1][part].tolist() for name in names})


def _config(run: FoundRun) -> dict[str, Any]:
    config: dict[str, Any] = json_safe(run.config)
    try:
        check_json(config, "the configuration")
    except (WrongJson, ValueError, RecursionError) as error:
        run.remarks.append(f"{error}; the run gets no configuration")
        return {}
    return config


def _clean(text: str, allowed: str = "") -> str:
    """The text without characters that the server refuses."""
    return "".join(c if c.isprintable() or c in allowed else "\N{REPLACEMENT CHARACTER}" for c in text).strip()
