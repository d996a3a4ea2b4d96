"""The loss of a model that has learnt nothing: what the task's own batches say about a constant answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stablessm_core.spec.tasks import TASKS
from stablessm_core.tasks.base import IGNORED
from tests.core.tasks.made import made


def loaded(name: str, **options: Any) -> tuple[Any, Any]:
    return TASKS[name].model_validate({"name": name} | options), made(name, **options)


@pytest.mark.parametrize("kernel", ["paper", "authors"])
def test_always_answering_zero_has_the_chance_loss_of_polynomial_memory(kernel: str) -> None:
    section, task = loaded("polynomial_memory", kernel=kernel, length=40)
    squares = [y.square().mean() for _, y in task.evaluation_batches(512, "cpu")]
    assert section.chance_loss() == pytest.approx(float(torch.stack(squares).mean()), rel=0.03)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("copying", {"noise_length": 5}), ("multi_query_recall", {}),
        ("modular_counting", {"length": 20}), ("digits", {}),
    ],
)  # fmt: skip
def test_guessing_among_the_possible_answers_has_the_chance_loss_of_a_task_with_classes(
    name: str, options: dict[str, Any]
) -> None:
    section, task = loaded(name, **options)
    answers: set[int] = set()
    for step in range(1, 30):
        _, y = task.batch(step, 256, 0, "cpu")
        answers |= set(y[y != IGNORED].unique().tolist())
    assert section.chance_loss() == pytest.approx(math.log(len(answers)))


def test_a_task_without_a_simple_chance_level_has_none() -> None:
    section, _ = loaded("modular_counting", modulus=3)
    assert section.chance_loss() is None
    assert TASKS["associative_recall"].model_validate({"name": "associative_recall"}).chance_loss() is None, (
        "keys are scored, too"
    )
    assert TASKS["char_lm"].model_validate({"name": "char_lm"}).chance_loss() is None
