"""The dashes that make up a path. For each direction, this module draws and smooths one dash and the dash's room, which is the
area around the dash that other dashes must avoid. Uses only NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH, MARGIN, SCALE = 2, 1, 2  # length of a dash and width of its room, in pixels; dashes are drawn enlarged by SCALE
REACH = LENGTH + MARGIN + 1  # maximum distance from the start of a dash to the edge of its room, in pixels
WIDTH = 2 * REACH + 1

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Stamps:
    """One image per direction, of a dash that starts in the middle pixel. light: the brightness of each pixel. room: the share
    of each pixel that belongs to the dash's room. Both are (directions, WIDTH, WIDTH) with values from 0 to 1."""

    light: Floats
    room: Floats


def translated(at: NDArray[np.int64], direction: NDArray[np.float64], distance: float) -> NDArray[np.int64]:
    """The pixels at `distance` from the pixels `at` in the given directions. Pixels are (n, 2), as (row, column); coordinates
    are rounded up."""
    moved = at + distance * np.stack([np.sin(direction), np.cos(direction)], axis=-1)
    return np.ceil(moved - 1e-9).astype(np.int64)  # the 1e-9 keeps a sine that should be 0 from being rounded up


def stamps(directions: NDArray[np.float64]) -> Stamps:
    """Dashes half a pixel wide in the given directions (radians, from the column axis towards higher rows)."""
    fine = WIDTH * SCALE - 1
    middle = np.array([REACH * SCALE, REACH * SCALE])
    down = lanczos(fine, WIDTH)
    disc = _disc(MARGIN * SCALE)
    light, room = [], []
    for end in translated(np.broadcast_to(middle, (len(directions), 2)), directions, LENGTH * SCALE):
        line = np.zeros((fine, fine))
        points = np.linspace(middle, end, int(np.abs(end - middle).max()) + 1)
        line[tuple(np.floor(points + 0.5).astype(int).T)] = 1
        light.append(down @ line @ down.T)
        around = np.zeros((fine, fine))
        for y, x in np.argwhere(line):
            around[y + disc[:, 0], x + disc[:, 1]] = 1
        room.append(down @ around @ down.T)
    return Stamps(np.clip(light, 0, 1).astype(np.float32), np.clip(room, 0, 1).astype(np.float32))


def disc_light(radius: float, width: int) -> Floats:
    """(width, width): a filled circle around the middle pixel, drawn and smoothed in the same way as the dashes."""
    fine = np.arange(width * SCALE) - width // 2 * SCALE
    inside = (fine[:, None] ** 2 + fine**2 <= (radius * SCALE) ** 2).astype(np.float64)
    down = lanczos(width * SCALE, width)
    return np.clip(down @ inside @ down.T, 0, 1).astype(np.float32)


def lanczos(fine: int, coarse: int) -> NDArray[np.float64]:
    """(coarse, fine) weights for downscaling with the three-lobe Lanczos filter, as in imaging libraries."""
    scale = fine / coarse
    centre = (np.arange(coarse) + 0.5) * scale
    t = (np.arange(fine) + 0.5 - centre[:, None]) / scale
    weights = np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0)
    shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _disc(radius: int) -> NDArray[np.int64]:
    """Offsets (k, 2) of the pixels within `radius`."""
    offsets = np.argwhere(np.ones((2 * radius + 1, 2 * radius + 1))) - radius
    near: NDArray[np.int64] = offsets[(offsets**2).sum(axis=1) <= radius**2]
    return near
