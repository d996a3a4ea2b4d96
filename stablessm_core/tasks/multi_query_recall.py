"""Multi-query associative recall, as in HazyResearch/zoology, `zoology/data/multiquery_ar.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.multi_query_recall import MultiQueryRecall
from stablessm_core.tasks.base import IGNORED, OnDevice
from stablessm_core.tasks.generated import GeneratedTask, distinct


class MultiQueryRecallTask(GeneratedTask):
    """k v k v ..., then each key once more at a later position. At the later position, y is the key's value; at all other
    positions, y is IGNORED.

    Keys are 1 to V/2 - 1 and values V/2 to V - 1, without repetition in a sequence; 0 is blank. The 2 P tokens of the pairs are
    followed by S = (length - 2 P) / 2 slots of two tokens. One key after the other takes a free slot, with probability
    p(i) ~ i^(a-1) for slot i = 1 .. S. With `random_non_queries`, blanks become random tokens of the whole vocabulary.

    The published version has a fixed set of 100,000 sequences. In this task, every training batch is new.
    """

    kind = "next_token"

    def __init__(self, section: MultiQueryRecall, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.length)
        self.vocabulary = self.output_size = section.vocabulary_size
        self._first_value = section.vocabulary_size // 2
        self._pairs, self._random_non_queries = section.pairs, section.random_non_queries
        slots = torch.arange(1, (section.length - 2 * section.pairs) // 2 + 1, dtype=torch.float64)
        self._log_weight = OnDevice(((section.power - 1) * slots.log()).to(torch.float32))
        self.facts |= {"pairs": section.pairs, "keys": self._first_value - 1, "values": self.output_size - self._first_value}

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = 1 + distinct(count, self._first_value - 1, self._pairs, random)
        values = self._first_value + distinct(count, self.output_size - self._first_value, self._pairs, random)
        queried = 2 * self._pairs + 2 * self._slots(count, random)
        x = torch.zeros(count, self.length, dtype=torch.int64, device=random.device)
        x[:, 0 : 2 * self._pairs : 2] = keys
        x[:, 1 : 2 * self._pairs : 2] = values
        x.scatter_(1, queried, keys)
        y = torch.full_like(x, IGNORED).scatter_(1, queried, values)
        if self._random_non_queries:
            noise = torch.randint(self.output_size, x.shape, device=random.device, generator=random)
            x = torch.where(x == 0, noise, x)
        return x, y

    def _slots(self, count: int, random: torch.Generator) -> Tensor:
        """(count, pairs): different slots, drawn with the probabilities p, in the order of drawing.

        Sorting log p + Gumbel noise, largest first, gives the same distribution as drawing the slots one by one.
        """
        (log_weight,) = self._log_weight(random.device)
        even: Tensor = torch.rand(count, len(log_weight), device=random.device, generator=random)
        gumbel = -(-even.clamp_(min=1e-30).log()).log()
        return (log_weight + gumbel).topk(self._pairs, dim=1).indices
