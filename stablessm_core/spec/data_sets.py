"""Lists the data sets in a data directory and their problems. The server and the workers check a run's data before the run."""

from __future__ import annotations

import logging
from pathlib import Path

from stablessm_core.spec.tasks import TASKS

log = logging.getLogger(__name__)


def available_data(data_root: Path) -> dict[str, str]:
    """The state of each data set, "ok" or a problem, keyed by the name that `TaskSection.data_needed` returns.

    The name of a text file is its path in the data directory. Tasks that need no data are not listed.
    """
    taken = frozenset[str]().union(*(section.own_files for section in TASKS.values()))
    found: dict[str, str] = {}
    for name, section in TASKS.items():
        try:
            found |= section.available_data(data_root, taken)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; a worker must still report its other data
            log.error("the data of task %r cannot be checked: %s: %s", name, type(error).__name__, error)
    return found


def is_absent(state: str | None) -> bool:
    """True if a data set with this state is missing, rather than usable or damaged. None: the data set is not listed."""
    return state is None or "no such file" in state or "not installed" in state
