"""The halves of a residual block by PyTorch's norm, the faster library's products and the compiled scan and gate, piece by piece.

For widths and sizes that `halves` does not take. The batch is walked through in pieces of whole sequences or of rows, forward and
backward: what one operation wrote the next finds in the cache. How pieces are cut depends on shapes alone, so that equal inputs
give equal bits. Formulas and arguments are those of `halves`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stablessm_core import products
from stablessm_core.compiled import library
from stablessm_core.compiled.halves import Kept, Norm
from stablessm_core.scan import compiled as scan

PIECE = 1 << 17  # numbers of x, at least one sequence: beside them z, g, u and m lie in the caches, too


def state_space(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, C: Tensor, D: Tensor, activation: str, *, keep: bool
) -> tuple[Tensor, Tensor, Kept]:
    """y, the last states and, to `keep`, what the gradient needs. x (batch, length, d_model), B (d_state, d_model)."""
    weight, bias, eps = norm
    batch, length, d_model = x.shape
    y, last, kept = torch.empty(x.shape), torch.empty(batch, len(lambda_bar)), []
    for i, j in cut(batch, length * d_model):
        rows = x[i:j].reshape(-1, d_model)
        z, mean, rstd = torch.native_layer_norm(rows, (d_model,), weight, bias, eps)
        driven = products.linear(z, B).view(j - i, length, -1)
        if activation == "identity":
            h = active = scan.states(lambda_bar, driven, None, False)
        else:
            active = torch.empty_like(driven)
            h = scan.states(lambda_bar, driven, None, False, active, activation)
        out = torch.addcmul(rows, z, D, out=y[i:j].view(-1, d_model))
        out.add_(products.linear(active.view(len(rows), -1), C))
        last[i:j] = h[:, -1]
        if keep:
            kept += [z, mean, rstd, h, active]
    return y, last, kept


def state_space_gradient(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, C: Tensor, D: Tensor, activation: str, kept: Kept, dy: Tensor
) -> tuple[Tensor, ...]:
    """Of x, the norm's weight and bias, lambda_bar, B, C and D."""
    batch, length, d_model = x.shape
    dx, d_lambda, sums, parts = torch.empty(x.shape), torch.zeros(lambda_bar.shape, dtype=torch.float64), _Sums(), iter(kept)
    for i, j in cut(batch, length * d_model):
        z, mean, rstd, h, active = (next(parts) for _ in range(5))
        dy_rows, rows = dy[i:j].view(-1, d_model), x[i:j].reshape(-1, d_model)
        d_active = products.grad_input(dy_rows, C).view(h.shape)
        sums.add("C", products.grad_weight(dy_rows, active.view(len(rows), -1)))
        g, d_piece, _dh0 = scan.adjoints(lambda_bar, h, d_active, None, False, True, False, active, activation)
        assert d_piece is not None
        d_lambda += d_piece
        g_rows = g.view(len(rows), -1)
        sums.add("B", products.grad_weight(g_rows, z))
        dz = products.grad_input(g_rows, B)
        sums.add("D", torch.linalg.vecdot(dy_rows, z, dim=0))
        dz.addcmul_(dy_rows, D)
        _through_norm(dz, rows, mean, rstd, norm, dy_rows, dx[i:j].view(-1, d_model), sums)
    return dx, sums["weight"], sums["bias"], d_lambda.float(), sums["B"], sums["C"], sums["D"]


def gated_mlp(x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, *, keep: bool) -> tuple[Tensor, Kept]:
    """y and, to `keep`, what the gradient needs. x (..., d_model), gate and up (d_hidden, d_model), down (d_model, d_hidden)."""
    weight, bias, eps = norm
    d_model, d_hidden = x.shape[-1], len(gate)
    rows, both = x.reshape(-1, d_model), torch.cat((gate, up))
    y, kept = torch.empty(rows.shape), []
    for i, j in cut(len(rows), d_model):
        z, mean, rstd = torch.native_layer_norm(rows[i:j], (d_model,), weight, bias, eps)
        gu = products.linear(z, both)
        m = torch.empty(j - i, d_hidden)
        library.call("stablessm_gated", (j - i, d_hidden, gu.data_ptr(), m.data_ptr()), m.numel())
        torch.add(products.linear(m, down), rows[i:j], out=y[i:j])
        if keep:
            kept += [z, mean, rstd, gu, m]
    return y.view(x.shape), kept


def gated_mlp_gradient(
    x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, kept: Kept, dy: Tensor
) -> tuple[Tensor, ...]:
    """Of x, the norm's weight and bias, gate, up and down."""
    d_model, d_hidden, parts = x.shape[-1], len(gate), iter(kept)
    rows, dy_rows, both = x.reshape(-1, d_model), dy.view(-1, d_model), torch.cat((gate, up))
    dx, sums = torch.empty(rows.shape), _Sums()
    for i, j in cut(len(rows), d_model):
        z, mean, rstd, gu, m = (next(parts) for _ in range(5))
        dm = products.grad_input(dy_rows[i:j], down)
        sums.add("down", products.grad_weight(dy_rows[i:j], m))
        dgu = torch.empty_like(gu)
        numbers = (j - i, d_hidden, gu.data_ptr(), dm.data_ptr(), dgu.data_ptr())
        library.call("stablessm_gated_gradient", numbers, dgu.numel())
        sums.add("both", products.grad_weight(dgu, z))
        dz = products.grad_input(dgu, both)
        _through_norm(dz, rows[i:j], mean, rstd, norm, dy_rows[i:j], dx[i:j], sums)
    d_both = sums["both"]
    return dx.view(x.shape), sums["weight"], sums["bias"], d_both[:d_hidden], d_both[d_hidden:], sums["down"]


def cut(count: int, numbers: int) -> Iterator[tuple[int, int]]:
    """(first, end) of pieces of at most PIECE numbers, all of one size but the last; of `count` things of so many each."""
    most = max(1, PIECE // numbers)
    each = -(-count // -(-count // most))
    return ((i, min(i + each, count)) for i in range(0, count, each))


class _Sums(dict[str, Tensor]):
    """Gradients of weights, summed over the pieces in their order."""

    def add(self, name: str, part: Tensor) -> None:
        if name in self:
            self[name] += part
        else:
            self[name] = part


def _through_norm(dz: Tensor, rows: Tensor, mean: Tensor, rstd: Tensor, norm: Norm, dy: Tensor, dx: Tensor, sums: _Sums) -> None:
    """The gradient that goes on to x: of z through the norm, and of y as it is."""
    through, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward.default(
        dz, rows, rows.shape[1:], mean, rstd, norm[0], norm[1], [True, True, True]
    )
    torch.add(through, dy, out=dx)
    sums.add("weight", d_weight)
    sums.add("bias", d_bias)
