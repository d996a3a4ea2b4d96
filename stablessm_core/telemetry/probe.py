"""How one training step becomes one row of numbers without leaving the device.

The cost must not grow with the number of layers or parameter tensors, nor with what could be asked of them: what many tensors
have in common is computed from one flat copy. Everything here is device work on tensors, so it can be compiled or captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from stablessm_core.formulas import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.watch import WatchedLayer, watched_layers

CHUNK = 64
# On a CPU a tensor of so many elements is read where it lies: there a pass over memory costs what matters, elsewhere a launch.
LARGE = 1 << 16


class Weights(NamedTuple):
    """What a row tells of the weights a step begins with; copies, so that the update may overlap with who reads them.

    norms: (parameters,), as in a row. narrow, dt: (sum of widths,), layer after layer. wide: per wide layer (w, log_dt).
    """

    norms: Tensor
    narrow: Tensor | None
    dt: Tensor | None
    wide: list[tuple[Tensor, Tensor | None]]


class Probe:
    """Reads a training step on the device: `weights` before it, `row` after backward, before clipping and the update.

    `layout` lists (name, width) of a row's columns in order. Beside the recorded series a row holds what only the detectors
    read: the largest |h| of each eigenvalue's final state over the batch, and `norms`: of every weight and gradient the largest
    L2 norm of a piece of CHUNK elements, or the largest |element| of a large tensor, which are finite exactly when all elements
    are. (Gradients in float64, so that squares do not overflow; a weight beyond 1e18, whose square might, counts as infinite.)

    The model's parameters are moved next to each other in memory, values and identities unchanged: make the probe when the
    model is on its device.
    """

    def __init__(self, model: nn.Module, *, all_eigenvalues: bool = False) -> None:
        self.layers = watched_layers(model, all_eigenvalues=all_eigenvalues)
        trained = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        self.parameter_names = [path for path, _ in trained]
        self._parameters = [p for _, p in trained]
        self._large = [i for i, p in enumerate(self._parameters) if p.device.type == "cpu" and p.numel() >= LARGE]
        if len(self._large) == len(self._parameters):
            self._large = []
        self._small = [i for i in range(len(self._parameters)) if i not in self._large]
        self._in_order = torch.tensor([*self._small, *self._large]).argsort().to(self._parameters[0].device)
        small = [self._parameters[i] for i in self._small]
        self._chunks = _Chunks(small)
        self._values = self._chunks.moved_together(small)
        at = {id(p): i for i, p in enumerate(self._parameters)}
        self._narrow = [layer for layer in self.layers if not layer.wide]
        self._wide = [layer for layer in self.layers if layer.wide]
        self._narrow_at = [at[id(layer.watched.weight)] for layer in self._narrow]
        self._wide_at = [at[id(layer.watched.weight)] for layer in self._wide]
        self._narrow_weights: list[Tensor] = [layer.watched.weight for layer in self._narrow]
        self._log_dts: list[Tensor] = [layer.watched.log_dt for layer in self._narrow if layer.watched.log_dt is not None]
        self.layout = self._layout()
        self.catalogue = self._catalogue()

    def _catalogue(self) -> list[names.Series]:
        catalogue = [names.scalar(name) for name in (names.TRAIN_LOSS, names.LR, names.GRAD_NORM)]
        for layer in self.layers:
            time = layer.watched.reparameterization.time
            catalogue += (
                names.wide_layer_catalogue(layer.index) if layer.wide else names.layer_catalogue(layer.index, layer.width, time)
            )
        return catalogue

    def _layout(self) -> list[tuple[str, int]]:
        layout = [(names.TRAIN_LOSS, 1), (names.LR, 1), (names.GRAD_NORM, 1), ("norms", 2 * len(self._parameters))]
        layout += [(names.layer_series(layer.index, "grad_over_weight"), layer.width) for layer in self._narrow]
        layout += [(names.layer_series(layer.index, "weight"), layer.width) for layer in self._narrow]
        layout += [
            (names.layer_series(layer.index, "dt"), layer.width) for layer in self._narrow if layer.watched.log_dt is not None
        ]
        layout += [(f"state/{layer.index}", layer.width) for layer in self._narrow]
        for layer in self._wide:
            layout += [(s.name, s.width) for s in names.wide_layer_catalogue(layer.index)]
            layout += [(f"weight_at/{layer.index}", names.EXTREMES), (f"state/{layer.index}", 1), (f"state_at/{layer.index}", 1)]
        return layout

    def gradients(self) -> list[Tensor]:
        """The gradients that `row` reads, zeros where there is none."""
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def states(self) -> list[Tensor]:
        """The final states that `row` reads, (batch, d_state) per layer: narrow layers, then wide ones."""
        layers = self._narrow + self._wide
        batch = max((len(layer.module.last_state) for layer in layers if layer.module.last_state is not None), default=1)
        states = [(layer, layer.module.last_state) for layer in layers]
        return [layer.watched.weight.new_zeros(batch, layer.width) if state is None else state for layer, state in states]

    @torch.no_grad()
    def weights(self) -> Weights:
        """The half of a row that is known before the step."""
        norms = [self._chunks.largest(torch.linalg.vector_norm(self._values, dim=1))]
        norms += [_largest_element(self._parameters[i]).reshape(1) for i in self._large]
        return Weights(
            torch.cat(norms)[self._in_order],
            torch.cat(self._narrow_weights) if self._narrow else None,
            saturated_exp(torch.cat(self._log_dts), torch) if self._log_dts else None,
            [(w.watched.weight.clone(), None if w.watched.log_dt is None else w.watched.log_dt.clone()) for w in self._wide],
        )

    @torch.no_grad()
    def row(
        self, weights: Weights, loss: Tensor, lr: Tensor, gradients: Sequence[Tensor], states: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """One row, float32 (columns,), and the global L2 norm of the gradient, float64 (). Never waits for the device.

        loss (), lr (1,), `gradients()` and `states()` of the step that began with `weights`.
        """
        small = self._chunks.copied_together([gradients[i] for i in self._small])
        norms = torch.linalg.vector_norm(small, dim=1, dtype=torch.float64)
        largest = self._chunks.largest(norms)
        if self._large:
            elements = [_largest_element(gradients[i]).double() for i in self._large]
            norms = torch.cat([norms, *(_norm(gradients[i], e).reshape(1) for i, e in zip(self._large, elements, strict=True))])
            largest = torch.cat([largest, torch.stack(elements)])[self._in_order]
        grad_norm = torch.linalg.vector_norm(norms)
        parts = [torch.cat([loss.detach().reshape(1), lr, grad_norm.reshape(1), weights.norms, largest]).float()]
        if weights.narrow is not None:
            gradient = torch.cat([gradients[i] for i in self._narrow_at])
            parts += [(gradient / weights.narrow).abs_(), weights.narrow]  # the same bits as |grad| / |w|
            if weights.dt is not None:
                parts.append(weights.dt)
            parts.append(_largest(torch.cat(list(states[: len(self._narrow)]), dim=1)))
        for layer, i, (w, log_dt), state in zip(
            self._wide, self._wide_at, weights.wide, states[len(self._narrow) :], strict=True
        ):
            parts += _summary(layer, w, log_dt, gradients[i], state)
        return torch.cat(parts), grad_norm


class _Chunks:
    """Many tensors of given shapes as one, (chunks, CHUNK): each fills whole chunks, the last one filled up with zeros."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        dtypes = {t.dtype for t in tensors}
        if len(dtypes) != 1:
            raise ValueError(f"parameters have the dtypes {sorted(map(str, dtypes))}; one dtype for all is needed")
        self._pads = [t.new_zeros(-t.numel() % CHUNK) for t in tensors]
        counts = torch.tensor([0] + [-(-t.numel() // CHUNK) for t in tensors])
        self._offsets = counts.cumsum(0).to(tensors[0].device)

    def copied_together(self, tensors: Sequence[Tensor]) -> Tensor:
        pieces: list[Tensor] = []
        for tensor, pad in zip(tensors, self._pads, strict=True):
            pieces.append(tensor)
            if pad.numel():
                pieces.append(pad)
        flat: Tensor = _flatten_dense_tensors(pieces)  # type: ignore[no-untyped-call]
        return flat.view(-1, CHUNK)

    def moved_together(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The same, and from now on the parameters live there. Their alignment stays what it was, and so do their products."""
        flat = self.copied_together([p.detach() for p in parameters])
        left = flat.view(-1)
        for p, pad in zip(parameters, self._pads, strict=True):
            p.data, left = left[: p.numel()].view(p.shape), left[p.numel() + pad.numel() :]
        return flat

    def largest(self, of_chunks: Tensor) -> Tensor:
        """The largest of the numbers (chunks,) of each tensor's chunks, (tensors,); NaN is larger than all."""
        # unsafe: the checks of the offsets, right by construction, would wait for the device
        return torch.segment_reduce(of_chunks, "max", offsets=self._offsets, unsafe=True)


def _largest_element(tensor: Tensor) -> Tensor:
    """max |t|, NaN if any element is, ()."""
    low, high = torch.aminmax(tensor)
    return torch.maximum(-low, high)


def _norm(tensor: Tensor, largest: Tensor) -> Tensor:
    """L2 norm, float64 (): squares are summed in float32 of elements brought near 1 by a power of two, so that none overflows."""
    exponent = torch.frexp(largest).exponent.clamp(-120, 120)
    near_one = tensor * torch.ldexp(torch.ones_like(largest), -exponent).to(tensor.dtype)
    squares = near_one.square_().sum(dim=-1)
    return torch.ldexp(squares.double().sum().sqrt(), exponent)


def _largest(state: Tensor) -> Tensor:
    return state.abs().amax(0).float()  # amax keeps NaN


def _summary(layer: WatchedLayer, w: Tensor, log_dt: Tensor | None, gradient: Tensor, state: Tensor) -> list[Tensor]:
    # in the order of wide_layer_catalogue, then what only the detectors read
    ratio = (gradient / w).abs_()
    distance = layer.watched.reparameterization.boundary_distance(w, None if log_dt is None else saturated_exp(log_dt, torch))
    ranks = torch.linspace(0, w.numel() - 1, len(names.QUANTILES), device=w.device).round().long()
    quantiles = [values.sort().values[ranks] for values in (ratio, w, distance)]
    # topk and sort put NaN above every number
    largest, largest_at = ratio.topk(names.EXTREMES)
    smallest, smallest_at = (-distance).topk(names.EXTREMES)
    extreme, extreme_at = _largest(state).topk(1)
    return [*quantiles, largest, largest_at.float(), -smallest, smallest_at.float(), w[smallest_at], extreme, extreme_at.float()]
