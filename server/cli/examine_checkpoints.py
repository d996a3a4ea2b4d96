"""The check of `stablessm doctor` on checkpoints: does the file of every checkpoint that a run can resume from exist undamaged,
on this machine or in the checkpoint store?"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from server.checkpoint_store import CheckpointStore, StoreError
from server.cli.examine_files import BAD, NOTE, OK, Finding
from server.database.connection import Database
from server.database.models import CheckpointRow
from server.lifecycle.checkpoints import KEPT
from server.settings import Settings

CHECKPOINT_SECONDS = 20.0
CHUNK_BYTES = 1 << 20
UNHARMED = (
    "keep these runs: all their numbers and pages are intact, and only resuming and forking need the file; "
    "a backup may contain it (copy it to this path)"
)
STORE_FIX = "correct STABLESSM_CHECKPOINT_STORE and the AWS_* variables, or wait until the store answers again"


@dataclass(frozen=True)
class _Checkpoint:
    path: str
    sha256: str
    size: int  # 0: unknown
    is_copied: bool  # the database says that the checkpoint store has it


@dataclass
class _Sorted:
    """Every checkpoint that a run can resume from, by the place of its file."""

    here: list[_Checkpoint] = field(default_factory=list)
    stored: list[_Checkpoint] = field(default_factory=list)
    elsewhere: list[_Checkpoint] = field(default_factory=list)
    missing: list[_Checkpoint] = field(default_factory=list)


def checkpoints(settings: Settings, *, deep: bool) -> list[Finding]:
    """Findings on whether the newest checkpoints of each run exist, here or in the checkpoint store, with the recorded SHA-256.
    deep: read all files, however long that takes."""
    newest = _newest(settings)
    if newest is None:
        return []
    store, found = _open_store(settings, needed=any(one.is_copied for one in newest))
    sizes: dict[str, int] | None = None
    if store is not None and not all((settings.data_dir / one.path).is_file() for one in newest):
        try:
            sizes = store.sizes()
        except StoreError as error:
            found.append((BAD, "checkpoint store", str(error), STORE_FIX))
    places = _sort(newest, settings, sizes)
    until = float("inf") if deep else time.monotonic() + CHECKPOINT_SECONDS
    damaged, checked = _damaged(places.here, lambda one: (settings.data_dir / one.path).open("rb"), until)
    if sizes is not None:
        damaged += [one for one in places.stored if one.size not in (0, sizes[one.path])]
    if deep and store is not None and sizes is not None:
        in_store, read = _damaged([one for one in places.stored if one not in damaged], lambda one: store.open(one.path), until)
        damaged, checked = damaged + in_store, checked + read
    return found + _findings(places, damaged, checked, settings)


def _newest(settings: Settings) -> list[_Checkpoint] | None:
    """The checkpoints of each run whose files are kept; None without a readable database."""
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return None
    columns = (CheckpointRow.path, CheckpointRow.sha256, CheckpointRow.bytes, CheckpointRow.stored_at, CheckpointRow.run_id)
    newest: defaultdict[int, list[_Checkpoint]] = defaultdict(list)
    try:
        with database.read() as session:
            rows = session.execute(select(*columns).order_by(CheckpointRow.run_id.desc(), CheckpointRow.step.desc()))
            for path, sha256, size, stored_at, run_id in rows:
                # older files are deleted everywhere, so copied checkpoints count here too
                if len(newest[run_id]) < KEPT:
                    newest[run_id].append(_Checkpoint(path, sha256, size, stored_at is not None))
    except SQLAlchemyError:
        return None  # no database, or an older schema: the check of the database reports this
    finally:
        database.close()
    return [one for of_run in newest.values() for one in of_run]


def _open_store(settings: Settings, *, needed: bool) -> tuple[CheckpointStore | None, list[Finding]]:
    if settings.checkpoint_store is None:
        return None, [_UNKNOWN_STORE] if needed else []
    try:
        return CheckpointStore(settings.checkpoint_store), []
    except ValueError as error:
        return None, [(BAD, "checkpoint store", str(error), "")]


_UNKNOWN_STORE: Finding = (
    NOTE,
    "checkpoint store",
    "some checkpoints are only in a checkpoint store, and none is set here, so they are not checked",
    "set STABLESSM_CHECKPOINT_STORE to the value that the workers have",
)


def _sort(newest: list[_Checkpoint], settings: Settings, sizes: dict[str, int] | None) -> _Sorted:
    """sizes: the size of every file in the store; None if the store cannot be read."""
    has_one_disk = settings.database_url.startswith("sqlite")  # with PostgreSQL several machines may train
    places = _Sorted()
    for one in newest:
        path = settings.data_dir / one.path
        if path.is_file():
            places.here.append(one)
        elif one.is_copied if sizes is None else one.path in sizes:
            places.stored.append(one)
        elif not has_one_disk and not one.is_copied and not path.parent.exists():
            places.elsewhere.append(one)  # another machine has trained this attempt
        else:
            places.missing.append(one)
    return places


def _findings(places: _Sorted, damaged: list[_Checkpoint], checked: int, settings: Settings) -> list[Finding]:
    total = len(places.here) + len(places.stored) + len(places.missing)
    found: list[Finding] = []
    if places.missing:
        first = _place(places.missing[0], settings)
        found.append((BAD, "checkpoints", f"{len(places.missing):,} of {total:,} are missing, such as {first}", UNHARMED))
    if damaged:
        first = _place(damaged[0], settings)
        found.append((BAD, "checkpoints", f"{len(damaged):,} are incomplete or damaged, such as {first}", UNHARMED))
    if places.elsewhere:
        count = len(places.elsewhere)
        found.append((NOTE, "checkpoints", f"{count:,} are on other machines", "run the doctor there"))
    if not places.missing and not damaged:
        in_store = f", {len(places.stored):,} of them only in the checkpoint store" if places.stored else ""
        part = "" if checked == total else f"; {checked:,} of them were read, --deep reads all"
        found.append((OK, "checkpoints", f"{total:,} exist{in_store}{part}", ""))
    return found


def _place(one: _Checkpoint, settings: Settings) -> str:
    return str(settings.data_dir / one.path)


def _damaged(
    found: list[_Checkpoint], open_file: Callable[[_Checkpoint], IO[bytes]], until: float
) -> tuple[list[_Checkpoint], int]:  # fmt: skip
    """The checkpoints whose SHA-256 differs from the recorded value, and the number of files read before the time `until`."""
    damaged: list[_Checkpoint] = []
    for number, one in enumerate(found):
        if time.monotonic() > until:
            return damaged, number
        try:
            with open_file(one) as file:
                digest = hashlib.sha256()
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
        except (OSError, StoreError):
            damaged.append(one)
            continue
        if digest.hexdigest() != one.sha256:
            damaged.append(one)
    return damaged, len(found)
