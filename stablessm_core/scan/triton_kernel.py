"""The scan as one Triton kernel: states and adjoints, real and complex, constant or varying a, many chains or few long chains.

A tile is STRIPS x ROWS steps of CHANNELS chains. Each lane holds ROWS consecutive steps of its strip in registers. One small
exclusive scan joins the strips. Then every strip is computed step by step from the correct state, while the next tile is loaded
from memory. Steps q are counted in the order in which the recurrence runs, so one forward scan handles both directions of time.

Many chains: a program processes its chains from the first to the last tile. Few long chains (LOOK_BACK): a program processes one
tile. It publishes the tile's map h -> p h + x. Then it waits for the maps of the earlier tiles in its group and for the state at
the start of the group. It joins the maps in a fixed order, so the bits do not depend on the order of the programs. It waits
only for programs with lower numbers, which the hardware starts first (CUB's scan relies on the same fact). If the hardware ever
violates this order, the program stops polling, marks its chain and ends. A second launch processes the marked chains from the
first to the last tile. So the kernel cannot hang, and the result is always correct.

In the recurrence a non-finite state stays non-finite, but a joined map can skip an overflow. So the last step of each strip is
checked. Chains with a non-finite value are computed again from that value on, step by step; all other chains keep their bits.
States are computed in the dtype ACC.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM102 (Triton's tuples grow by addition; a compile-time condition needs an if of its own)
import triton
import triton.language as tl

from stablessm_core.scan.triton_values import (
    add,
    carried,
    conj,
    constant,
    finite,
    interleaved,
    multiply,
    picked,
    planes,
    powers,
    prefixes,
    summed,
    where,
)

GROUP = tl.constexpr(16)  # tiles per group; a group starts from a published state and joins the maps of its tiles
STATE_IS_THERE = tl.constexpr(1 << 16)
NOT_FINITE = tl.constexpr(1)  # marks a column with a non-finite value
WRONG = tl.constexpr(2)  # marks a column whose look-back did not get its data in time


@triton.jit
def load_rows(row, step, q, length, in_state, LOWEST: tl.constexpr, ROWS: tl.constexpr):
    """Rows q to q + ROWS - 1 of every strip, as stored. Rows below LOWEST (-1: no limit) and rows from `length` on are zero."""
    rows = ()
    here = row + tl.cast(q, tl.int64) * step
    for i in tl.static_range(ROWS):
        inside = (q + i < length) & in_state
        if i == 0 and LOWEST >= 0:
            inside = inside & (q >= LOWEST)
        rows = rows + (tl.load(here + i * step, mask=inside, other=0.0),)
    return rows


@triton.jit
def row_zero(tensor, batch, batch_stride, time_stride, length, n, AGAINST_TIME: tl.constexpr, WIDTH: tl.constexpr):
    """Pointers to the row of step q = 0, and the distance from one row to the next (64 bits)."""
    step = tl.cast(time_stride, tl.int64) * WIDTH
    row = tensor + batch * batch_stride * WIDTH + n
    if AGAINST_TIME:
        return row + (tl.cast(length, tl.int64) - 1) * step, -step
    else:
        return row, step


@triton.jit
def of_columns(marks, COMPLEX: tl.constexpr):
    """True for the stored values that belong to marked columns."""
    if COMPLEX:
        return interleaved((marks, marks)) > 0
    else:
        return marks > 0


@triton.jit
def all_there(signal, needed, patience):
    """Polls until every bit of `needed` is set, at most 1 + patience times. Returns True if every bit of `needed` is set."""
    seen = tl.atomic_or(signal, 0, sem="acquire")
    while ((seen & needed) != needed) & (patience > 0):
        patience -= 1
        seen = tl.atomic_or(signal, 0, sem="acquire")
    return (seen & needed) == needed


@triton.jit
def joined_before(map_p, map_x, carry, maps, signals, at, COMPLEX: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr):
    """Publishes this tile's map. Returns the state before the tile, and whether all data for this state arrived in time.

    carry: the state before the first tile. maps: (tiles, chains, 2, columns) with p and x, followed by (groups + 1, chains,
    columns) with the states at the start of each group. There is one signal per chain and group. Bit i of a signal means that
    map i of the group is published; the bit STATE_IS_THERE means that the group's state is published. Each group waits for the
    state from the previous group. So the last tile of a group publishes the state for the next group before it computes its own
    steps.
    """
    chain, chains, tile, tiles, patience = at
    C: tl.constexpr = CHANNELS * 2 if COMPLEX else CHANNELS
    column = tl.arange(0, C)[None, :]
    group = tile // GROUP
    member = tile % GROUP
    signal = signals + group * chains + chain
    mine = maps + (tl.cast(tile, tl.int64) * chains + chain) * (2 * C) + column
    tl.store(mine, interleaved(map_p))
    tl.store(mine + C, interleaved(map_x))
    tl.debug_barrier()
    tl.atomic_or(signal, 1 << member, sem="release")
    in_time = all_there(signal, (1 << member) - 1, patience)
    other = tl.arange(0, GROUP)[:, None]
    theirs = maps + ((tl.cast(group, tl.int64) * GROUP + other) * chains + chain) * (2 * C) + column
    earlier = other < member
    p = planes(tl.load(theirs, mask=earlier, other=0.0, cache_modifier=".cg"), COMPLEX, ACC)
    x = planes(tl.load(theirs + C, mask=earlier, other=0.0, cache_modifier=".cg"), COMPLEX, ACC)
    p, x, _, _ = prefixes(p, x, COMPLEX, ACC)
    newest = other == member - 1
    x = picked(newest, x)
    p = where(member > 0, picked(newest, p), constant(1.0, 1, CHANNELS, COMPLEX, ACC))
    states = maps + tl.cast(tiles, tl.int64) * chains * (2 * C) + (tl.cast(group, tl.int64) * chains + chain) * C + column
    if group > 0:
        in_time = all_there(signal, STATE_IS_THERE, patience) & in_time
        carry = planes(tl.load(states, cache_modifier=".cg"), COMPLEX, ACC)
    if member == GROUP - 1:
        after = add(carried(multiply(map_p, p), carry), add(carried(map_p, x), map_x))
        tl.store(states + chains * C, interleaved(after))
        tl.debug_barrier()
        tl.atomic_or(signal + chains, STATE_IS_THERE, sem="release")
    return add(carried(p, carry), x), in_time


@triton.jit
def walk(
    memory, maps, signals, carry, edge, at, begin, end, length, in_state, marked,
    ADJOINT: tl.constexpr, LTI: tl.constexpr, FROM_STATE: tl.constexpr, WITH_DLINKS: tl.constexpr, COMPLEX: tl.constexpr,
    ACC: tl.constexpr, STRIPS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, LOOK_BACK: tl.constexpr,
):  # fmt: skip
    """Computes steps begin to end - 1 from state `carry`. Returns the sum of dlinks if LTI, and the marks, (1, CHANNELS).

    With a single strip, it recomputes the columns that an earlier pass `marked`. Columns marked WRONG are recomputed from the
    first step on, and columns marked NOT_FINITE from the first non-finite value in `out` on. Other columns keep their values.
    """
    link_row, link_step, input_row, input_step, out_row, out_step, state_row, dlink_row = memory
    TILE: tl.constexpr = STRIPS * ROWS
    SHIFT: tl.constexpr = 1 if ADJOINT else 0
    LOWEST: tl.constexpr = (
        0 if ADJOINT else -1 if FROM_STATE else 1
    )  # without an initial state, the first link multiplies nothing
    strip = (tl.arange(0, STRIPS) * ROWS)[:, None]
    last_strip = strip == TILE - ROWS
    zeros = constant(0.0, STRIPS, CHANNELS, COMPLEX, ACC)
    total = zeros
    AGAIN: tl.constexpr = STRIPS == 1
    bad = tl.zeros((STRIPS, CHANNELS), tl.int1)
    marks = tl.zeros((1, CHANNELS), tl.int32)
    stored = in_state
    if AGAIN:
        bad = bad | (marked >= WRONG)
        stored = of_columns(marked, COMPLEX) & in_state
    q = begin + strip
    if LTI:
        link = planes(tl.load(link_row, mask=in_state, other=0.0), COMPLEX, ACC)
        if ADJOINT:
            link = conj(link)
        strip_power, before_power, tile_power = powers(link, STRIPS, ROWS, COMPLEX, ACC)
    else:
        next_links = load_rows(link_row, link_step, q - SHIFT, length, in_state, LOWEST, ROWS)
    next_inputs = load_rows(input_row, input_step, q, length, in_state, -1, ROWS)
    if WITH_DLINKS:
        next_states = load_rows(state_row, out_step, q + 1, length, in_state, -1, ROWS)
    for start in range(begin, end, TILE):
        q = start + strip
        inputs = next_inputs
        if not LTI:
            link_rows = next_links
        if WITH_DLINKS:
            states = next_states
        if not LOOK_BACK:
            next_inputs = load_rows(input_row, input_step, q + TILE, length, in_state, -1, ROWS)
            if not LTI:
                next_links = load_rows(link_row, link_step, q + TILE - SHIFT, length, in_state, LOWEST, ROWS)
            if WITH_DLINKS:
                next_states = load_rows(state_row, out_step, q + TILE + 1, length, in_state, -1, ROWS)
        links = ()
        for i in tl.static_range(ROWS):
            if not LTI:
                this_link = planes(link_rows[i], COMPLEX, ACC)
                if ADJOINT:
                    this_link = conj(this_link)
                links = links + (this_link,)
            elif i == 0 and LOWEST >= 0:
                links = links + (where(q >= LOWEST + SHIFT, link, zeros),)
            else:
                links = links + (link,)
        state = carry
        if STRIPS > 1:
            p = links[0]
            x = planes(inputs[0], COMPLEX, ACC)
            for i in tl.static_range(1, ROWS):
                if not LTI:
                    p = multiply(links[i], p)
                x = add(multiply(links[i], x), planes(inputs[i], COMPLEX, ACC))
            if LTI:
                p = add(strip_power, zeros)
            upto_p, upto_x, before_p, before_x = prefixes(p, x, COMPLEX, ACC)
            if LOOK_BACK:
                map_p = picked(last_strip, upto_p)
                if LTI:
                    map_p = tile_power
                carry, in_time = joined_before(
                    map_p, picked(last_strip, upto_x), carry, maps, signals, at, COMPLEX, ACC, CHANNELS
                )
                marks = marks | tl.where(in_time, 0, WRONG)
            if LTI:
                before_p = before_power
            state = add(carried(before_p, carry), before_x)
        for i in tl.static_range(ROWS):
            state = add(multiply(links[i], state), planes(inputs[i], COMPLEX, ACC))
            here = tl.cast(q + i, tl.int64) * out_step
            inside = (q + i < length) & stored
            value = state
            if AGAIN:
                before = planes(tl.load(out_row + here, mask=inside, other=0.0), COMPLEX, ACC)
                bad = bad | (finite(before) == 0) | (finite(state) == 0)
                value = where(bad, state, before)
            tl.store(out_row + here, interleaved(value).to(out_row.dtype.element_ty), mask=inside)
            if WITH_DLINKS:
                met = planes(states[i], COMPLEX, ACC)
                meets = q + i < length - 1
                if FROM_STATE:
                    met = where(meets, met, edge)
                    meets = q + i < length
                product = where(meets, multiply(conj(met), value), zeros)
                if LTI:
                    total = add(total, product)
                else:
                    tl.store(dlink_row + here, interleaved(product).to(dlink_row.dtype.element_ty), mask=inside)
        bad = bad | ((q < length) & (finite(state) == 0))
        carry = picked(last_strip, state)
    return summed(total), marks | tl.where(tl.max(bad.to(tl.int32), axis=0)[None, :] > 0, NOT_FINITE, 0)


@triton.jit
def scan_kernel(
    links, inputs, first, out, states, dlinks, dfirst, maps, signals, spoiled, patience, chains, length, d_state, batch_per_links,
    links_batch, links_time, inputs_batch, inputs_time, first_batch,
    ADJOINT: tl.constexpr, LTI: tl.constexpr, AGAINST_TIME: tl.constexpr, COMPLEX: tl.constexpr, ACC: tl.constexpr,
    STRIPS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, LOOK_BACK: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    """Writes the states or, with ADJOINT, the adjoints to `out`.

    States: h_q = a_q h_{q-1} + b_q from h0 = `first` (zero if None). links is a, inputs is b. ADJOINT:
    g_q = grad_q + conj(a_{q-1}) g_{q-1} from zero, where q runs in the opposite direction to the states. links is a, inputs is
    grad. If dlinks is given, it receives da_q = conj(h_{q+1}) g_q, where h0 follows the last h. If dfirst is given, it receives
    dh0 = conj(a) g of the last step. If LTI (links do not vary with time), links is (batch / batch_per_links, d_state), and
    dlinks has the shape (tiles if LOOK_BACK, otherwise 1; batch; d_state) and must be summed by the caller.

    The last dimension of every tensor is contiguous. Strides and d_state count values, where a complex number is one value.
    `out`, `states`, dfirst and dlinks are contiguous. With REPAIR, the kernel recomputes, step by step, the chains that a
    look-back marked in `spoiled`.
    patience: how many times a program repeats a poll before it gives up.
    """
    WIDTH: tl.constexpr = 2 if COMPLEX else 1
    FROM_STATE: tl.constexpr = first is not None
    WITH_DLINKS: tl.constexpr = dlinks is not None
    blocks = tl.cdiv(d_state, CHANNELS)
    chain = tl.program_id(0) % chains
    tile = tl.program_id(0) // chains
    tiles = tl.cdiv(length, STRIPS * ROWS)
    batch = tl.cast(chain // blocks, tl.int64)
    n = ((chain % blocks) * CHANNELS * WIDTH + tl.arange(0, CHANNELS * WIDTH))[None, :]
    in_state = n < d_state * WIDTH
    row = tl.cast(d_state, tl.int64)
    link_row, link_step = row_zero(links, batch // batch_per_links, links_batch, links_time, length, n, AGAINST_TIME, WIDTH)
    input_row, input_step = row_zero(inputs, batch, inputs_batch, inputs_time, length, n, AGAINST_TIME, WIDTH)
    out_row, out_step = row_zero(out, batch, length * row, row, length, n, AGAINST_TIME, WIDTH)
    state_row, dlink_row = out_row, out_row
    if WITH_DLINKS:
        state_row, _ = row_zero(states, batch, length * row, row, length, n, AGAINST_TIME, WIDTH)
        if not LTI:
            dlink_row, _ = row_zero(dlinks, batch, length * row, row, length, n, AGAINST_TIME, WIDTH)
    memory = (link_row, link_step, input_row, input_step, out_row, out_step, state_row, dlink_row)
    at = (chain, chains, tile, tiles, patience)
    zeros = constant(0.0, 1, CHANNELS, COMPLEX, ACC)
    carry, edge = zeros, zeros
    if FROM_STATE:
        h0 = planes(tl.load(first + batch * first_batch * WIDTH + n, mask=in_state, other=0.0), COMPLEX, ACC)
        if ADJOINT:
            edge = h0
        else:
            carry = h0
    begin, end = 0, length
    if LOOK_BACK:
        begin = tile * STRIPS * ROWS
        end = tl.minimum(begin + STRIPS * ROWS, length)
    total = zeros
    mark = spoiled
    if spoiled is not None:
        mark = spoiled + chain * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    if REPAIR:
        marks = tl.load(mark)
    else:
        total, marks = walk(
            memory, maps, signals, carry, edge, at, begin, end, length, in_state, None,
            ADJOINT, LTI, FROM_STATE, WITH_DLINKS, COMPLEX, ACC, STRIPS, ROWS, CHANNELS, LOOK_BACK,
        )  # fmt: skip
    sums = dlinks
    if WITH_DLINKS and LTI:
        sums = dlinks + (tl.cast(tile, tl.int64) * (chains // blocks) + batch) * row * WIDTH + n
        if not REPAIR:
            tl.store(sums, interleaved(total), mask=in_state)
    if LOOK_BACK:
        tl.atomic_or(mark, marks, mask=marks > 0, sem="relaxed")
    elif tl.max(tl.max(marks, axis=1), axis=0) > 0:
        again = of_columns(marks, COMPLEX) & in_state
        tl.debug_barrier()
        total, marks = walk(
            memory, maps, signals, carry, edge, at, begin, end, length, in_state, marks,
            ADJOINT, LTI, FROM_STATE, WITH_DLINKS, COMPLEX, ACC, 1, 2, CHANNELS, False,
        )  # fmt: skip
        if WITH_DLINKS and LTI:
            tl.store(sums, interleaved(total), mask=again)
            if REPAIR:
                for other in range(1, tiles):
                    nothing = tl.zeros((1, CHANNELS * WIDTH), ACC)
                    tl.store(sums + other * (chains // blocks) * row * WIDTH, nothing, mask=again)
    if dfirst is not None:
        if end == length:
            tl.debug_barrier()  # another lane may have written the row that is read next
            last = tl.cast(length, tl.int64) - 1
            a_last = planes(tl.load(link_row + last * link_step, mask=in_state, other=0.0), COMPLEX, ACC)
            g_last = planes(tl.load(out_row + last * out_step, mask=in_state, other=0.0), COMPLEX, ACC)
            tl.store(dfirst + batch * row * WIDTH + n, interleaved(multiply(conj(a_last), g_last)), mask=in_state)
