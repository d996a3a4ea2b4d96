"""ListOps: new random expressions for every batch, with the tokens of state-spaces/s4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stablessm_core.spec.data.listops_trees import TOKENS, Shape, expressions
from stablessm_core.spec.tasks.listops import Listops
from stablessm_core.tasks.base import to_device
from stablessm_core.tasks.generated import GeneratedTask

EVALUATION_SEQUENCES = 2000


class ListopsTask(GeneratedTask):
    """x: the tokens of an expression, the end token, padding. y: the value of the expression, 0 to 9.

    Tokens: 0 padding, 1 unknown (not used), 2 the end, 3 to 12 the digits, 13 to 16 "[MIN", "[MAX", "[MED", "[SM", 17 "]".

    The published version has a fixed set of 96,000 different expressions from an unseeded generator. In this task, every
    training batch is new, and short expressions may repeat by chance.
    """

    kind = "classification"

    def __init__(self, section: Listops, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.sequence_length(), evaluation_sequences=EVALUATION_SEQUENCES)
        self.vocabulary, self.output_size = TOKENS, 10
        self._shape = Shape(section.min_length, section.max_length, section.max_depth, section.max_args)
        self.facts |= {"shortest": section.min_length, "longest": section.max_length}

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        # trees are drawn on the CPU even if the model runs on CUDA, because a GPU is slow at building trees
        tokens, values = expressions(count, self._shape, np.random.default_rng(random.initial_seed()))
        x, y = (to_device(torch.from_numpy(a), random.device).to(torch.int64) for a in (tokens, values))
        return x, y
