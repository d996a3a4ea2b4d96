"""The three matrix products of a linear map, on a CPU by whichever library is faster there: PyTorch's own (mm) or oneDNN.

    linear(x, w)         y  = x W^T     x (rows, k), w (n, k)   -> (rows, n)
    grad_input(dy, w)    dx = dy W      dy (rows, n), w (n, k)  -> (rows, k)
    grad_weight(dy, x)   dW = dy^T x    dy (rows, n), x (rows, k) -> (n, k)

PyTorch multiplies float32 matrices by MKL, which on some AMD cores (Zen 5, not Zen 4) reaches half their speed. The oneDNN of the
same PyTorch reaches nearly all of it, by an operator that PyTorch keeps private (it was made for compiled inference). So that is
probed once in a process: it has to exist, to agree with the product in float64, to keep NaN and infinity, and to be faster by
MARGIN; else mm is taken. The choice holds until the process ends; `chosen` says what to record; `use` takes up a recorded one,
for the same bits after a resume. Small products, and whatever is no float32 matrix on a CPU, are mm's under either choice. Small
models ask for none of them: their products are the kernels' own (`compiled.halves`).

Without gradients: products that autograd's tape has to see are mm's as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stablessm_core.compiling import constant_when_compiled

LIBRARIES = ("mm", "onednn")
MARGIN = 1.2  # times as fast as mm at the least, or the noise of a busy machine would choose
TOLERANCE = 1e-5  # of the largest value

# From here on, in multiplications, oneDNN makes up for its 8 microseconds a call (20 where both operands are transposed); on one
# core it does from half as many, on two a little later.
LEAST = 1 << 21
LEAST_GRAD_WEIGHT = 1 << 22
SMALL_GRAD_WEIGHT = 4096  # numbers in dW: below, oneDNN is no faster on one core, and slower on two
THIN = 12  # up to here columns of x, mm makes dW 4 to 10 times as fast with x as the first operand
MANY = 1024  # rows for which a transposed copy of w is worth its making: 5 to 10 %
LONG, PIECE = 8192, 1568  # a dW over more rows than LONG is a sum over pieces of at most PIECE rows, which stay in the cache

_lock = threading.Lock()
_onednn: bool | None = None  # None: not chosen yet
_facts: dict[str, Any] = {}


def linear(x: Tensor, w: Tensor, add: Tensor | None = None) -> Tensor:
    """x W^T, plus `add` (rows, n) where given."""
    if x.shape[0] * w.numel() >= LEAST and _by_onednn(x, w):
        y = _times_transposed(x, w)
        return y if add is None else y.add_(add)
    return torch.mm(x, w.t()) if add is None else torch.addmm(add, x, w.t())


def grad_input(dy: Tensor, w: Tensor, add: Tensor | None = None) -> Tensor:
    """dy W, plus `add` (rows, k) where given."""
    if dy.shape[0] * w.numel() >= LEAST and _by_onednn(dy, w):
        dx = _times_transposed(dy, w.t().contiguous() if dy.shape[0] >= MANY else w.t())
        return dx if add is None else dx.add_(add)
    return torch.mm(dy, w) if add is None else torch.addmm(add, dy, w)


def grad_weight(dy: Tensor, x: Tensor) -> Tensor:
    """dy^T x, contiguous."""
    size = dy.shape[1] * x.shape[1]
    if size >= SMALL_GRAD_WEIGHT and dy.shape[0] * size >= LEAST_GRAD_WEIGHT and _by_onednn(dy, x):
        # the wider operand is the one that oneDNN should have as its weight
        return _inner(dy, x) if dy.shape[1] <= x.shape[1] else _inner(x, dy).t().contiguous()
    if x.is_cpu and x.shape[1] <= THIN and x.shape[1] < dy.shape[1]:
        return torch.mm(x.t(), dy).t().contiguous()
    return torch.mm(dy.t(), x)


def chosen() -> dict[str, Any]:
    """The library of this process, why, and the speeds of both where they were measured, in 10^9 operations a second. JSON."""
    choose()
    return dict(_facts)


def choose() -> str:
    """The library of this process, probed now (some 10 ms) if it was not chosen before. Products ask, too."""
    with _lock:
        if _onednn is None:
            _take(*_probe())
    return str(_facts["library"])


def use(library: str) -> str:
    """Take the library that a run recorded, whatever is faster here; mm where oneDNN is not to be had. Returns the one taken."""
    if library not in LIBRARIES:
        raise ValueError(f"the library of products must be one of {', '.join(LIBRARIES)}, got {library!r}")
    with _lock:
        obstacle = _why_not_onednn() if library == "onednn" else None
        if obstacle:
            _take("mm", f"onednn was asked for, but {obstacle}", {})
        else:
            _take(library, "asked for", {})
    return str(_facts["library"])


def _take(library: str, reason: str, speeds: dict[str, float]) -> None:
    global _onednn
    _facts.clear()
    _facts.update(library=library, reason=reason, **({"gflops": speeds} if speeds else {}))
    _onednn = library == "onednn"


@constant_when_compiled
def _chosen_onednn() -> bool:
    return choose() == "onednn"


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN was chosen and takes these two: it knows nothing of gradients, and copies what lies in neither order."""
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
    """oneDNN's x W^T for plain tensors, where this PyTorch has it."""
    if not torch._C._has_mkldnn:
        return None
    found: Callable[..., Tensor] | None = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    return found


_linear_pointwise = _operator()


def _times_transposed(x: Tensor, w: Tensor) -> Tensor:
    assert _linear_pointwise is not None
    return _linear_pointwise(x, w, None, "none", [], "")


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """a^T b over pieces of rows, all of one length but the last; how they are cut depends on the number of rows alone."""
    rows = a.shape[0]
    if rows <= LONG:
        return _times_transposed(a.t(), b.t())
    piece = -(-rows // -(-rows // PIECE))
    total = _times_transposed(a[:piece].t(), b[:piece].t())
    for i in range(piece, rows, piece):
        total += _times_transposed(a[i : i + piece].t(), b[i : i + piece].t())
    return total


def _why_not_onednn() -> str | None:
    """What is wrong with oneDNN's operator here, or None: it is given odd sizes, both orders, NaN and infinity."""
    if _linear_pointwise is None:
        return "this PyTorch has no mkldnn._linear_pointwise"
    generator = torch.Generator().manual_seed(0)  # never the run's own
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
    except (RuntimeError, TypeError) as error:  # another signature, or a processor that it does not know
        return f"oneDNN refuses: {str(error).splitlines()[0]}"
    return None


def _agrees(found: Tensor, exact: Tensor) -> bool:
    return found.shape == exact.shape and bool((found - exact).abs().max() <= TOLERANCE * exact.abs().max())


def _probe() -> tuple[str, str, dict[str, float]]:
    """The choice, why, and GF/s of both over the three products of a training step, the fastest of several rounds in turns."""
    obstacle = _why_not_onednn()
    if obstacle:
        return "mm", obstacle, {}
    generator = torch.Generator().manual_seed(0)
    rows, k, n = 1024, 128, 128
    x, w = torch.randn(rows, k, generator=generator), torch.randn(n, k, generator=generator)
    dy = torch.randn(rows, n, generator=generator)
    ways: dict[str, tuple[Callable[[], Tensor], ...]] = {
        "mm": (lambda: torch.mm(x, w.t()), lambda: torch.mm(dy, w), lambda: torch.mm(dy.t(), x)),
        "onednn": (
            lambda: _times_transposed(x, w),
            lambda: _times_transposed(dy, w.t().contiguous()),
            lambda: _inner(dy, x),
        ),
    }
    fastest = {(name, i): float("inf") for name, products in ways.items() for i in range(len(products))}
    with torch.no_grad():
        for _ in range(6):  # the first makes the kernels
            for name, products in ways.items():
                for i, product in enumerate(products):
                    start = time.perf_counter()
                    product()
                    fastest[name, i] = min(fastest[name, i], time.perf_counter() - start)
    seconds = {name: sum(fastest[name, i] for i in range(len(products))) for name, products in ways.items()}
    speeds = {name: round(3 * 2e-9 * rows * k * n / s, 1) for name, s in seconds.items()}
    gain = seconds["mm"] / seconds["onednn"]
    if gain < MARGIN:
        return "mm", f"oneDNN was {gain:.2f} times as fast, not {MARGIN}", speeds
    return "onednn", f"oneDNN was {gain:.2f} times as fast", speeds
