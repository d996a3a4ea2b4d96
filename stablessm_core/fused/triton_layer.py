"""The fused layer on a GPU: launches the Triton kernels.

The code is experimental: it is tested in Triton's interpreter, but has not been measured on a device. A float32 product is
computed as three TF32 products, a bfloat16 product as one bfloat16 product.

The tiles of a sequence run in parallel. A first pass starts each tile from a zero state and computes the tile's last state. A
float64 scan with one step per tile joins these last states. A second pass starts each tile from the correct state. There are no
atomic additions. The gradients of the weights are computed as partial sums, each over tiles in order. The number of partial
sums depends only on the shapes.

If TRITON_INTERPRET=1 is set in the environment before the first import, the same kernels run on CPU tensors. This is slow, but
enough for tests.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm_core.fused.triton_kernels import adjoints_kernel, driven_kernel, inputs_kernel, outputs_kernel, weights_kernel
from stablessm_core.scan import linear_scan

INNER = 32  # number of features that a product reads at a time
PARTS = 256  # approximate total number of programs that compute the gradients of the weights
MAX_D_MODEL = 256  # maximum, because a program sums a whole row of the output in registers


class Tile(NamedTuple):
    """The size of a tile: `time` steps and `states` eigenvalues, processed by `warps` warps."""

    time: int
    states: int
    warps: int


# Each key is the largest d_model for which the tile is used. The sizes of the tiles are chosen so that no kernel spills
# registers on sm_90, which a test checks. The sizes have not been timed on a device.
TILES = {64: Tile(64, 16, 8), 128: Tile(32, 32, 8), 256: Tile(32, 16, 8)}

PRECISION = {torch.float32: "tf32x3", torch.bfloat16: "ieee", torch.float16: "ieee"}
PRODUCTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def tile_for(d_model: int) -> Tile:
    return next(tile for widest, tile in TILES.items() if d_model <= widest)


def chunk_length(d_model: int) -> int:
    """The number of steps in a tile."""
    return tile_for(d_model).time


def forward(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, activation: str, products: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the state after the last step, and the state before each tile, (batch, tiles, d_state)."""
    B, C, D, x = B.contiguous(), C.contiguous(), D.contiguous(), x.contiguous()
    batch, length, d_model = x.shape
    shape = _Shape(batch, length, d_model, len(a))
    y = torch.empty(x.shape, dtype=torch.promote_types(D.dtype, x.dtype), device=x.device)
    last = torch.empty((batch, len(a)), dtype=a.dtype, device=a.device)
    powers, power = _powers(a, shape.tile.time)
    ends = torch.empty((batch, shape.tiles, len(a)), dtype=a.dtype, device=a.device)
    shape.launch(driven_kernel, (batch * shape.tiles, shape.blocks), products, x, B, powers, ends)
    before = _joined(power, ends, reverse=False)
    tensors = (x, B, C, D, powers, before, y, last)
    shape.launch(outputs_kernel, (batch * shape.tiles,), products, *tensors, ACTIVATION=activation)
    return y, last, before


def backward(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, before: Tensor, grad: Tensor, activation: str, products: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, B, C, D and x."""
    B, C, D, x, grad = B.contiguous(), C.contiguous(), D.contiguous(), x.contiguous(), grad.contiguous()
    batch, length, d_model = x.shape
    shape = _Shape(batch, length, d_model, len(a))
    powers, power = _powers(a, shape.tile.time)
    ends = torch.empty(before.shape, dtype=a.dtype, device=a.device)
    grid = (batch * shape.tiles, shape.blocks)
    shape.launch(adjoints_kernel, grid, products, x, grad, B, C, powers, before, ends, ACTIVATION=activation)
    after = _joined(power, ends, reverse=True)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tensors = (x, grad, B, C, D, powers, before, after, dx)
    shape.launch(inputs_kernel, grid[:1], products, *tensors, ACTIVATION=activation)
    each = max(1, -(-batch * shape.tiles // max(1, PARTS // shape.blocks)))
    parts = -(-batch * shape.tiles // each)
    sums = [torch.empty((parts, *size), dtype=a.dtype, device=a.device) for size in (a.shape, B.shape, B.shape, D.shape)]
    weights = (x, grad, B, C, powers, before, after, *sums)
    scalars = (batch * shape.tiles, each)
    shape.launch(weights_kernel, (shape.blocks, parts), products, *weights, scalars=scalars, ACTIVATION=activation)
    da, dB, dC, dD = (x.sum(0) for x in sums)
    return da, dB, dC.t().contiguous(), dD, dx


class _Shape:
    """The sizes of the arguments, and of the tiles and blocks of eigenvalues into which a call is split."""

    def __init__(self, batch: int, length: int, d_model: int, d_state: int) -> None:
        self.length, self.d_model, self.d_state = length, d_model, d_state
        self.batch, self.tile = batch, tile_for(d_model)
        self.tiles, self.blocks = -(-length // self.tile.time), -(-d_state // self.tile.states)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        products: torch.dtype,
        *tensors: Tensor,
        scalars: tuple[int, ...] = (),
        **options: Any,
    ) -> None:
        if self.batch == 0:
            return
        device = tensors[0].device
        model = max(16, triton.next_power_of_2(self.d_model))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[grid](
                *tensors, self.length, self.d_model, self.d_state, self.tiles, *scalars, **options,
                TIME=self.tile.time, MODEL=model, STATES=self.tile.states, INNER=INNER,
                PRODUCTS=PRODUCTS[products], PRECISION=PRECISION[products],
                num_warps=self.tile.warps, num_stages=1,
            )  # fmt: skip


def _powers(a: Tensor, time: int) -> tuple[Tensor, Tensor]:
    """a^k for k = 0..time, rounded once, and a^time in float64, clipped to finite numbers so that zero states stay zero."""
    exact = a.double() ** torch.arange(time + 1, device=a.device, dtype=torch.float64)[:, None]
    limit = torch.finfo(exact.dtype).max
    return exact.to(a.dtype), exact[-1].clamp(-limit, limit)


def _joined(power: Tensor, ends: Tensor, *, reverse: bool) -> Tensor:
    """The state before each tile; with `reverse`, the adjoint after each tile."""
    joined = torch.zeros_like(ends)
    if ends.shape[1] > 1:
        source, target = (ends[:, 1:], joined[:, :-1]) if reverse else (ends[:, :-1], joined[:, 1:])
        target.copy_(linear_scan(power, source.double(), reverse=reverse))
    return joined
