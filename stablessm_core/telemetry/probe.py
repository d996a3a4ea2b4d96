"""How one training step becomes one row of numbers without leaving the device.

The cost must not grow with the number of layers or parameter tensors, nor with what could be asked of them: what many tensors
have in common is computed from one flat copy, and what is too large to be copied is read by one operation. Everything here is
device work on tensors, so it can be compiled or captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablessm_core.maps.elementary import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.watch import watched_layers

CHUNK = 256
# On a CPU a gradient of so many elements is read where it lies: there a pass over memory costs what matters, elsewhere a launch.
LARGE = 1 << 16


class Weights(NamedTuple):
    """What a row tells of the weights a step begins with; copies, so that the update may overlap with who reads them.

    norms: (parameters,), as in a row. norm: (1,), of all parameters. narrow, dt: (sum of widths,), layer after layer. wide: per
    wide layer (w, log_dt).
    """

    norms: Tensor
    norm: Tensor
    narrow: Tensor | None
    dt: Tensor | None
    wide: list[tuple[Tensor, Tensor | None]]


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
        self.layers = watched_layers(model, all_eigenvalues=all_eigenvalues)
        trained = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        self.parameter_names = [path for path, _ in trained]
        self._parameters = [p for _, p in trained]
        self._values = _moved_together(self._parameters)
        self._value_pieces = _offsets([_chunks(p) for p in self._parameters], self._values.device)
        self._large = [i for i, p in enumerate(self._parameters) if p.device.type == "cpu" and p.numel() >= LARGE]
        self._small = [i for i in range(len(self._parameters)) if i not in self._large]
        small = [self._parameters[i] for i in self._small]
        self._copies, self._copied = _together(small) if small else ([], self._values[:0])
        pieces = [_chunks(p) for p in small] + [self._parameters[i][..., 0].numel() for i in self._large]
        self._gradient_pieces = _offsets(pieces, self._values.device)
        self._in_order = torch.tensor([*self._small, *self._large]).argsort() if self._large else None
        at = {id(p): i for i, p in enumerate(self._parameters)}
        self._narrow = [layer for layer in self.layers if not layer.wide]
        self._wide = [layer for layer in self.layers if layer.wide]
        self._wide_distances = [layer.watched.form.derivation("boundary_distance", torch) for layer in self._wide]
        self._narrow_at = [at[id(layer.watched.weight)] for layer in self._narrow]
        self._wide_at = [at[id(layer.watched.weight)] for layer in self._wide]
        self._narrow_weights: list[Tensor] = [layer.watched.weight for layer in self._narrow]
        self._log_dts: list[Tensor] = [layer.watched.log_dt for layer in self._narrow if layer.watched.log_dt is not None]
        self._nothing: Tensor
        self._codes: list[Tensor]
        self._nothing, *self._codes = torch.arange(3.0, device=self._values.device).view(3, 1)  # of no, input, target
        self.layout = self._layout()
        self.catalogue = self._catalogue()

    def _catalogue(self) -> list[names.SeriesSpec]:
        catalogue = [names.scalar(name) for name in (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)]
        catalogue.append(names.scalar(names.BATCH_NONFINITE, names.BATCH))
        catalogue += [names.scalar(name, names.PROGRESS) for name in (names.WEIGHT_NORM, names.LOSS_OVER_BEST)]
        for layer in self.layers:
            form = layer.watched.form
            catalogue += (
                names.wide_layer_catalogue(layer.index, form)
                if layer.wide
                else names.layer_catalogue(layer.index, layer.width, form)
            )
        return catalogue

    def _layout(self) -> list[tuple[str, int]]:
        layout = [(names.TRAIN_LOSS, 1), (names.LR, 1), ("norms", 2 * len(self._parameters)), (names.GRAD_NORM, 1)]
        layout += [(names.WEIGHT_NORM, 1), (names.BATCH_NONFINITE, 1)]
        layout += [(names.layer_series(layer.index, "grad_over_weight"), layer.width) for layer in self._narrow]
        layout += [(names.layer_series(layer.index, "weight"), layer.width) for layer in self._narrow]
        layout += [
            (names.layer_series(layer.index, "dt"), layer.width) for layer in self._narrow if layer.watched.log_dt is not None
        ]
        layout += [(f"state/{layer.index}", layer.width) for layer in self._narrow]
        for layer in self._wide:
            layout += [(s.name, s.width) for s in names.wide_layer_catalogue(layer.index, layer.watched.form)]
            layout += [(f"weight_at/{layer.index}", names.EXTREMES), (f"state/{layer.index}", 1), (f"state_at/{layer.index}", 1)]
        return layout

    def gradients(self) -> list[Tensor]:
        """The gradients that `row` reads, zeros where there is none."""
        # asked for once: every look at .grad makes a new Python object
        return [torch.zeros_like(p) if (gradient := p.grad) is None else gradient for p in self._parameters]

    def states(self) -> list[Tensor]:
        """The final states that `row` reads, (batch, d_state) per layer: narrow layers, then wide ones."""
        layers = self._narrow + self._wide
        states = [layer.module.last_state for layer in layers]
        batch = max((len(state) for state in states if state is not None), default=1)
        return [
            layer.watched.weight.new_zeros(batch, layer.width) if state is None else state
            for layer, state in zip(layers, states, strict=True)
        ]

    @torch.no_grad()
    def weights(self) -> Weights:
        """The half of a row that is known before the step."""
        pieces = torch.linalg.vector_norm(self._values, dim=1)
        return Weights(
            _largest_of(pieces, self._value_pieces),
            torch.linalg.vector_norm(pieces, dtype=torch.float64).reshape(1),
            torch.cat(self._narrow_weights) if self._narrow else None,
            saturated_exp(torch.cat(self._log_dts), torch) if self._log_dts else None,
            [(w.watched.weight.clone(), None if w.watched.log_dt is None else w.watched.log_dt.clone()) for w in self._wide],
        )

    @torch.no_grad()
    def row(
        self,
        weights: Weights,
        loss: Tensor,
        lr: Tensor,
        gradients: Sequence[Tensor],
        states: Sequence[Tensor],
        batch: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor]:
        """One row, float32 (columns,), and the global L2 norm of the gradient, float64 (). Never waits for the device.

        loss (), lr (1,), `gradients()` and `states()` of the step that began with `weights`; batch: its input and its target.
        """
        if self._small:
            torch._foreach_copy_(self._copies, [gradients[i] for i in self._small])
        norms = torch.linalg.vector_norm(self._copied, dim=1, dtype=torch.float64)
        if self._large:
            norms = torch.cat([norms, *(_norms_of_rows(gradients[i]) for i in self._large)])
        largest = _largest_of(norms, self._gradient_pieces)
        if self._in_order is not None:
            largest = largest.index_select(0, self._in_order)
        grad_norm = torch.linalg.vector_norm(norms)
        # one dtype in each cat: of several it copies piece by piece
        parts = [loss.detach().reshape(1).float(), lr.float(), weights.norms.float()]
        parts += [torch.cat([largest, grad_norm.reshape(1), weights.norm]).float(), self._nonfinite(batch)]
        if weights.narrow is not None:
            gradient = torch.cat([gradients[i] for i in self._narrow_at])
            parts += [(gradient / weights.narrow).abs_(), weights.narrow]  # the same bits as |grad| / |w|
            if weights.dt is not None:
                parts.append(weights.dt)
            parts.append(_largest(torch.cat(list(states[: len(self._narrow)]), dim=1)))
        for distance, i, (w, log_dt), state in zip(
            self._wide_distances, self._wide_at, weights.wide, states[len(self._narrow) :], strict=True
        ):
            parts += _summary(distance, w, log_dt, gradients[i], state)
        return torch.cat(parts), grad_norm

    def _nonfinite(self, batch: Sequence[Tensor]) -> Tensor:
        """(1,): the sum of the codes of what is not finite. Integers always are; of all others 0 times each is 0, else NaN."""
        codes = [(code, t) for code, t in zip(self._codes, batch, strict=False) if t.is_floating_point() or t.is_complex()]
        if not codes:
            return self._nothing
        bad = [torch.where((t * 0).sum().isfinite(), self._nothing, code) for code, t in codes]
        return bad[0] if len(bad) == 1 else bad[0] + bad[1]


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
    boundary_distance: Callable[[dict[str, Tensor]], Tensor], w: Tensor, log_dt: Tensor | None, gradient: Tensor, state: Tensor
) -> list[Tensor]:
    # in the order of wide_layer_catalogue, then what only the detectors read
    ratio = (gradient / w).abs_()
    recorded = {"weight": w} if log_dt is None else {"weight": w, "dt": saturated_exp(log_dt, torch)}
    distance = boundary_distance(recorded)
    ranks = torch.linspace(0, w.numel() - 1, len(names.QUANTILES), device=w.device).round().long()
    quantiles = [values.sort().values[ranks] for values in (ratio, w, distance)]
    # topk and sort put NaN above every number
    largest, largest_at = ratio.topk(names.EXTREMES)
    smallest, smallest_at = (-distance).topk(names.EXTREMES)
    extreme, extreme_at = _largest(state).topk(1)
    return [*quantiles, largest, largest_at.float(), -smallest, smallest_at.float(), w[smallest_at], extreme, extreme_at.float()]
