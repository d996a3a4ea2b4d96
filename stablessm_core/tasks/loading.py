"""From a task's section of the configuration to the task that a model is trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from stablessm_core.tasks.base import Task
from stablessm_core.tasks.registry import TASKS
from stablessm_core.tasks.section import TaskSection

log = logging.getLogger(__name__)


def get_task(section: TaskSection, data_root: Path) -> Task:
    """The task with its data loaded. Raises DataError (a ValueError) with path and reason if that is missing or damaged."""
    return _maker(type(section))(section, data_root)


def trainable_tasks() -> list[str]:
    """Names of the tasks whose training part can be imported here: what a worker reports."""
    names = []
    for name, section in TASKS.items():
        try:
            _maker(section)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the other tasks can still be trained
            log.error("task %r cannot be trained here: %s: %s", name, type(error).__name__, error)
        else:
            names.append(name)
    return names


def _maker(section: type[TaskSection]) -> Callable[[TaskSection, Path], Task]:
    module, _, name = section.trained_by.partition(":")
    maker: Callable[[TaskSection, Path], Task] = getattr(import_module(module), name)
    return maker
