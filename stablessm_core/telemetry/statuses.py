"""The only list of a run's statuses. The database, the API, the client and the verdict import this list. A test compares the
pages, scripts, style sheets and docs with the list.
"""

from __future__ import annotations

from typing import Literal, get_args

Status = Literal["queued", "running", "finished", "failed", "diverged", "cancelled"]
STATUSES: tuple[Status, ...] = get_args(Status)
OPEN: tuple[Status, ...] = ("queued", "running")  # statuses of a run that is waiting or training
FINAL: tuple[Status, ...] = tuple(status for status in STATUSES if status not in OPEN)
RESUMABLE: tuple[Status, ...] = tuple(status for status in FINAL if status != "finished")
