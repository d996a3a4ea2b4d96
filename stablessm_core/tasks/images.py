"""Image classification, one pixel per time step, for any data set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from stablessm_core.tasks.base import Device, OnDevice, Task, generator, in_batches, to_device
from stablessm_core.tasks.splits import Images

SUBSET = -1  # the place of an epoch's number in the seed of the random numbers that draw a subset


class ImageTask(Task):
    """Classification of images of whole numbers. Each epoch visits every training image once, in a new order.

    train, evaluation: images (count, pixels) or (count, pixels, channels), and their labels. They are never changed, and copied
    only if `permuted` is true. test: the test images, if `evaluation` has validation images. mean, deviation: the mean and
    standard deviation by which pixels are normalised; one number, or one per channel. subset: train only this number of training
    images, drawn by the run's seed.
    """

    kind = "classification"

    def __init__(
        self,
        train: Images,
        evaluation: Images,
        test: Images | None = None,
        *,
        permuted: bool,
        mean: float | tuple[float, ...],
        deviation: float | tuple[float, ...],
        classes: int = 10,
        subset: int | None = None,
    ) -> None:
        if subset is not None and subset > len(train[1]):
            raise ValueError(f"task.subset is {subset:,}; the training set has only {len(train[1]):,} images")
        self.length = train[0].shape[1]
        self.input_size = train[0].shape[2] if train[0].ndim == 3 else 1
        self.output_size = classes
        # one fixed permutation of the pixels for all runs and for both splits
        order = np.random.default_rng(0).permutation(self.length) if permuted else slice(None)
        mean_, scale = torch.tensor(mean).reshape(-1), 1 / torch.tensor(deviation, dtype=torch.float64).reshape(-1)
        self._normal = OnDevice(mean_, scale.to(torch.float32))

        def ready(images: Images) -> OnDevice:
            pixels, labels = images
            ordered = np.ascontiguousarray(pixels.reshape(len(pixels), self.length, -1)[:, order])
            return OnDevice(torch.from_numpy(ordered), torch.from_numpy(labels.astype(np.int64)))

        self._train, self._evaluation, self._test = ready(train), ready(evaluation), None if test is None else ready(test)
        self._all = len(train[1])
        self._count = self.train_examples = subset or self._all
        self._orders: dict[tuple[int, int, torch.device], Tensor] = {}
        self.facts = {"train_images": self._count, "evaluation_images": len(evaluation[1])}
        if test is not None:
            self.facts["test_images"] = len(test[1])

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        pixels, labels = self._train(device)
        chosen = self._chosen((step - 1) * batch_size, batch_size, seed, pixels.device)
        return self._normalised(pixels.index_select(0, chosen)), labels.index_select(0, chosen)

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        return self._in_order(self._evaluation, batch_size, device)

    def test_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]] | None:
        return None if self._test is None else self._in_order(self._test, batch_size, device)

    def _in_order(self, images: OnDevice, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        pixels, labels = images(device)
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
            if self._count < self._all:
                order = torch.randperm(self._all, generator=generator("cpu", seed, SUBSET))[: self._count][order]
            if len(self._orders) >= 2:
                self._orders.pop(next(iter(self._orders)))
            self._orders[key] = to_device(order, device)
        return self._orders[key]
