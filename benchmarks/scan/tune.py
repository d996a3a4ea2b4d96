"""Searches for the fastest tiles of the scan kernel on this machine's GPU (`benchmarks.scan --tune`).

The search starts from each row of the committed table and moves to faster neighbours. A neighbour has half or twice as many
strips, rows, channels or warps. It is timed on the shapes S1, S2, S4 and S5, or on S3 if the tiles run concurrently. If it is
faster, the search continues from it. The search prints a row as soon as no neighbour is faster, and stops after `minutes`. To
search the remaining kinds, run the command again with `--kinds`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import fields, replace

import torch

from benchmarks.scan.cuda import Case, median
from stablessm_core.scan import configurations, triton_scan
from stablessm_core.scan.configurations import Kind, Tile

DTYPE = {"half": torch.bfloat16, "float32": torch.float32, "complex64": torch.complex64}
ROUNDS = 7


def rows(minutes: float, only: str) -> Iterator[str]:
    """Lines for `configurations.TABLE`. Only kinds whose name contains the text `only` are searched."""
    deadline = time.monotonic() + 60 * minutes
    capability = torch.cuda.get_device_capability()
    known = configurations.TABLE.get(capability) or configurations.TABLE[9, 0]
    yield f"    {capability}: {{"
    for kind, tiles in known.items():
        if only in " ".join(kind):
            best = [settled(kind, tile, capability, deadline) for tile in tiles]
            times = ", ".join(f"{taken:.4f} ms" for _, taken in best)
            yield f"        {kind}: {tuple(tile for tile, _ in best)},  # {times}"
    yield "    }"


def settled(kind: Kind, tile: Tile, capability: tuple[int, int], deadline: float) -> tuple[Tile, float]:
    best, shortest = tile, milliseconds(kind, tile, capability)
    tried = {tile}
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for candidate in neighbours(best):
            if candidate in tried or time.monotonic() > deadline:
                continue
            tried.add(candidate)
            taken = milliseconds(kind, candidate, capability)
            if taken < 0.99 * shortest:
                best, shortest, improved = candidate, taken, True
    return best, shortest


def neighbours(tile: Tile) -> Iterator[Tile]:
    for field in fields(tile):
        value = getattr(tile, field.name)
        if isinstance(value, bool):
            continue
        yield replace(tile, **{field.name: 2 * value})
        if value > 2:
            yield replace(tile, **{field.name: value // 2})


def milliseconds(kind: Kind, tile: Tile, capability: tuple[int, int]) -> float:
    """The geometric mean of a tile's times over the shapes. Infinite if the tile cannot be compiled or launched."""
    kept = configurations.TABLE.get(capability)
    configurations.TABLE[capability] = (kept or {}) | {kind: (tile,) if not tile.look_back else (tile, tile)}
    try:
        times = [measured(kind, name) for name in (("S3",) if tile.look_back else ("S1", "S2", "S4", "S5"))]
    except Exception:  # noqa: BLE001  (too many registers, too large a block: not a candidate)
        return math.inf
    finally:
        if kept is None:
            del configurations.TABLE[capability]
        else:
            configurations.TABLE[capability] = kept
    return math.exp(sum(map(math.log, times)) / len(times))


def measured(kind: Kind, shape: str) -> float:
    role, variation, precision = kind
    a, b, weight = (x.detach() for x in Case(shape, variation.upper(), DTYPE[precision]).tensors())
    if role == "states":
        return median(lambda: triton_scan.states(a, b, None, False), ROUNDS)
    return median(lambda: triton_scan.adjoints(a, b, weight, None, False, True, False), ROUNDS)
