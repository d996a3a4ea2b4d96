"""Draws images of two long dashed paths, two marks, and short dashed paths around them, many images at a time, with NumPy.

The construction follows drewlinsley/pathfinder, `snakes2.py` (Linsley et al., arXiv 1805.08315; Kim et al., arXiv 1906.01558),
with the constants of Long Range Arena for 32 x 32 pixels. A path ("snake") grows dash by dash. The pivot of a path is one pixel
before the start of its next dash. The dash ends at a pixel about 3 pixels away from the pivot. This pixel is chosen with a
probability proportional to (free room) x cos^2(turn). A dash is rejected if its room, the area around it, would overlap pixels
that are already occupied. Two paths start 7 pixels apart near the middle and grow in turns. If one path cannot grow, both
start again. Finally, short paths start where the room of their first dash is free.

Differences from the published code: only the start of the first dash, not the whole dash, must be far from the edges. The room
of the last dash of each long path is marked as occupied before short paths start. In about one of seven directions, a line of
pixels differs by one pixel from the line that the imaging library draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.tasks.pathfinder_paddles import LENGTH, MARGIN, WIDTH, disc_light, stamps, translated

SIZE, PADDING = 32, 1  # width of an image, and of the margin at its edges that no dash may enter, both in pixels
SEED_DISTANCE = 7  # pixels between the starts of the two paths; both starts are at least twice as far from the edges
CONTINUITY = 1.0  # the angle of each turn is multiplied by this factor; with 1, a path turns by less than 90 degrees
TURN_TRIALS, SNAKE_TRIALS = 3, 5  # number of attempts to place one dash, and number of attempts to place one short path
TARGET_LIGHT, DISTRACTOR_LIGHT = 0.75 * 2, 2.0
MARK_RADIUS = 1.5
DISTRACTOR_DASHES = 20  # total number of dashes in all short paths; a short path has a third as many dashes as a long path
ATTEMPTS = 1024  # number of pairs of long paths that are started together; about one pair in twenty can grow to 14 dashes

STEP = LENGTH + MARGIN
RIM = 8  # width in pixels of an occupied frame around each image, so that the code need not check for the edges
SHEET = SIZE + 2 * RIM
DEGREES = np.radians(np.arange(-180, 180))
_AROUND = np.arange(0, 2 * np.pi, 1 / STEP)  # directions (radians) one pixel apart on the circle around the pivot
TURNS = np.unique(np.floor(STEP * np.stack([np.sin(_AROUND), np.cos(_AROUND)], axis=1)).astype(np.int64), axis=0)
# Dash shapes are numbered. Only the first 360 shapes, one per degree of direction, can begin a path. Every other shape ends at
# one of the points TURNS and is drawn backwards from there.
FIRST_TURN = len(DEGREES)
DIRECTIONS = np.concatenate([DEGREES, np.arctan2(TURNS[:, 0], TURNS[:, 1])])
STAMPS = stamps(np.concatenate([DEGREES, DIRECTIONS[FIRST_TURN:] + np.pi]))
ROOM = np.rint(255 * STAMPS.room).reshape(-1, WIDTH * WIDTH).astype(np.uint8)
LIGHT = STAMPS.light.reshape(-1, WIDTH * WIDTH)
MARK = disc_light(MARK_RADIUS, WIDTH).reshape(-1)
# a pixel is occupied if its room value exceeds TAKEN; two rooms collide if their values at a pixel add up to COLLISION or more
TAKEN, COLLISION = 0.3 * 255, 1.8 * 255
DEAD_END = 1e-4 * 255  # a path cannot continue if its sum of (free room) x cos^2 over all turns is at most this value
CORE = 0.99 * 255  # a path may start only if all pixels at which its first dash has a room value above CORE are free

# A sheet is an image with its frame. Pixels are numbered across all sheets, row by row. The following constants are differences
# between pixel numbers.
ROW_COLUMN = np.array([SHEET, 1])
_WINDOW = np.arange(WIDTH) - WIDTH // 2
WINDOW = (SHEET * _WINDOW[:, None] + _WINDOW).reshape(-1)
TURN_ENDS = TURNS @ ROW_COLUMN
CROSS = np.array([0, -SHEET, SHEET, -1, 1])  # a pixel and its neighbours within MARGIN pixels
FIRST_PIVOT = (translated(translated(np.zeros((360, 2), np.int64), DEGREES, LENGTH), DEGREES + np.pi, STEP)) @ ROW_COLUMN
NEXT_PIVOT = translated(np.zeros((len(DIRECTIONS), 2), np.int64), DIRECTIONS, STEP + MARGIN) @ ROW_COLUMN
_TURN = np.abs(DIRECTIONS[:, None] - DIRECTIONS[FIRST_TURN:])
_TURN = np.minimum(np.minimum(_TURN, np.abs(2 * np.pi - _TURN)) * CONTINUITY, np.pi / 2)
TURN_WEIGHT = np.cos(_TURN) ** 2  # (dashes, TURNS): the weight of each possible turn after each dash

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass
class Snakes:
    """Growing paths, one on each of n sheets: the last pivot (n,), and the number and position (n,) of each dash so far."""

    pivot: Ints
    dashes: list[Ints]
    places: list[Ints]

    def keep(self, which: Bools) -> None:
        self.pivot = self.pivot[which]
        self.dashes, self.places = [dash[which] for dash in self.dashes], [place[which] for place in self.places]


def pathfinder_images(count: int, contour: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """(count, 32, 32) images whose brightest pixel is 255, and labels (count,): 1 if both marks lie on the same path.

    contour: number of dashes in each of the two long paths, at least 3.
    """
    light, room, starts, ends = _two_snakes(count, contour, rng)
    for _ in range(DISTRACTOR_DASHES // (contour // 3)):
        _add_distractor(light, room, contour // 3, rng)
    labels, first = rng.integers(0, 2, (2, count))
    each = np.arange(count)
    for tip in (starts[first, each], ends[np.where(labels == 1, first, 1 - first), each]):
        _put(light, MARK, tip)
    light = light[:, RIM:-RIM, RIM:-RIM]
    scaled = light * (255 / light.max(axis=(1, 2), keepdims=True))
    return np.floor(scaled + 0.5).astype(np.uint8), labels.astype(np.uint8)


def _two_snakes(count: int, contour: int, rng: np.random.Generator) -> tuple[Floats, Bytes, Ints, Ints]:
    """Draws two paths in each of `count` images. Returns (light, room, starts, ends).

    light and room: brightness and occupied pixels, (count, SHEET, SHEET). starts and ends: pixel numbers of the paths' first and
    last dashes, (2, count).
    """
    light, room = np.zeros((count, SHEET, SHEET), dtype=np.float32), _rooms(count)
    tips = np.empty((2, 2, count), dtype=np.int64)
    done = 0
    while done < count:
        tried_room = _rooms(ATTEMPTS)
        sheets = np.arange(ATTEMPTS)
        first = rng.integers(2 * SEED_DISTANCE, SIZE - 2 * SEED_DISTANCE, (ATTEMPTS, 2))
        away = DEGREES[rng.integers(0, 360, ATTEMPTS)]
        second = np.rint(first + SEED_DISTANCE * np.stack([np.sin(away), np.cos(away)], axis=1)).astype(np.int64)
        pair = [_begun(_place(sheets, at), rng.integers(0, 360, ATTEMPTS)) for at in (first, second)]
        for _ in range(contour - 1):
            for snakes in pair:
                grown = _grow(tried_room, snakes, rng)
                sheets = sheets[grown]
                for both in pair:
                    both.keep(grown)
        ready = np.arange(min(len(sheets), count - done))
        moved = (done + ready - sheets[ready]) * SHEET**2  # added to pixel numbers of an attempt to get those of its image
        for snakes, (begin, end) in zip(pair, tips.swapaxes(0, 1), strict=True):
            places = [place[ready] + moved for place in snakes.places]
            begin[done + ready], end[done + ready] = places[0], places[-1]
            for dash, place in zip(snakes.dashes, places, strict=True):
                _put(light, TARGET_LIGHT * LIGHT[dash[ready]], place)
                _put(room, ROOM[dash[ready]], place)
        done += len(ready)
    return light, room, tips[0], tips[1]


def _add_distractor(light: Floats, room: Bytes, dashes: int, rng: np.random.Generator) -> None:
    """Add one short path to each image in which one of SNAKE_TRIALS attempts succeeds."""
    sheets = np.arange(len(light))
    for _ in range(SNAKE_TRIALS):
        dash = rng.integers(0, 360, len(sheets))
        place, found = _free_place(room, sheets, dash, rng)
        snakes, tried, index = _begun(place[found], dash[found]), room[sheets[found]], sheets[found]
        moved = (np.arange(len(index)) - index) * SHEET**2  # added to pixel numbers of a sheet to get those of its copy
        snakes.pivot, snakes.places = snakes.pivot + moved, [snakes.places[0] + moved]
        for _ in range(dashes - 1):
            grown = _grow(tried, snakes, rng)
            snakes.keep(grown)
            index, moved = index[grown], moved[grown]
        for dash, place in zip(snakes.dashes, snakes.places, strict=True):
            _put(light, DISTRACTOR_LIGHT * LIGHT[dash], place - moved)
            _put(room, ROOM[dash], place - moved)
        sheets = np.setdiff1d(sheets, index)
        if len(sheets) == 0:
            return


def _begun(place: Ints, dash: Ints) -> Snakes:
    return Snakes(place + FIRST_PIVOT[dash], [dash], [place])


def _grow(room: Bytes, snakes: Snakes, rng: np.random.Generator) -> Bools:
    """Add one dash to each path. Returns a mask of the paths to which a dash could be added.

    The room of the previous dash is marked as occupied only now, so that the new dash can start next to it.
    """
    last, values = snakes.dashes[-1], room.reshape(-1)
    pivot = snakes.pivot + NEXT_PIVOT[last]
    ends = pivot[:, None] + TURN_ENDS
    taken = values[ends]
    for aside in CROSS[1:]:
        np.maximum(taken, values[ends + aside], out=taken)
    likely = np.cumsum((255 - taken) * TURN_WEIGHT[last], axis=1)
    waiting = np.flatnonzero(likely[:, -1] > DEAD_END)
    turn, grown = np.zeros(len(pivot), dtype=np.int64), np.zeros(len(pivot), dtype=bool)
    for _ in range(TURN_TRIALS):
        below = rng.random(len(waiting)) * likely[waiting, -1]
        choice = (likely[waiting] > below[:, None]).argmax(axis=1)
        around = values[ends[waiting, choice][:, None] + WINDOW]
        clear = np.add(around, ROOM[FIRST_TURN + choice], dtype=np.uint16).max(axis=1) < COLLISION
        turn[waiting[clear]], grown[waiting[clear]] = choice[clear], True
        waiting = waiting[~clear]
    _put(room, ROOM[last], snakes.places[-1])
    snakes.pivot = pivot
    snakes.dashes.append(FIRST_TURN + turn)
    snakes.places.append(ends[np.arange(len(ends)), turn])
    return grown


def _free_place(room: Bytes, sheets: Ints, dash: Ints, rng: np.random.Generator) -> tuple[Ints, Bools]:
    """A random pixel of each sheet, drawn uniformly from the pixels at which the dash touches no occupied pixel, and a mask of
    the sheets that have such a pixel."""
    taken = room[sheets] > TAKEN
    needed = ROOM[dash].reshape(-1, WIDTH, WIDTH) > CORE
    blocked = np.zeros((len(sheets), SIZE, SIZE), dtype=bool)
    corner = RIM - WIDTH // 2
    for y, x in np.argwhere(needed.any(axis=0)):
        shifted = taken[:, corner + y : corner + y + SIZE, corner + x : corner + x + SIZE]
        blocked |= shifted & needed[:, y, x, None, None]
    scores = np.where(blocked, np.float32(-1), rng.random(blocked.shape, dtype=np.float32)).reshape(len(sheets), -1)
    best = scores.argmax(axis=1)
    return _place(sheets, np.stack(np.divmod(best, SIZE), axis=1)), scores[np.arange(len(sheets)), best] >= 0


def _rooms(count: int) -> Bytes:
    """(count, SHEET, SHEET): the occupied pixels of empty images, in which only the edges are occupied."""
    room = np.full((count, SHEET, SHEET), 255, dtype=np.uint8)
    inner = slice(RIM + PADDING, -RIM - PADDING)
    room[:, inner, inner] = 0
    return room


def _place(sheets: Ints, at: Ints) -> Ints:
    """The numbers of the pixels `at`, which are (n, 2), as (row, column) in the images of the given sheets."""
    places: Ints = SHEET**2 * sheets + (at + RIM) @ ROW_COLUMN
    return places


def _put(sheets: NDArray[Any], what: NDArray[Any], places: Ints) -> None:
    """Write the maximum of `sheets` and `what` (n, WIDTH * WIDTH) around the pixels `places`, which are on different sheets."""
    values, at = sheets.reshape(-1), places[:, None] + WINDOW
    values[at] = np.maximum(values[at], what)
