"""The three matrix products of a linear map, computed on a CPU by mm's library or by oneDNN, whichever is faster.

    linear(x, w)         y  = x W^T     x (rows, k), w (n, k)   -> (rows, n)
    grad_input(dy, w)    dx = dy W      dy (rows, n), w (n, k)  -> (rows, k)
    grad_weight(dy, x)   dW = dy^T x    dy (rows, n), x (rows, k) -> (n, k)

PyTorch's mm multiplies float32 matrices with MKL, which reaches only half the peak speed of some AMD cores (Zen 5, not Zen 4).
PyTorch also contains oneDNN, which reaches nearly the peak speed through a private operator made for compiled inference. So a
process probes that operator once. The operator must exist, agree with the product in float64, preserve NaN and infinity, and be
MARGIN times as fast as mm; otherwise the process uses mm. After that, only `use` changes the choice: a run records
`choice_facts`, and `use` restores a recorded choice, so that a resumed run computes the same bits. With either choice, mm
computes small products, products of tensors that are not float32 matrices on a CPU, and products that autograd has to record.
Small models use none of these functions: their products are part of the C kernels (`network.small_blocks`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stablessm_core.numerics.compiling import constant_when_compiled

LIBRARIES = ("mm", "onednn")
MARGIN = 1.2  # oneDNN must be at least this many times as fast as mm, so that noise on a busy machine does not decide
TOLERANCE = 1e-5  # maximum error of a product by oneDNN, relative to the product's largest value

# The minimum number of multiplications for which oneDNN's speed outweighs its overhead of 8 microseconds per call (20 if both
# operands are transposed). On one core half of MIN_WORK would be enough; on two cores slightly more than MIN_WORK is needed.
MIN_WORK = 1 << 21
MIN_WORK_GRAD_WEIGHT = 1 << 22
MIN_GRAD_WEIGHT = 4096  # with fewer entries in dW, oneDNN is not faster than mm on one core, and slower on two cores
THIN = 12  # with at most this many columns in x, mm computes dW 4 to 10 times as fast if x is the first operand
MANY_ROWS = 1024  # with at least this many rows in dy, a transposed copy of w makes the product 5 to 10 % faster
LONG, CHUNK = 8192, 1568  # for more than LONG rows, dW is summed over chunks of at most CHUNK rows, which stay in the cache

_lock = threading.Lock()
_onednn: bool | None = None  # True if oneDNN was chosen; None before the choice
_facts: dict[str, Any] = {}


def linear(x: Tensor, w: Tensor, add: Tensor | None = None) -> Tensor:
    """x W^T, plus `add` (rows, n) if given."""
    if x.shape[0] * w.numel() >= MIN_WORK and _use_onednn(x, w):
        y = _times_transposed(x, w)
        return y if add is None else y.add_(add)
    return torch.mm(x, w.t()) if add is None else torch.addmm(add, x, w.t())


def grad_input(dy: Tensor, w: Tensor, add: Tensor | None = None) -> Tensor:
    """dy W, plus `add` (rows, k) if given."""
    if dy.shape[0] * w.numel() >= MIN_WORK and _use_onednn(dy, w):
        dx = _times_transposed(dy, w.t().contiguous() if dy.shape[0] >= MANY_ROWS else w.t())
        return dx if add is None else dx.add_(add)
    return torch.mm(dy, w) if add is None else torch.addmm(add, dy, w)


def grad_weight(dy: Tensor, x: Tensor) -> Tensor:
    """dy^T x, contiguous."""
    size = dy.shape[1] * x.shape[1]
    if size >= MIN_GRAD_WEIGHT and dy.shape[0] * size >= MIN_WORK_GRAD_WEIGHT and _use_onednn(dy, x):
        # oneDNN is faster with the wider operand as its weight
        return _inner(dy, x) if dy.shape[1] <= x.shape[1] else _inner(x, dy).t().contiguous()
    if x.is_cpu and x.shape[1] <= THIN and x.shape[1] < dy.shape[1]:
        return torch.mm(x.t(), dy).t().contiguous()
    return torch.mm(dy.t(), x)


def choice_facts() -> dict[str, Any]:
    """The library that this process uses, the reason, and both speeds in GFLOP/s if they were measured, as JSON values."""
    choose()
    return dict(_facts)


def choose() -> str:
    """The library that this process uses. The first call, often made by the first large product, probes for about 10 ms."""
    with _lock:
        if _onednn is None:
            _set_choice(*_probe())
    return str(_facts["library"])


def use(library: str) -> str:
    """Use the library that a run recorded, even if it is slower on this machine. If oneDNN is not available, use mm.

    Returns the library used.
    """
    if library not in LIBRARIES:
        raise ValueError(f"the library of products must be one of {', '.join(LIBRARIES)}, got {library!r}")
    with _lock:
        obstacle = _why_not_onednn() if library == "onednn" else None
        if obstacle:
            _set_choice("mm", f"onednn was asked for, but {obstacle}", {})
        else:
            _set_choice(library, "asked for", {})
    return str(_facts["library"])


def _set_choice(library: str, reason: str, speeds: dict[str, float]) -> None:
    global _onednn
    _facts.clear()
    _facts.update(library=library, reason=reason, **({"gflops": speeds} if speeds else {}))
    _onednn = library == "onednn"


@constant_when_compiled
def _chosen_onednn() -> bool:
    return choose() == "onednn"


def _use_onednn(a: Tensor, b: Tensor) -> bool:
    """True if oneDNN was chosen and supports these operands: float32 matrices on the CPU that need no gradient, each with one
    contiguous dimension (oneDNN would copy other matrices).
    """
    if not (_chosen_onednn() if _onednn is None else _onednn):
        return False
    if not (a.is_cpu and b.is_cpu and a.dtype is torch.float32 and b.dtype is torch.float32):
        return False
    if not (a.layout is torch.strided and b.layout is torch.strided and a.dim() == 2 and b.dim() == 2):
        return False
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False
    return 1 in a.stride() and 1 in b.stride()


def _operator() -> Callable[..., Tensor] | None:
    """oneDNN's operator for x W^T; None if this version of PyTorch has no such operator."""
    if not torch._C._has_mkldnn:
        return None
    operator: Callable[..., Tensor] | None = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    return operator


_linear_pointwise = _operator()


def _times_transposed(x: Tensor, w: Tensor) -> Tensor:
    assert _linear_pointwise is not None
    return _linear_pointwise(x, w, None, "none", [], "")


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """a^T b, summed over chunks of rows. The chunk length depends only on the number of rows; the last chunk may be shorter."""
    rows = a.shape[0]
    if rows <= LONG:
        return _times_transposed(a.t(), b.t())
    chunk = -(-rows // -(-rows // CHUNK))
    total = _times_transposed(a[:chunk].t(), b[:chunk].t())
    for i in range(chunk, rows, chunk):
        total += _times_transposed(a[i : i + chunk].t(), b[i : i + chunk].t())
    return total


def _why_not_onednn() -> str | None:
    """Why oneDNN's operator cannot be used; None if it gives correct results for odd sizes, both memory orders, NaN and inf."""
    if _linear_pointwise is None:
        return "this PyTorch has no mkldnn._linear_pointwise"
    generator = torch.Generator().manual_seed(0)  # a separate generator, so that the run's random numbers do not change
    try:
        with torch.no_grad():
            for rows, k, n in ((67, 33, 17), (256, 64, 48)):
                x, w = torch.randn(rows, k, generator=generator), torch.randn(n, k, generator=generator)
                dy = torch.randn(rows, n, generator=generator)
                for a, b in ((x, w), (dy, w.t()), (dy.t(), x.t())):
                    if not _agrees(_times_transposed(a, b), a.double() @ b.double().t()):
                        return "oneDNN's products differ from those in float64"
            x[3, 5], x[7, 2] = float("nan"), float("inf")
            if not torch.equal(_times_transposed(x, w).isfinite(), torch.mm(x, w.t()).isfinite()):
                return "oneDNN's products lose NaN or infinity"
    except (RuntimeError, TypeError) as error:  # the operator has another signature, or the processor is not supported
        return f"oneDNN refuses: {str(error).splitlines()[0]}"
    return None


def _agrees(found: Tensor, exact: Tensor) -> bool:
    return found.shape == exact.shape and bool((found - exact).abs().max() <= TOLERANCE * exact.abs().max())


def _probe() -> tuple[str, str, dict[str, float]]:
    """The chosen library, the reason, and the GFLOP/s of both libraries for the three products of a training step (best
    of 6 rounds)."""
    obstacle = _why_not_onednn()
    if obstacle:
        return "mm", obstacle, {}
    generator = torch.Generator().manual_seed(0)
    rows, k, n = 1024, 128, 128
    x, w = torch.randn(rows, k, generator=generator), torch.randn(n, k, generator=generator)
    dy = torch.randn(rows, n, generator=generator)
    candidates: dict[str, tuple[Callable[[], Tensor], ...]] = {
        "mm": (lambda: torch.mm(x, w.t()), lambda: torch.mm(dy, w), lambda: torch.mm(dy.t(), x)),
        "onednn": (
            lambda: _times_transposed(x, w),
            lambda: _times_transposed(dy, w.t().contiguous()),
            lambda: _inner(dy, x),
        ),
    }
    fastest = {(name, i): float("inf") for name, products in candidates.items() for i in range(len(products))}
    with torch.no_grad():
        for _ in range(6):  # the first round compiles the kernels
            for name, products in candidates.items():
                for i, product in enumerate(products):
                    start = time.perf_counter()
                    product()
                    fastest[name, i] = min(fastest[name, i], time.perf_counter() - start)
    seconds = {name: sum(fastest[name, i] for i in range(len(products))) for name, products in candidates.items()}
    speeds = {name: round(3 * 2e-9 * rows * k * n / s, 1) for name, s in seconds.items()}
    gain = seconds["mm"] / seconds["onednn"]
    if gain < MARGIN:
        return "mm", f"oneDNN was {gain:.2f} times as fast, not {MARGIN}", speeds
    return "onednn", f"oneDNN was {gain:.2f} times as fast", speeds
