"""Multi-query associative recall, as in HazyResearch/zoology, `zoology/data/multiquery_ar.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.tasks.base import IGNORED, OnDevice
from stablessm_core.tasks.generated import GeneratedTask, distinct
from stablessm_core.tasks.multi_query_recall.section import MultiQueryRecall


class MultiQueryRecallTask(GeneratedTask):
    """k v k v ..., then each key once more somewhere behind; y is its value there and IGNORED elsewhere.

    Keys are 1 .. V/2 - 1, values V/2 .. V - 1, both without repetition in a sequence; 0 is blank. Behind the 2 P tokens of
    pairs lie S = (length - 2 P) / 2 slots of two tokens; the keys, in their order, take slots without repetition with
    probability p(i) ~ i^(a-1), i = 1 .. S. What is still blank becomes a random token of the whole vocabulary.

    Published: a fixed set of 100,000 sequences; here every training batch is new.
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
        """(count, pairs): slots in the order of drawing one by one without repetition, which the largest of
        log p + Gumbel noise are, in falling order."""
        (log_weight,) = self._log_weight(random.device)
        even: Tensor = torch.rand(count, len(log_weight), device=random.device, generator=random)
        gumbel = -(-even.clamp_(min=1e-30).log()).log()
        return (log_weight + gumbel).topk(self._pairs, dim=1).indices
