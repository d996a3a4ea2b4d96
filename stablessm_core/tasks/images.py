"""Image classification, one pixel per time step, for any data set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablessm_core.tasks.base import Device, OnDevice, Task, generator, in_batches, to_device


class ImageTask(Task):
    """Classification of uint8 images. Each epoch visits every training image once, in a new order.

    train, test: images (count, pixels) or (count, pixels, channels), and their labels. mean, deviation: the mean and standard
    deviation by which pixels are normalised; one number, or one per channel.
    """

    kind = "classification"

    def __init__(
        self,
        train: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        test: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        *,
        permuted: bool,
        mean: float | tuple[float, ...],
        deviation: float | tuple[float, ...],
        classes: int = 10,
    ) -> None:
        self.length = train[0].shape[1]
        self.input_size = train[0].shape[2] if train[0].ndim == 3 else 1
        self.output_size = classes
        # one fixed permutation of the pixels for all runs and for both splits
        order = np.random.default_rng(0).permutation(self.length) if permuted else slice(None)
        mean_, scale = torch.tensor(mean).reshape(-1), 1 / torch.tensor(deviation, dtype=torch.float64).reshape(-1)
        self._normal = OnDevice(mean_, scale.to(torch.float32))
        self._train, self._test = (
            OnDevice(
                torch.from_numpy(pixels.reshape(len(pixels), self.length, -1)[:, order].copy()),
                torch.from_numpy(labels.astype(np.int64)),
            )
            for pixels, labels in (train, test)
        )
        self._count = len(train[1])
        self._orders: dict[tuple[int, int, torch.device], Tensor] = {}
        self.facts = {"train_images": len(train[1]), "evaluation_images": len(test[1])}

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        pixels, labels = self._train(device)
        chosen = self._chosen((step - 1) * batch_size, batch_size, seed, pixels.device)
        return self._normalised(pixels.index_select(0, chosen)), labels.index_select(0, chosen)

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        pixels, labels = self._test(device)
        for some, right in in_batches(batch_size, pixels, labels):
            yield self._normalised(some), right

    def _normalised(self, pixels: Tensor) -> Tensor:
        mean, scale = self._normal(pixels.device)
        return pixels.to(torch.float32).sub_(mean).mul_(scale)

    def _chosen(self, position: int, batch_size: int, seed: int, device: torch.device) -> Tensor:
        """Indices of the next `batch_size` images, starting at `position` in the endless sequence of epochs."""
        pieces = []
        while batch_size > 0:
            epoch, offset = divmod(position, self._count)
            pieces.append(self._order(epoch, seed, device)[offset : offset + batch_size])
            position += len(pieces[-1])
            batch_size -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _order(self, epoch: int, seed: int, device: torch.device) -> Tensor:
        key = (epoch, seed, device)
        if key not in self._orders:
            order = torch.randperm(self._count, generator=generator("cpu", seed, epoch))
            if len(self._orders) >= 2:
                self._orders.pop(next(iter(self._orders)))
            self._orders[key] = to_device(order, device)
        return self._orders[key]
