"""Copying and selective copying, as in state-spaces/s4, `src/dataloaders/datasets/copying.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.tasks.base import IGNORED
from stablessm_core.tasks.copying.section import Copying
from stablessm_core.tasks.generated import GeneratedTask, distinct


class CopyingTask(GeneratedTask):
    """x: M tokens of 1 .. A-2, then L blanks (0), then M markers (A-1). y: the tokens again at the markers.

    variable: the tokens, in their order, stand at M random places of the first L + M, the others are blank. The published
    configuration trains on new sequences too (10,000 an epoch) and evaluates on 1,000 fixed ones.
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
