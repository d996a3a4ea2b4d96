"""MNIST with its standard split."""

from __future__ import annotations

from pathlib import Path

from stablessm_core.spec.data.mnist_idx import load_mnist
from stablessm_core.spec.tasks.mnist import Mnist
from stablessm_core.tasks.images import ImageTask


def mnist(section: Mnist, data_root: Path) -> ImageTask:
    """60,000 images for training and the standard 10,000 test images for evaluation. Pixels are (p / 255 - 0.1307) / 0.3081."""
    train, test = load_mnist(data_root, "train"), load_mnist(data_root, "test")
    return ImageTask(train, test, permuted=section.permuted, mean=255 * 0.1307, deviation=255 * 0.3081)
