"""How one training step becomes one row of numbers without leaving the device.

The cost must not grow with the number of layers or parameter tensors, nor with what could be asked of them: what many tensors
have in common is computed from one flat copy, and what is too large to be copied is read by one operation. Everything here is
device work on tensors, so it can be compiled or captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablessm_core.forms import GATES
from stablessm_core.maps.elementary import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.watch import Measured, Record, WatchedRecord, watched_records

CHUNK = 256
# On a CPU a gradient of so many elements is read where it lies: there a pass over memory costs what matters, elsewhere a launch.
LARGE = 1 << 16


class Weights(NamedTuple):
    """What a row tells of the weights a step begins with; copies, so that the update may overlap with who reads them.

    norms: (parameters,), as in a row. norm: (1,), of all parameters. narrow: of all narrow records the weights, or norms of rows,
    one after the other, then the second weights of complex ones. dt: their step sizes. wide: per wide record (weights, log_dt,
    second weights).
    """

    norms: Tensor
    norm: Tensor
    narrow: Tensor | None
    dt: Tensor | None
    wide: list[tuple[Tensor, Tensor | None, Tensor | None]]


class Probe:
    """Reads a training step on the device: `weights` before it, `row` after backward, before clipping and the update.

    `layout` lists (name, width) of a row's columns in order. Beside the recorded series a row holds what only the detectors
    read: the largest |h| of each eigenvalue's final state over the batch, and `norms`: of every weight and gradient the largest
    L2 norm of a piece (CHUNK elements, or a row of a large gradient), which is finite exactly when all elements are. Gradients
    are squared in float64, so that nothing overflows or vanishes; a weight beyond 1e18, whose square might, counts as infinite.

    The model's parameters are moved next to each other in memory, values and identities unchanged: make the probe when the
    model is on its device.
    """

    def __init__(self, model: nn.Module, *, all_eigenvalues: bool = False) -> None:
        self.records = watched_records(model, all_eigenvalues=all_eigenvalues)
        trained = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        self.parameter_names = [path for path, _ in trained]
        self.parameters = [p for _, p in trained]
        self._values = _moved_together(self.parameters)
        self._value_pieces = _offsets([_chunks(p) for p in self.parameters], self._values.device)
        self.large = [i for i, p in enumerate(self.parameters) if p.device.type == "cpu" and p.numel() >= LARGE]
        self._small = [i for i in range(len(self.parameters)) if i not in self.large]
        small = [self.parameters[i] for i in self._small]
        self._copies, self._copied = _together(small) if small else ([], self._values[:0])
        pieces = [_chunks(p) for p in small] + [self.parameters[i][..., 0].numel() for i in self.large]
        self._gradient_pieces = _offsets(pieces, self._values.device)
        self._in_order = torch.tensor([*self._small, *self.large]).argsort() if self.large else None
        self.at = {id(p): i for i, p in enumerate(self.parameters)}
        self._narrow = [r for r in self.records if not r.wide]
        self.wide = [r for r in self.records if r.wide]
        self.trained = [r for r in self._narrow if r.form.map != "fixed"]
        self.fixed = [r for r in self._narrow if r.form.map == "fixed"]
        self.complex = [r for r in self.trained if r.record.phase is not None]
        self.stepped = [r for r in self._narrow if r.record.log_dt is not None]
        self.gated = [r for r in self._narrow if r.record.gate]
        self.stateful = [r for r in self._narrow if r.first] + [r for r in self.wide if r.first]
        self._wide_distances = [r.form.derivation("boundary_distance", torch) for r in self.wide]
        # where in the trained weights those lie whose gradients are recorded
        ends = np.cumsum([0, *(r.width for r in self.trained)])
        kept = [np.arange(ends[i], ends[i + 1]) for i, r in enumerate(self.trained) if r.record.gradient]
        self._kept = torch.from_numpy(np.concatenate(kept)).to(self._values.device) if kept else None
        self._nothing: Tensor
        self._codes: list[Tensor]
        self._nothing, *self._codes = torch.arange(3.0, device=self._values.device).view(3, 1)  # of no, input, target
        self.layout = self._layout()
        self.catalogue = self._catalogue()

    def _catalogue(self) -> list[names.SeriesSpec]:
        catalogue = [names.scalar(name) for name in (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)]
        catalogue.append(names.scalar(names.BATCH_NONFINITE, names.BATCH))
        catalogue += [names.scalar(name, names.PROGRESS) for name in (names.WEIGHT_NORM, names.LOSS_OVER_BEST)]
        for r in self.records:
            catalogue += r.catalogue
        return catalogue

    def _layout(self) -> list[tuple[str, int]]:
        def columns(
            records: Sequence[WatchedRecord], kind: str, width: Callable[[WatchedRecord], int] = lambda r: r.width
        ) -> None:
            layout.extend((names.layer_series(r.id, kind), width(r)) for r in records)

        layout = [(names.TRAIN_LOSS, 1), (names.LR, 1), ("norms", 2 * len(self.parameters)), (names.GRAD_NORM, 1)]
        layout += [(names.WEIGHT_NORM, 1), (names.BATCH_NONFINITE, 1)]
        for head, phase in (("grad_over_weight", "grad_over_phase"), ("weight", "phase_weight")):
            columns(self.trained, head)
            columns(self.complex, phase)
        columns([r for r in self.trained if r.record.gradient], "gradient")
        columns(self.fixed, "weight")
        layout += [(names.layer_series(r.id, "dt"), _size(r.record.log_dt)) for r in self.stepped]
        layout += [(f"state/{r.id}", r.width) for r in self.stateful if not r.wide]
        for r in self.gated:
            layout += [(names.layer_series(r.id, kind), r.record.gates) for kind in GATES]
        for r in self.wide:
            layout += [(s.name, s.width) for s in r.catalogue]
            layout.append((f"weight_at/{r.id}", names.EXTREMES))
        layout += [(f"{what}/{r.id}", 1) for r in self.stateful if r.wide for what in ("state", "state_at")]
        return layout

    def measured(self) -> dict[str, dict[str, np.ndarray]]:
        """By series group, what layers compute at evaluations: by series name float32 (n,)."""
        found = {}
        for r in self.records:
            if r.first and isinstance(r.module, Measured) and (values := r.module.measured()):
                found[names.measured_group(r.id)] = {
                    names.layer_series(r.id, kind): numbers.detach().float().cpu().numpy() for kind, numbers in values.items()
                }
        return found

    def gradients(self) -> list[Tensor]:
        """The gradients that `row` reads, zeros where there is none."""
        # asked for once: every look at .grad makes a new Python object
        return [torch.zeros_like(p) if (gradient := p.grad) is None else gradient for p in self.parameters]

    def states(self) -> list[Tensor]:
        """The final states that `row` reads, (batch, eigenvalues) per layer."""
        states = [r.module.last_state for r in self.stateful]
        return [self._values.new_zeros(1, r.width) if s is None else s for r, s in zip(self.stateful, states, strict=True)]

    def gates(self) -> list[Tensor]:
        """The gates that `row` reads, (3, gates) per record: narrow ones, then wide ones."""
        gates = []
        for r in [*self.gated, *(r for r in self.wide if r.record.gate)]:
            found = r.module.gates().get(r.record.gate)
            gates.append(self._values.new_zeros(3, r.record.gates) if found is None else found)
        return gates

    @torch.no_grad()
    def weights(self) -> Weights:
        """The half of a row that is known before the step."""
        pieces = torch.linalg.vector_norm(self._values, dim=1)
        narrow = [_weight(r.record) for r in self.trained] + [_flat(r.record.phase) for r in self.complex]
        log_dts = [_flat(r.record.log_dt) for r in self.stepped]
        return Weights(
            _largest_of(pieces, self._value_pieces),
            torch.linalg.vector_norm(pieces, dtype=torch.float64).reshape(1),
            torch.cat(narrow) if narrow else None,
            saturated_exp(torch.cat(log_dts), torch) if log_dts else None,
            [(w.clone(), _copy(log_dt), _copy(phase)) for w, log_dt, phase in self.wide_weights()],
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

        loss (), lr (1,), `gradients()`, `states()` and `gates()` of the step that began with `weights`; batch: its input and its
        target.
        """
        if self._small:
            torch._foreach_copy_(self._copies, [gradients[i] for i in self._small])
        norms = torch.linalg.vector_norm(self._copied, dim=1, dtype=torch.float64)
        if self.large:
            norms = torch.cat([norms, *(_norms_of_rows(gradients[i]) for i in self.large)])
        largest = _largest_of(norms, self._gradient_pieces)
        if self._in_order is not None:
            largest = largest.index_select(0, self._in_order)
        grad_norm = torch.linalg.vector_norm(norms)
        # one dtype in each cat: of several it copies piece by piece
        parts = [loss.detach().reshape(1).float(), lr.float(), weights.norms.float()]
        parts += [torch.cat([largest, grad_norm.reshape(1), weights.norm]).float(), self.nonfinite(batch)]
        if weights.narrow is not None:
            own = [self._gradient(r.record, gradients) for r in self.trained]
            own += [
                self._gradient_of(phase, gradients).reshape(-1) for r in self.complex if (phase := r.record.phase) is not None
            ]
            gradient = torch.cat(own)
            parts += [(gradient / weights.narrow).abs_(), weights.narrow]  # the same bits as |grad| / |w|
            if self._kept is not None:
                parts.append(gradient.index_select(0, self._kept).abs_())
        parts += [_weight(r.record) for r in self.fixed]
        if weights.dt is not None:
            parts.append(weights.dt)
        narrow = [state for r, state in zip(self.stateful, states, strict=True) if not r.wide]
        if narrow:
            together = len({len(state) for state in narrow}) == 1
            parts += [_largest(torch.cat(narrow, dim=1))] if together else [_largest(state) for state in narrow]
        parts += [gate.reshape(-1).float() for gate in gates[: len(self.gated)]]
        parts += self.tail(weights.wide, gradients, states[len(narrow) :], gates[len(self.gated) :])
        return torch.cat(parts), grad_norm

    def tail(
        self,
        weights: Sequence[tuple[Tensor, Tensor | None, Tensor | None]],
        gradients: Sequence[Tensor],
        states: Sequence[Tensor],
        gates: Sequence[Tensor],
    ) -> list[Tensor]:
        """The end of a row: of wide records and their layers' final states, what is recorded in place of every number."""
        parts: list[Tensor] = []
        left = iter(gates)
        for r, distance, (w, log_dt, phase) in zip(self.wide, self._wide_distances, weights, strict=True):
            gate = next(left) if r.record.gate else None
            parts += _summary(distance, w, log_dt, phase, gate, self._gradient(r.record, gradients))
        for state in states:
            extreme, extreme_at = _largest(state).topk(1)
            parts += [extreme, extreme_at.float()]
        return parts

    def wide_weights(self) -> list[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Of each wide record its weights, log_dt and second weights, where they lie."""
        found = []
        for r in self.wide:
            log_dt, phase = (None if t is None else _flat(t) for t in (r.record.log_dt, r.record.phase))
            found.append((_weight(r.record), log_dt, phase))
        return found

    def _gradient(self, record: Record, gradients: Sequence[Tensor]) -> Tensor:
        """dL/dw of each eigenvalue, (width,); of rows the norm of each row's gradient. 0 for what is not trained."""
        if record.weight is None:
            return _row_norms([self._gradient_of(p, gradients) for p in record.rows])
        return self._gradient_of(record.weight, gradients).reshape(-1)

    def _gradient_of(self, weight: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        at = self.at.get(id(weight))
        return torch.zeros_like(weight) if at is None else gradients[at]

    def nonfinite(self, batch: Sequence[Tensor]) -> Tensor:
        """(1,): the sum of the codes of what is not finite. Integers always are; of all others 0 times each is 0, else NaN."""
        codes = [(code, t) for code, t in zip(self._codes, batch, strict=False) if t.is_floating_point() or t.is_complex()]
        if not codes:
            return self._nothing
        bad = [torch.where((t * 0).sum().isfinite(), self._nothing, code) for code, t in codes]
        return bad[0] if len(bad) == 1 else bad[0] + bad[1]


def _flat(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.detach().reshape(-1)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel()


def _weight(record: Record) -> Tensor:
    """The recorded weights, (width,): views of the parameters, or the norms of rows."""
    return _row_norms([p.detach() for p in record.rows]) if record.weight is None else _flat(record.weight)


def _row_norms(rows: Sequence[Tensor]) -> Tensor:
    squares = [p.view(len(p), -1).square().sum(1) for p in rows]
    return torch.stack(squares).sum(0).sqrt() if len(squares) > 1 else squares[0].sqrt()


def _chunks(tensor: Tensor) -> int:
    return -(-tensor.numel() // CHUNK)


def _together(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Room for a copy of each, in its shape, within one tensor (chunks, CHUNK): each fills whole chunks, the last with zeros."""
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"parameters have the dtypes {sorted(map(str, dtypes))}; one dtype for all is needed")
    whole = tensors[0].new_zeros(sum(map(_chunks, tensors)), CHUNK)
    rooms = torch.split(whole.view(-1), [_chunks(t) * CHUNK for t in tensors])
    return [room[: t.numel()].view(t.shape) for room, t in zip(rooms, tensors, strict=True)], whole


def _moved_together(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor (chunks, CHUNK) in which the parameters live from now on, aligned to its chunks."""
    rooms, whole = _together([p.detach() for p in parameters])
    for p, room in zip(parameters, rooms, strict=True):
        p.data = room.copy_(p.data)
    return whole


def _offsets(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(device)


def _largest_of(norms: Tensor, offsets: Tensor) -> Tensor:
    """The largest of the norms (pieces,) of each tensor's pieces, (tensors,); NaN is larger than all."""
    # unsafe: the checks of the offsets, right by construction, would wait for the device
    return torch.segment_reduce(norms, "max", offsets=offsets, unsafe=True)


def _norms_of_rows(gradient: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float64)
    return norms.view(-1)


def _largest(state: Tensor) -> Tensor:
    return state.abs().amax(0).float()  # amax keeps NaN


def _summary(
    boundary_distance: Callable[[dict[str, Tensor]], Tensor],
    w: Tensor,
    log_dt: Tensor | None,
    phase: Tensor | None,
    gate: Tensor | None,
    gradient: Tensor,
) -> list[Tensor]:
    # in the order of wide_layer_catalogue, then what only the detectors read
    ratio = (gradient / w).abs_()
    recorded = {"weight": w}
    if log_dt is not None:
        recorded["dt"] = saturated_exp(log_dt, torch)
    if phase is not None:
        recorded["phase_weight"] = phase
    if gate is not None:
        recorded |= dict(zip(GATES, gate.unbind(), strict=True))
    distance = boundary_distance(
        {k: v.repeat_interleave(len(w) // len(v)) if len(v) < len(w) else v for k, v in recorded.items()}
    )
    ranks = torch.linspace(0, w.numel() - 1, len(names.QUANTILES), device=w.device).round().long()
    quantiles = [values.sort().values[ranks] for values in (ratio, w, distance)]
    # topk and sort put NaN above every number
    largest, largest_at = ratio.topk(names.EXTREMES)
    smallest, smallest_at = (-distance).topk(names.EXTREMES)
    gates = [] if gate is None or gate.shape[1] > names.WIDE else [gate.reshape(-1).float()]
    return [*quantiles, largest, largest_at.float(), -smallest, smallest_at.float(), *gates, w[smallest_at]]
