"""Divides images into training, validation and test images."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Images = tuple[NDArray[np.integer[Any]], NDArray[np.uint8]]  # images (count, pixels, ...), and their labels (count,)
Split = Literal["standard", "validation", "pooled"]

SEED = 42  # the seed of the StableSSM authors' split
VALIDATION, TEST = 5_000, 10_000  # images of a full set


def divide(train: Images, test: Images, split: Split, *, full: int) -> tuple[Images, Images, Images | None]:
    """The images for training, for evaluations, and for the test (None if evaluations measure the test images).

    standard: `train` and `test` as they are. validation: 5,000 of `train` become validation images. pooled: both sets are joined,
    shuffled, and divided into training images, 5,000 validation images and 10,000 test images, in this order, as in the
    StableSSM authors' code. The shuffles depend only on SEED and on the number of images. full: the number of images in the full
    data set; a smaller set is divided in the same ratios.
    """
    if split == "standard":
        return train, test, None
    if split == "validation":
        order = shuffled(len(train[1]))
        kept = len(order) - share(len(order), VALIDATION, full - TEST)
        return chosen(train, order[:kept]), chosen(train, order[kept:]), test
    joined = np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]])
    order = shuffled(len(joined[1]))
    tested = share(len(order), TEST, full)
    kept = len(order) - tested - share(len(order), VALIDATION, full)
    ends = (order[:kept], order[kept : len(order) - tested], order[len(order) - tested :])
    first, second, third = (chosen(joined, part) for part in ends)
    return first, second, third


def share(count: int, part: int, full: int) -> int:
    """The number of images, at least 1, that corresponds to `part` of `full`."""
    return max(1, count * part // full)


def shuffled(count: int) -> NDArray[np.int64]:
    """The order of torch.utils.data.random_split for a generator with SEED."""
    order: NDArray[np.int64] = torch.randperm(count, generator=torch.Generator().manual_seed(SEED)).numpy()
    return order


def chosen(images: Images, indices: NDArray[np.int64]) -> Images:
    return images[0][indices], images[1][indices]
