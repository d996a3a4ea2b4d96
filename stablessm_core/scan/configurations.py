"""The tile size of the Triton scan for each device: a fixed table and a safe default, so no run has to search for a size.

Experimental: these tiles were chosen by inspecting compiled code; none has been timed on a device yet.

`python -m benchmarks.scan --tune` searches for the fastest tiles on this machine's GPU and prints the rows for TABLE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Look-back (one tile per program) pays off only if there are too few programs to fill a GPU and the chains have many tiles.
FEW_PROGRAMS = 128
MANY_TILES = 32


@dataclass(frozen=True)
class Tile:
    """`strips` x `rows` steps of `channels` chains, computed by `warps` warps.

    look_back: True if the tiles of a chain run concurrently.
    """

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

# Keys are (major, minor) compute capability. Values are the tile for many chains and the look-back tile for few long chains.
# The tiles follow three rules. No register spills to memory. The instructions take less time than the memory traffic (the tests
# compile every tile and count its instructions). With 8,192 chains and two programs per multiprocessor, each multiprocessor
# loads at least 32 KiB at a time.
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
    """The tile from the table, reduced to the size of the problem. A look-back tile is chosen only for few long chains."""
    sequential, *look_back = TABLE.get(capability or (0, 0), {}).get(kind, DEFAULT[kind[2]])
    for tile in look_back:
        programs, tiles = batch * -(-d_state // tile.channels), -(-length // (tile.strips * tile.rows))
        if programs < FEW_PROGRAMS and tiles >= MANY_TILES:
            return _shrink(tile, length, d_state)
    return _shrink(sequential, length, d_state)


def _shrink(tile: Tile, length: int, d_state: int) -> Tile:
    channels = min(tile.channels, power_of_two(d_state))
    strips = min(tile.strips, max(2, power_of_two(-(-length // tile.rows))))
    return replace(tile, strips=strips, channels=channels, warps=max(1, min(tile.warps, strips * channels // 64)))


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()
