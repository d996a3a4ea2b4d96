"""Triton kernels of the fused layer.

A tile consists of TIME steps of one batch row. A program processes one tile, or several tiles one after another. The kernels
are experimental: they are tested in Triton's interpreter, but have not been measured on a device.

States are kept in registers, STATES eigenvalues at a time. `before` contains the state before each tile's first step, and
`after` contains the adjoint after each tile's last step, both (batch, tiles, d_state). `powers` contains a^k for k = 0..TIME,
(TIME + 1, d_state). Tensors are contiguous. They are float32, except x, grad, y and dx, which may have a lower precision.
d_model <= MODEL. Rows past the end of the sequence are read as zeros, contribute nothing to any sum and are not stored.

The recurrence of the adjoint runs backwards in time. In its tiles, row q is step t = TIME - 1 - q of the tile, so that every
recurrence runs from the first row to the last row.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
import triton
import triton.language as tl

from stablessm_core.fused.triton_values import activated, carried, product, recurrence, recurrence_before


@triton.jit
def rows_of(x, batch, t, m, length, d_model):
    inside = (t < length)[:, None] & (m < d_model)[None, :]
    return tl.load(x + (batch * length + t)[:, None] * d_model + m[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def driven_by(
    x, B, batch, t, n, length, d_model, d_state,
    TIME: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr, PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """B x of one tile, (TIME, STATES), INNER features at a time. Each call reads x again, because registers cannot hold x."""
    out = tl.zeros((TIME, STATES), tl.float32)
    for start in range(0, d_model, INNER):
        m = start + tl.arange(0, INNER)
        inside = (m < d_model)[:, None] & (n < d_state)[None, :]
        B_t = tl.load(B + n[None, :] * d_model + m[:, None], mask=inside, other=0.0)
        out = product(rows_of(x, batch, t, m, length, d_model), B_t, out, PRODUCTS, PRECISION)
    return out


@triton.jit
def states_of(
    x, B, powers, before, at, batch, t, n, length, d_model, d_state,
    TIME: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr, PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h of one tile, (TIME, STATES)."""
    q, in_state = tl.arange(0, TIME), n < d_state
    driven = driven_by(x, B, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
    a = tl.load(powers + d_state + n, mask=in_state, other=0.0)[None, :]
    power = tl.load(powers + (q + 1)[:, None] * d_state + n[None, :], mask=in_state[None, :], other=0.0)
    first = tl.load(before + at * d_state + n, mask=in_state, other=0.0)[None, :]
    return recurrence(a, driven, power, first)


@triton.jit
def state_gradients(
    grad, C, slope, batch, t, n, length, d_model, d_state,
    TIME: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr, PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """act'(h) (C^T grad) at the steps t, and zero past the end of the sequence."""
    out = tl.zeros((TIME, STATES), tl.float32)
    for start in range(0, d_model, INNER):
        m = start + tl.arange(0, INNER)
        inside = (m < d_model)[:, None] & (n < d_state)[None, :]
        C_n = tl.load(C + m[:, None] * d_state + n[None, :], mask=inside, other=0.0)
        out = product(rows_of(grad, batch, t, m, length, d_model), C_n, out, PRODUCTS, PRECISION)
    return tl.where((t < length)[:, None], out * slope, 0.0)


@triton.jit
def driven_kernel(
    x, B, powers, ends, length, d_model, d_state, tiles,
    TIME: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr,
    PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The last state of each full tile if the tile starts from a zero state: the sum over t of a^(TIME - 1 - t) (B x_t)."""
    at = tl.program_id(0).to(tl.int64)
    q, n = tl.arange(0, TIME), tl.program_id(1) * STATES + tl.arange(0, STATES)
    batch, t, in_state = at // tiles, (at % tiles) * TIME + q, n < d_state
    driven = driven_by(x, B, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
    power = tl.load(powers + (TIME - 1 - q)[:, None] * d_state + n[None, :], mask=in_state[None, :], other=0.0)
    tl.store(ends + at * d_state + n, tl.sum(carried(power, driven), axis=0), mask=in_state)


@triton.jit
def outputs_kernel(
    x, B, C, D, powers, before, y, last, length, d_model, d_state, tiles, ACTIVATION: tl.constexpr,
    TIME: tl.constexpr, MODEL: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr,
    PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y = C act(h) + D x of one tile. The last tile of a batch row also stores the last state."""
    at = tl.program_id(0).to(tl.int64)
    batch, t, m = at // tiles, (at % tiles) * TIME + tl.arange(0, TIME), tl.arange(0, MODEL)
    x_t = rows_of(x, batch, t, m, length, d_model)
    out = tl.load(D + m, mask=m < d_model, other=0.0)[None, :] * x_t
    for start in range(0, d_state, STATES):
        n = start + tl.arange(0, STATES)
        h = states_of(x, B, powers, before, at, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
        z, _ = activated(h, ACTIVATION)
        C_t = tl.load(C + m[None, :] * d_state + n[:, None], mask=(m < d_model)[None, :] & (n < d_state)[:, None], other=0.0)
        out = product(z, C_t, out, PRODUCTS, PRECISION)
        is_last = (t == length - 1)[:, None] & (n < d_state)[None, :]
        tl.store(last + batch * d_state + n[None, :] + tl.zeros((TIME, 1), tl.int32), h, mask=is_last)
    inside = (t < length)[:, None] & (m < d_model)[None, :]
    tl.store(y + (batch * length + t)[:, None] * d_model + m[None, :], out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def adjoints_kernel(
    x, grad, B, C, powers, before, ends, length, d_model, d_state, tiles, ACTIVATION: tl.constexpr,
    TIME: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr,
    PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The adjoint at the first step of each tile if the adjoint after the tile is zero: the sum over t of a^t dL/dh_t."""
    at = tl.program_id(0).to(tl.int64)
    q, n = tl.arange(0, TIME), tl.program_id(1) * STATES + tl.arange(0, STATES)
    batch, t, in_state = at // tiles, (at % tiles) * TIME + q, n < d_state
    h = states_of(x, B, powers, before, at, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
    _, slope = activated(h, ACTIVATION)
    grad_h = state_gradients(grad, C, slope, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
    power = tl.load(powers + q[:, None] * d_state + n[None, :], mask=in_state[None, :], other=0.0)
    tl.store(ends + at * d_state + n, tl.sum(carried(power, grad_h), axis=0), mask=in_state)


@triton.jit
def inputs_kernel(
    x, grad, B, C, D, powers, before, after, dx, length, d_model, d_state, tiles, ACTIVATION: tl.constexpr,
    TIME: tl.constexpr, MODEL: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr,
    PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dx = B^T g + D grad of one tile."""
    at = tl.program_id(0).to(tl.int64)
    q, m = tl.arange(0, TIME), tl.arange(0, MODEL)
    batch, t = at // tiles, (at % tiles) * TIME + q
    back = (at % tiles) * TIME + TIME - 1 - q
    grad_back = rows_of(grad, batch, back, m, length, d_model)
    out = tl.load(D + m, mask=m < d_model, other=0.0)[None, :] * grad_back
    for start in range(0, d_state, STATES):
        n = start + tl.arange(0, STATES)
        in_state = n < d_state
        h = states_of(x, B, powers, before, at, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
        _, slope = activated(tl.flip(h, 0), ACTIVATION)
        grad_h = state_gradients(
            grad, C, slope, batch, back, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION
        )
        a = tl.load(powers + d_state + n, mask=in_state, other=0.0)[None, :]
        power = tl.load(powers + (q + 1)[:, None] * d_state + n[None, :], mask=in_state[None, :], other=0.0)
        behind = tl.load(after + at * d_state + n, mask=in_state, other=0.0)[None, :]
        g = recurrence(a, grad_h, power, behind)
        B_n = tl.load(B + n[:, None] * d_model + m[None, :], mask=in_state[:, None] & (m < d_model)[None, :], other=0.0)
        out = product(g, B_n, out, PRODUCTS, PRECISION)
    inside = (back < length)[:, None] & (m < d_model)[None, :]
    tl.store(dx + (batch * length + back)[:, None] * d_model + m[None, :], out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def weights_kernel(
    x, grad, B, C, powers, before, after, da, dB, dC, dD, length, d_model, d_state, tiles, all_tiles, each,
    ACTIVATION: tl.constexpr,
    TIME: tl.constexpr, MODEL: tl.constexpr, STATES: tl.constexpr, INNER: tl.constexpr,
    PRODUCTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """da = sum of h_{t-1} g_t, dB = g x^T, dC^T = act(h) grad^T, dD = grad x, in partial sums over `each` tiles in order."""
    part = tl.program_id(1).to(tl.int64)
    q, m = tl.arange(0, TIME), tl.arange(0, MODEL)
    n = tl.program_id(0) * STATES + tl.arange(0, STATES)
    in_state = n < d_state
    a = tl.load(powers + d_state + n, mask=in_state, other=0.0)[None, :]
    power = tl.load(powers + q[:, None] * d_state + n[None, :], mask=in_state[None, :], other=0.0)
    sum_a, sum_D = tl.zeros((STATES,), tl.float32), tl.zeros((MODEL,), tl.float32)
    sum_B, sum_C = tl.zeros((STATES, MODEL), tl.float32), tl.zeros((STATES, MODEL), tl.float32)
    for tile in range(tl.program_id(1) * each, tl.minimum((tl.program_id(1) + 1) * each, all_tiles)):
        at = tl.cast(tile, tl.int64)
        batch, t = at // tiles, (at % tiles) * TIME + q
        back = (at % tiles) * TIME + TIME - 1 - q
        h = states_of(x, B, powers, before, at, batch, t, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION)
        h = tl.where((back < length)[:, None], tl.flip(h, 0), 0.0)
        z, slope = activated(h, ACTIVATION)
        grad_h = state_gradients(
            grad, C, slope, batch, back, n, length, d_model, d_state, TIME, STATES, INNER, PRODUCTS, PRECISION
        )
        behind = tl.load(after + at * d_state + n, mask=in_state, other=0.0)[None, :]
        g_behind = recurrence_before(a, grad_h, power, behind)
        sum_a += tl.sum(h * g_behind, axis=0)  # h_t g_{t+1}: the same sum with the index shifted by one
        grad_back = rows_of(grad, batch, back, m, length, d_model)
        x_back = rows_of(x, batch, back, m, length, d_model)
        sum_D += tl.sum(grad_back * x_back, axis=0)
        sum_B = product(tl.trans(grad_h + carried(a, g_behind)), x_back, sum_B, PRODUCTS, PRECISION)
        sum_C = product(tl.trans(z), grad_back, sum_C, PRODUCTS, PRECISION)
    square = (part * d_state + n)[:, None] * d_model + m[None, :]
    inside = in_state[:, None] & (m < d_model)[None, :]
    tl.store(da + part * d_state + n, sum_a, mask=in_state)
    tl.store(dB + square, sum_B, mask=inside)
    tl.store(dC + square, sum_C, mask=inside)
    tl.store(dD + part * d_model + m, sum_D, mask=(m < d_model) & (tl.program_id(0) == 0))
