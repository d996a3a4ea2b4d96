"""Draws random ListOps expressions as in Long Range Arena, many at a time, level by level, with NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

OPERATOR = 0.25  # probability that an argument is an operator; otherwise it is a digit
PAD, UNKNOWN, END = 0, 1, 2
DIGIT, MIN, MAX, MED, SM, CLOSE = 3, 13, 14, 15, 16, 17  # tokens; the digits 0 to 9 are tokens 3 to 12
TOKENS = 18

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """The allowed expressions. Operators have 2 to max_args arguments and a depth below max_depth (the root has depth 1).

    The length is between min_length and max_length. An operator adds 2 to the length, because it has a closing bracket, and a
    digit adds 1.
    """

    min_length: int
    max_length: int
    max_depth: int
    max_args: int


@lru_cache(maxsize=64)
def share_of_lengths(shape: Shape) -> NDArray[np.float64]:
    """The probability of each length of a tree whose root is an operator, (max_length + 1,), exact up to rounding.

    The generating functions, in powers z^length, are T_d for a tree at depth d and O_d for a tree whose root is an operator.
    T_d = 3/4 z + 1/4 O_d, O_d = z^2 mean over a of T_{d+1}^a, T_{max_depth} = z.
    """
    size = shape.max_length + 1
    padded = 1 << (2 * size - 1).bit_length()

    def product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.fft.irfft(np.fft.rfft(a, padded) * np.fft.rfft(b, padded), padded)[:size].clip(0)

    tree = operator = np.zeros(size)
    tree[1] = 1.0
    for _ in range(shape.max_depth - 1):
        power, total = tree, np.zeros(size)
        for _ in range(2, shape.max_args + 1):
            power = product(power, tree)
            total += power
        operator = np.zeros(size)
        operator[2:] = total[:-2] / (shape.max_args - 1)
        tree = OPERATOR * operator
        tree[1] += 1 - OPERATOR
    return operator


def share_accepted(shape: Shape) -> float:
    """Among all trees whose root is an operator, the share of trees with an allowed length."""
    return float(share_of_lengths(shape)[shape.min_length :].sum())


def expressions(count: int, shape: Shape, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Tokens (count, max_length + 1), where END and padding follow each expression, and values (count,) from 0 to 9.

    Expressions are drawn independently, and an expression whose length is not allowed is rejected. MED is the median, rounded
    down for an even number of arguments. SM is the sum modulo 10.
    """
    wanted, blocks = count, []
    attempts = 16 + int(1.2 * count / share_accepted(shape))
    while wanted > 0:
        arities, owners, accepted = _draw(attempts, shape, rng)
        chosen = np.flatnonzero(accepted)[:wanted]
        wanted -= len(chosen)
        number = np.full(attempts, -1)
        number[chosen] = np.arange(len(chosen))
        levels = [
            (arity[number[owner] >= 0], number[owner][number[owner] >= 0]) for arity, owner in zip(arities, owners, strict=True)
        ]
        blocks.append(_written(levels, len(chosen), shape, rng))
    tokens, values = zip(*blocks, strict=True)
    return np.concatenate(tokens), np.concatenate(values)


def _draw(attempts: int, shape: Shape, rng: np.random.Generator) -> tuple[list[Ints], list[Ints], NDArray[np.bool_]]:
    """Random trees: per level, each node's number of arguments and the index of its tree, in reading order; and a mask of
    accepted trees.

    A digit has 0 arguments. A tree is accepted if its length is allowed. Trees that are already too long are not completed.
    """
    arity = rng.integers(2, shape.max_args + 1, attempts)
    owner = np.arange(attempts)
    arities, owners = [arity], [owner]
    length = 2 + arity  # each argument counts 1; the loop adds 1 + arity for each argument that is an operator
    for depth in range(2, shape.max_depth + 1):
        alive = length[owner] <= shape.max_length
        owner = np.repeat(owner[alive], arity[alive])
        arity = np.zeros(len(owner), dtype=np.int64)
        if depth < shape.max_depth:
            nested = np.flatnonzero(rng.random(len(owner)) <= OPERATOR)
            arity[nested] = rng.integers(2, shape.max_args + 1, len(nested))
            length = length + np.bincount(owner[nested], 1 + arity[nested], attempts).astype(np.int64)
        arities.append(arity)
        owners.append(owner)
    return arities, owners, (length >= shape.min_length) & (length <= shape.max_length)


def _written(
    levels: list[tuple[Ints, Ints]], count: int, shape: Shape, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draws digits and operators for the trees of `levels` (arities and owners of each level). Returns tokens and values."""
    kinds = [rng.integers(MIN, SM + 1, len(arity)) for arity, _ in levels]
    values = [rng.integers(0, 10, len(arity)) for arity, _ in levels]
    sizes = [np.ones(len(arity), dtype=np.int64) for arity, _ in levels]
    for level in range(len(levels) - 2, -1, -1):  # from the arguments to the operators
        arity = levels[level][0]
        nested = arity > 0
        if nested.any():
            first = _first(arity[nested])
            sizes[level][nested] = 2 + np.add.reduceat(sizes[level + 1], first)
            values[level][nested] = _applied(kinds[level][nested], values[level + 1], arity[nested], first)
    tokens = np.full((count, shape.max_length + 1), PAD, dtype=np.uint8)
    place = np.zeros(count, dtype=np.int64)
    tokens[np.arange(count), sizes[0]] = END
    for level, (arity, owner) in enumerate(levels):
        nested = arity > 0
        tokens[owner, place] = np.where(nested, kinds[level], DIGIT + values[level])
        tokens[owner[nested], place[nested] + sizes[level][nested] - 1] = CLOSE
        if level + 1 < len(levels):
            before = np.cumsum(sizes[level + 1]) - sizes[level + 1]  # for each node: the total size of the nodes to its left
            first = _first(arity[nested])
            place = np.repeat(place[nested] + 1 - before[first], arity[nested]) + before
    return tokens, values[0].astype(np.uint8)


def _applied(kind: Ints, arguments: Ints, arity: Ints, first: Ints) -> Ints:
    """The value of each operator. Its arguments are the `arity` values from index `first` on."""
    group = np.repeat(np.arange(len(arity)), arity)
    ordered = np.sort(10 * group + arguments) - 10 * group
    median = (ordered[first + (arity - 1) // 2] + ordered[first + arity // 2]) // 2
    total = np.add.reduceat(arguments, first)
    return np.choose(kind - MIN, [ordered[first], ordered[first + arity - 1], median, total % 10])


def _first(arity: Ints) -> Ints:
    """The index of each operator's first argument on the next level."""
    return np.cumsum(arity) - arity
