"""Modular counting, the regular languages MOD_m. m = 2 is parity, the standard test of state tracking."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.modular_counting import ModularCounting
from stablessm_core.tasks.base import IGNORED
from stablessm_core.tasks.generated import EVALUATION_TOKENS, GeneratedTask


class ModularCountingTask(GeneratedTask):
    """The inputs x_t are fair random bits; y_t = (x_1 + ... + x_t) mod m. Training scores every step.

    Evaluation sequences are twice as long, and only their second half is scored. This measures whether the model still counts
    correctly beyond the training length. A random guess is right with probability 1/m.
    """

    kind = "next_token"
    vocabulary = 2

    def __init__(self, section: ModularCounting, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.length, evaluation_sequences=min(1000, max(1, EVALUATION_TOKENS // (2 * section.length))))
        self.output_size = section.modulus
        self.facts |= {"modulus": section.modulus, "evaluation_length": self.evaluation_length}

    @property
    def evaluation_length(self) -> int:
        return 2 * self.length

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        return self._counted(count, self.length, random)

    def draw_evaluation(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = self._counted(count, self.evaluation_length, random)
        y[:, : self.length] = IGNORED
        return x, y

    def _counted(self, count: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(2, (count, length), device=random.device, generator=random)
        return x, x.cumsum(1) % self.output_size
