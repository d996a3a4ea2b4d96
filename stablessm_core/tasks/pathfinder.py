"""Pathfinder. Images are drawn in blocks when they are first needed, then kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stablessm_core.spec.tasks.pathfinder import BLOCK, Pathfinder
from stablessm_core.tasks.base import EVALUATION, TRAIN, Device, Task, generator, in_batches, mixed_seed, to_device
from stablessm_core.tasks.pathfinder_snakes import pathfinder_images

EVALUATION_BLOCKS = 4


class PathfinderTask(Task):
    """x: pixels row by row, (p / 255 - 0.5) / 0.5. y: 1 if both marks are on the same path, otherwise 0.

    Every epoch visits each training image once, block by block. The order of the blocks and of the images in a block is new in
    each epoch. Images are independent of each other, so shuffling within blocks mixes the images as well as shuffling the whole
    set would. Evaluation uses 1,000 images that are not in the training set.
    """

    kind = "classification"
    input_size = 1
    output_size = 2
    length = 1024

    def __init__(self, section: Pathfinder, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        self._contour, self._blocks = section.contour_length, section.train_images // BLOCK
        self.train_examples = section.train_images
        self._drawn: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.facts = {"train_images": section.train_images, "evaluation_images": EVALUATION_BLOCKS * BLOCK}

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        pieces, position = [], (step - 1) * batch_size
        while batch_size > 0:
            turn, start = divmod(position, BLOCK)
            epoch, place = divmod(turn, self._blocks)
            block = int(torch.randperm(self._blocks, generator=generator("cpu", seed, epoch))[place])
            chosen = torch.randperm(BLOCK, generator=generator("cpu", seed, epoch, block))[start : start + batch_size]
            pieces.append([part[chosen] for part in self._block(TRAIN, block)])
            position += len(chosen)
            batch_size -= len(chosen)
        pixels, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        return _normalised(to_device(pixels, device)), to_device(labels, device)

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        blocks = [self._block(EVALUATION, block) for block in range(EVALUATION_BLOCKS)]
        for pixels, labels in in_batches(batch_size, *(torch.cat(parts) for parts in zip(*blocks, strict=True))):
            yield _normalised(to_device(pixels, device)), to_device(labels, device)

    def _block(self, split: int, block: int) -> tuple[Tensor, Tensor]:
        """uint8 pixels (BLOCK, 1024) and labels (BLOCK,): the same for every run."""
        if (split, block) not in self._drawn:
            pixels, labels = pathfinder_images(BLOCK, self._contour, np.random.default_rng(mixed_seed(0, block, split)))
            self._drawn[split, block] = torch.from_numpy(pixels.reshape(BLOCK, -1)), torch.from_numpy(labels).to(torch.int64)
        return self._drawn[split, block]


def _normalised(pixels: Tensor) -> Tensor:
    return pixels.to(torch.float32).mul_(2 / 255).sub_(1).unsqueeze(-1)
