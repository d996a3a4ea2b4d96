"""The table of a row's columns: the name and width of each column, and how the column is computed.

The order of `ROW` is the order of the columns. `Probe.layout` lists the columns of the table, `Probe.row` computes a row with
tensor operations, and `CompiledRowWriter` translates the table into the program of one C function. In addition to the recorded
series, a row has columns that only the detectors read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablessm_core.map import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import GATES
from stablessm_core.watch.watchable import WatchedRecord
from stablessm_core.watch.watched_model import WatchedModel, WideWeights, record_weight


class StepInput(Enum):
    """An input of a row that comes from the training step instead of a layer."""

    LOSS = auto()
    LR = auto()
    BATCH = auto()


Source = Tensor | tuple[nn.Parameter, ...] | StepInput | WatchedRecord | None
BATCH_SERIES = (names.LARGEST_INPUT, names.LARGEST_TARGET)  # the series of each part of a batch
# for a record with `rows`: operation -> the operation that replaces it
OF_ROWS = {"copy": "row_norms", "ratio": "row_ratios", "magnitude": "row_magnitudes"}


class Weights(NamedTuple):
    """Copies of the weights before the step. A row is computed from these copies, so the optimizer may update the parameters.

    norms: (parameters,), as in a row. norm: (1,), the norm of all parameters. narrow: the concatenated weights (or the norms of
    the weight rows) of the trained narrow records, followed by the second weights of the complex records. dt: the step sizes of
    the records that have step sizes. wide: one entry per wide record.
    """

    norms: Tensor
    norm: Tensor
    narrow: Tensor | None
    dt: Tensor | None
    wide: list[WideWeights]


class StepTensors(NamedTuple):
    """The inputs of a row. gradient_norms: (parameters,), as in a row. grad_norm: (), over all parameters. Both are float64."""

    weights: Weights
    loss: Tensor
    lr: Tensor
    gradients: Sequence[Tensor]
    gradient_norms: Tensor
    grad_norm: Tensor
    states: Sequence[Tensor]
    gates: Sequence[Tensor]
    batch: Sequence[Tensor]


class Columns(NamedTuple):
    """Neighbouring columns that one operation of the C function writes.

    series: (name, width) of each series. operation: a name in ROW_OPERATIONS of kernels/row.h, or "" for columns that only
    tensor operations can compute. source: the data that the operation reads.
    """

    series: tuple[tuple[str, int], ...]
    operation: str = ""
    source: Source = None


class Section(NamedTuple):
    """Neighbouring columns that are computed together, for all layers at once.

    columns: returns the columns of a model. tensors: returns the values of these columns, float32, in order.
    """

    columns: Callable[[WatchedModel], list[Columns]]
    tensors: Callable[[WatchedModel, StepTensors], list[Tensor]]


def _column(r: WatchedRecord, kind: str, operation: str, source: Tensor | None) -> Columns:
    assert source is not None
    return Columns(((names.layer_series(r.id, kind), source.numel()),), operation, source)


def _weight_column(r: WatchedRecord, kind: str, operation: str) -> Columns:
    """Columns that an operation computes from the record's weight, or from its `rows` if it has no weight."""
    if r.record.weight is not None:
        return _column(r, kind, operation, r.record.weight)
    return Columns(((names.layer_series(r.id, kind), r.width),), OF_ROWS[operation], r.record.rows)


def _scalar_columns(model: WatchedModel) -> list[Columns]:  # noqa: ARG001
    return [Columns(((names.TRAIN_LOSS, 1),), "take", StepInput.LOSS), Columns(((names.LR, 1),), "narrow", StepInput.LR)]


def _scalar_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:  # noqa: ARG001
    return [step.loss.detach().reshape(1).float(), step.lr.float()]


def _norm_columns(model: WatchedModel) -> list[Columns]:
    return [Columns(((names.NORMS, 2 * len(model.parameters)), (names.GRAD_NORM, 1), (names.WEIGHT_NORM, 1)), "norms")]


def _norm_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:  # noqa: ARG001
    # concatenate one dtype at a time: with mixed dtypes `cat` copies piece by piece
    float64 = torch.cat([step.gradient_norms, step.grad_norm.reshape(1), step.weights.norm])
    return [step.weights.norms.float(), float64.float()]


def _batch_columns(model: WatchedModel) -> list[Columns]:
    return [Columns(((names.BATCH_NONFINITE, 1), *((name, 1) for name in model.magnitudes)), "batch", StepInput.BATCH)]


def _batch_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    """The sum of the codes of the batch's non-finite tensors, then the series `model.magnitudes`. The largest |x| is finite if
    and only if all x are finite. A float64 number that float32 cannot represent is recorded as infinity."""
    largest: dict[str, Tensor] = {}
    bad: list[Tensor] = []
    for name, code, t in zip(BATCH_SERIES, model.batch_codes, step.batch, strict=False):
        if is_real := t.is_floating_point() or t.is_complex():
            largest[name] = torch.linalg.vector_norm(t, torch.inf).reshape(1)
            bad.append(torch.where(largest[name].isfinite(), model.zero, code))
        if name in model.magnitudes and not is_real:  # a plug-in's batch need not have the types that its task declares
            largest[name] = t.abs().amax().reshape(1)
    flag = bad[0] + bad[1] if len(bad) == 2 else bad[0] if bad else model.zero
    return [flag, *(largest[name].float() for name in model.magnitudes)]


def _trained_columns(model: WatchedModel) -> list[Columns]:
    ratios = [_weight_column(r, "grad_over_weight", "ratio") for r in model.trained]
    ratios += [_column(r, "grad_over_phase", "ratio", r.record.phase) for r in model.complex]
    weights = [_weight_column(r, "weight", "copy") for r in model.trained]
    weights += [_column(r, "phase_weight", "copy", r.record.phase) for r in model.complex]
    return ratios + weights + [_weight_column(r, "gradient", "magnitude") for r in model.trained if r.record.gradient]


def _trained_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    weights = step.weights.narrow
    assert weights is not None
    gradients = [model.record_gradient(r.record, step.gradients) for r in model.trained]
    phases = [r.record.phase for r in model.complex]
    gradients += [model.gradient_of(phase, step.gradients).reshape(-1) for phase in phases if phase is not None]
    gradient = torch.cat(gradients)
    ratio = (gradient / weights).abs_()  # bit for bit equal to |grad| / |w|
    if model.gradient_columns is None:
        return [ratio, weights]
    return [ratio, weights, gradient.index_select(0, model.gradient_columns).abs_()]


def _fixed_columns(model: WatchedModel) -> list[Columns]:
    return [_weight_column(r, "weight", "copy") for r in model.fixed]


def _fixed_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:  # noqa: ARG001
    return [record_weight(r.record) for r in model.fixed]


def _dt_columns(model: WatchedModel) -> list[Columns]:
    return [_column(r, "dt", "exp", r.record.log_dt) for r in model.stepped]


def _dt_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:  # noqa: ARG001
    assert step.weights.dt is not None
    return [step.weights.dt]


def _dt_gradient_columns(model: WatchedModel) -> list[Columns]:
    found = []
    for r in model.stepped:
        assert r.record.log_dt is not None
        series = ((names.step_gradient_column(r.id), r.record.log_dt.numel()),)
        found.append(Columns(series, "magnitude", r.record.log_dt))
    return found


def _dt_gradient_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    log_dts = [r.record.log_dt for r in model.stepped if r.record.log_dt is not None]
    return [torch.cat([model.gradient_of(log_dt, step.gradients).reshape(-1) for log_dt in log_dts]).abs_()]


def _state_columns(model: WatchedModel) -> list[Columns]:
    return [Columns(((names.state_column(r.id), r.width),), "largest", r) for r in model.stateful]


def _state_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    """For each eigenvalue, the largest |h| of the final state over the batch."""
    states = step.states[: len(model.stateful)]
    same_batch = len({len(state) for state in states}) == 1
    return [_largest(torch.cat(list(states), dim=1))] if same_batch else [_largest(state) for state in states]


def _gate_columns(model: WatchedModel) -> list[Columns]:
    return [Columns(tuple((names.layer_series(r.id, kind), r.record.gates) for kind in GATES), "take", r) for r in model.gated]


def _gate_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    return [gate.reshape(-1).float() for gate in step.gates[: len(model.gated)]]


def _wide_columns(model: WatchedModel) -> list[Columns]:
    found = []
    for r, distance in zip(model.wide, model.wide_distances, strict=True):
        extremes = [(names.weight_at_column(r.id), names.EXTREMES)] if distance else []
        found.append(Columns((*((s.name, s.width) for s in r.catalogue), *extremes)))
    return found


def _wide_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    """The quantiles over a layer's eigenvalues, and the values of the most extreme eigenvalues, in the order of
    `wide_layer_catalogue`."""
    tensors: list[Tensor] = []
    gates = iter(step.gates[len(model.gated) :])
    for r, boundary_distance, (w, log_dt, phase) in zip(model.wide, model.wide_distances, step.weights.wide, strict=True):
        gate = next(gates) if r.record.gate else None
        ratio = (model.record_gradient(r.record, step.gradients) / w).abs_()
        recorded = {"weight": w}
        if log_dt is not None:
            recorded["dt"] = saturated_exp(log_dt, torch)
        if phase is not None:
            recorded["phase_weight"] = phase
        if gate is not None:
            recorded |= dict(zip(GATES, gate.unbind(), strict=True))
        shared = {k: v.repeat_interleave(len(w) // len(v)) if len(v) < len(w) else v for k, v in recorded.items()}
        distance = [] if boundary_distance is None else [boundary_distance(shared)]
        ranks = torch.linspace(0, w.numel() - 1, len(names.QUANTILES), device=w.device).round().long()
        tensors += [values.sort().values[ranks] for values in (ratio, w, *distance)]
        # topk and sort put NaN above every number
        largest, largest_at = ratio.topk(names.EXTREMES)
        tensors += [largest, largest_at.float()]
        smallest = [(-one).topk(names.EXTREMES) for one in distance]
        for values, at in smallest:
            tensors += [-values, at.float()]
        if gate is not None and gate.shape[1] <= names.WIDE:
            tensors.append(gate.reshape(-1).float())
        tensors += [w[at] for _, at in smallest]
    return tensors


def _wide_state_columns(model: WatchedModel) -> list[Columns]:
    return [Columns(((names.state_column(r.id), 1), (names.state_at_column(r.id), 1))) for r in model.wide_stateful]


def _wide_state_tensors(model: WatchedModel, step: StepTensors) -> list[Tensor]:
    tensors: list[Tensor] = []
    for state in step.states[len(model.stateful) :]:
        largest, largest_at = _largest(state).topk(1)
        tensors += [largest, largest_at.float()]
    return tensors


def _largest(state: Tensor) -> Tensor:
    return state.abs().amax(0).float()  # amax keeps NaN


ROW: tuple[Section, ...] = (
    Section(_scalar_columns, _scalar_tensors),
    Section(_norm_columns, _norm_tensors),
    Section(_batch_columns, _batch_tensors),
    Section(_trained_columns, _trained_tensors),
    Section(_fixed_columns, _fixed_tensors),
    Section(_dt_columns, _dt_tensors),
    Section(_dt_gradient_columns, _dt_gradient_tensors),
    Section(_state_columns, _state_tensors),
    Section(_gate_columns, _gate_tensors),
    Section(_wide_columns, _wide_tensors),
    Section(_wide_state_columns, _wide_state_tensors),
)
