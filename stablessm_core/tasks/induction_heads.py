"""Induction heads, as in HazyResearch/safari, `src/dataloaders/synthetics.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.induction_heads import InductionHeads
from stablessm_core.tasks.base import IGNORED
from stablessm_core.tasks.generated import GeneratedTask

EVALUATION_SEQUENCES = 500


class InductionHeadsTask(GeneratedTask):
    """`length` random tokens from 0 to V-3, some overwritten by triggers (V-2), then the trigger again, then the answer.

    The answer is the k tokens that follow the first trigger; they also follow every other trigger. The positions of the triggers
    are drawn uniformly from 0 to length - k - 2. On average, half of the sequences have `triggers` positions and the others
    have one position. In ascending order, each position that is at most k after the last kept position is dropped. Token V-1,
    a no-op, is not used. Training scores every next token; evaluation scores the k tokens of the answer.

    The published version has a fixed set of 5,000 sequences without duplicates, with tokens numbered in alphabetical order. In
    this task, every training batch is new.
    """

    kind = "next_token"

    def __init__(self, section: InductionHeads, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        super().__init__(length=section.sequence_length(), evaluation_sequences=EVALUATION_SEQUENCES)
        self.vocabulary = self.output_size = section.vocabulary_size
        self._random_tokens, self._answer, self._triggers = section.length, section.induction_length, section.triggers
        self.facts |= {"answer": section.induction_length, "triggers": section.triggers}

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        device, trigger = random.device, self.output_size - 2
        tokens = torch.randint(trigger, (count, self._random_tokens), device=device, generator=random)
        places, kept = self._places(count, random)
        behind = torch.arange(1, self._answer + 1, device=device)
        answer = tokens.gather(1, places[:, :1] + behind)
        spare = self._random_tokens  # dropped triggers are written to this position; the last trigger then overwrites them
        tokens = torch.cat([tokens, torch.zeros_like(tokens[:, :1]), answer], dim=1)
        for place, keep in zip(places.unbind(1), kept.unbind(1), strict=True):
            at = torch.where(keep, place, spare).unsqueeze(1)
            tokens.scatter_(1, at, trigger)
            tokens.scatter_(1, torch.where(keep.unsqueeze(1), at + behind, spare), answer)
        tokens[:, spare] = trigger
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def scored(self, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - by position alone
        answers = torch.full_like(y, IGNORED)
        answers[:, -self._answer :] = y[:, -self._answer :]
        return answers

    def _places(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """The positions of the triggers in ascending order, and a mask of the kept positions, both (count, triggers)."""
        below = self._random_tokens - 1 - self._answer
        places = torch.randint(below, (count, self._triggers), device=random.device, generator=random)
        single: Tensor = torch.rand(count, device=random.device, generator=random) < 0.5
        places = torch.where(single.unsqueeze(1), places[:, :1], places).sort(dim=1).values  # equal positions count as one
        last, kept = places[:, 0], [torch.ones(count, dtype=torch.bool, device=random.device)]
        for place in places.unbind(1)[1:]:
            kept.append(place - last > self._answer)
            last = torch.where(kept[-1], place, last)
        return places, torch.stack(kept, dim=1)
