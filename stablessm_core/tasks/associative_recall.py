"""Associative recall: read key-value pairs, then recall the value of one key (StableSSM, table 7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.associative_recall import AssociativeRecall
from stablessm_core.tasks.base import EVALUATION, IGNORED, TRAIN, Device, OnDevice, Task, generator, in_batches

EVALUATION_SEQUENCES = 500
EVALUATION_TOKENS = 1 << 22  # maximum number of tokens in the evaluation set; a set of very long sequences is smaller


class AssociativeRecallTask(Task):
    """k v k v ... => q v(q). Every sequence has its own map from keys to values, and length/2 pairs drawn with replacement.

    The query is drawn uniformly from the distinct keys of the sequence. Tokens 0 to K-1 are keys and K to V-3 are values, where
    K is (V - 2) / 2, rounded down. V-2 is the prefix "=>" before the query. V-1 is a no-op that the task does not use. Inputs
    have length + 2 tokens. Training scores the prediction of every next token; evaluation scores only the answer, the last
    token. Every training batch is new; with `train_sequences`, batches are drawn from a fixed set that the run's seed
    determines.

    This generator differs from the paper's generator (HazyResearch/safari, `synthetics.py`). In the paper, the training set is
    always fixed (4,000 sequences), duplicates within and between the training and evaluation sets are removed, tokens are
    numbered in alphabetical order, and one seed gives all runs the same data. In this task, a sequence may occur twice by
    chance, even in both training and evaluation. This is likely only for a tiny vocabulary and length.
    """

    kind = "next_token"

    def __init__(self, section: AssociativeRecall, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        self.vocabulary = self.output_size = section.vocabulary_size
        self.length = section.length + 2
        self._pairs = section.length // 2
        self._keys = (section.vocabulary_size - 2) // 2
        self._values = section.vocabulary_size - 2 - self._keys
        self._train_sequences = section.train_sequences
        self._training: tuple[int, OnDevice] | None = None  # the seed and the fixed training set drawn with it
        count = max(1, min(EVALUATION_SEQUENCES, EVALUATION_TOKENS // self.length))
        tokens = self._sequences(count, generator("cpu", 0, 0, EVALUATION))
        answers = torch.full((count, self.length), IGNORED)
        answers[:, -1] = tokens[:, -1]
        self._evaluation = OnDevice(tokens[:, :-1].contiguous(), answers)
        self.facts = {"pairs": self._pairs, "keys": self._keys, "values": self._values, "evaluation_sequences": count}

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        random = generator(device, seed, step, TRAIN)
        if self._train_sequences is None:
            tokens = self._sequences(batch_size, random)
        else:
            chosen = torch.randint(self._train_sequences, (batch_size,), device=random.device, generator=random)
            tokens = self._training_set(seed, device)[chosen]
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self._evaluation(device)
        return in_batches(batch_size, x, y)

    def _training_set(self, seed: int, device: Device) -> Tensor:
        if self._training is None or self._training[0] != seed:
            assert self._train_sequences is not None
            self._training = seed, OnDevice(self._sequences(self._train_sequences, generator("cpu", seed, 0, TRAIN)))
        return self._training[1](device)[0]

    def _sequences(self, count: int, random: torch.Generator) -> Tensor:
        """(count, length + 3) int64: the pairs, "=>", the query, its value."""

        def draw(below: int, *shape: int) -> Tensor:
            return torch.randint(below, shape, device=random.device, generator=random)

        value_of = self._keys + draw(self._values, count, self._keys)
        keys = draw(self._keys, count, self._pairs)
        pairs = torch.stack([keys, value_of.gather(1, keys)], dim=2).flatten(1)
        absent = torch.ones(count, self._keys, dtype=torch.bool, device=random.device).scatter_(1, keys, False)
        scores = torch.rand(
            count, self._keys, device=random.device, generator=random
        )  # torch.multinomial would wait for the device
        query = scores.masked_fill_(absent, -1.0).argmax(1, keepdim=True)
        prefix = torch.full_like(query, self._keys + self._values)
        return torch.cat([pairs, prefix, query, value_of.gather(1, query)], dim=1)
