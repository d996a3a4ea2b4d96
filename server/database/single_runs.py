"""Regular work on many runs continues with the next run if the data of one run makes the work fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from server.database.revision import SchemaMismatch

# Errors after which a retry may succeed, because the database cannot be reached or cannot write at the moment. InternalError
# means that the database ended a transaction in which this process was suspended, or that it is a standby that is still
# read-only.
DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)
NOT_OF_A_RUN = (*DATABASE_AWAY, SchemaMismatch)  # errors that every other run would also meet

Result = TypeVar("Result")

log = logging.getLogger("stablessm.runs")


def try_for_run(run_id: int, name: str, work: Callable[[], Result], otherwise: Result) -> Result:
    """The result of the work for one run; `otherwise`, after writing the error to the log, if the work fails for this run.

    name: the work, for the log. Raises the errors in NOT_OF_A_RUN, because then the work on all runs must wait.
    """
    try:
        return work()
    except NOT_OF_A_RUN:
        raise
    except Exception as error:
        text = str(error).partition("\n")[0][:300]
        log.exception("%s leaves this run as it is: %s: %s", name, type(error).__name__, text, extra={"run": run_id})
        return otherwise
