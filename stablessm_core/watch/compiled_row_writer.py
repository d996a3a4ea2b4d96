"""Writes a training step's row directly into the ring with one C function, if all tensors are in CPU memory.

The function writes the same row as `Probe.row`. Values that are not sums have the same bits. Sums are computed in float64 and
differ only by rounding. The function runs a program (kernels/row.h) that is made from the table in `row_table`. The program
contains the addresses that never change. The addresses of gradients, states, gates and the loss are written into *slots* at
each step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.watch.probe import CHUNK, Probe
from stablessm_core.watch.ring import Ring
from stablessm_core.watch.row_table import BATCH_SERIES, Columns, Section, StepInput, StepTensors, Weights

STRETCH = 1 << 15  # number of elements of a large tensor that a thread reads at a time
NO_SLOT = -1

Stretch = tuple[int, int, int, int]  # operation, columns, address, slot


class CompiledRowWriter:
    """`write` does the work of `Probe.row` and `Ring.write`. It reads the current weights, so call it before the update.

    lr: (1,) float64. batch: input and target, at fixed addresses. Raises ValueError for a tensor that the C function cannot
    read: each tensor must be float32, contiguous and in CPU memory. Raises RuntimeError if the C library is not available.
    """

    def __init__(self, probe: Probe, ring: Ring, lr: Tensor, batch: Sequence[Tensor]) -> None:
        self._function = library.function("stablessm_row")
        operations = library.text("stablessm_row_operations").split()
        self._numbers = {name: number for number, name in enumerate(operations)}
        self._probe, self._ring, self._lr, self._batch = probe, ring, lr, batch
        self._parameters, count = probe.parameters, len(probe.parameters)
        self._norm = torch.zeros((), dtype=torch.float64)
        self._kept: list[object] = [lr]  # references that keep the memory behind the program's addresses alive
        self._by_operations = [section for section, columns in probe.sections if not self._can_compile(columns)]
        # order of the slots: weights (fixed addresses), loss, gradients, each state and its number of rows, gates, results
        self._loss_slot = count
        self._gradient_slots = self._loss_slot + 1
        state_slots = self._gradient_slots + count
        gate_slots = state_slots + 2 * len(probe.stateful)
        result_slots = gate_slots + len(probe.gated)
        self._state_slots = {r.id: state_slots + 2 * i for i, r in enumerate(probe.stateful)}
        self._gate_slots = {r.id: gate_slots + i for i, r in enumerate(probe.gated)}
        self._result_slots = {id(section): result_slots + i for i, section in enumerate(self._by_operations)}
        slots = result_slots + len(self._by_operations)
        self._slots = (ctypes.c_int64 * slots)(*(_address(p) for p in self._parameters))
        stretches = [s for section, columns in probe.sections for s in self._stretches(section, columns)]
        pieces = self._pieces()
        first_of_gradients = next(i for i, piece in enumerate(pieces) if piece[4] >= count)
        sums = torch.zeros(2 * len(pieces), dtype=torch.float64)
        self._kept.append(sums)
        buffer = ring.buffer
        program = [_address(buffer), ring.cursor.data_ptr(), *buffer.shape, self._norm.data_ptr(), ctypes.addressof(self._slots)]
        program += [self._list(stretches), len(stretches), self._list(pieces), len(pieces)]
        program += [sums.data_ptr(), first_of_gradients, count]
        self._program = (ctypes.c_int64 * len(program))(*program)
        self._parallel = 2 * sum(p.numel() for p in self._parameters) >= library.PARALLEL_SIZE

    def write(self, loss: Tensor) -> Tensor:
        """Append the row of this step to the ring. Returns the gradient's global L2 norm, float64 (), in a tensor that the next
        call overwrites."""
        kept = [_plain(loss)]
        slots: list[ctypes.c_int64 | int] = [kept[0].data_ptr()]
        for p in self._parameters:
            gradient = p.grad
            if gradient is None:
                slots.append(0)
                continue
            if not gradient.is_contiguous():
                gradient = gradient.contiguous()
                kept.append(gradient)
            slots.append(gradient.data_ptr())
        for r in self._probe.stateful:
            state = r.module.last_state
            if state is None:
                slots += (0, 0)
                continue
            state = _plain(state)
            kept.append(state)
            slots += (state.data_ptr(), state.shape[0])
        for r in self._probe.gated:
            gate = r.module.gates().get(r.record.gate)
            if gate is None:
                slots.append(0)
                continue
            gate = _plain(gate)
            kept.append(gate)
            slots.append(gate.data_ptr())
        if self._by_operations:  # skipped if empty, because even an empty list takes as long to compute as the whole C function
            results = self._results(loss)
            kept += results
            slots += [result.data_ptr() for result in results]
        self._slots[self._loss_slot :] = slots
        threads = torch.get_num_threads() if self._parallel else 1
        self._function(self._program, library.openmp_parallel() if threads > 1 else None, threads)
        return self._norm

    @torch.no_grad()
    def _results(self, loss: Tensor) -> list[Tensor]:
        """The columns that tensor operations compute, one tensor per section. These operations need no norms and no copies of
        weights."""
        probe = self._probe
        weights = Weights(self._norm, self._norm, None, None, probe.wide_weights())
        step = StepTensors(
            weights, loss, self._lr, probe.gradients(), self._norm, self._norm, probe.states(), probe.gates(), self._batch
        )
        return [torch.cat(section.tensors(probe, step)) for section in self._by_operations]

    def _can_compile(self, columns: Sequence[Columns]) -> bool:
        """True if the C function can write the columns: it has operations for them, and can read the batch."""
        coded = self._coded_batch()
        readable = all(t.dtype == torch.float32 and t.is_contiguous() for t, _ in coded)
        readable &= {BATCH_SERIES[code - 1] for _, code in coded} >= set(self._probe.magnitudes)
        return all(c.operation and (c.source is not StepInput.BATCH or readable) for c in columns)

    def _coded_batch(self) -> list[tuple[Tensor, int]]:
        """The tensors of the batch that can contain non-finite numbers, and their codes. Integers are always finite. The tensors
        whose largest numbers are recorded come first."""
        coded = [(t, code) for code, t in enumerate(self._batch, 1) if t.is_floating_point() or t.is_complex()]
        return sorted(coded, key=lambda part: BATCH_SERIES[part[1] - 1] not in self._probe.magnitudes)

    def _stretches(self, section: Section, columns: Sequence[Columns]) -> list[Stretch]:
        if id(section) in self._result_slots:
            width = sum(width for c in columns for _, width in c.series)
            return [(self._numbers["take"], width, 0, self._result_slots[id(section)])]
        return [(self._numbers[c.operation], sum(width for _, width in c.series), *self._operand(c)) for c in columns]

    def _operand(self, columns: Columns) -> tuple[int, int]:
        """The input of an operation: its address or the address of a list of addresses, and its slot."""
        match columns.source:
            case None:
                return 0, NO_SLOT
            case Tensor() as weight:
                return _address(weight), self._gradient_slot(weight)
            case tuple() as rows:
                parts = [(_address(p), self._gradient_slot(p), p.numel() // len(p)) for p in rows]
                return self._list([(len(parts),), *parts]), NO_SLOT
            case StepInput.LOSS:
                return 0, self._loss_slot
            case StepInput.LR:
                return _address(self._lr, torch.float64), NO_SLOT
            case StepInput.BATCH:
                parts = [(_address(t), t.numel(), code) for t, code in self._coded_batch()]
                return self._list([(len(parts),), *parts]), NO_SLOT
            case watched:
                slots = self._state_slots if columns.operation == "largest" else self._gate_slots
                return 0, slots[watched.id]

    def _gradient_slot(self, parameter: Tensor) -> int:
        at = self._probe.at.get(id(parameter))
        return NO_SLOT if at is None else self._gradient_slots + at

    def _pieces(self) -> list[tuple[int, int, int, int, int]]:
        """A tuple (slot, offset, count, elements per piece, column among the norms) for each stretch of each tensor, weights
        first, then gradients."""
        large = set(self._probe.large)
        pieces = []
        for column in range(2 * len(self._parameters)):
            of_gradient, i = divmod(column, len(self._parameters))
            p = self._parameters[i]
            slot = self._gradient_slots + i if of_gradient else i
            piece = p.shape[-1] if of_gradient and i in large else CHUNK
            stretch = max(1, STRETCH // piece) * piece
            for offset in range(0, max(1, p.numel()), stretch):
                pieces.append((slot, offset, min(stretch, p.numel() - offset), piece, column))
        return pieces

    def _list(self, entries: Sequence[Sequence[int]]) -> int:
        """The address of a copy of the numbers, which stays in memory as long as the writer."""
        numbers = [number for entry in entries for number in entry]
        self._kept.append(kept := (ctypes.c_int64 * len(numbers))(*numbers))
        return ctypes.addressof(kept)


def make_row_writer(probe: Probe, ring: Ring, lr: Tensor, batch: Sequence[Tensor]) -> CompiledRowWriter | None:
    """A writer of rows, or None if the C function cannot write the rows of this model."""
    if ring.buffer.device.type != "cpu" or library.why_not_compiled() is not None:
        return None
    try:
        return CompiledRowWriter(probe, ring, lr, batch)
    except ValueError:
        return None


def _address(tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
    if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"a tensor is {tensor.dtype} on {tensor.device}, strides {tensor.stride()}; contiguous {dtype} is needed"
        )
    return tensor.data_ptr()


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as contiguous float32. Usually this is the tensor itself."""
    return tensor if tensor.dtype == torch.float32 and tensor.is_contiguous() else tensor.detach().float().contiguous()
