"""`stablessm doctor` finds what is old, open, missing, unreachable or cut short, says what to do, and ends with status 1."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from server.cli import doctor
from server.cli.examine_files import KEPT
from server.cli.main import main
from server.database.connection import Database
from server.database.models import BlockRow, CheckpointRow
from server.series.recording import store_checkpoint
from tests.server.http_service import TOKEN, running
from tests.server.recording import Recording, claimed

pytestmark = pytest.mark.slow


@pytest.fixture
def installation(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything in order: a run with numbers and three checkpoints, a token, data that is whole."""
    monkeypatch.setattr(doctor, "_torch", lambda _: [])  # its import takes seconds, and nothing here is about it
    data_dir.mkdir(mode=0o700)
    database = Database(f"sqlite:///{data_dir}/stablessm.db")
    database.migrate()
    claim = claimed(database)
    Recording(database, claim).write(8)
    for step in (2, 4, 6):
        path = f"runs/{claim.run_id}/checkpoints/attempt-1/step-{step}.safetensors"
        place = data_dir / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if step > 2:  # the oldest file goes as soon as two newer ones are recorded
            place.write_bytes(b"weights" * step)
        digest = hashlib.sha256(b"weights" * step).hexdigest()
        with database.write() as session:
            store_checkpoint(session, claim.run_id, claim.attempt, step, path, digest)
    database.close()
    (data_dir / "token").write_text(TOKEN)
    (data_dir / "token").chmod(0o600)
    (data_dir / "data").mkdir()
    with gzip.open(data_dir / "data" / "text.txt.gz", "wb") as text:
        text.write(os.urandom(3000).hex().encode())
    return data_dir


def examine(folder: Path, *more: str, **variables: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["doctor", "--data-dir", str(folder), *more], env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_nothing_is_wrong_with_an_installation_in_order(installation: Path) -> None:
    code, output = examine(installation)
    assert code == 0, output
    assert f"{KEPT} there" in output
    code, output = examine(installation.parent / "new")
    assert code == 0, output


def old_schema(folder: Path) -> None:
    database = Database(f"sqlite:///{folder}/stablessm.db")
    database.migrate("0008", lose=True)
    database.close()


def checkpoint(folder: Path) -> Path:
    return next(folder.glob("runs/*/checkpoints/*/step-6.*"))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damaged_block(folder: Path) -> None:
    database = Database(f"sqlite:///{folder}/stablessm.db")
    with database.write() as session:
        session.execute(update(BlockRow).where(BlockRow.level == 0).values(payload=b"\x02nothing"))
    database.close()


def damaged_pages(folder: Path) -> None:
    path = folder / "stablessm.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    half(path)


def mnist_cut_short(folder: Path) -> None:
    (folder / "data" / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (folder / "data" / "mnist" / name).write_bytes(
            b"\0\0\x08\x03\0\0\0\x05" if "images" in name else b"\0\0\x08\x01\0\0\0\x05"
        )


def ended(folder: Path) -> None:
    (folder / "up.json").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:1"}))


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "an old schema": (old_schema, "needs 0016", "stablessm migrate"),
    "an open data directory": (lambda folder: folder.chmod(0o755), "open to everybody", "chmod 700"),
    "an open token": (lambda folder: (folder / "token").chmod(0o644), "token is open to everybody", "chmod 600"),
    "an open database": (lambda folder: (folder / "stablessm.db").chmod(0o640), "stablessm.db is open to its group", "chmod 600"),
    "a missing checkpoint": (lambda folder: checkpoint(folder).unlink(), "1 of 2 are missing", "restore a backup"),
    "missing checkpoints": (lambda folder: shutil.rmtree(folder / "runs"), "2 of 2 are missing", "restore a backup"),
    "a checkpoint cut short": (lambda folder: half(checkpoint(folder)), "1 are cut short", "restore a backup"),
    "numbers that cannot be read": (damaged_block, "run 1", "stablessm restore"),
    "a database cut short": (damaged_pages, "is damaged", "stablessm restore"),
    "a text cut short": (lambda folder: half(folder / "data" / "text.txt.gz"), "is truncated", "again"),
    "MNIST cut short": (mnist_cut_short, "data set mnist", "again"),
    "a server that ended without a word": (ended, "does not answer", "start"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_what_to_do_about_it(installation: Path, fault: str) -> None:
    make, found, mend = FAULTS[fault]
    make(installation)
    code, output = examine(installation)
    assert code == 1, output
    lines = [line for line in output.splitlines() if line.startswith("missing")]
    assert found in "".join(lines), output
    assert mend in output


def test_a_server_that_is_named_has_to_answer(installation: Path, sqlite_url: str, tmp_path: Path) -> None:
    code, output = examine(installation, STABLESSM_URL="http://127.0.0.1:1")
    assert (code, "127.0.0.1:1 does not answer" in output) == (1, True), output
    with running(sqlite_url, tmp_path / "other") as (address, _):
        code, output = examine(installation, STABLESSM_URL=address)
        assert (code, "is ready" in output) == (0, True), output
        code, output = examine(installation, STABLESSM_URL=address, STABLESSM_TOKEN="wrong-wrong-wrong-wrong")
        assert (code, "STABLESSM_TOKEN" in output) == (1, True), output


def test_what_is_made_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    made = tmp_path / "state"
    program = (
        "import os, sys; os.umask(0o022)\n"
        "from pathlib import Path; from server.access.scopes import load_or_create_token\n"
        "from server.database.connection import Database; folder = Path(sys.argv[1])\n"
        "database = Database(f'sqlite:///{folder}/stablessm.db'); database.migrate(); load_or_create_token(folder / 'token')\n"
        "with database.write() as session: session.connection().exec_driver_sql('CREATE TABLE x (y)')\n"
        "for path in (folder, *folder.iterdir()): print(path.name, oct(path.stat().st_mode & 0o777))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(made)], capture_output=True, text=True, timeout=200, check=True)
    modes = dict(line.split() for line in done.stdout.splitlines())
    assert modes["state"] == "0o700"
    assert {"stablessm.db", "stablessm.db-wal", "stablessm.db-shm", "token"} <= modes.keys()
    assert {name: mode for name, mode in modes.items() if name != "state" and mode != "0o600"} == {}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_checkpoints_of_another_machine_are_no_fault(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda _: [])
    database = Database(postgres_url)
    claim = claimed(database)
    Recording(database, claim).write(8)
    with database.write() as session:
        store_checkpoint(session, claim.run_id, claim.attempt, 4, f"runs/{claim.run_id}/checkpoints/x", "0" * 64)
    assert database.path is None
    with database.read() as session:
        assert session.scalars(select(CheckpointRow)).one().stored_at is None
    code, output = examine(tmp_path / "state", "--database-url", postgres_url)
    assert (code, "not on this machine" in output) == (0, True), output
    database.close()
