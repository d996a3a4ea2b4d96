"""How the scan kernel is cut for which device: a committed table and a safe default, never a search at a user's first step.

Experimental: these tiles were chosen from compiled code; none has been timed on a device yet.

`python -m benchmarks.scan --tune` searches on the GPU at hand and prints the rows to put here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# too few programs to fill a GPU, and chains of many tiles: only then a tile per program and a look-back pay
FEW_PROGRAMS = 128
MANY_TILES = 32


@dataclass(frozen=True)
class Tile:
    """STRIPS x ROWS steps of `channels` chains, shared by `warps` warps. look_back: tiles of one chain run at once."""

    strips: int
    rows: int
    channels: int
    warps: int
    look_back: bool = False


Kind = tuple[str, str, str]  # "states" or "adjoints"; "lti" or "ltv"; "half", "float32", "float64", "complex64" or "complex128"

DEFAULT: dict[str, tuple[Tile, ...]] = {
    "half": (Tile(16, 4, 64, 4),),
    "float32": (Tile(16, 4, 32, 4),),
    "float64": (Tile(16, 4, 16, 4),),
    "complex64": (Tile(16, 4, 16, 4),),
    "complex128": (Tile(8, 2, 16, 4),),
}

# by (major, minor) compute capability: the tile for walking, and the one for few long chains. Not yet timed on a device: chosen
# so that no register spills, that instructions take less time than memory (the tests compile every tile and count), and that
# 8,192 chains, two programs to a multiprocessor, have 32 KiB and more per multiprocessor on their way from memory
TABLE: dict[tuple[int, int], dict[Kind, tuple[Tile, ...]]] = {
    (9, 0): {
        ("states", "ltv", "float32"): (Tile(16, 8, 32, 4), Tile(16, 8, 32, 4, look_back=True)),
        ("states", "lti", "float32"): (Tile(16, 16, 32, 4), Tile(16, 16, 32, 4, look_back=True)),
        ("adjoints", "ltv", "float32"): (Tile(16, 4, 32, 4), Tile(16, 8, 32, 4, look_back=True)),
        ("adjoints", "lti", "float32"): (Tile(16, 8, 32, 4), Tile(16, 8, 32, 4, look_back=True)),
        ("states", "ltv", "half"): (Tile(32, 4, 32, 4), Tile(16, 8, 64, 4, look_back=True)),
        ("states", "lti", "half"): (Tile(32, 8, 32, 4), Tile(16, 8, 64, 4, look_back=True)),
        ("adjoints", "ltv", "half"): (Tile(32, 4, 32, 4), Tile(16, 4, 64, 4, look_back=True)),
        ("adjoints", "lti", "half"): (Tile(32, 4, 32, 4), Tile(16, 4, 64, 4, look_back=True)),
        ("states", "ltv", "complex64"): (Tile(16, 8, 16, 4), Tile(16, 8, 16, 4, look_back=True)),
        ("states", "lti", "complex64"): (Tile(16, 8, 16, 4), Tile(16, 8, 16, 4, look_back=True)),
        ("adjoints", "ltv", "complex64"): (Tile(16, 4, 16, 4), Tile(16, 4, 16, 4, look_back=True)),
        ("adjoints", "lti", "complex64"): (Tile(16, 8, 16, 4), Tile(16, 4, 16, 4, look_back=True)),
    }
}


def tile_for(capability: tuple[int, int] | None, kind: Kind, batch: int, length: int, d_state: int) -> Tile:
    """The table's tile, no wider and no longer than the problem; tiles at once only where walking would leave the GPU idle."""
    walking, *at_once = TABLE.get(capability or (0, 0), {}).get(kind, DEFAULT[kind[2]])
    for tile in at_once:
        programs, tiles = batch * -(-d_state // tile.channels), -(-length // (tile.strips * tile.rows))
        if programs < FEW_PROGRAMS and tiles >= MANY_TILES:
            return _cut(tile, length, d_state)
    return _cut(walking, length, d_state)


def _cut(tile: Tile, length: int, d_state: int) -> Tile:
    channels = min(tile.channels, power_of_two(d_state))
    strips = min(tile.strips, max(2, power_of_two(-(-length // tile.rows))))
    return replace(tile, strips=strips, channels=channels, warps=max(1, min(tile.warps, strips * channels // 64)))


def power_of_two(count: int) -> int:
    """The smallest that is not smaller."""
    return 1 << max(0, count - 1).bit_length()
