"""Computes one row of values per training step with tensor operations that run only on the device.

The cost of a row must not grow with the number of layers or of parameter tensors. So small tensors are reduced in one flat
copy, and large tensors in place. All operations run on the device, so they can be compiled or captured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stablessm_core.map import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.watch.row_table import ROW, StepTensors, Weights
from stablessm_core.watch.watchable import WatchedRecord
from stablessm_core.watch.watched_model import WatchedModel, WideWeights, flat, record_weight

CHUNK = 256
# On a CPU a gradient of at least this many elements is read in place, because passes over memory take the most time there. On
# other devices, kernel launches take the most time.
LARGE = 1 << 16


class Probe(WatchedModel):
    """Measures a training step on the device. Call `weights` before the step, and `row` after backward and before clipping.

    `layout` lists (name, width) of a row's columns in order, from the table `ROW`. Weights and gradients are split into pieces
    of CHUNK elements; in a large gradient each row is a piece. The columns `norms` contain the largest L2 norm among the pieces
    of each weight and each gradient. Such a norm is finite if and only if all elements are finite. Gradients are squared in
    float64, so that no square overflows or vanishes. A weight beyond 1e18, whose square might overflow, counts as infinite.

    The probe moves the model's parameters next to each other in memory. The parameters remain the same objects with the same
    values. Create the probe after moving the model to its device.
    """

    def __init__(self, model: nn.Module, records: Sequence[WatchedRecord] | None = None, magnitudes: Sequence[str] = ()) -> None:
        super().__init__(model, records, magnitudes)
        self._values = _moved_together(self.parameters)
        self._value_pieces = _offsets([_chunks(p) for p in self.parameters], self._values.device)
        self.large = [i for i, p in enumerate(self.parameters) if p.device.type == "cpu" and p.numel() >= LARGE]
        self._small = [i for i in range(len(self.parameters)) if i not in self.large]
        small = [self.parameters[i] for i in self._small]
        self._copies, self._copied = _together(small) if small else ([], self._values[:0])
        pieces = [_chunks(p) for p in small] + [self.parameters[i][..., 0].numel() for i in self.large]
        self._gradient_pieces = _offsets(pieces, self._values.device)
        self._in_order = torch.tensor([*self._small, *self.large]).argsort() if self.large else None
        columns = [(section, section.columns(self)) for section in ROW]
        self.sections = [(section, of_section) for section, of_section in columns if of_section]
        self.layout = [series for _, of_section in self.sections for column in of_section for series in column.series]
        self.catalogue = self._catalogue()

    def _catalogue(self) -> list[names.SeriesSpec]:
        catalogue = [names.scalar(name) for name in (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)]
        catalogue.append(names.scalar(names.BATCH_NONFINITE, names.BATCH))
        catalogue += [names.scalar(name, names.MAGNITUDES) for name in self.magnitudes]
        catalogue += [names.scalar(name, names.PROGRESS) for name in (names.WEIGHT_NORM, names.LOSS_OVER_BEST)]
        for r in self.records:
            catalogue += r.catalogue
        return catalogue

    @torch.no_grad()
    def weights(self) -> Weights:
        """The part of a row that is known before the step: copies of the weights, and their norms."""
        pieces = torch.linalg.vector_norm(self._values, dim=1)
        narrow = [record_weight(r.record) for r in self.trained] + [flat(r.record.phase) for r in self.complex]
        log_dts = [flat(r.record.log_dt) for r in self.stepped]
        return Weights(
            _largest_of(pieces, self._value_pieces),
            torch.linalg.vector_norm(pieces, dtype=torch.float64).reshape(1),
            torch.cat(narrow) if narrow else None,
            saturated_exp(torch.cat(log_dts), torch) if log_dts else None,
            [WideWeights(w.clone(), _copy(log_dt), _copy(phase)) for w, log_dt, phase in self.wide_weights()],
        )

    @torch.no_grad()
    def row(
        self,
        weights: Weights,
        loss: Tensor,
        lr: Tensor,
        gradients: Sequence[Tensor],
        states: Sequence[Tensor],
        gates: Sequence[Tensor] = (),
        batch: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor]:
        """One row, float32 (columns,), and the global L2 norm of the gradient, float64 (). Never waits for the device.

        All arguments belong to the step that began with `weights`. loss: (). lr: (1,). gradients, states, gates: the results of
        the methods with these names. batch: the input and the target.
        """
        gradient_norms, grad_norm = self._gradient_norms(gradients)
        step = StepTensors(weights, loss, lr, gradients, gradient_norms, grad_norm, states, gates, batch)
        parts: list[Tensor] = []
        for section, _ in self.sections:
            parts += section.tensors(self, step)
        return torch.cat(parts), grad_norm

    def _gradient_norms(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The largest norm among the pieces of each gradient, (parameters,), and the norm of all gradients, (); float64."""
        if self._small:
            torch._foreach_copy_(self._copies, [gradients[i] for i in self._small])
        norms = torch.linalg.vector_norm(self._copied, dim=1, dtype=torch.float64)
        if self.large:
            norms = torch.cat([norms, *(_norms_of_rows(gradients[i]) for i in self.large)])
        largest = _largest_of(norms, self._gradient_pieces)
        if self._in_order is not None:
            largest = largest.index_select(0, self._in_order)
        return largest, torch.linalg.vector_norm(norms)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _chunks(tensor: Tensor) -> int:
    return -(-tensor.numel() // CHUNK)


def _together(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Buffers with the shapes of the tensors, and one tensor (chunks, CHUNK) of which all buffers are views.

    Each buffer starts at a chunk boundary. The rest of its last chunk is zero. Raises ValueError if the tensors have several
    dtypes.
    """
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"parameters have the dtypes {sorted(map(str, dtypes))}; one dtype for all is needed")
    whole = tensors[0].new_zeros(sum(map(_chunks, tensors)), CHUNK)
    parts = torch.split(whole.view(-1), [_chunks(t) * CHUNK for t in tensors])
    return [part[: t.numel()].view(t.shape) for part, t in zip(parts, tensors, strict=True)], whole


def _moved_together(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor (chunks, CHUNK) that holds the parameters from now on. Each parameter starts at a chunk boundary."""
    buffers, whole = _together([p.detach() for p in parameters])
    for p, buffer in zip(parameters, buffers, strict=True):
        p.data = buffer.copy_(p.data)
    return whole


def _offsets(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(device)


def _largest_of(norms: Tensor, offsets: Tensor) -> Tensor:
    """The largest norm among the pieces of each tensor, (tensors,). norms: (pieces,). NaN is larger than all numbers."""
    # unsafe=True, because checking the offsets would wait for the device; the offsets are always correct
    return torch.segment_reduce(norms, "max", offsets=offsets, unsafe=True)


def _norms_of_rows(gradient: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float64)
    return norms.view(-1)
