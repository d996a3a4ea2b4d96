"""The digits data set of scikit-learn. It has no standard split, so this module splits it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from stablessm_core.spec.data.files import DataError
from stablessm_core.spec.tasks.digits import Digits, digits_file
from stablessm_core.tasks.images import ImageTask

FOR_EVALUATION = 360


def digits(section: Digits, data_root: Path) -> ImageTask:  # noqa: ARG001 - scikit-learn brings the file
    """1,797 images of 8 x 8 pixels, shuffled by NumPy's default_rng(0).

    The last 360 images are for evaluation, and all other images are for training. Pixels (0 to 16) are normalised by the mean
    and standard deviation of the training images.
    """
    path = digits_file()
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",").astype(np.uint8)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: is damaged ({error})") from None
    table = table[np.random.default_rng(0).permutation(len(table))]
    pixels, labels = table[:, :-1], table[:, -1]
    train, test = slice(0, -FOR_EVALUATION), slice(-FOR_EVALUATION, None)
    mean, deviation = float(pixels[train].mean()), float(pixels[train].std())
    return ImageTask(
        (pixels[train], labels[train]), (pixels[test], labels[test]), permuted=section.permuted, mean=mean, deviation=deviation
    )
