"""The flush thread's half of the recorder: turns copied rows into blocks and alerts, and writes these to the sink.

The training thread puts jobs into the queue `Flusher.jobs`: a `Batch` of rows, a function to call, or None to end the thread.
The training thread may read `latest`, `dropped`, `errors`, `fatal` and `warned` at any time. It may access everything else only
while no job waits or runs.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.column_reader import ColumnReader
from stablessm_core.telemetry.cross_step import CrossStepSeries
from stablessm_core.telemetry.detectors import KINDS, Alert, Detectors, Rows
from stablessm_core.telemetry.rules import Rules
from stablessm_core.telemetry.series import LOSS_OVER_BEST, SeriesSpec
from stablessm_core.telemetry.sink import Flush, Sink
from stablessm_core.watch.ring import RowCopy

WAITING_FLUSHES = 8
# keys of the telemetry in a checkpoint, in addition to the names of the groups; existing checkpoints contain these spellings
DETECTOR_STATE, CROSS_STEP_STATE, RULE_STATE = "detectors", "following", "rules"

StopAtWarning = Literal["keep_warning_row", "drop_warning_row"]

log = logging.getLogger(__name__)


class Expansion(NamedTuple):
    """How the flush thread computes the columns of the layout from rows whose columns are others.

    columns: the number of columns of a row in the ring. compute: float32 (rows, columns) -> {name: float32 (rows, width)}.
    """

    columns: int
    compute: Callable[[np.ndarray], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Batch:
    """Rows of consecutive steps. seconds: the time that these steps took, without pauses."""

    first_step: int
    copies: tuple[RowCopy, ...]
    rows: int
    seconds: float
    steps_per_second: float | None

    def joined(self, after: Batch) -> Batch | None:
        """This batch and `after` as one batch, or None if `after` does not begin where this batch ends."""
        if self.first_step + self.rows != after.first_step:
            return None
        copies, seconds = self.copies + after.copies, self.seconds + after.seconds
        return Batch(self.first_step, copies, self.rows + after.rows, seconds, after.steps_per_second)


Job = Batch | Callable[[], None] | None


class Flusher:
    """Turns batches into blocks and alerts, and writes them to `sink` on a separate thread. Arguments: see `Recorder`.

    columns: the slice of a row's columns for each name. expansion: see `Recorder`; with an expansion, only the widths of the
    slices count. dropped: steps whose telemetry was lost. errors: calls that raised an
    error. latest: the last value of each scalar series that reached the sink. fatal, warned: see `Recorder`.
    """

    def __init__(
        self,
        catalogue: Sequence[SeriesSpec],
        sink: Sink,
        columns: Mapping[str, slice],
        *,
        every: int,
        reader: ColumnReader | None,
        gauges: Mapping[str, Callable[[int, float], float]],
        halt: bool,
        rules: Rules,
        expansion: Expansion | None = None,
    ) -> None:
        self.jobs: queue.Queue[Job] = queue.Queue(WAITING_FLUSHES)
        self.fatal: Alert | None = None
        self.warned: Alert | None = None
        self.stop_at_warning: StopAtWarning | None = None
        self.dropped, self.errors = 0, 0
        self._abandoned, self._in_hand = False, 0  # rows that the flush thread has taken from the queue and not yet written
        self.latest: dict[str, float] = {}
        self._sink, self._columns, self._every, self._gauges, self._halt = sink, columns, every, gauges, halt
        self._reader, self._rules, self._expansion = reader, rules, expansion
        self._last_step = 0
        self._cross_step = CrossStepSeries(reader.layers, catalogue, every) if reader else None
        self._groups = self._recorded_groups(catalogue)
        self._levels = {group: LevelBuilder(group, every) for group in self._groups}
        self.thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self.thread.start()

    def _recorded_groups(self, catalogue: Sequence[SeriesSpec]) -> dict[str, list[SeriesSpec]]:
        """The recorded series of each group. Raises ValueError for a series that the rows do not contain."""
        groups: dict[str, list[SeriesSpec]] = {}
        for series in catalogue:
            columns = self._columns.get(series.name)
            width = None if columns is None else columns.stop - columns.start
            if series.derived:
                if self._reader is None:
                    raise ValueError(f"series {series.name!r} is derived; that needs a column reader")
            elif width is not None and width != series.width:
                raise ValueError(f"series {series.name!r} has width {series.width}; its columns are {width}")
            elif columns is not None or series.name in self._gauges or (self._cross_step and series.name == LOSS_OVER_BEST):
                groups.setdefault(series.group, []).append(series)
        return groups

    def count_loss(self, rows: int, reason: str, error: BaseException | None = None) -> None:
        """Count `rows` steps of lost telemetry, and log a warning the first time. Both threads may call this method."""
        if self.dropped == self.errors == 0:
            log.warning("telemetry is being lost: %s; training goes on, losses are counted", reason, exc_info=error)
        self.dropped += rows
        self.errors += 1

    def abandon(self, seconds: float) -> None:
        """Count every waiting row as lost, and end the thread after the batch that it works on. A batch that takes longer than
        `seconds` counts as lost too."""
        self._abandoned = True
        with suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                if isinstance(job, Batch):
                    self.count_loss(job.rows, "the run has ended")
        self.jobs.put(None)
        self.thread.join(seconds)
        if self.thread.is_alive() and self._in_hand:
            self.count_loss(self._in_hand, "the run has ended")

    # ---- the training thread calls the next two methods, while no job waits or runs ----

    def state(self) -> dict[str, np.ndarray]:
        """The unfinished points of the coarser levels and the state of the detectors, for a checkpoint."""
        parts: dict[str, LevelBuilder | Detectors | CrossStepSeries | Rules] = {**self._levels, RULE_STATE: self._rules}
        if self._reader and self._cross_step:
            parts |= {DETECTOR_STATE: self._reader.detectors, CROSS_STEP_STATE: self._cross_step}
        return {f"{name}/{key}": array for name, part in parts.items() for key, array in part.state().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the `state()` of a flusher with the same catalogue."""

        def state_of(name: str) -> dict[str, np.ndarray]:
            return {key.removeprefix(name + "/"): array for key, array in arrays.items() if key.startswith(name + "/")}

        for group in self._levels:
            self._levels[group] = LevelBuilder(group, self._every)
            if state := state_of(group):
                self._levels[group].restore(state)
        self._rules.restore(state_of(RULE_STATE))
        if self._reader and self._cross_step:
            self._reader.detectors.restore(state_of(DETECTOR_STATE))
            self._cross_step.restore(state_of(CROSS_STEP_STATE))

    # ---- the flush thread runs all methods below ----

    def _work(self) -> None:
        while True:
            jobs = self._waiting_jobs()
            self._in_hand = sum(job.rows for job in jobs if isinstance(job, Batch))
            for job in jobs:
                if job is None:
                    return
                try:
                    if isinstance(job, Batch) and self._abandoned:
                        self.count_loss(job.rows, "the run has ended")
                    elif isinstance(job, Batch):
                        self._process(job)
                    else:
                        job()
                except Exception as error:  # noqa: BLE001 - telemetry never stops training: warned once, counted
                    self.count_loss(job.rows if isinstance(job, Batch) else 0, repr(error), error)
                self._in_hand -= job.rows if isinstance(job, Batch) else 0

    def _waiting_jobs(self) -> list[Job]:
        """All waiting jobs. Blocks until there is at least one job. Batches that piled up behind a slow sink are joined."""
        jobs = [self.jobs.get()]
        while not self.jobs.empty():
            job, last = self.jobs.get(), jobs[-1]
            joined = last.joined(job) if isinstance(job, Batch) and isinstance(last, Batch) else None
            if joined is None:
                jobs.append(job)
            else:
                jobs[-1] = joined
        return jobs

    def _process(self, batch: Batch) -> None:
        if self.fatal is not None or self.warned is not None:
            return
        table = np.concatenate([copy.wait() for copy in batch.copies])  # a copy, also of a single one
        for copy in batch.copies:
            copy.release()
        if self._expansion is None:
            columns = {name: table[:, where] for name, where in self._columns.items()}
        else:
            columns = self._expansion.compute(table)
        alerts: list[Alert] = []
        derived: dict[str, list[np.ndarray]] = {}
        fatal = warned = None
        if self._reader is not None:
            rows, derived = self._reader.read(batch.first_step, columns)
            count, alerts, fatal, warned = self._scan(self._reader.detectors, rows)
            if count < len(table):
                table = table[:count]
                columns = {name: values[:count] for name, values in columns.items()}
                derived = {group: [values[:count] for values in kinds] for group, kinds in derived.items()}
        coarse: list[Block] = []
        so_far: dict[str, float] = {}
        if self._cross_step is not None and len(table):
            coarse, cross_step_columns, so_far = self._cross_step.read(batch.first_step, columns)
            columns |= cross_step_columns
        for name, gauge in self._gauges.items():
            columns[name] = np.full((len(table), 1), gauge(batch.rows, batch.seconds), np.float32)
        last_step = self._last_step = batch.first_step + len(table) - 1
        alerts += self._judged(np.arange(batch.first_step, last_step + 1), columns)
        blocks: list[Block] = []
        keep_last = fatal is not None or (warned is not None and self.stop_at_warning == "keep_warning_row")
        if len(table):
            blocks = self._blocks(batch.first_step, last_step, columns, derived, keep_last=keep_last) + coarse
            self.latest.update((name, float(values[-1, 0])) for name, values in columns.items() if values.shape[1] == 1)
        try:
            self._sink.write(Flush(blocks, alerts, last_step, batch.steps_per_second, so_far))
        finally:
            # set only after the step is sent, because the trainer acts as soon as it sees `fatal` or `warned`
            self.fatal, self.warned = fatal, warned

    def _judged(self, steps: np.ndarray, columns: Mapping[str, np.ndarray]) -> list[Alert]:
        """The alerts of the rules about scalars in these steps."""
        named = ((name, columns[name]) for name in self._rules.names & columns.keys())
        return self._rules.read(steps, {name: values[:, 0] for name, values in named if values.shape[1] == 1})

    def write_logged(self, step: int, block: Block, values: Mapping[str, float | np.ndarray]) -> None:
        """Send values that are not recorded at every step, and the alerts of the rules about them."""
        scalars = {name: np.atleast_1d(value) for name, value in values.items() if np.ndim(value) == 0}
        self._sink.write(Flush([block], self._rules.read(np.array([step]), scalars), step, None))

    def write_durations(self) -> None:
        """Send the alerts whose conditions have held since they were last sent, with their durations."""
        alerts = self._reader.detectors.durations() if self._reader else []
        if alerts:
            self._sink.write(Flush([], alerts, self._last_step, None))

    def _scan(self, detectors: Detectors, rows: Rows) -> tuple[int, list[Alert], Alert | None, Alert | None]:
        """The number of rows to keep, the alerts of these rows, and the alert that ends recording: either `fatal` or
        `warned`."""
        bad = detectors.first_nonfinite(rows) if self._halt else None
        taken = rows if bad is None else rows.cut(bad + 1)
        before = detectors.state() if self.stop_at_warning else {}
        alerts = detectors.scan(taken, finite=self._halt and bad is None)
        last = None if bad is None else rows.first_step + bad
        warned = next((a for a in alerts if _is_critical_warning(a) and a.step != last), None) if self.stop_at_warning else None
        if warned is not None:
            detectors.restore(before)
            keep = self.stop_at_warning == "keep_warning_row"
            count = warned.step - rows.first_step + keep
            alerts = detectors.scan(rows.cut(count)) if count else []
            return count, alerts if keep else [*alerts, warned], None, warned
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
        # the steps 1, 1 + every, 1 + 2 every, ... are stored
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


def _is_critical_warning(alert: Alert) -> bool:
    return KINDS[alert.kind].comes_before and alert.severity == "critical" and alert.lasted == 1
