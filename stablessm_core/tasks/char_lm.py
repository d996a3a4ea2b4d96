"""Prediction of the next character of a text: the first 90 % is for training, the last 10 % for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.data.files import locate
from stablessm_core.spec.data.text import load_text, split_point
from stablessm_core.spec.tasks.char_lm import CharLm
from stablessm_core.tasks.base import TRAIN, Device, OnDevice, Task, generator, in_batches

EVALUATION_CHARACTERS = 1_000_000


class CharLmTask(Task):
    """Windows of length + 1 characters. Training windows start anywhere in the training part, drawn with replacement.

    Evaluation windows do not overlap. If the evaluation part is longer than a million characters, evenly spaced windows with a
    million characters in total are used. The vocabulary contains all characters of the file, so the evaluation part contains no
    unknown character.
    """

    kind = "next_token"

    def __init__(self, section: CharLm, data_root: Path) -> None:
        path = locate(data_root, section.file)
        text = load_text(path)
        split = split_point(path, len(text.ids), section.length)
        self.length = section.length
        self.vocabulary = self.output_size = len(text.vocabulary)
        self.characters = text.vocabulary
        ids = torch.from_numpy(text.ids)
        self._windows = split - section.length
        self._train = OnDevice(ids[:split])
        count = (len(ids) - split - 1) // section.length
        kept = min(count, max(1, EVALUATION_CHARACTERS // section.length))
        starts = torch.arange(kept) * count // kept
        self._evaluation = OnDevice(ids[split:].unfold(0, section.length + 1, section.length)[starts])
        self.facts = {
            "file": section.file,
            "vocabulary": len(text.vocabulary),
            "train_characters": split,
            "evaluation_characters": kept * section.length,
        }

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        (ids,) = self._train(device)
        starts = torch.randint(self._windows, (batch_size,), device=ids.device, generator=generator(device, seed, step, TRAIN))
        return _shifted(ids.unfold(0, self.length + 1, 1)[starts])

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        (windows,) = self._evaluation(device)
        for some, _ in in_batches(batch_size, windows, windows):
            yield _shifted(some)


def _shifted(windows: Tensor) -> tuple[Tensor, Tensor]:
    tokens = windows.to(torch.int64)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
