"""Functions of the fused layer's kernels: activations, recurrences over the rows of a tile, products."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# ruff: noqa: ARG001 (a scan passes arguments that a combination does not need)
import triton
import triton.language as tl


@triton.jit
def activated(h, ACTIVATION: tl.constexpr):
    """act(h) and act'(h); NaN stays NaN."""
    if ACTIVATION == "tanh":
        # (1 - e^-2|h|) / (1 + e^-2|h|); near 0, the Taylor series is used instead, because this formula loses digits
        e = tl.exp(-2.0 * tl.abs(h))
        s = h * h
        near = h * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0)))))
        far = tl.where(h < 0.0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
        z = tl.where(tl.abs(h) < 0.15, near, far)
        return z, 1.0 - z * z
    elif ACTIVATION == "gelu":
        below = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))
        return h * below, below + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
    elif ACTIVATION == "silu":
        below = 1.0 / (1.0 + tl.exp(-h))
        return h * below, below * (1.0 + h * (1.0 - below))
    elif ACTIVATION == "relu":
        return tl.where(h <= 0.0, 0.0, h), tl.where(h <= 0.0, 0.0, 1.0)
    else:
        return h, tl.full(h.shape, 1.0, h.dtype)


@triton.jit
def carried(p, x):
    """p x, but zero where x is exactly zero, even if the power p overflowed."""
    return tl.where(x == 0.0, 0.0, p * x)


@triton.jit
def join(p1, x1, p2, x2):
    """The composition of two neighbouring maps h -> p h + x."""
    return p1 * p2, carried(p2, x1) + x2


@triton.jit
def join_before(p1, x1, before_p1, before_x1, p2, x2, before_p2, before_x2):
    """The results of `join`, and the composition without the last map, for an exclusive scan."""
    return p1 * p2, carried(p2, x1) + x2, p1 * before_p2, carried(before_p2, x1) + before_x2


@triton.jit
def recurrence(a, x, powers_from_one, first):
    """h_q = a h_{q-1} + x_q for each row q, starting from the row `first`. a, first: (1, columns). powers_from_one: a^(q+1)."""
    _, h = tl.associative_scan((tl.broadcast_to(a, x.shape), x), 0, join)
    return h + carried(powers_from_one, first)


@triton.jit
def recurrence_before(a, x, powers_from_zero, first):
    """For each row q, h_{q-1} as defined in `recurrence`; the first row is `first`. powers_from_zero: a^q."""
    one, none = tl.full(x.shape, 1.0, x.dtype), tl.zeros(x.shape, x.dtype)
    _, _, _, h = tl.associative_scan((tl.broadcast_to(a, x.shape), x, one, none), 0, join_before)
    return h + carried(powers_from_zero, first)


@triton.jit
def product(x, y, acc, PRODUCTS: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x y on tensor cores, with x and y rounded to PRODUCTS."""
    return tl.dot(x.to(PRODUCTS), y.to(PRODUCTS), acc, input_precision=PRECISION)
