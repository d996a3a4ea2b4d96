"""ListOps as a task: expressions drawn for every batch, with the tokens that state-spaces/s4 reads them as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stablessm_core.tasks.base import sent
from stablessm_core.tasks.generated import GeneratedTask
from stablessm_core.tasks.listops.section import Listops
from stablessm_core.tasks.listops.trees import TOKENS, Shape, expressions

EVALUATION_SEQUENCES = 2000


class ListopsTask(GeneratedTask):
    """x: tokens of an expression, its end, padding; y: its value, 0 to 9.

    Tokens: 0 padding, 1 unknown (not used), 2 the end, 3 to 12 the digits, 13 to 16 "[MIN", "[MAX", "[MED", "[SM", 17 "]".

    Published: a fixed set of 96,000 different expressions from an unseeded generator; here every training batch is new, and
    two short expressions may be the same by chance.
    """

    kind = "classification"

    def __init__(self, section: Listops, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.sequence_length(), evaluation_sequences=EVALUATION_SEQUENCES)
        self.vocabulary, self.output_size = TOKENS, 10
        self._shape = Shape(section.min_length, section.max_length, section.max_depth, section.max_args)
        self.facts |= {"shortest": section.min_length, "longest": section.max_length}

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        # on the CPU whatever the device: trees are no work for a GPU
        tokens, values = expressions(count, self._shape, np.random.default_rng(random.initial_seed()))
        x, y = (sent(torch.from_numpy(a), random.device).to(torch.int64) for a in (tokens, values))
        return x, y
