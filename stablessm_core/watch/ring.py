"""A ring buffer of rows on the device. Copying rows to the host makes neither the device nor the training thread wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Ring:
    """Ring buffer of float32 rows on `device`. It has 2 x `max_rows` rows, so rows can fill one half while the other is copied.

    `write` works only on the device, which also stores the `cursor`, (1,) int64. So a CUDA graph can capture `write`. `advance`
    counts the row on the host, and `take` starts copying the counted rows. Code that writes a row into `buffer` (rows, columns)
    itself must also move the cursor, as `write` does.
    """

    def __init__(self, columns: int, max_rows: int, device: torch.device) -> None:
        self.max_rows, self.rows = max_rows, 0
        self.buffer = torch.zeros((2 * max_rows, columns), device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._start = 0  # index of the first row that `take` has not copied yet
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._copied: Any = None  # CUDA event that is recorded after the last copy

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
        """Discard the row that `write` appended. The ring must be empty, so that the rows of a copy are consecutive."""
        if self.rows:
            raise RuntimeError(f"ring holds {self.rows} rows that were not taken; only an empty ring can leave out a row")
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
        # the next rows may overwrite rows that the previous copy still reads, so the device, not the host, waits for that copy
        if self._copied is not None:
            training.wait_event(self._copied)
        self._copied = copied
        return RowCopy(host, copied)


class RowCopy:
    """Rows that are being copied to the host."""

    def __init__(self, host: Tensor, copied: Any) -> None:
        self._host, self._copied = host, copied

    def wait(self) -> np.ndarray:
        """Wait for the copy and return the rows, float32 (rows, columns). The training thread never calls this method."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()
