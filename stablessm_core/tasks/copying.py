"""Copying and selective copying, as in state-spaces/s4, `src/dataloaders/datasets/copying.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.copying import Copying
from stablessm_core.tasks.base import IGNORED
from stablessm_core.tasks.generated import GeneratedTask, distinct


class CopyingTask(GeneratedTask):
    """x: M tokens of 1 .. A-2, then L blanks (0), then M markers (A-1). y: the same tokens, at the positions of the markers.

    With `variable`, the tokens are at M random positions among the first L + M positions, in their order, and the remaining L
    positions are blank. The published configuration also trains on new sequences (10,000 per epoch) and evaluates on 1,000
    fixed sequences.
    """

    kind = "next_token"

    def __init__(self, section: Copying, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.sequence_length())
        self.vocabulary = self.output_size = section.vocabulary_size
        self._tokens, self._reading, self._variable = (
            section.memorized,
            section.noise_length + section.memorized,
            section.variable,
        )
        self.facts |= {"tokens": section.memorized, "places": "random" if section.variable else "first"}

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        blank, marker = 0, self.output_size - 1
        tokens = torch.randint(1, marker, (count, self._tokens), device=random.device, generator=random)
        x = torch.full((count, self.length), blank, device=random.device)
        x[:, self._reading :] = marker
        if self._variable:
            x.scatter_(1, distinct(count, self._reading, self._tokens, random).sort(dim=1).values, tokens)
        else:
            x[:, : self._tokens] = tokens
        y = torch.full_like(x, IGNORED)
        y[:, self._reading :] = tokens
        return x, y
