"""Removes the folders of deleted runs. Every machine does this in its own data directory.

A folder is removed only if the database records the run's deletion and no longer has the run, and only if the folder belongs to
this installation: it contains the installation's name or, if an older program created it, one of the run's checkpoints. So a
worker with the wrong database deletes nothing. Symbolic links are never followed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import insert_into
from server.database.models import DeletedRun, Installation, Run
from server.database.single_runs import try_for_run

NOTE = "installation"  # name of the file in a run's folder that contains the installation's name
DOOMED = ".deleted-"  # prefix of a folder that is being removed
SETTLED_SECONDS = 30.0  # waiting time after the purge: by then, a process that was still training the run has ended
AT_ONCE = 500
_NUMBER = re.compile(r"[1-9]\d{0,18}")

log = logging.getLogger("stablessm.folders")


def installation_name(database: Database) -> str:
    """The name of this installation, created at the first call."""
    with database.read() as session:
        name = session.scalar(select(Installation.name))
    if name is not None:
        return str(name)
    with database.write() as session:
        mine = {"number": 1, "name": uuid.uuid4().hex}
        session.execute(insert_into(session, Installation).values(mine).on_conflict_do_nothing(index_elements=["number"]))
        return str(session.scalars(select(Installation.name)).one())


def mark(folder: Path, name: str) -> None:
    """Create a run's folder with a file that names the installation. An existing folder without this file is not changed,
    because it may belong to another installation."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if (names := _names(folder)) is None or name in names:
            return
    with os.fdopen(os.open(folder / NOTE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(f"{name}\n")


def remove_deleted(
    database: Database, data_dir: Path, *, settled: float = SETTLED_SECONDS, pause: Callable[[], bool] = lambda: False
) -> list[int]:
    """Remove the folders of deleted runs on this machine and return the runs' ids. Stops early if `pause` returns True."""
    runs = data_dir / "runs"
    removed: list[int] = []
    try:
        names = [entry.name for entry in os.scandir(runs) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    for name in names:
        if name.startswith(DOOMED):  # an earlier removal was interrupted
            _remove(runs / name)
    numbers = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
    own = installation_name(database) if numbers else ""
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        with database.read() as session:
            deleted = _deleted(session, some, time.time() - settled)
        for run_id in deleted:
            if pause():
                return removed
            if try_for_run(run_id, "removing folders", partial(_remove_ours, database, data_dir, run_id, own), False):
                removed.append(run_id)
                log.info("removed the folder of a deleted run", extra={"run": run_id})
    return removed


def _deleted(session: Session, numbers: Iterable[int], until: float) -> list[int]:
    chosen = select(DeletedRun.run_id).where(DeletedRun.run_id.in_(numbers), DeletedRun.at <= until)
    gone = ~select(Run.id).where(Run.id == DeletedRun.run_id).exists()  # an older program may have resumed the run
    return list(session.scalars(chosen.where(gone).order_by(DeletedRun.run_id)))


def _remove_ours(database: Database, data_dir: Path, run_id: int, own: str) -> bool:
    """Remove the folder of a deleted run if it belongs to this installation. Returns True if it was removed."""
    with database.read() as session:
        files = session.scalar(select(DeletedRun.files).where(DeletedRun.run_id == run_id)) or []
    folder = data_dir / "runs" / str(run_id)
    if not _is_ours(folder, own, [(data_dir / path, sha256) for path, sha256 in files]):
        log.debug("kept the folder of a deleted run: it may belong to another installation", extra={"run": run_id})
        return False
    return _remove(folder)


def _is_ours(folder: Path, own: str, files: list[tuple[Path, str]]) -> bool:
    names = _names(folder)
    if names is not None:
        return names == {own}
    return any(_sha256(path, folder) == sha256 for path, sha256 in files)


def _names(folder: Path) -> set[str] | None:
    """The installation names in the folder's file NOTE; None if there is no such file."""
    try:
        with os.fdopen(os.open(folder / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return set(file.read(4096).split()) or None
    except (OSError, UnicodeDecodeError):
        return None


def _sha256(path: Path, folder: Path) -> str | None:
    """SHA-256 of a regular file inside the folder; None if it is not a regular file, or is reached through a link."""
    try:
        if not path.is_relative_to(folder) or path.resolve() != folder.resolve() / path.relative_to(folder):
            return None
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return hashlib.file_digest(file, "sha256").hexdigest() if regular else None
    except OSError:
        return None


def _remove(folder: Path) -> bool:
    """Remove a folder. It is renamed first, because a half-removed folder might no longer be recognised as a folder of this
    installation."""
    doomed = folder if folder.name.startswith(DOOMED) else folder.with_name(f"{DOOMED}{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return False  # another process on this machine has removed the folder
    except OSError as error:
        log.warning("cannot remove the folder of a deleted run: %s", error)
        return False
    return True
