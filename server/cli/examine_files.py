"""What `stablessm doctor` finds on disk: who may read it, and whether the checkpoints of the runs are there and whole."""

from __future__ import annotations

import hashlib
import stat
import time
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.models import CheckpointRow
from server.settings import Settings

OK, NOTE, BAD = "ok", "note", "missing"
CHECKPOINT_SECONDS = 20.0
KEPT = 2  # newest checkpoints of a run whose files stay
CHUNK_BYTES = 1 << 20
Finding = tuple[str, str, str, str]  # state, what, how it is, how to mend it


def rights(settings: Settings) -> list[Finding]:
    """The data directory, the token and the database are their owner's alone."""
    database = Database(settings.database_url)
    wanted = [(settings.data_dir, "700"), (settings.data_dir / "token", "600")]
    if database.path is not None:
        wanted += [(database.path.with_name(database.path.name + ending), "600") for ending in ("", "-wal", "-shm")]
    database.close()
    found: list[Finding] = []
    for path, mode in wanted:
        try:
            given = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append((BAD, "rights", f"{path}: {error.strerror}", "run the doctor as the user that runs the service"))
            continue
        if given & (stat.S_IRWXG | stat.S_IRWXO):
            who = "everybody on this machine" if given & stat.S_IRWXO else "its group"
            found.append((BAD, "rights", f"{path} is open to {who} (mode {given:o})", f"chmod {mode} '{path}'"))
    return found or [(OK, "rights", f"{settings.data_dir} is its owner's alone", "")]


def checkpoints(settings: Settings, *, deep: bool) -> list[Finding]:
    """The newest checkpoints of each run: there, and with the SHA-256 that was recorded. `deep`: however long it takes."""
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return []
    try:
        with database.read() as session:
            columns = (CheckpointRow.run_id, CheckpointRow.path, CheckpointRow.sha256, CheckpointRow.stored_at)
            rows = session.execute(select(*columns).order_by(CheckpointRow.run_id.desc(), CheckpointRow.step.desc())).all()
    except SQLAlchemyError:
        return []  # no database, or an older schema: said above
    finally:
        database.close()
    newest: dict[int, list[tuple[Path, str]]] = {}
    for run_id, path, sha256, stored_at in rows:
        if stored_at is None and len(newest.setdefault(run_id, [])) < KEPT:  # else a run finds it in the checkpoint store
            newest[run_id].append((settings.data_dir / path, sha256))
    # several machines train for one PostgreSQL: a run without a folder here is another one's
    elsewhere = [run for run in newest if database.path is None and not (settings.data_dir / "runs" / str(run)).exists()]
    files = [file for run, of_run in newest.items() if run not in elsewhere for file in of_run]
    missing = [path for path, _ in files if not path.is_file()]
    damaged, looked_at = _damaged([file for file in files if file[0].is_file()], deep=deep)
    found: list[Finding] = []
    mend = "its run would begin further back: restore a backup, or delete the run"
    if missing:
        found.append((BAD, "checkpoints", f"{len(missing):,} of {len(files):,} are missing, such as {missing[0]}", mend))
    if damaged:
        found.append((BAD, "checkpoints", f"{len(damaged):,} are cut short or damaged, such as {damaged[0]}", mend))
    if elsewhere:
        found.append(
            (NOTE, "checkpoints", f"those of {len(elsewhere):,} runs are not on this machine", "run the doctor where they are")
        )
    if not missing and not damaged:
        part = "" if looked_at == len(files) else f"; {looked_at:,} read, --deep reads all"
        found.append((OK, "checkpoints", f"{len(files):,} there{part}", ""))
    return found


def _damaged(files: list[tuple[Path, str]], *, deep: bool) -> tuple[list[Path], int]:
    """Files with another SHA-256 than recorded, and how many were looked at in the time there is."""
    until = float("inf") if deep else time.monotonic() + CHECKPOINT_SECONDS
    damaged: list[Path] = []
    for number, (path, sha256) in enumerate(files):
        if time.monotonic() > until:
            return damaged, number
        try:
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
        except OSError:
            damaged.append(path)
            continue
        if digest.hexdigest() != sha256:
            damaged.append(path)
    return damaged, len(files)
