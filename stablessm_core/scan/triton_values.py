"""Arithmetic of the scan kernel for real and complex numbers. A value is a tuple of planes, (x,) or (re, im).

In memory a complex row consists of (re, im) pairs. `planes` splits the pairs and `interleaved` joins them, in the registers of a
lane. So real and complex rows are read and written 16 bytes at a time, without communication between lanes.
"""

# mypy: ignore-errors
# ruff: noqa: ARG001 (a scan passes arguments that a combination does not need)
import triton
import triton.language as tl


@triton.jit
def planes(row, COMPLEX: tl.constexpr, ACC: tl.constexpr):
    if COMPLEX:
        re, im = tl.split(tl.reshape(row, (row.shape[0], row.shape[1] // 2, 2)))
        return re.to(ACC), im.to(ACC)
    else:
        return (row.to(ACC),)


@triton.jit
def interleaved(x):
    if len(x) == 2:
        return tl.reshape(tl.join(x[0], x[1]), (x[0].shape[0], 2 * x[0].shape[1]))
    else:
        return x[0]


@triton.jit
def conj(x):
    if len(x) == 2:
        return x[0], -x[1]
    else:
        return x


@triton.jit
def multiply(a, x):
    if len(a) == 2:
        return a[0] * x[0] - a[1] * x[1], a[0] * x[1] + a[1] * x[0]
    else:
        return (a[0] * x[0],)


@triton.jit
def add(x, y):
    if len(x) == 2:
        return x[0] + y[0], x[1] + y[1]
    else:
        return (x[0] + y[0],)


@triton.jit
def where(mask, x, y):
    if len(x) == 2:
        return tl.where(mask, x[0], y[0]), tl.where(mask, x[1], y[1])
    else:
        return (tl.where(mask, x[0], y[0]),)


@triton.jit
def zero(x):
    """True where x is exactly zero."""
    if len(x) == 2:
        return (x[0] == 0.0) & (x[1] == 0.0)
    else:
        return x[0] == 0.0


@triton.jit
def finite(x):
    if len(x) == 2:
        return (x[0] - x[0] == 0.0) & (x[1] - x[1] == 0.0)
    else:
        return x[0] - x[0] == 0.0


@triton.jit
def constant(number: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, COMPLEX: tl.constexpr, ACC: tl.constexpr):
    if COMPLEX:
        return tl.full((rows, columns), number, ACC), tl.zeros((rows, columns), ACC)
    else:
        return (tl.full((rows, columns), number, ACC),)


@triton.jit
def picked(mask, x):
    """The row that `mask` marks, as (1, columns). Other rows do not affect the result, even if they contain NaN."""
    if len(x) == 2:
        return tl.sum(tl.where(mask, x[0], 0.0), axis=0)[None, :], tl.sum(tl.where(mask, x[1], 0.0), axis=0)[None, :]
    else:
        return (tl.sum(tl.where(mask, x[0], 0.0), axis=0)[None, :],)


@triton.jit
def summed(x):
    """The sum over the rows, in an order that depends only on the shape."""
    if len(x) == 2:
        return tl.sum(x[0], axis=0)[None, :], tl.sum(x[1], axis=0)[None, :]
    else:
        return (tl.sum(x[0], axis=0)[None, :],)


@triton.jit
def carried(a, x):
    """a x, but zero where x is exactly zero: a product of many a may have overflowed, and 0 * inf would be NaN."""
    if len(a) == 2:
        nothing = zero(x)
        y = multiply(a, x)
        return tl.where(nothing, 0.0, y[0]), tl.where(nothing, 0.0, y[1])
    else:
        return (tl.where(x[0] == 0.0, 0.0, a[0] * x[0]),)


@triton.jit
def join_real(p1, x1, before_p1, before_x1, p2, x2, before_p2, before_x2):
    """The composition of two neighbouring maps h -> p h + x, and the composition without the last map, for an exclusive scan.

    An overflowed p turns a zero x into NaN; the kernel then computes that chain again. A check for zeros in this function would
    avoid this, but it would make up an eighth of all instructions.
    """
    return (
        p1 * p2,
        p2 * x1 + x2,
        p1 * before_p2,
        before_p2 * x1 + before_x2,
    )


@triton.jit
def join_complex(
    p1, p1_im, x1, x1_im, before_p1, before_p1_im, before_x1, before_x1_im,
    p2, p2_im, x2, x2_im, before_p2, before_p2_im, before_x2, before_x2_im,
):  # fmt: skip
    p = multiply((p2, p2_im), (p1, p1_im))
    x = add(multiply((p2, p2_im), (x1, x1_im)), (x2, x2_im))
    before_p = multiply((before_p2, before_p2_im), (p1, p1_im))
    before_x = add(multiply((before_p2, before_p2_im), (x1, x1_im)), (before_x2, before_x2_im))
    return p[0], p[1], x[0], x[1], before_p[0], before_p[1], before_x[0], before_x[1]


@triton.jit
def prefixes(p, x, COMPLEX: tl.constexpr, ACC: tl.constexpr):
    """Each row of (p, x) is a map h -> p h + x. Joins, for each row, all maps up to this row, and all maps before this row."""
    one = constant(1.0, p[0].shape[0], p[0].shape[1], COMPLEX, ACC)
    none = constant(0.0, p[0].shape[0], p[0].shape[1], COMPLEX, ACC)
    if COMPLEX:
        q, q_im, y, y_im, r, r_im, z, z_im = tl.associative_scan(
            (p[0], p[1], x[0], x[1], one[0], one[1], none[0], none[1]), 0, join_complex
        )
        return (q, q_im), (y, y_im), (r, r_im), (z, z_im)
    else:
        q, y, r, z = tl.associative_scan((p[0], x[0], one[0], none[0]), 0, join_real)
        return (q,), (y,), (r,), (z,)


@triton.jit
def powers(a, STRIPS: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr, ACC: tl.constexpr):
    """a^ROWS, a^(ROWS w) for each strip w, and a^(ROWS STRIPS).

    The powers are computed in float64 and rounded only once, because rounding errors would add up from tile to tile.
    """
    columns: tl.constexpr = a[0].shape[1]
    power = widened(a)
    for i in tl.static_range(16):
        if (1 << i) < ROWS:
            power = multiply(power, power)
    strip_power = rounded(power, ACC)
    before = constant(1.0, STRIPS, columns, COMPLEX, tl.float64)
    strip = tl.arange(0, STRIPS)[:, None]
    for i in tl.static_range(16):
        if (1 << i) < STRIPS:
            before = where(((strip >> i) & 1) == 1, multiply(power, before), before)
            power = multiply(power, power)
    return strip_power, rounded(before, ACC), rounded(power, ACC)


@triton.jit
def widened(x):
    if len(x) == 2:
        return x[0].to(tl.float64), x[1].to(tl.float64)
    else:
        return (x[0].to(tl.float64),)


@triton.jit
def rounded(x, ACC: tl.constexpr):
    if len(x) == 2:
        return x[0].to(ACC), x[1].to(ACC)
    else:
        return (x[0].to(ACC),)
