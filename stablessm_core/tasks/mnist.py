"""MNIST with its standard split, or divided into training, validation and test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.files import existing, read_unless_last
from stablessm_core.spec.data.mnist_idx import load_mnist
from stablessm_core.spec.tasks.mnist import Mnist
from stablessm_core.tasks.images import ImageTask
from stablessm_core.tasks.splits import Images, divide

IMAGES = 70_000


def mnist(section: Mnist, data_root: Path) -> ImageTask:
    """60,000 images for training and the standard 10,000 test images for evaluation, unless `split` says otherwise.

    Pixels are (p / 255 - 0.1307) / 0.3081. With `pool` 2, a step is the mean of 2 x 2 of these pixels.
    """
    split, pool = section.split, section.pool

    def load(part: str) -> Images:
        images, labels = load_mnist(data_root, part)
        return (sums(images, pool) if pool > 1 else images), labels

    def read() -> tuple[Images, Images, Images | None]:
        return divide(load("train"), load("test"), split, full=IMAGES)

    key = "mnist", data_root, split, pool
    train, evaluation, test = read_unless_last(key, existing(data_root, section.own_files), read)
    scale = 255 * pool**2
    task = ImageTask(
        train, evaluation, test,
        permuted=section.permuted, mean=scale * 0.1307, deviation=scale * 0.3081, subset=section.subset,
    )  # fmt: skip
    if split != "standard":
        task.facts["split"] = split
    return task


def sums(images: NDArray[np.integer[Any]], side: int) -> NDArray[np.int16]:
    """Sums over squares of side x side pixels, (count, 784 / side^2). Unlike means, sums are whole numbers.

    images: (count, 784) with values 0 to 255, row by row. side: a divisor of 28.
    """
    squares = images.reshape(-1, 28 // side, side, 28 // side, side)
    summed: NDArray[np.int16] = squares.sum((2, 4), dtype=np.int16).reshape(len(images), -1)
    return summed
