"""Residual blocks that are too large for `small_blocks`.

They use PyTorch's norm, the products of `numerics.products`, and the compiled scan and gate. Forward and backward process the
batch in chunks of whole sequences or of rows, so that each operation finds the previous operation's result in the cache. The
chunks depend only on the shapes, so equal inputs give equal bits. Formulas and arguments are the same as in `small_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.network.small_blocks import Norm, Saved
from stablessm_core.numerics import products
from stablessm_core.scan import compiled as scan

CHUNK = 1 << 17  # maximum entries of x in a chunk of several items, so that x, z, g, u and m of a chunk fit in the caches


def state_space(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, C: Tensor, D: Tensor, activation: str, *, keep: bool
) -> tuple[Tensor, Tensor, Saved]:
    """y, the last states and, if `keep`, the saved tensors. x (batch, length, d_model), B (d_state, d_model)."""
    weight, bias, eps = norm
    batch, length, d_model = x.shape
    y, last, saved = torch.empty(x.shape), torch.empty(batch, len(lambda_bar)), []
    for i, j in chunks(batch, length * d_model):
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
            saved += [z, mean, rstd, h, active]
    return y, last, saved


def state_space_gradient(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, C: Tensor, D: Tensor, activation: str, saved: Saved, dy: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of x, the norm's weight and bias, lambda_bar, B, C and D."""
    batch, length, d_model = x.shape
    dx, d_lambda, sums, parts = torch.empty(x.shape), torch.zeros(lambda_bar.shape, dtype=torch.float64), _Sums(), iter(saved)
    for i, j in chunks(batch, length * d_model):
        z, mean, rstd, h, active = (next(parts) for _ in range(5))
        dy_rows, rows = dy[i:j].view(-1, d_model), x[i:j].reshape(-1, d_model)
        d_active = products.grad_input(dy_rows, C).view(h.shape)
        sums.add("C", products.grad_weight(dy_rows, active.view(len(rows), -1)))
        g, d_chunk, _dh0 = scan.adjoints(lambda_bar, h, d_active, None, False, True, False, active, activation)
        assert d_chunk is not None
        d_lambda += d_chunk
        g_rows = g.view(len(rows), -1)
        sums.add("B", products.grad_weight(g_rows, z))
        dz = products.grad_input(g_rows, B)
        sums.add("D", torch.linalg.vecdot(dy_rows, z, dim=0))
        dz.addcmul_(dy_rows, D)
        _through_norm(dz, rows, mean, rstd, norm, dy_rows, dx[i:j].view(-1, d_model), sums)
    return dx, sums["weight"], sums["bias"], d_lambda.float(), sums["B"], sums["C"], sums["D"]


def gated_mlp(x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, *, keep: bool) -> tuple[Tensor, Saved]:
    """y and, if `keep`, the saved tensors. x (..., d_model), gate and up (d_hidden, d_model), down (d_model, d_hidden)."""
    weight, bias, eps = norm
    d_model, d_hidden = x.shape[-1], len(gate)
    rows, both = x.reshape(-1, d_model), torch.cat((gate, up))
    y, saved = torch.empty(rows.shape), []
    for i, j in chunks(len(rows), d_model):
        z, mean, rstd = torch.native_layer_norm(rows[i:j], (d_model,), weight, bias, eps)
        gu = products.linear(z, both)
        m = torch.empty(j - i, d_hidden)
        library.call("stablessm_gated", (j - i, d_hidden, gu.data_ptr(), m.data_ptr()), m.numel())
        torch.add(products.linear(m, down), rows[i:j], out=y[i:j])
        if keep:
            saved += [z, mean, rstd, gu, m]
    return y.view(x.shape), saved


def gated_mlp_gradient(
    x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, saved: Saved, dy: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of x, the norm's weight and bias, gate, up and down."""
    d_model, d_hidden, parts = x.shape[-1], len(gate), iter(saved)
    rows, dy_rows, both = x.reshape(-1, d_model), dy.view(-1, d_model), torch.cat((gate, up))
    dx, sums = torch.empty(rows.shape), _Sums()
    for i, j in chunks(len(rows), d_model):
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


def chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    """The bounds (first, end) of the chunks into which `count` items of `size` numbers each are split.

    A chunk of several items has at most CHUNK numbers. All chunks have the same length, but the last chunk may be shorter.
    """
    most = max(1, CHUNK // size)
    each = -(-count // -(-count // most))
    return ((i, min(i + each, count)) for i in range(0, count, each))


class _Sums(dict[str, Tensor]):
    """The gradients of the weights by name, summed over the chunks in their order."""

    def add(self, name: str, part: Tensor) -> None:
        if name in self:
            self[name] += part
        else:
            self[name] = part


def _through_norm(dz: Tensor, rows: Tensor, mean: Tensor, rstd: Tensor, norm: Norm, dy: Tensor, dx: Tensor, sums: _Sums) -> None:
    """Write the gradient of x to dx: dz propagated through the norm, plus dy.

    Add the gradients of the norm's weight and bias to `sums`.
    """
    dx_of_norm, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward.default(
        dz, rows, rows.shape[1:], mean, rstd, norm[0], norm[1], [True, True, True]
    )
    torch.add(dx_of_norm, dy, out=dx)
    sums.add("weight", d_weight)
    sums.add("bias", d_bias)
