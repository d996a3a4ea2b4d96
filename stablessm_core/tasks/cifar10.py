"""CIFAR-10, grey or in colour, with its standard split or divided into training, validation and test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.cifar10_records import full_set, load_cifar10
from stablessm_core.spec.data.files import existing, read_unless_last
from stablessm_core.spec.tasks.cifar10 import Cifar10
from stablessm_core.tasks.images import ImageTask
from stablessm_core.tasks.splits import Images, divide

IMAGES = 60_000

GREY = ((122.6,), (61.0,))
COLOUR = ((255 * 0.4914, 255 * 0.4822, 255 * 0.4465), (255 * 0.247, 255 * 0.243, 255 * 0.261))


def cifar10(section: Cifar10, data_root: Path) -> ImageTask:
    """50,000 images for training and the standard 10,000 test images for evaluation, unless `split` says otherwise. The sample
    set, which is used if the full set is missing, has 4,000 training and 1,000 test images.

    Pixels are normalised as in state-spaces/s4, `src/dataloaders/basic.py`: grey pixels as (p - 122.6) / 61, colours by the mean
    and standard deviation of each channel.
    """
    split, colour = section.split, section.colour

    def read() -> tuple[Images, Images, Images | None]:
        train, test = load_cifar10(data_root, "train"), load_cifar10(data_root, "test")
        if not colour:
            train, test = (grey(train[0]), train[1]), (grey(test[0]), test[1])
        return divide(train, test, split, full=IMAGES)

    mean, deviation = COLOUR if colour else GREY
    key = "cifar10", data_root, split, colour
    parts = read_unless_last(key, existing(data_root, section.own_files), read)
    task = ImageTask(*parts, permuted=section.permuted, mean=mean, deviation=deviation, subset=section.subset)
    if split != "standard":
        task.facts["split"] = split
    task.facts["data"] = "full set" if full_set(data_root) else "sample (not comparable to published results)"
    return task


def grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Luma of ITU-R BT.601, 0.299 R + 0.587 G + 0.114 B, rounded as in the Python Imaging Library, (n, pixels, 1)."""
    of_65536 = np.arange(256, dtype=np.uint32)[:, None] * np.array([19_595, 38_470, 7_471], dtype=np.uint32)
    luma = np.empty((*images.shape[:2], 1), dtype=np.uint8)
    for some, out in zip(
        np.array_split(images, 1 + len(images) // 1000), np.array_split(luma, 1 + len(images) // 1000), strict=True
    ):
        red, green, blue = (of_65536[some[..., channel], channel] for channel in range(3))
        out[..., 0] = (red + green + blue + 0x8000) >> 16
    return luma
