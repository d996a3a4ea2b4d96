"""MNIST with its standard split, or divided into training, validation and test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.mnist_idx import load_mnist
from stablessm_core.spec.tasks.mnist import Mnist
from stablessm_core.tasks.images import ImageTask
from stablessm_core.tasks.splits import divide

IMAGES = 70_000


def mnist(section: Mnist, data_root: Path) -> ImageTask:
    """60,000 images for training and the standard 10,000 test images for evaluation, unless `split` says otherwise.

    Pixels are (p / 255 - 0.1307) / 0.3081. With `pool` 2, a step is the mean of 2 x 2 of these pixels.
    """
    train, evaluation, test = divide(load_mnist(data_root, "train"), load_mnist(data_root, "test"), section.split, full=IMAGES)
    if section.pool > 1:
        train, evaluation = (sums(train[0], section.pool), train[1]), (sums(evaluation[0], section.pool), evaluation[1])
        test = None if test is None else (sums(test[0], section.pool), test[1])
    scale = 255 * section.pool**2
    task = ImageTask(
        train, evaluation, test,
        permuted=section.permuted, mean=scale * 0.1307, deviation=scale * 0.3081, subset=section.subset,
    )  # fmt: skip
    if section.split != "standard":
        task.facts["split"] = section.split
    return task


def sums(images: NDArray[np.integer[Any]], side: int) -> NDArray[np.int16]:
    """Sums over squares of side x side pixels, (count, 784 / side^2). Unlike means, sums are whole numbers.

    images: (count, 784) with values 0 to 255, row by row. side: a divisor of 28.
    """
    squares = images.reshape(-1, 28 // side, side, 28 // side, side)
    summed: NDArray[np.int16] = squares.sum((2, 4), dtype=np.int16).reshape(len(images), -1)
    return summed
