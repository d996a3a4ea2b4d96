"""A feed returns exactly the batches of its task, in the requested order, no matter how early it prepared them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.tasks import TASKS
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.loading import get_task

ASKED = [1, 2, 3, 9, 4, 5, 5, 6]  # requested steps: rollbacks go back, and a resumed run begins at any step


def task_of(name: str) -> Task:
    return get_task(parse_config({"task": {"name": name}}).task, Path("/nonexistent"))


NEED_NO_DATA = [name for name in TASKS if not parse_config({"task": {"name": name}}).task.data_needed()]


@pytest.mark.parametrize("name", NEED_NO_DATA)
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
        ),
    ],
)
@pytest.mark.slow
def test_the_feed_returns_batches_with_the_same_bits_as_the_task(name: str, device: str) -> None:
    feed = Feed(task_of(name), 8, 3, torch.device(device))
    task = task_of(name)
    for step in ASKED:
        for fed, own in zip(feed(step), task.batch(step, 8, 3, device), strict=True):
            assert torch.equal(fed, own), step
