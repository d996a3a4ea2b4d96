"""The training thread's half of recording: takes a row per step and passes batches of rows to the flush thread.

The training thread calls `record` once per step. `record` never waits for the device, and waits for the sink only if the ring
is full. The row of every step passes through the ring, so a non-finite number is found at its exact step, even if the flush is
late. `every` only thins out the stored rows. If the sink is slow, up to WAITING_FLUSHES flushes wait in the queue. Further rows
collect in the ring. When the ring is full, the training thread waits once, for PATIENCE seconds. After that, rows are dropped
and counted until the sink makes progress.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.column_reader import ColumnReader
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.rules import Rules
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush, ResumableSink, Sink
from stablessm_core.watch.flusher import Batch, Expansion, Flusher, Job, StopAtWarning
from stablessm_core.watch.ring import Ring

# a flush is due after FLUSH_STEPS steps or FLUSH_SECONDS seconds, whichever comes first
FLUSH_STEPS = 256
FLUSH_SECONDS = 0.2
PATIENCE = 5.0  # maximum time that the training thread waits when the ring is full, in seconds
RING_BYTES = 1 << 26
RATE_SECONDS = 10.0  # time over which the number of steps per second is averaged, in seconds


class Recorder:
    """Records the series of a run. The catalogue's recorded series are columns of the rows, except gauges and `log`ged groups.

    catalogue: every series, with groups in the order of their columns. layout: (name, width) of a row's columns in order.
    gauges: for each name a function (rows, seconds) -> value, called at each flush. The value applies to all steps of the
    flush. reader: derives series and reads rows for the detectors. Without a reader the catalogue must not contain derived
    series. rules: the run's own alert rules about scalars. ring: the buffer of the rows. A caller that writes rows there
    itself, such as a captured graph, also calls `count_row`. halt: at the first non-finite step set `fatal`, and record no later
    step until `truncate`. stop_at_warning: at the first critical alert that warns of non-finite numbers set `warned`, and record
    no later step. With "keep_warning_row" the row of the warning's step is still recorded. With "drop_warning_row" this row is
    not recorded, so that the step can be trained again in another way. Change this attribute only after `drain`. expansion: if
    the rows have other columns than the layout, how the flush thread computes the layout's columns. patience: maximum time that
    the training thread waits when the ring is full, in seconds.
    """

    def __init__(
        self,
        catalogue: Sequence[SeriesSpec],
        sink: Sink,
        *,
        layout: Sequence[tuple[str, int]],
        device: torch.device | str = "cpu",
        every: int = 1,
        reader: ColumnReader | None = None,
        gauges: Mapping[str, Callable[[int, float], float]] | None = None,
        halt: bool = False,
        rules: Rules | None = None,
        flush_steps: int = FLUSH_STEPS,
        flush_seconds: float = FLUSH_SECONDS,
        expansion: Expansion | None = None,
        patience: float = PATIENCE,
    ) -> None:
        ends = np.cumsum([width for _, width in layout])
        where = {name: slice(int(end) - width, int(end)) for (name, width), end in zip(layout, ends, strict=True)}
        columns = int(ends[-1]) if expansion is None else expansion.columns
        self._sink = sink
        self._flush_steps = max(1, min(flush_steps, RING_BYTES // (8 * columns)))
        self.flush_seconds = flush_seconds
        self.ring = Ring(columns, 4 * self._flush_steps, torch.device(device))
        self._first_step = 0
        self._flushed_at = self._clocked_at = perf_counter() - flush_seconds  # so early that the first step is flushed at once
        self._paused = 0.0
        self._marks: deque[tuple[float, int]] = deque()  # (seconds of training, number of steps recorded) at the latest flushes
        self._recorded = 0
        self._patience = self._longest_wait = patience
        self._flusher = Flusher(
            catalogue,
            sink,
            where,
            every=every,
            reader=reader,
            gauges=dict(gauges or {}),
            halt=halt,
            rules=rules or Rules([]),
            expansion=expansion,
        )
        self._call(lambda: sink.open(list(catalogue)))

    @property
    def fatal(self) -> Alert | None:
        return self._flusher.fatal

    @property
    def warned(self) -> Alert | None:
        return self._flusher.warned

    @property
    def stop_at_warning(self) -> StopAtWarning | None:
        return self._flusher.stop_at_warning

    @stop_at_warning.setter
    def stop_at_warning(self, value: StopAtWarning | None) -> None:
        self._flusher.stop_at_warning = value

    @property
    def latest(self) -> dict[str, float]:
        """The last value of each scalar series that reached the sink."""
        return self._flusher.latest

    @property
    def dropped(self) -> int:
        """The number of steps whose telemetry was lost."""
        return self._flusher.dropped

    @property
    def errors(self) -> int:
        """The number of calls of the sink or of a job that raised an error or found the queue full."""
        return self._flusher.errors

    @property
    def thread_id(self) -> int:
        """The identifier of the flush thread, for measurements."""
        return self._flusher.thread.ident or 0

    def record(self, step: int, row: Tensor) -> None:
        """Record the row of training step `step`, float32 (columns,) on the recorder's device. Steps must be consecutive."""
        self.ring.write(row)
        self.count_row(step)

    def count_row(self, step: int) -> None:
        """The host's half of `record`, for callers that have written the row of `step` into `ring` themselves."""
        if self.ring.rows == 0:
            self._first_step = step
        elif step != self._first_step + self.ring.rows:
            raise ValueError(f"step is {step}; expected {self._first_step + self.ring.rows}, the one after the last recorded")
        self.ring.advance()
        if self.ring.rows >= self._flush_steps or perf_counter() - self._flushed_at >= self.flush_seconds:
            self.flush()

    def flush_if_due(self) -> None:
        """Start sending the recorded rows if `flush_seconds` have passed since the last flush."""
        if perf_counter() - self._flushed_at >= self.flush_seconds:
            self.flush()

    def skip_row(self) -> None:
        """Discard the row just written into `ring`, because its step is already recorded. Call it only after `drain`."""
        self.ring.skip()

    def log(self, step: int, group: str, values: Mapping[str, float | np.ndarray]) -> None:
        """Record values of a group that is not recorded at every step (evaluation), in the order of its catalogue columns."""
        self.flush()
        block = Block(group, 0, step, 1, np.concatenate([np.atleast_1d(v) for v in values.values()]).astype(np.float32)[:, None])
        self.latest.update((name, float(v)) for name, v in values.items() if np.ndim(v) == 0)
        self._call(lambda: self._flusher.write_logged(step, block, values))

    def alert(self, step: int, alert: Alert) -> None:
        """Send an alert that does not come from a row. step: the last step recorded."""
        self._call(lambda: self._sink.write(Flush([], [alert], step, None)))

    def flush(self, *, force: bool = False) -> None:
        """Start sending the recorded rows. If the queue is full, start sending only if the ring is full too, or if `force` is
        set."""
        jobs = self._flusher.jobs
        if self.ring.rows == 0 or (jobs.full() and self.ring.rows < self.ring.max_rows and not force):
            return
        rows, first_step = self.ring.rows, self._first_step
        now = perf_counter()
        seconds, self._flushed_at, self._clocked_at = now - self._clocked_at, now, now
        self._recorded += rows
        if not self._patience and jobs.full():  # a copy for nobody would cost the training thread most of its time
            self.ring.discard()
            self._flusher.count_loss(rows, "the sink is too slow")
            return
        batch = Batch(first_step, (self.ring.take(),), rows, seconds, self._steps_per_second(now))
        try:
            jobs.put(batch, timeout=self._patience)
            self._patience = self._longest_wait
        except queue.Full:
            self._patience = 0.0
            self._flusher.count_loss(rows, "the sink is too slow")

    def drain(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far has reached the sink; False if that took longer than `timeout` seconds."""
        self.flush(force=True)
        done = threading.Event()
        return self._call(done.set) and done.wait(timeout)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Drain, then exclude the time spent in the `with` block (an evaluation or a checkpoint) from every rate."""
        self.drain()
        began = perf_counter()
        yield
        ended = perf_counter()
        self._paused += ended - began
        self._clocked_at += ended - began
        self._flushed_at = ended

    def levels(self) -> dict[str, np.ndarray]:
        """The unfinished points of the coarser levels and the state of the detectors, for a checkpoint. Call this method only
        after `drain`."""
        return self._flusher.state()

    def restore_levels(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the `levels()` of a recorder with the same catalogue. Call this method only after `drain`."""
        self._flusher.restore(arrays)

    def continue_after_warning(self) -> None:
        """Record rows again after `warned`, from the step after the last recorded step. Rows in between are discarded."""
        self._run_in_order(self._clear_warning)

    def close(self, timeout: float = 60.0) -> bool:
        """Send everything recorded so far and end the flush thread. False if the sink did not accept everything within
        `timeout` seconds."""
        done = self.drain(timeout)
        if done:
            self._flusher.jobs.put(self._flusher.write_durations)
            self._flusher.jobs.put(None)
            self._flusher.thread.join(timeout)
        return done

    def wait_for_room(self, seconds: float) -> None:
        """Wait until no batch waits for the flush thread, for at most `seconds`."""
        ends = perf_counter() + seconds
        while not self._flusher.jobs.empty() and perf_counter() < ends:
            sleep(0.01)

    def abandon(self, seconds: float) -> None:
        """After a `close` that returned False: count what has not reached the sink as lost, and end the flush thread."""
        self._flusher.abandon(seconds)

    def _clear_warning(self) -> None:
        self._flusher.warned = None

    def _run_in_order(self, *jobs: Job) -> None:
        """Run the jobs on the flush thread after everything recorded so far, and wait for them."""
        self.flush(force=True)
        done = threading.Event()
        for job in (*jobs, done.set):
            self._flusher.jobs.put(job)
        done.wait()

    def _steps_per_second(self, now: float) -> float | None:
        self._marks.append((now - self._paused, self._recorded))
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[0][0] > RATE_SECONDS:
            self._marks.popleft()
        (t0, n0), (t1, n1) = self._marks[0], self._marks[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    def _call(self, function: Callable[[], None]) -> bool:
        try:
            self._flusher.jobs.put(function, timeout=self._longest_wait)
        except queue.Full:
            self._flusher.count_loss(0, "the sink is too slow")
            return False
        return True


class ResumableRecorder(Recorder):
    """A recorder of a run that resumes from its checkpoints. Arguments: see `Recorder`."""

    def __init__(self, catalogue: Sequence[SeriesSpec], sink: ResumableSink, **options: Any) -> None:
        super().__init__(catalogue, sink, **options)
        self._resumable = sink

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        """Report a durable checkpoint to the sink, after everything that was recorded before."""
        self._call(lambda: self._resumable.checkpoint(step, path, sha256))

    def needed_checkpoints(self) -> Collection[int]:
        """Steps whose checkpoints must stay on disk."""
        return self._resumable.needed_checkpoints()

    def truncate(self, to_step: int, reason: str, levels: Mapping[str, np.ndarray]) -> None:
        """Delete the steps after `to_step`. Recording continues at `to_step + 1` as if they had never been recorded.

        Waits for the sink without a time limit, because two histories must not mix.
        """

        def forget() -> None:
            self._flusher.restore(levels)
            self._flusher.fatal = self._flusher.warned = None

        self._run_in_order(lambda: self._resumable.truncate(to_step, reason), forget)
