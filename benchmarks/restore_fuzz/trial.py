"""Restores one file into an empty installation and compares what is there before and afterwards."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from server.backup.archive import members, verify
from server.backup.create import backup
from server.cli.main import main
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import parse_config

LONGEST = 1500  # characters of a sentence; a path may be long


@dataclass
class Tally:
    """Counts per kind of file, and every violation."""

    restored: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def genuine_backup(folder: Path) -> bytes:
    """A backup of an installation with some runs and files."""
    folder.mkdir()
    state = folder / "state"
    database = Database(f"sqlite:///{folder / 'genuine.db'}")
    database.migrate()
    with database.write() as session:
        for seed in range(3):
            run = lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}, "train": {"seed": seed}})).id
            place = state / "runs" / str(run)
            place.mkdir(parents=True)
            (place / "log.txt").write_text("a log\n" * 100)
    file, _ = backup(database, state, folder / "genuine.backup", lambda _: None)
    database.close()
    return file.read_bytes()


class Targets:
    """Empty installations in a folder: one with an empty database of the current schema, one without a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._empty = folder / "empty.db"
        folder.mkdir()
        database = Database(f"sqlite:///{self._empty}")
        database.migrate()
        database.close()
        with closing(sqlite3.connect(self._empty)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def take(self, kind: str, content: bytes, seed: int, tally: Tally) -> None:
        """Restore this file, and note whether it was restored fully, refused with nothing changed, or neither."""
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        (place / "state").mkdir(parents=True, mode=0o700)
        (place / "state" / "token").write_text("a token that was there")
        (place / "neighbour").write_text("a file outside")
        if seed % 2:
            shutil.copy(self._empty, place / "new.db")
        file = self.folder / "hostile.backup"
        file.write_bytes(content)
        before = _what_is_there(place)
        url = f"sqlite:///{place / 'new.db'}"
        done = CliRunner().invoke(main, ["restore", str(file), "--database-url", url, "--data-dir", str(place / "state")])
        name = f"{kind}, seed {seed}"
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            tally.wrong.append(f"{name}: {type(done.exception).__name__}: {done.exception}"[:300])
        elif done.exit_code:
            tally.refused[kind] += 1
            said = [line for line in done.output.strip().splitlines() if "rows" not in line.partition("Error")[0]]
            said = [line for line in said if " is undamaged: " not in line]
            if len(said) != 1 or not said[0].startswith("Error: ") or len(said[0]) > LONGEST:
                tally.wrong.append(f"{name}: not one sentence: {done.output[-300:]!r}")
            if (after := _what_is_there(place)) != before:
                tally.wrong.append(f"{name}: changed {sorted(set(before.items()) ^ set(after.items()))[:3]}")
        else:
            tally.restored[kind] += 1
            tally.wrong += [f"{name}: restored, but {what}" for what in _missing(file, place)]


def _what_is_there(place: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder; of a database: its schema version, tables and number of rows."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if name == "new.db":
            with closing(sqlite3.connect(path)) as connection:
                tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]
                counts = {t: connection.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0] for t in tables}
                counts.pop("sqlite_sequence", None)  # SQLite makes this table with the first row and keeps it
                version = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            found[name] = f"{version} {counts}"
        elif path.is_file() and not name.startswith("new.db-"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_dir() and name != "state/runs":  # `restore` may leave this folder empty
            found[name] = "folder"
    return found


def _missing(file: Path, place: Path) -> list[str]:
    """What a restored installation lacks of its backup."""
    manifest, wrong = verify(file), []
    with closing(sqlite3.connect(place / "new.db")) as connection:
        for info in manifest.tables:
            count = connection.execute(f'SELECT count(*) FROM "{info.name}"').fetchone()[0]
            if count != info.rows:
                wrong.append(f"{info.name} has {count} of {info.rows} rows")
    for name, content in members(file):
        if name.startswith("files/"):
            restored = place / "state" / name.removeprefix("files/")
            if not restored.is_file() or restored.read_bytes() != content.read():
                wrong.append(f"{name} is missing")
    return wrong
