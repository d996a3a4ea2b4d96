"""The dashes that paths are made of: each direction drawn once, smoothed, with the room that it takes. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH, MARGIN, SCALE = 2, 1, 2  # of a dash and of the room beside it in pixels; drawn SCALE times as fine
REACH = LENGTH + MARGIN + 1  # a dash and its room lie within so many pixels of its start
WIDTH = 2 * REACH + 1

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Stamps:
    """(directions, WIDTH, WIDTH) in 0 .. 1, the start of the dash in the middle: its light, and the room it takes."""

    light: Floats
    room: Floats


def translated(at: NDArray[np.int64], direction: NDArray[np.float64], distance: float) -> NDArray[np.int64]:
    """(n, 2) pixels `distance` from the pixels `at` (row, column), rounded up."""
    moved = at + distance * np.stack([np.sin(direction), np.cos(direction)], axis=-1)
    return np.ceil(moved - 1e-9).astype(np.int64)  # a sine that should be 0 may not round up


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
    """(width, width): a filled circle about the middle pixel, drawn and smoothed as the dashes are."""
    fine = np.arange(width * SCALE) - width // 2 * SCALE
    inside = (fine[:, None] ** 2 + fine**2 <= (radius * SCALE) ** 2).astype(np.float64)
    down = lanczos(width * SCALE, width)
    return np.clip(down @ inside @ down.T, 0, 1).astype(np.float32)


def lanczos(fine: int, coarse: int) -> NDArray[np.float64]:
    """(coarse, fine) weights of shrinking by Lanczos' filter of three lobes, as imaging libraries do."""
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
