"""Sends a run of another tool to a server, as its own program would have reported it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.importing.configuration import storable
from server.importing.found_run import FoundRun, Points, Unreadable
from stablessm_core.outside.metrics import RECORD_BYTES, VALUE_BYTES
from stablessm_core.report.frames import frame
from stablessm_core.report.link import Frames, Opened, Refused, Server
from stablessm_core.report.messages import EndMessage, MetricsMessage, to_bytes
from stablessm_core.report.sync import persist, send_frames
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.telemetry.limits import MAX_NOTES, MAX_REASON, MAX_RESULT_NAME, MAX_RUN_NAME, MAX_TAG, MAX_TAGS
from stablessm_core.telemetry.metrics import MAX_METRICS, MAX_STEPS, MAX_VALUES
from stablessm_core.telemetry.series import TRAIN_LOSS

LOSS = "loss"
OBVIOUS = (TRAIN_LOSS, "train_loss", "train.loss", "train-loss", "loss/train", "training_loss", LOSS)  # the first one counts
POST_BYTES = 512 << 10
MAX_RESULT = 90  # final numbers


@dataclass(frozen=True)
class Sent:
    """refused: why the server can never store some of the numbers."""

    url: str
    refused: str


def name_loss(run: FoundRun, asked: str | None) -> str | None:
    """Rename the series of the training loss to `train/loss`, which pages and comparisons show first. Returns its old name.

    asked: its name; None takes an obvious one, or none. Raises Unreadable if the run has no such series.
    """
    if asked is None and run.group:
        _name_loss_of_group(run)
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


def _name_loss_of_group(run: FoundRun) -> None:
    """Call the loss of a validation or a test by its group, because it is no training loss."""
    found, new = next((name for name in run.names if name.lower() == LOSS), None), f"{run.group}/{LOSS}"
    if found is not None and new not in run.names:
        run.rename(found, new)
        run.former_names[new] = TRAIN_LOSS
        run.remarks.append(f"{found} is stored as {new}, because of the name {run.name!r}")


def send_run(server: Server, run: FoundRun, project: str, tags: list[str], advance: Callable[[int], None]) -> Sent:
    """Store the run, whose identity is settled. What the server has already is not stored twice, and a run that has ended keeps
    its end.

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
    send_frames(frames, body + frame(to_bytes(end_of(run))))
    advance(points)
    return Sent(opened.url, frames.last_refusal)


def end_of(run: FoundRun) -> EndMessage:
    """The end of the run, as its source tells it."""
    reason = f"imported from {run.tool}" + (f": {run.reason}" if run.reason else "")
    result = {name[:MAX_RESULT_NAME]: value for name, value in list(run.result.items())[:MAX_RESULT]}
    return EndMessage(run.status, reason[:MAX_REASON], result or None, ended_at=run.ended_at)


def about(run: FoundRun, loss: str | None) -> Iterator[str]:
    """What the user should know about an imported run. loss: what `name_loss` returned."""
    if loss is None and run.names and f"{run.group}/{LOSS}" not in run.names:
        yield f"no series looks like the training loss; --loss SERIES names it: {', '.join(run.names[:10])}"
    elif loss not in (None, TRAIN_LOSS):
        yield f"{loss} is stored as {TRAIN_LOSS}"
    for kind, count in run.left_out.items():
        yield f"left out: {kind} ({count:,})"
    for kind, count in run.changed.items():
        yield f"changed: {kind} ({count:,})"
    yield from run.remarks


def opening(run: FoundRun, project: str, tags: list[str]) -> dict[str, Any]:
    """The request that opens the run. What the server would refuse is cut off or left out, and the run remarks on it."""
    began = "" if run.started_at is None else time.strftime("; it began at %Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_at))
    notes = f"Imported from {run.tool}{began}." + (f"\n\n{run.notes}" if run.notes else "")
    started = {} if run.started_at is None else {"started_at": run.started_at}
    return started | {
        "id": run.id(project),
        "project": project,
        "name": _clean(run.name)[:MAX_RUN_NAME] or None,
        "config": storable(run),
        "tags": _tags(run, [*tags, *run.tags]),
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


def messages(run: FoundRun, sent: dict[str, Points] | None = None) -> Iterator[MetricsMessage]:
    """All points of the run, in messages that the server accepts. Series with the same steps share their messages.

    sent: points of the run that need not be sent again."""
    together: dict[bytes, dict[str, Points]] = {}
    for name, points in run.series().items():
        steps, values = _unsent(points, sent[name]) if sent and name in sent else points
        if not len(steps):
            continue
        together.setdefault(steps.tobytes(), {})[name] = steps, values
    for group in together.values():
        steps = next(iter(group.values()))[0]
        names = list(group)[:MAX_METRICS]
        at_once = max(1, min(MAX_STEPS, MAX_VALUES // len(names), RECORD_BYTES // (VALUE_BYTES * len(names))))
        for i in range(0, len(steps), at_once):
            part = slice(i, i + at_once)
            yield MetricsMessage(steps[part].tolist(), {name: group[name][1][part].tolist() for name in names})


def _unsent(points: Points, sent: Points) -> Points:
    (steps, values), (known, old) = points, sent
    place = np.minimum(np.searchsorted(known, steps), max(0, len(known) - 1))
    same = (known[place] == steps) & ((old[place] == values) | (np.isnan(old[place]) & np.isnan(values)))
    return steps[~same], values[~same]


def _tags(run: FoundRun, wanted: list[str]) -> list[str]:
    """The tags as the server takes them. The run remarks on those that are cut off or left out."""
    clean = list(dict.fromkeys(tag for one in wanted if (tag := _clean(one))))
    for tag in clean:
        if len(tag) > MAX_TAG:
            run.remarks.append(f"the tag {tag!r} is cut to {MAX_TAG} characters")
    tags = list(dict.fromkeys(tag[:MAX_TAG].strip() for tag in clean))
    if len(tags) > MAX_TAGS:
        run.remarks.append(f"{len(tags) - MAX_TAGS:,} tags are left out; a run has at most {MAX_TAGS}")
    return tags[:MAX_TAGS]


def _clean(text: str, allowed: str = "") -> str:
    """The text without characters that the server refuses."""
    return "".join(c if c.isprintable() or c in allowed else "\N{REPLACEMENT CHARACTER}" for c in text).strip()
