"""The parts of a model from which a row is computed: its trained parameters, and its watched records sorted by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablessm_core.telemetry import series as names
from stablessm_core.watch.watchable import Measured, Record, WatchedRecord, watched_records


class WideWeights(NamedTuple):
    """The weights, the log_dt and the second weights of a wide record. log_dt and the second weights may be None."""

    weight: Tensor
    log_dt: Tensor | None
    phase: Tensor | None


class WatchedModel:
    """The parameters and records of `model`, and access to the gradients, states and gates of a training step.

    records: `watched_records` of the model by default. In a row, a *narrow* record has one value per eigenvalue, and a *wide*
    record has quantiles and extremes. at: id(parameter) -> index of the parameter. magnitudes: the names of the series with
    the largest numbers of the batch, in the order of the batch: input, target. A batch's integers have no such series.
    """

    def __init__(self, model: nn.Module, records: Sequence[WatchedRecord] | None = None, magnitudes: Sequence[str] = ()) -> None:
        self.magnitudes = tuple(magnitudes)
        self.records = watched_records(model) if records is None else list(records)
        trained = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the model has no trained parameters; at least one is needed")
        self.parameter_names = [path for path, _ in trained]
        self.parameters = [p for _, p in trained]
        self.at = {id(p): i for i, p in enumerate(self.parameters)}
        device = self.parameters[0].device
        narrow = [r for r in self.records if not r.wide]
        self.trained = [r for r in narrow if r.form.map != "fixed"]
        self.fixed = [r for r in narrow if r.form.map == "fixed"]
        self.complex = [r for r in self.trained if r.record.phase is not None]
        self.stepped = [r for r in narrow if r.record.log_dt is not None]
        self.gated = [r for r in narrow if r.record.gate]
        self.stateful = [r for r in narrow if r.first]
        self.wide = [r for r in self.records if r.wide]
        self.wide_gated = [r for r in self.wide if r.record.gate]
        self.wide_stateful = [r for r in self.wide if r.first]
        self.wide_distances = [None if r.form.map == "none" else r.form.derivation("boundary_distance", torch) for r in self.wide]
        # positions, among all trained weights, of the weights whose gradients are also recorded
        ends = np.cumsum([0, *(r.width for r in self.trained)])
        kept = [np.arange(ends[i], ends[i + 1]) for i, r in enumerate(self.trained) if r.record.gradient]
        self.gradient_columns = torch.from_numpy(np.concatenate(kept)).to(device) if kept else None
        self.zero: Tensor
        self.batch_codes: list[Tensor]  # the code for a non-finite input, and the code for a non-finite target
        self.zero, *self.batch_codes = torch.arange(3.0, device=device).view(3, 1)

    def measured(self) -> dict[str, dict[str, np.ndarray]]:
        """The values that layers compute during evaluations, float32 (n,), by series group and series name."""
        found = {}
        for r in self.records:
            if r.first and isinstance(r.module, Measured) and (values := r.module.measured()):
                found[names.measured_group(r.id)] = {
                    names.layer_series(r.id, kind): numbers.detach().float().cpu().numpy() for kind, numbers in values.items()
                }
        return found

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter. Zeros for a parameter without a gradient."""
        # read .grad only once, because every access creates a new Python object
        return [torch.zeros_like(p) if (gradient := p.grad) is None else gradient for p in self.parameters]

    def states(self) -> list[Tensor]:
        """The final state of each layer, (batch, eigenvalues), for the records in `stateful`, then in `wide_stateful`."""
        layers = [*self.stateful, *self.wide_stateful]
        states = [r.module.last_state for r in layers]
        return [self.parameters[0].new_zeros(1, r.width) if s is None else s for r, s in zip(layers, states, strict=True)]

    def gates(self) -> list[Tensor]:
        """The gate statistics of each record, (3, gates), for the records in `gated`, then in `wide_gated`."""
        gates = []
        for r in [*self.gated, *self.wide_gated]:
            gate = r.module.gates().get(r.record.gate)
            gates.append(self.parameters[0].new_zeros(3, r.record.gates) if gate is None else gate)
        return gates

    def wide_weights(self) -> list[WideWeights]:
        """The weights of each wide record, without a copy."""
        found = []
        for r in self.wide:
            log_dt, phase = (None if t is None else flat(t) for t in (r.record.log_dt, r.record.phase))
            found.append(WideWeights(record_weight(r.record), log_dt, phase))
        return found

    def record_gradient(self, record: Record, gradients: Sequence[Tensor]) -> Tensor:
        """dL/dw of each eigenvalue, (width,); with `rows`, the norm of each row's gradient. 0 for weights that are not
        trained."""
        if record.weight is None:
            return _row_norms([self.gradient_of(p, gradients) for p in record.rows])
        return self.gradient_of(record.weight, gradients).reshape(-1)

    def gradient_of(self, weight: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """The gradient of a parameter, taken from the list `gradients()`. Zeros if the tensor is not trained."""
        at = self.at.get(id(weight))
        return torch.zeros_like(weight) if at is None else gradients[at]


def flat(tensor: Tensor | None) -> Tensor:
    """The tensor, flattened to (n,) and detached."""
    assert tensor is not None
    return tensor.detach().reshape(-1)


def record_weight(record: Record) -> Tensor:
    """The recorded weights, (width,): a view of the parameter, or the norms of rows."""
    return _row_norms([p.detach() for p in record.rows]) if record.weight is None else flat(record.weight)


def _row_norms(rows: Sequence[Tensor]) -> Tensor:
    squares = [p.view(len(p), -1).square().sum(1) for p in rows]
    return torch.stack(squares).sum(0).sqrt() if len(squares) > 1 else squares[0].sqrt()
