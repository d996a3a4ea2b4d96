"""The limit on open files (RLIMIT_NOFILE): raised at the start, and refused in one sentence if it is too low."""

from __future__ import annotations

import resource

SERVER_NEEDS = 256  # the database, Redis, the assets, and a hundred connections
WORKER_NEEDS, SLOT_NEEDS = 96, 16  # of a worker: for itself, and for each slot (pipes, the training process, its files)


class TooFewFiles(ValueError):
    """The limit on open files is too low; the message says how many are needed and how to raise the limit."""


def allow_open_files(wanted: int, needed: int, who: str) -> None:
    """Raise the soft limit on open files to `wanted`, or as far as the hard limit allows; never lower it.

    Raises TooFewFiles if fewer than `needed` files may be open even then. who: the program in the message.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft < needed:
        raise TooFewFiles(
            f"{who} needs at least {needed} open files, but the hard limit of this process is {hard}: raise it with "
            "`ulimit -Hn 1024`, LimitNOFILE= of systemd, or `--ulimit nofile=1024` of Docker"
        )


def needed_by_worker(slots: int) -> int:
    """The number of files that a worker with this many slots may have open at a time."""
    return WORKER_NEEDS + SLOT_NEEDS * slots
