"""A training step's row made by one C function, straight into the ring, where everything lies in a CPU's memory.

It is the row of `Probe.row`: exact numbers have the same bits, sums are made in float64 and differ from it by rounding alone. The
function runs a program (compiled/row.h): for each stretch of a row what it is made of. Addresses that never change stand in
it; those of gradients, states, gates and the loss are given at each step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from stablessm_core.compiled import library
from stablessm_core.telemetry.probe import CHUNK, Probe
from stablessm_core.telemetry.ring import Ring
from stablessm_core.telemetry.watch import Record

# what a stretch of a row is: the same list as in row.h
COPY, NARROW, TAKE, RATIO, MAGNITUDE, POWER, LARGEST, ROW_NORMS, ROW_RATIOS, ROW_MAGNITUDES, NORMS, NONFINITE = range(12)
STRETCH = 1 << 15  # numbers that a thread takes at a time, of a tensor that has more
NOWHERE = -1


class OnePass:
    """`write` does what `Probe.row` and `Ring.write` do, of the weights as they are: call it before the update.

    lr: (1,) float64. batch: input and target, at fixed addresses. Raises ValueError where something is not as the function needs
    it: float32, contiguous, in a CPU's memory; RuntimeError where there is no library.
    """

    def __init__(self, probe: Probe, ring: Ring, lr: Tensor, batch: Sequence[Tensor]) -> None:
        self._function = library.function("stablessm_row")
        self._probe, self._ring, self._batch = probe, ring, batch
        self._parameters, self._count = probe.parameters, len(probe.parameters)
        self._norm = torch.zeros((), dtype=torch.float64)
        self._kept: list[object] = [lr]  # what addresses in the program belong to
        self._layers = [r.module for r in probe.stateful if not r.wide]
        # now: addresses of weights, which stay, of the loss and of gradients; of each state and how many rows it has; of
        # gates; of what is made by operations
        loss = self._count
        self._gradients_at = loss + 1
        states = self._gradients_at + self._count
        gates = states + 2 * len(self._layers)
        others = gates + len(probe.gated)
        self._now = (ctypes.c_int64 * (others + 2))(*(_address(p) for p in self._parameters))
        self._loss_at, self._states_at, self._gates_at, self._others_at = loss, states, gates, others
        columns = self._columns(lr)
        # what operations make of it, where it takes some: asking for nothing costs as much as the whole function
        self._made = (self._code if self._by_operations else None, self._tail if self._tail_width else None)
        pieces = self._pieces()
        first = next(i for i, piece in enumerate(pieces) if piece[4] >= self._count)
        room = torch.zeros(2 * len(pieces), dtype=torch.float64)
        self._kept.append(room)
        buffer = ring.buffer
        program = [_address(buffer), ring.cursor.data_ptr(), *buffer.shape, self._norm.data_ptr(), ctypes.addressof(self._now)]
        program += [self._list(columns), len(columns), self._list(pieces), len(pieces), room.data_ptr(), first, self._count]
        self._program = (ctypes.c_int64 * len(program))(*program)
        self._many = 2 * sum(p.numel() for p in self._parameters) >= library.FEW

    def write(self, loss: Tensor) -> Tensor:
        """Append the row of this step to the ring; the global L2 norm of its gradient, float64 (), valid until the next one."""
        kept = [_plain(loss)]
        now: list[ctypes.c_int64 | int] = [kept[0].data_ptr()]
        for p in self._parameters:
            gradient = p.grad
            if gradient is None:
                now.append(0)
                continue
            if not gradient.is_contiguous():
                gradient = gradient.contiguous()
                kept.append(gradient)
            now.append(gradient.data_ptr())
        for layer in self._layers:
            state = layer.last_state
            if state is None:
                now += (0, 0)
                continue
            state = _plain(state)
            kept.append(state)
            now += (state.data_ptr(), state.shape[0])
        for r in self._probe.gated:
            gate = r.module.gates().get(r.record.gate)
            if gate is None:
                now.append(0)
                continue
            gate = _plain(gate)
            kept.append(gate)
            now.append(gate.data_ptr())
        for made in self._made:
            if made is None:
                now.append(0)
                continue
            kept.append(made())
            now.append(kept[-1].data_ptr())
        self._now[self._loss_at :] = now
        threads = torch.get_num_threads() if self._many else 1
        self._function(self._program, library.parallel() if threads > 1 else None, threads)
        return self._norm

    def _columns(self, lr: Tensor) -> list[tuple[int, int, int, int]]:
        """(kind, width, address of what it reads or of a list, place in `now`), in the order of `Probe.layout`."""
        probe, parameters = self._probe, 2 * self._count
        columns = [(TAKE, 1, 0, self._loss_at), (NARROW, 1, _address(lr, torch.float64), NOWHERE)]
        columns += [(NORMS, parameters + 2, 0, NOWHERE), self._of_batch()]
        phases = [(r.record.phase, self._place(r.record.phase)) for r in probe.complex]
        columns += [self._gradient(r.record, RATIO, ROW_RATIOS) for r in probe.trained]
        columns += [(RATIO, phase.numel(), _address(phase), place) for phase, place in phases if phase is not None]
        columns += [self._gradient(r.record, COPY, ROW_NORMS) for r in probe.trained]
        columns += [(COPY, phase.numel(), _address(phase), NOWHERE) for phase, _ in phases if phase is not None]
        columns += [self._gradient(r.record, MAGNITUDE, ROW_MAGNITUDES) for r in probe.trained if r.record.gradient]
        columns += [self._gradient(r.record, COPY, ROW_NORMS) for r in probe.fixed]
        for r in probe.stepped:
            assert r.record.log_dt is not None
            columns.append((POWER, r.record.log_dt.numel(), _address(r.record.log_dt), NOWHERE))
        narrow = [r for r in probe.stateful if not r.wide]
        columns += [(LARGEST, r.width, 0, self._states_at + 2 * i) for i, r in enumerate(narrow)]
        columns += [(TAKE, 3 * r.record.gates, 0, self._gates_at + i) for i, r in enumerate(probe.gated)]
        self._tail_width = sum(width for _, width in probe.layout) - sum(column[1] for column in columns)
        return [*columns, (TAKE, self._tail_width, 0, self._others_at + 1)]

    def _gradient(self, record: Record, kind: int, of_rows: int) -> tuple[int, int, int, int]:
        if record.weight is not None:
            return kind, record.width, _address(record.weight), self._place(record.weight)
        parts = [(_address(p), self._place(p), p.numel() // len(p)) for p in record.rows]
        return of_rows, record.width, self._list([(len(parts),), *parts]), NOWHERE

    def _of_batch(self) -> tuple[int, int, int, int]:
        """Integers are always finite; what the function cannot read is looked at by operations."""
        parts = [(t, code) for code, t in enumerate(self._batch, 1) if t.is_floating_point() or t.is_complex()]
        self._by_operations = any(t.dtype != torch.float32 or not t.is_contiguous() for t, _ in parts)
        if self._by_operations:
            return TAKE, 1, 0, self._others_at
        return NONFINITE, 1, self._list([(len(parts),), *((_address(t), t.numel(), code) for t, code in parts)]), NOWHERE

    def _pieces(self) -> list[tuple[int, int, int, int, int]]:
        """(place in `now`, offset, count, elements of a piece, column among the norms) of weights, then of gradients."""
        large = set(self._probe.large)
        pieces = []
        for column in range(2 * self._count):
            of_gradient, i = divmod(column, self._count)
            p = self._parameters[i]
            place = self._gradients_at + i if of_gradient else i
            piece = p.shape[-1] if of_gradient and i in large else CHUNK
            stretch = max(1, STRETCH // piece) * piece
            for offset in range(0, max(1, p.numel()), stretch):
                pieces.append((place, offset, min(stretch, p.numel() - offset), piece, column))
        return pieces

    def _place(self, parameter: Tensor | None) -> int:
        """Where the address of its gradient stands in `now`."""
        at = self._probe.at.get(id(parameter))
        return NOWHERE if at is None else self._gradients_at + at

    @torch.no_grad()
    def _code(self) -> Tensor:
        return self._probe.nonfinite(self._batch)

    @torch.no_grad()
    def _tail(self) -> Tensor:
        probe = self._probe
        states = probe.states()[len(self._layers) :]
        return torch.cat(probe.tail(probe.wide_weights(), probe.gradients(), states, probe.gates()[len(probe.gated) :]))

    def _list(self, entries: Sequence[Sequence[int]]) -> int:
        numbers = [number for entry in entries for number in entry]
        self._kept.append(kept := (ctypes.c_int64 * len(numbers))(*numbers))
        return ctypes.addressof(kept)


def make(probe: Probe, ring: Ring, lr: Tensor, batch: Sequence[Tensor]) -> OnePass | None:
    """The row in one pass, or None where it takes operations."""
    if ring.buffer.device.type != "cpu" or library.why_not_compiled() is not None:
        return None
    try:
        return OnePass(probe, ring, lr, batch)
    except ValueError:
        return None


def _address(tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
    if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"a tensor is {tensor.dtype} on {tensor.device}, strides {tensor.stride()}; contiguous {dtype} is needed"
        )
    return tensor.data_ptr()


def _plain(tensor: Tensor) -> Tensor:
    """The tensor itself where it is float32 and contiguous, as it nearly always is."""
    return tensor if tensor.dtype == torch.float32 and tensor.is_contiguous() else tensor.detach().float().contiguous()
