"""Build the task that a section of the configuration describes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from stablessm_core.spec.task import TaskSection
from stablessm_core.spec.tasks import TASKS
from stablessm_core.tasks.base import Task

log = logging.getLogger(__name__)


def get_task(section: TaskSection, data_root: Path) -> Task:
    """The task with its data loaded. Raises DataError (a ValueError), with path and reason, if the data is missing or damaged."""
    return _maker(type(section))(section, data_root)


def trainable_tasks() -> list[str]:
    """Names of the tasks whose torch code this process can import. A worker reports these names to the service."""
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
