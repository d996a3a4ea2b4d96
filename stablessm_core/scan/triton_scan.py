"""The scan on a GPU: launches the Triton kernel. Real dtypes may be mixed. A tensor strided along d_state is copied first.

If TRITON_INTERPRET=1 is set before the first import, the same kernel runs on CPU tensors, slowly, for tests.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm_core.scan.autograd import accumulator_of, common_dtype
from stablessm_core.scan.configurations import tile_for
from stablessm_core.scan.triton_kernel import GROUP, scan_kernel

INTERPRETED = not isinstance(scan_kernel, triton.JITFunction)
OLDEST_CAPABILITY = (7, 0)
PATIENCE = 1 << 20  # maximum number of repeated polls; a poll takes about a microsecond, and a few are enough (both estimated)
KINDS = {
    torch.float16: "half",
    torch.bfloat16: "half",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def why_not(device: torch.device) -> str | None:
    """Why the kernel cannot run on this device; None if it can."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return "this PyTorch sees no CUDA device"
        capability = capability_of(device)
        if torch.version.hip is None and capability is not None and capability < OLDEST_CAPABILITY:
            return f"compute capability {OLDEST_CAPABILITY} or newer is needed, {device} has {capability}"
        return _why_no_launcher()
    if device.type == "cpu" and INTERPRETED:
        return None
    return f"the tensors are on {device}, the kernels need a CUDA device (or TRITON_INTERPRET=1, for tests on the CPU)"


@cache
def _why_no_launcher() -> str | None:
    """Why Triton cannot launch kernels; None if it can.

    Triton compiles its launcher on this machine, which may lack a compiler.
    """
    try:
        _ = triton.runtime.driver.active
    except Exception as error:  # noqa: BLE001 - a missing compiler, header or driver library is a reason to report, not a failure
        reason = " ".join(str(error).split())
        return f"Triton cannot build its launcher here, which needs a C compiler and Python's headers ({reason})"
    return None


def states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """The states h of h_t = a_t h_{t-1} + b_t.

    a (d_state,), (groups, d_state) or b's shape (batch, length, d_state), h0 (batch, d_state).
    """
    h = torch.empty(b.shape, dtype=common_dtype(a, b, h0), device=b.device)
    _launch("states", a, b, h0, h, against_time=reverse)
    return h


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """g, da and dh0 as `autograd.LinearScan` defines them, in one launch.

    If a does not vary with time, da is then summed over the batch in order.
    """
    g = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    dh0 = torch.empty(h[:, 0].shape, dtype=h.dtype, device=h.device) if need_dh0 else None
    da = _launch("adjoints", a, grad, h0 if need_da else None, g, not reverse, h=h if need_da else None, dh0=dh0)
    return g, da, dh0


def _launch(
    role: str,
    links: Tensor,
    inputs: Tensor,
    first: Tensor | None,
    out: Tensor,
    against_time: bool,
    h: Tensor | None = None,
    dh0: Tensor | None = None,
) -> Tensor | None:
    """Run the kernel for each batch row and block of d_state. If h is given, return the gradient of the links."""
    batch, length, d_state = out.shape
    lti = links.dim() < 3
    accumulator = accumulator_of(out.dtype)
    groups = links.shape[0] if links.dim() == 2 else 1
    if out.numel() == 0:
        return None if h is None else links.new_zeros(links.shape, dtype=accumulator if lti else out.dtype)
    links, inputs, first = _dense(links), _dense(inputs), None if first is None else _dense(first)
    h = None if h is None else h.contiguous()
    tile = tile_for(capability_of(out.device), (role, "lti" if lti else "ltv", KINDS[out.dtype]), batch, length, d_state)
    chains = batch * -(-d_state // tile.channels)
    tiles = -(-length // (tile.strips * tile.rows)) if tile.look_back else 1
    dlinks = None
    if h is not None and lti:
        dlinks = torch.empty((tiles, groups, batch // groups, d_state), dtype=accumulator, device=out.device)
    elif h is not None:
        dlinks = torch.empty(out.shape, dtype=out.dtype, device=out.device)
    look_back: tuple[Tensor | None, ...] = (None, None, None)
    if tile.look_back:
        look_back = _look_back_memory(chains, tiles, tile.channels, accumulator, out.device)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        kernel: Any = scan_kernel
        for repair in (False, True) if tile.look_back else (False,):
            kernel[(chains if repair else chains * tiles,)](
                *map(_real, (links, inputs, first, out, h, dlinks, dh0)),
                *look_back,
                PATIENCE,
                chains,
                length,
                d_state,
                batch // groups if lti else 1,
                *((links.stride(0) if groups > 1 else 0, 0) if lti else links.stride()[:2]),
                *inputs.stride()[:2],
                0 if first is None else first.stride(0),
                ADJOINT=role == "adjoints",
                LTI=lti,
                AGAINST_TIME=against_time,
                COMPLEX=out.is_complex(),
                ACC=tl.float64 if accumulator in (torch.float64, torch.complex128) else tl.float32,
                STRIPS=tile.strips,
                ROWS=tile.rows,
                CHANNELS=tile.channels,
                LOOK_BACK=tile.look_back and not repair,
                REPAIR=repair,
                num_warps=tile.warps,
            )
    if dlinks is None or not lti:
        return dlinks
    return dlinks.sum((0, 2)).view(links.shape)


def _look_back_memory(chains: int, tiles: int, channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Memory for `triton_kernel.joined_before`: maps and states, signals (one per chain and group), marks (one per column)."""
    groups = tiles // GROUP.value + 2
    columns = channels * (2 if dtype.is_complex else 1)
    real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    maps = torch.empty((2 * tiles + groups) * chains * columns, dtype=real, device=device)
    flags = torch.zeros((groups + channels, chains), dtype=torch.int32, device=device)
    return maps, flags[:groups], flags[groups:]


def _dense(x: Tensor) -> Tensor:
    """x, contiguous along d_state, because strided reads in the kernel would cost more memory traffic than a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _real(x: Tensor | None) -> Tensor | None:
    return torch.view_as_real(x) if x is not None and x.is_complex() else x


@cache
def capability_of(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
