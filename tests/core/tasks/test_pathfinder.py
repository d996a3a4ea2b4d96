"""Pathfinder's paths follow the published construction, and its marks agree with the label."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks import pathfinder_snakes as snakes
from stablessm_core.tasks.pathfinder_paddles import WIDTH, lanczos
from stablessm_core.tasks.pathfinder_snakes import pathfinder_images
from tests.core.tasks.made import made


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def area_of(dash: int, at: tuple[int, int]) -> NDArray[np.float64]:
    """(32, 32): the area that a dash occupies, clipped at the edges of the image."""
    sheet = np.zeros((32 + 2 * WIDTH, 32 + 2 * WIDTH))
    top, left = at[0] + WIDTH - WIDTH // 2, at[1] + WIDTH - WIDTH // 2
    sheet[top : top + WIDTH, left : left + WIDTH] = snakes.STAMPS.room[dash]
    return sheet[WIDTH:-WIDTH, WIDTH:-WIDTH]


def translated(at: tuple[int, int], direction: float, distance: int) -> tuple[int, int]:
    return math.ceil(at[0] + distance * math.sin(direction) - 1e-9), math.ceil(at[1] + distance * math.cos(direction) - 1e-9)


def dilated(mask: NDArray[np.float64]) -> NDArray[np.float64]:
    wide = np.pad(mask, 1)
    return np.max([mask, wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:]], axis=0)


def dashes_before_a_dead_end(random: np.random.Generator, contour: int) -> int:
    """Number of dashes by which two paths grow in the published construction, for one image, in floating point."""
    mask = np.pad(np.zeros((30, 30)), 1, constant_values=1.0)
    first, away = random.integers(14, 18, 2), np.radians(random.integers(0, 360))
    second = np.rint(first + 7 * np.array([np.sin(away), np.cos(away)])).astype(int)
    paths = []
    for at in (first, second):
        degree = random.integers(0, 360)
        direction = np.radians(degree - 180)
        head = translated(tuple(at), direction, 2)
        paths.append((translated(head, direction + np.pi, 3), direction, area_of(degree, tuple(at))))
    for grown in range(2 * (contour - 1)):
        pivot, direction, last = paths[grown % 2]
        pivot, around, weights = translated(pivot, direction, 4), dilated(mask), []
        directions = [math.atan2(y, x) for y, x in snakes.TURNS]
        for (y, x), new in zip(snakes.TURNS, directions, strict=True):
            row, column, turn = pivot[0] + y, pivot[1] + x, abs(new - direction)
            inside = 0 <= row < 32 and 0 <= column < 32
            free = 1 - around[row, column] if inside else 0
            weights.append(free * math.cos(min(turn, 2 * math.pi - turn, math.pi / 2)) ** 2)
        if sum(weights) < 1e-4:
            return grown
        for _ in range(3):
            choice = random.choice(len(weights), p=np.array(weights) / sum(weights))
            room = area_of(360 + choice, (pivot[0] + snakes.TURNS[choice][0], pivot[1] + snakes.TURNS[choice][1]))
            if (mask + room).max() < 1.8:
                break
        else:
            return grown
        mask = np.maximum(mask, last)
        paths[grown % 2] = (pivot, directions[choice], room)
    return 2 * (contour - 1)


@pytest.mark.slow
def test_paths_reach_full_length_as_often_as_in_the_published_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, int]] = []
    grow = snakes._grow

    def counted(*arguments: object) -> NDArray[np.bool_]:
        grown = grow(*arguments)  # type: ignore[arg-type]
        kept.append((len(grown), int(grown.sum())))
        return grown

    monkeypatch.setattr(snakes, "_grow", counted)
    snakes._two_snakes(150, 14, rng())
    random = rng()
    expected = np.array([dashes_before_a_dead_end(random, 14) for _ in range(800)])
    rounds = len(kept) // 26
    begun = rounds * snakes.ATTEMPTS
    for dashes in (4, 7, 10, 16, 26):
        left = sum(kept[26 * n + dashes - 1][1] for n in range(rounds)) / begun
        assert left == pytest.approx((expected >= dashes).mean(), abs=0.04), dashes


def paths_drawn(monkeypatch: pytest.MonkeyPatch, contour: int) -> list[tuple[list[int], list[int]]]:
    """(dashes, positions) of the two long paths of some images; the two paths of an image follow each other."""
    begun: list[snakes.Snakes] = []
    begin = snakes._begun
    monkeypatch.setattr(snakes, "_begun", lambda place, dash: begun.append(begin(place, dash)) or begun[-1])
    snakes._two_snakes(40, contour, rng())
    one, other = begun[:2]
    return [
        ([int(dash[image]) for dash in path.dashes], [int(place[image]) for place in path.places])
        for image in range(len(one.pivot))
        for path in (one, other)
    ]


def pixel(place: int) -> tuple[int, int]:
    row, column = divmod(place % snakes.SHEET**2, snakes.SHEET)
    return row - snakes.RIM, column - snakes.RIM


@pytest.mark.parametrize("contour", [6, 14])
def test_a_path_has_evenly_spaced_dashes_and_turns_by_less_than_a_right_angle(
    monkeypatch: pytest.MonkeyPatch, contour: int
) -> None:
    paths = paths_drawn(monkeypatch, contour)
    assert len(paths) > 40
    for (_, places), (_, others) in zip(paths[::2], paths[1::2], strict=True):
        assert all(14 <= n < 18 for n in pixel(places[0]))
        assert math.dist(pixel(places[0]), pixel(others[0])) == pytest.approx(7, abs=0.8)
    for dashes, places in paths:
        assert len(dashes) == len(places) == contour
        ends = np.array([pixel(place) for place in places])
        assert ((ends >= 1) & (ends <= 30)).all()
        # The first position is the start of the first dash; the others are ends of dashes.
        steps = np.linalg.norm(np.diff(ends[1:], axis=0), axis=1)
        assert steps.min() > 1.5
        assert steps.max() < 7.5
        turns = np.abs(np.angle(np.exp(1j * np.diff(snakes.DIRECTIONS[dashes]))))
        assert turns.max() < np.pi / 2 - 1e-6


def test_the_label_states_whether_both_marks_are_on_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    count, tips, marks = 200, [], []
    two, put = snakes._two_snakes, snakes._put

    def kept_two(*arguments: object) -> object:
        found = two(*arguments)  # type: ignore[arg-type]
        tips.append(found[2:])
        return found

    def kept_put(sheets: NDArray[np.float32], what: NDArray[np.float32], places: NDArray[np.int64]) -> None:
        if what is snakes.MARK:
            marks.append(places)
        put(sheets, what, places)

    monkeypatch.setattr(snakes, "_two_snakes", kept_two)
    monkeypatch.setattr(snakes, "_put", kept_put)
    images, labels = pathfinder_images(count, 14, rng())
    assert images.shape == (count, 32, 32)
    assert 0.4 < labels.mean() < 0.6
    ((starts, ends),) = tips
    begun, ended = marks
    firsts = np.where(begun == starts[0], 0, 1)
    assert (begun == starts[firsts, np.arange(count)]).all()
    assert 0.4 < firsts.mean() < 0.6
    assert (ended == ends[np.where(labels == 1, firsts, 1 - firsts), np.arange(count)]).all()
    for image, places in zip(images, np.stack(marks, axis=1), strict=True):
        for place in places:
            assert image[pixel(place)] >= 0.75 * image.max()  # a mark has brightness 1; dashes have at most 1.2


def test_images_are_black_between_dashes_and_their_lightest_pixel_is_white() -> None:
    for contour, dashes in ((6, 12 + 20), (14, 28 + 20)):
        images, _ = pathfinder_images(100, contour, rng())
        assert (images.max(axis=(1, 2)) == 255).all()
        lit = (images > 60).mean(axis=(1, 2)).mean() * 1024
        # A dash covers two to three pixels, a mark about seven.
        assert 1.5 * dashes < lit < 4.5 * dashes
        assert (images == 0).mean() > 0.5


def test_downscaling_matches_pillow() -> None:
    for fine in (17, 18):
        picture = rng().random((fine, fine)).astype(np.float32)
        expected = np.asarray(Image.fromarray(picture).resize((9, 9), Image.Resampling.LANCZOS))
        down = lanczos(fine, 9)
        np.testing.assert_allclose(down @ picture @ down.T, expected, atol=1e-6)


@pytest.mark.slow
def test_an_epoch_visits_each_image_once_in_a_new_order_and_draws_only_required_images() -> None:
    task = made("pathfinder", contour_length=6, train_images=500)
    task.batch(1, 32, 3, "cpu")
    assert len(task._drawn) == 1  # type: ignore[attr-defined]
    epochs = []
    for epoch in range(2):
        pieces = [task.batch(step, 125, 3, "cpu") for step in range(1 + 4 * epoch, 5 + 4 * epoch)]
        epochs.append([torch.cat(parts) for parts in zip(*pieces, strict=True)])
    assert len(epochs[0][0].flatten(1).unique(dim=0)) == 500
    assert not torch.equal(epochs[0][0], epochs[1][0])
    torch.testing.assert_close(epochs[0][0].flatten(1).unique(dim=0), epochs[1][0].flatten(1).unique(dim=0))
    across, labels = task.batch(1, 1300, 3, "cpu")
    assert torch.equal(across[:1000], torch.cat([x for x, _ in epochs]))
    assert torch.equal(labels[:1000], torch.cat([y for _, y in epochs]))
    evaluation = torch.cat([x for x, _ in task.evaluation_batches(300, "cpu")])
    assert len(torch.cat([across[:500], evaluation]).flatten(1).unique(dim=0)) == 500 + 1000
    assert (across.min(), across.max()) == (-1, 1)


@pytest.mark.parametrize("options", [{"contour_length": 5}, {"contour_length": 15}, {"train_images": 1001}, {"train_images": 0}])
def test_the_error_for_a_size_beyond_the_limits_names_its_field(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "pathfinder"} | options})
    assert refused.value.problems[0][0] == f"task.{next(iter(options))}"
