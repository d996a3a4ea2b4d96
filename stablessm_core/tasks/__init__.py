"""The tasks a model is trained on. Importing this package imports no torch; `get_task` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stablessm_core import config

if TYPE_CHECKING:
    from stablessm_core.tasks.base import Task

__all__ = ["get_task"]


def get_task(task: config.Task, data_root: Path) -> Task:
    """The task with its data loaded. Raises DataError (a ValueError) with path and reason if that is missing or damaged."""
    if isinstance(task, config.PolynomialMemory):
        from stablessm_core.tasks.polynomial_memory import PolynomialMemory

        return PolynomialMemory(task)
    if isinstance(task, config.Mnist | config.Digits):
        from stablessm_core.tasks.images import digits, mnist

        return mnist(task, data_root) if isinstance(task, config.Mnist) else digits(task)
    if isinstance(task, config.AssociativeRecall):
        from stablessm_core.tasks.associative_recall import AssociativeRecall

        return AssociativeRecall(task)
    from stablessm_core.tasks.char_lm import CharLm

    return CharLm(task, data_root)
