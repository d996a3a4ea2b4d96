"""A ring buffer of rows on the device. Copying rows to the host makes neither the device nor the training thread wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SPARE = 4  # copies whose memory is kept


class Ring:
    """Ring buffer of float32 rows on `device`. It has 2 x `max_rows` rows, so rows can fill one half while the other is copied.

    `write` works only on the device, which also stores the `cursor`, (1,) int64. So a CUDA graph can capture `write`. `advance`
    counts the row on the host, and `take` starts copying the counted rows. Code that writes a row into `buffer` (rows, columns)
    itself must also move the cursor, as `write` does.
    """

    def __init__(self, columns: int, max_rows: int, device: torch.device) -> None:
        self.max_rows, self.rows = max_rows, 0
        self.buffer = torch.zeros((2 * max_rows, columns), dtype=torch.float32, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._start = 0  # index of the first row that `take` has not copied yet
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._copied: Any = None  # CUDA event that is recorded after the last copy
        # Memory of earlier copies, on a CPU. The first use of new memory costs more than the copy.
        self._spare: deque[Tensor] = deque(maxlen=SPARE)

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

    def discard(self) -> None:
        """Forget every row since the last call of `take`."""
        self._start = (self._start + self.rows) % len(self.buffer)
        self.rows = 0

    def take(self) -> RowCopy:
        """Start copying every row since the last call; the ring is empty afterwards."""
        rows = self.rows
        first = self.buffer[self._start : self._start + rows]
        second = self.buffer[: rows - len(first)]
        self.discard()
        if not self._cuda:
            memory = (
                self._spare.pop()
                if self._spare
                else torch.empty((self.max_rows, self.buffer.shape[1]), dtype=torch.float32, device="cpu")
            )
            host = memory[:rows]
            host[: len(first)] = first
            host[len(first) :] = second
            return RowCopy(host, None, lambda: self._spare.append(memory))
        host = torch.empty((rows, self.buffer.shape[1]), dtype=torch.float32, device="cpu", pin_memory=True)
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

    def __init__(self, host: Tensor, copied: Any, give_back: Callable[[], None] = lambda: None) -> None:
        self._host, self._copied, self._give_back = host, copied, give_back

    def wait(self) -> np.ndarray:
        """Wait for the copy and return the rows, float32 (rows, columns). The training thread never calls this method."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.numpy()

    def release(self) -> None:
        """Let later copies use the memory of these rows, which nobody may read any more. Call it at most once."""
        self._give_back()
