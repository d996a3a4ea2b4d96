"""From rows on the device to blocks in a sink: flush thread, levels, detectors, back-pressure.

The training thread calls `record` once a step and never waits for the device or, short of back-pressure, for the sink. Every
step's row passes through the ring, so a non-finite number is found at its exact step however late the flush;
`every` only thins what is kept. Back-pressure: QUEUE flushes may wait, then the ring collects, then the training thread waits
PATIENCE seconds once, then rows are dropped and counted until the sink moves again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.detectors import KINDS, Alert, Detectors, Rows
from stablessm_core.telemetry.following import Following
from stablessm_core.telemetry.monitor import Monitor
from stablessm_core.telemetry.ring import Ring, RowCopy
from stablessm_core.telemetry.series import LOSS_OVER_BEST, SeriesSpec
from stablessm_core.telemetry.sinks import Flush as Flush
from stablessm_core.telemetry.sinks import MemorySink as MemorySink
from stablessm_core.telemetry.sinks import Sink as Sink

FLUSH_STEPS = 256
FLUSH_SECONDS = 0.2
QUEUE = 8
PATIENCE = 5.0  # seconds
RING_BYTES = 1 << 26
DETECTORS, FOLLOWING = "detectors", "following"  # beside the groups, in what a checkpoint keeps of the telemetry
RATE_SECONDS = 10.0  # steps per second are over this long

Heed = Literal["at", "before"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Batch:
    # consecutive steps on their way to the flush thread
    first_step: int
    copies: tuple[RowCopy, ...]
    rows: int
    seconds: float  # spent on them, pauses left out
    steps_per_second: float | None


class Recorder:
    """Records series of a run. The catalogue's recorded series are columns of the rows, except gauges and `log`ged groups.

    catalogue: every series, groups in the order of their columns. layout: (name, width) of a row's columns in order.
    gauges: per name a function (rows, seconds) -> value, asked at each flush and repeated for the steps in it.
    monitor: derived columns and detectors; without one the catalogue may hold no derived series.
    ring: where the rows are; who writes them there itself, in a captured graph say, calls `recorded` instead of `record`.
    halt: at the first non-finite step set `fatal` and take nothing after that step, until `truncate`.
    heed: "at" or "before": likewise set `warned` at the first critical alert that comes before numbers are lost; with "before"
    its row is not taken either, so that its step can be trained in another way. May be changed when `drain`ed.
    """

    def __init__(
        self,
        catalogue: Sequence[SeriesSpec],
        sink: Sink,
        *,
        layout: Sequence[tuple[str, int]],
        device: torch.device | str = "cpu",
        every: int = 1,
        monitor: Monitor | None = None,
        gauges: Mapping[str, Callable[[int, float], float]] | None = None,
        halt: bool = False,
        heed: Heed | None = None,
        flush_steps: int = FLUSH_STEPS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.fatal: Alert | None = None
        self.warned: Alert | None = None
        self.heed = heed
        self.dropped, self.errors = 0, 0  # steps whose telemetry was lost; calls that raised
        self.latest: dict[str, float] = {}  # last value of each scalar series that reached the sink
        self._sink, self._every, self._monitor, self._halt = sink, every, monitor, halt
        self._gauges = dict(gauges or {})
        ends = np.cumsum([width for _, width in layout])
        self._columns = {name: slice(int(end) - width, int(end)) for (name, width), end in zip(layout, ends, strict=True)}
        self._following = Following(monitor.layers, catalogue, every) if monitor else None
        self._groups = self._recorded_groups(catalogue)
        self._levels = {group: LevelBuilder(group, every) for group in self._groups}
        columns = int(ends[-1])
        self._flush_steps = max(1, min(flush_steps, RING_BYTES // (8 * columns)))
        self.flush_seconds = flush_seconds
        self.ring = Ring(columns, 4 * self._flush_steps, torch.device(device))
        self._first_step, self._started = 0, False
        self._flushed_at = self._clocked_at = perf_counter() - flush_seconds  # so that the first step is out at once
        self._paused = 0.0
        self._marks: deque[tuple[float, int]] = deque()  # (seconds of training, steps recorded) at the latest flushes
        self._recorded = 0
        self._patience = PATIENCE
        self._queue: queue.Queue[_Batch | Callable[[], None] | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()
        self._call(lambda: sink.open(list(catalogue)))

    @property
    def thread_id(self) -> int:
        """The identifier of the flush thread, for measurements."""
        return self._thread.ident or 0

    def record(self, step: int, row: Tensor) -> None:
        """Take the row of training step `step`, float32 (columns,) on the recorder's device; steps follow on each other."""
        self.ring.write(row)
        self.recorded(step)

    def recorded(self, step: int) -> None:
        """The host's half of `record`, for callers that have written the row of `step` into `ring` themselves."""
        if self.ring.rows == 0:
            self._first_step = step
        elif step != self._first_step + self.ring.rows:
            raise ValueError(f"step is {step}; expected {self._first_step + self.ring.rows}, the one after the last recorded")
        self.ring.advance()
        if self.ring.rows >= self._flush_steps or perf_counter() - self._flushed_at >= self.flush_seconds:
            self.flush()

    def skipped(self) -> None:
        """A row was written into `ring` that is recorded already: its step is trained again. Call it when drained."""
        self.ring.skip()

    def log(self, step: int, group: str, values: Mapping[str, float | np.ndarray]) -> None:
        """Record values of a group that comes at its own pace (evaluation), in the order of its catalogue columns."""
        self.flush()
        block = Block(group, 0, step, 1, np.concatenate([np.atleast_1d(v) for v in values.values()]).astype(np.float32)[:, None])
        self.latest.update((name, float(v)) for name, v in values.items() if np.ndim(v) == 0)
        self._call(lambda: self._sink.write(Flush([block], [], step, None)))

    def alert(self, step: int, alert: Alert) -> None:
        """Send an alert that no row shows; `step`: the last step recorded."""
        self._call(lambda: self._sink.write(Flush([], [alert], step, None)))

    def flush(self, *, force: bool = False) -> None:
        """Start sending what was recorded; with a full queue only when the ring is full too, or when forced."""
        if self.ring.rows == 0 or (self._queue.full() and self.ring.rows < self.ring.max_rows and not force):
            return
        rows, first_step = self.ring.rows, self._first_step
        now = perf_counter()
        seconds, self._flushed_at, self._clocked_at = now - self._clocked_at, now, now
        self._recorded += rows
        batch = _Batch(first_step, (self.ring.take(),), rows, seconds, self._rate(now))
        try:
            self._queue.put(batch, timeout=self._patience)
            self._patience = PATIENCE
        except queue.Full:
            self._patience = 0.0
            self._lost(rows, "the sink is too slow")

    def drain(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far has reached the sink; False when that took longer than `timeout` seconds."""
        self.flush(force=True)
        done = threading.Event()
        return self._call(done.set) and done.wait(timeout)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Drain, then leave the time spent inside out of every rate (evaluation, checkpoints)."""
        self.drain()
        began = perf_counter()
        yield
        ended = perf_counter()
        self._paused += ended - began
        self._clocked_at += ended - began
        self._flushed_at = ended

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        """Tell the sink of a durable checkpoint, after everything recorded before."""
        self._call(lambda: self._sink.checkpoint(step, path, sha256))

    def checkpoints_needed(self) -> Collection[int]:
        """Steps whose checkpoints must stay on disk."""
        return self._sink.needed()

    def levels(self) -> dict[str, np.ndarray]:
        """What the coarser levels wait for and the detectors remember, for a checkpoint; call it when drained."""
        parts: dict[str, LevelBuilder | Detectors | Following] = dict(self._levels)
        if self._monitor and self._following:
            parts |= {DETECTORS: self._monitor.detectors, FOLLOWING: self._following}
        return {f"{name}/{key}": array for name, part in parts.items() for key, array in part.state().items()}

    def restore_levels(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from `levels()` of an earlier recorder with the same catalogue; call it when drained."""

        def of(name: str) -> dict[str, np.ndarray]:
            return {key.removeprefix(name + "/"): array for key, array in arrays.items() if key.startswith(name + "/")}

        for group in self._levels:
            self._levels[group] = LevelBuilder(group, self._every)
            if own := of(group):
                self._levels[group].restore(own)
        if self._monitor and self._following:
            self._monitor.detectors.restore(of(DETECTORS))
            self._following.restore(of(FOLLOWING))

    def go_on(self) -> None:
        """Take the steps after those that came before `warned`; what was recorded in between is forgotten."""
        self.flush(force=True)
        done = threading.Event()

        def forget() -> None:
            self.warned = None
            done.set()

        self._queue.put(forget)
        done.wait()

    def truncate(self, to_step: int, reason: str, levels: Mapping[str, np.ndarray]) -> None:
        """Take back the steps after `to_step`; recording goes on at `to_step + 1` as if they had never been.

        Waits for the sink, however long: two histories must not mix.
        """
        self.flush(force=True)
        done = threading.Event()

        def forget() -> None:
            self.restore_levels(levels)
            self.fatal = self.warned = None

        for job in (lambda: self._sink.truncate(to_step, reason), forget, done.set):
            self._queue.put(job)
        done.wait()

    def close(self, timeout: float = 60.0) -> bool:
        """Send everything and end the thread; False when the sink did not take it within `timeout` seconds."""
        done = self.drain(timeout)
        if done:
            self._queue.put(None)
            self._thread.join(timeout)
        return done

    def _recorded_groups(self, catalogue: Sequence[SeriesSpec]) -> dict[str, list[SeriesSpec]]:
        groups: dict[str, list[SeriesSpec]] = {}
        for series in catalogue:
            known = self._columns.get(series.name)
            if series.derived:
                if self._monitor is None:
                    raise ValueError(f"series {series.name!r} is derived; that needs a monitor")
            elif known is not None and known.stop - known.start != series.width:
                raise ValueError(f"series {series.name!r} has width {series.width}; its columns are {known.stop - known.start}")
            elif known is not None or series.name in self._gauges or (self._following and series.name == LOSS_OVER_BEST):
                groups.setdefault(series.group, []).append(series)
        return groups

    def _rate(self, now: float) -> float | None:
        self._marks.append((now - self._paused, self._recorded))
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[0][0] > RATE_SECONDS:
            self._marks.popleft()
        (t0, n0), (t1, n1) = self._marks[0], self._marks[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    def _call(self, function: Callable[[], None]) -> bool:
        try:
            self._queue.put(function, timeout=PATIENCE)
        except queue.Full:
            self._lost(0, "the sink is too slow")
            return False
        return True

    # ---- everything below runs on the recorder's thread ----

    def _work(self) -> None:
        while True:
            for job in _merged(self._waiting()):
                if job is None:
                    return
                try:
                    if callable(job):
                        job()
                    else:
                        self._process(job)
                except Exception as error:  # noqa: BLE001 - telemetry never stops training: warned once, counted
                    self._lost(0 if callable(job) else job.rows, repr(error), error)

    def _waiting(self) -> list[_Batch | Callable[[], None] | None]:
        jobs = [self._queue.get()]
        while not self._queue.empty():
            jobs.append(self._queue.get())
        return jobs

    def _lost(self, rows: int, reason: str, error: BaseException | None = None) -> None:
        if self.dropped == self.errors == 0:
            log.warning("telemetry is being lost: %s; training goes on, losses are counted", reason, exc_info=error)
        self.dropped += rows
        self.errors += 1

    def _process(self, batch: _Batch) -> None:
        if self.fatal is not None or self.warned is not None:
            return
        table = np.concatenate([copy.wait() for copy in batch.copies])
        columns = {name: table[:, where] for name, where in self._columns.items()}
        alerts: list[Alert] = []
        derived: dict[str, list[np.ndarray]] = {}
        fatal = warned = None
        if self._monitor is not None:
            rows, derived = self._monitor.read(batch.first_step, columns)
            count, alerts, fatal, warned = self._scan(self._monitor.detectors, rows)
            if count < len(table):
                table = table[:count]
                columns = {name: values[:count] for name, values in columns.items()}
                derived = {group: [values[:count] for values in kinds] for group, kinds in derived.items()}
        coarse: list[Block] = []
        so_far: dict[str, float] = {}
        if self._following is not None and len(table):
            coarse, made, so_far = self._following.read(batch.first_step, columns)
            columns |= made
        for name, gauge in self._gauges.items():
            columns[name] = np.full((len(table), 1), gauge(batch.rows, batch.seconds), np.float32)
        last_step = batch.first_step + len(table) - 1
        blocks: list[Block] = []
        keep_last = fatal is not None or (warned is not None and self.heed == "at")
        if len(table):
            blocks = self._blocks(batch.first_step, last_step, columns, derived, keep_last=keep_last) + coarse
            self.latest.update((name, float(values[-1, 0])) for name, values in columns.items() if values.shape[1] == 1)
        try:
            self._sink.write(Flush(blocks, alerts, last_step, batch.steps_per_second, so_far))
        finally:
            # after the step is out, so that the trainer may act as soon as it sees it
            self.fatal, self.warned = fatal, warned

    def _scan(self, detectors: Detectors, rows: Rows) -> tuple[int, list[Alert], Alert | None, Alert | None]:
        """How many rows to take, their alerts, and the alert at which nothing more is taken: numbers lost, or a warning."""
        bad = detectors.first_nonfinite(rows) if self._halt else None
        taken = rows if bad is None else rows.cut(bad + 1)
        before = detectors.state() if self.heed else {}
        alerts = detectors.scan(taken, finite=self._halt and bad is None)
        last = None if bad is None else rows.first_step + bad
        warned = next((a for a in alerts if _comes_before(a) and a.step != last), None) if self.heed else None
        if warned is not None:
            detectors.restore(before)
            count = warned.step - rows.first_step + (self.heed == "at")
            alerts = detectors.scan(rows.cut(count)) if count else []
            return count, alerts if self.heed == "at" else [*alerts, warned], None, warned
        fatal = None if bad is None else next(alert for alert in alerts if KINDS[alert.kind].nonfinite)
        return len(taken.loss), alerts, fatal, None

    def _blocks(
        self,
        first: int,
        last: int,
        columns: Mapping[str, np.ndarray],
        derived: Mapping[str, list[np.ndarray]],
        *,
        keep_last: bool,
    ) -> list[Block]:
        # kept are steps 1, 1 + every, 1 + 2 every, ...
        skip = (1 - first) % self._every
        blocks: list[Block] = []
        for group, recorded in self._groups.items():
            parts = [columns[series.name] for series in recorded]
            width = sum(part.shape[1] for part in parts)
            kept = np.concatenate([part[skip :: self._every] for part in (*parts, *derived.get(group, ()))], axis=1)
            if len(kept):
                blocks.append(Block(group, 0, first + skip, self._every, np.ascontiguousarray(kept[:, :width].T)))
                blocks += self._levels[group].feed(first + skip, kept.T)
            if keep_last and (last - 1) % self._every:
                blocks.append(Block(group, 0, last, self._every, np.concatenate([part[-1] for part in parts])[:, None]))
        return blocks


def _comes_before(alert: Alert) -> bool:
    return KINDS[alert.kind].comes_before and alert.severity == "critical"


def _merged(jobs: list[_Batch | Callable[[], None] | None]) -> list[_Batch | Callable[[], None] | None]:
    # batches that piled up behind a slow sink travel as one
    merged: list[_Batch | Callable[[], None] | None] = []
    for job in jobs:
        last = merged[-1] if merged else None
        if isinstance(job, _Batch) and isinstance(last, _Batch) and last.first_step + last.rows == job.first_step:
            seconds = last.seconds + job.seconds
            merged[-1] = _Batch(last.first_step, last.copies + job.copies, last.rows + job.rows, seconds, job.steps_per_second)
        else:
            merged.append(job)
    return merged
