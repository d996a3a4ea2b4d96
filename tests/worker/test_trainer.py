"""Between two runs, a training process keeps the images of the ended run only for a run that needs the same memory."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stablessm_core.spec.data import files
from worker.trainer import _Runs


def assignment(**changes: Any) -> dict[str, Any]:
    config = {"task": {"name": "mnist"}, "model": {"d_model": 8}, "train": {"batch_size": 4}, "optimizer": {"name": "adamw"}}
    return {"config": config | changes}


@pytest.mark.parametrize(
    ("following", "reads"), [(assignment(), 1), (assignment(task={"name": "mnist", "pool": 2}), 2)], ids=["same", "other"]
)
def test_the_images_are_forgotten_if_the_next_run_needs_other_memory(following: dict[str, Any], reads: int) -> None:
    runs = _Runs.__new__(_Runs)  # without a worker at the other end of its pipe
    runs._arrived = queue.SimpleQueue()
    runs._arrived.put(following)
    made: list[NDArray[np.float64]] = []

    def read() -> NDArray[np.float64]:
        made.append(np.zeros(3))
        return made[-1]

    try:
        files.read_unless_last(("images",), [], read)
        assert runs.next(assignment()) is following
        files.read_unless_last(("images",), [], read)
        assert len(made) == reads
    finally:
        files.forget_last()
