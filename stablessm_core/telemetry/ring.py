"""Rows of numbers on the device, and how they get to the host without making the device or the training thread wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Ring:
    """Ring buffer of float32 rows on `device`: twice `max_rows` of them, so that one half is copied while the other fills.

    `write` touches the device only (the `cursor`, (1,) int64, lives there too), so it may be captured in a CUDA graph; `advance`
    is its counterpart on the host, and `take` starts the copy of what was advanced over. Who writes the next row into `buffer`
    (rows, columns) itself moves the cursor on as `write` does.
    """

    def __init__(self, columns: int, max_rows: int, device: torch.device) -> None:
        self.max_rows, self.rows = max_rows, 0
        self.buffer = torch.zeros((2 * max_rows, columns), device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._start = 0  # where the rows not taken yet begin
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._copied: Any = None  # event after the last copy

    def write(self, row: Tensor) -> None:
        """Append one row (columns,)."""
        self.buffer.index_copy_(0, self.cursor, row.unsqueeze(0))
        self.cursor.add_(1).remainder_(len(self.buffer))

    def advance(self) -> None:
        """Count the row that `write` appended."""
        if self.rows == self.max_rows:
            raise RuntimeError(f"ring holds {self.rows} rows that were not taken; at most {self.max_rows} fit")
        self.rows += 1

    def skip(self) -> None:
        """Leave out the row that `write` appended; only of an empty ring, so that the rows of a copy stay consecutive."""
        if self.rows:
            raise RuntimeError(f"ring holds {self.rows} rows that were not taken; a row can be left out of an empty one only")
        self._start = (self._start + 1) % len(self.buffer)

    def take(self) -> RowCopy:
        """Start copying every row since the last call; the ring is empty afterwards."""
        first = self.buffer[self._start : self._start + self.rows]
        second = self.buffer[: self.rows - len(first)]
        host = torch.empty((self.rows, self.buffer.shape[1]), pin_memory=self._cuda)
        self._start = (self._start + self.rows) % len(self.buffer)
        self.rows = 0
        if not self._cuda:
            host[: len(first)] = first
            host[len(first) :] = second
            return RowCopy(host, None)
        training = torch.cuda.current_stream(self.buffer.device)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            host[: len(first)].copy_(first, non_blocking=True)
            if len(second):
                host[len(first) :].copy_(second, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        # the rows that come next may lie where the copy before this one read: the device waits for that, not the host
        if self._copied is not None:
            training.wait_event(self._copied)
        self._copied = copied
        return RowCopy(host, copied)


class RowCopy:
    """Rows on their way to the host."""

    def __init__(self, host: Tensor, copied: Any) -> None:
        self._host, self._copied = host, copied

    def wait(self) -> np.ndarray:
        """float32 (rows, columns); blocks the calling thread until the copy is there. Never called by the training thread."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()
