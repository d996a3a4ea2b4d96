"""The folders of deleted runs: every machine removes those in its own data directory, whenever it comes to know of them.

A folder is removed only if the database says that the run is deleted and has no such run any more, and only if the folder is
this installation's: it carries the installation's name, or, made by an older program, one of the run's checkpoints. So a worker
that is pointed at another database deletes nothing. Symbolic links are never followed.
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
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import insert_into
from server.database.models import DeletedRun, Installation, Run

NOTE = "installation"  # file in a run's folder
DOOMED = ".deleted-"  # what a folder is called while it is being removed
SETTLED_SECONDS = 30.0  # since the purge: a process that trained the run until then has ended
AT_ONCE = 500
_NUMBER = re.compile(r"[1-9]\d{0,18}")

log = logging.getLogger("stablessm.folders")


def installation_name(database: Database) -> str:
    """The name of this installation, made when it is first asked for."""
    with database.read() as session:
        name = session.scalar(select(Installation.name))
    if name is not None:
        return str(name)
    with database.write() as session:
        mine = {"number": 1, "name": uuid.uuid4().hex}
        session.execute(insert_into(session, Installation).values(mine).on_conflict_do_nothing(index_elements=["number"]))
        return str(session.scalars(select(Installation.name)).one())


def mark(folder: Path, name: str) -> None:
    """Make a run's folder and note whose it is. One that is there without a note stays without: it may be anybody's."""
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
    """Remove the folders of deleted runs here; gives the runs' numbers. `pause` is called between two, True ends it early."""
    runs = data_dir / "runs"
    removed: list[int] = []
    try:
        names = [entry.name for entry in os.scandir(runs) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    for name in names:
        if name.startswith(DOOMED):  # its removal was cut short
            _remove(runs / name)
    numbers = sorted(int(name) for name in names if _NUMBER.fullmatch(name))
    own = installation_name(database) if numbers else ""
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        with database.read() as session:
            deleted = _deleted(session, some, time.time() - settled)
        for run_id, files in deleted.items():
            if pause():
                return removed
            folder = runs / str(run_id)
            if not _is_ours(folder, own, [(data_dir / path, sha256) for path, sha256 in files]):
                log.debug("the folder of a deleted run stays: nothing in it says that it is ours", extra={"run": run_id})
            elif _remove(folder):
                removed.append(run_id)
                log.info("removed the folder of a deleted run", extra={"run": run_id})
    return removed


def _deleted(session: Session, numbers: Iterable[int], until: float) -> dict[int, list[list[str]]]:
    chosen = select(DeletedRun.run_id, DeletedRun.files).where(DeletedRun.run_id.in_(numbers), DeletedRun.at <= until)
    gone = ~select(Run.id).where(Run.id == DeletedRun.run_id).exists()  # an older program may have resumed it
    return dict(session.execute(chosen.where(gone)).all())


def _is_ours(folder: Path, own: str, files: list[tuple[Path, str]]) -> bool:
    names = _names(folder)
    if names is not None:
        return names == {own}
    return any(_sha256(path, folder) == sha256 for path, sha256 in files)


def _names(folder: Path) -> set[str] | None:
    """The installations that a folder names; None if it names none."""
    try:
        with os.fdopen(os.open(folder / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return set(file.read(4096).split()) or None
    except (OSError, UnicodeDecodeError):
        return None


def _sha256(path: Path, folder: Path) -> str | None:
    """Of a plain file below the folder, no link on the way; None if it is none."""
    try:
        if not path.is_relative_to(folder) or path.resolve() != folder.resolve() / path.relative_to(folder):
            return None
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return hashlib.file_digest(file, "sha256").hexdigest() if regular else None
    except OSError:
        return None


def _remove(folder: Path) -> bool:
    """Remove a folder with all in it. It gets another name first: half removed it would not be known as ours any more."""
    doomed = folder if folder.name.startswith(DOOMED) else folder.with_name(f"{DOOMED}{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return False  # another process of this machine was faster
    except OSError as error:
        log.warning("a deleted run's folder cannot be removed: %s", error)
        return False
    return True
