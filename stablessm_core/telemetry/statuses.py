"""The only list of a run's statuses. The database, the API, the client and the verdict import this list. A test compares the
pages, scripts, style sheets and docs with the list.
"""

from __future__ import annotations

from typing import Literal, get_args

Status = Literal["queued", "running", "finished", "failed", "diverged", "cancelled", "lost"]
STATUSES: tuple[Status, ...] = get_args(Status)
OPEN: tuple[Status, ...] = ("queued", "running")  # statuses of a run that is waiting or training
# The program of a reported run fell silent. The run is neither waiting nor training, and it may go on or end later.
LOST: Status = "lost"
FINAL: tuple[Status, ...] = tuple(status for status in STATUSES if status not in (*OPEN, LOST))
AT_REST: tuple[Status, ...] = (*FINAL, LOST)  # statuses of a run that nobody trains at the moment
RESUMABLE: tuple[Status, ...] = tuple(status for status in FINAL if status != "finished")  # by our workers
