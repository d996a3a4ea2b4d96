"""Which data is there, and whether a task can use it. Imports no torch: server and supervisor ask before a run starts."""

from __future__ import annotations

import logging
from pathlib import Path

from stablessm_core.tasks.files import DataError
from stablessm_core.tasks.registry import TASKS
from stablessm_core.tasks.section import TaskSection

log = logging.getLogger(__name__)


def task_problem(section: TaskSection, data_root: Path) -> str | None:
    """Why the task cannot run with this data directory, as "path: reason"; None if it can."""
    try:
        section.check_data(data_root)
    except DataError as error:
        return str(error)
    return None


def available_data(data_root: Path) -> dict[str, str]:
    """ "ok" or what is wrong, for each data set of each task by the name that `TaskSection.data_needed` asks for.

    The built-in ones are `mnist`, `digits` and each text file by its path in the data directory. Tasks that need nothing report
    nothing.
    """
    taken = frozenset[str]().union(*(section.own_files for section in TASKS.values()))
    found: dict[str, str] = {}
    for name, section in TASKS.items():
        try:
            found |= section.available_data(data_root, taken)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; a worker must still report its other data
            log.error("the data of task %r cannot be looked at: %s: %s", name, type(error).__name__, error)
    return found
