"""`stablessm doctor` finds parts that are outdated, readable by others, missing, unreachable or truncated, suggests repairs,
and exits with status 1."""

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
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from server.checkpoint_store import CheckpointStore
from server.cli import doctor
from server.cli.main import main
from server.database.connection import Database
from server.database.models import BlockRow, CheckpointRow
from server.lifecycle.checkpoints import KEPT
from server.series.recording import store_checkpoint
from tests.s3 import BUCKET, s3_server
from tests.server.http_service import TOKEN, running
from tests.server.recording import Recording, claimed

pytestmark = pytest.mark.slow


@pytest.fixture
def installation(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy installation: a run with recorded numbers and three checkpoints, a token, and intact data."""
    monkeypatch.setattr(doctor, "_torch", lambda _: [])  # importing torch takes seconds, and these tests do not need it
    data_dir.mkdir(mode=0o700)
    database = Database(f"sqlite:///{data_dir}/stablessm.db")
    database.migrate()
    claim = claimed(database)
    Recording(database, claim).write(8)
    for step in (2, 4, 6):
        path = f"runs/{claim.run_id}/checkpoints/attempt-1/step-{step}.safetensors"
        place = data_dir / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if step > 2:  # the oldest file is removed once two newer ones are recorded
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


def test_the_doctor_finds_no_fault_in_a_healthy_installation(installation: Path) -> None:
    code, output = examine(installation)
    assert code == 0, output
    assert f"{KEPT} exist" in output
    code, output = examine(installation.parent / "new")
    assert code == 0, output


def test_the_doctor_lists_only_data_sets(installation: Path) -> None:
    for name in ("README.md", "LICENSE", "wikitext/readme.txt", "SHA256SUMS"):
        path = installation / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a text about the data\n" * 100)
    code, output = examine(installation)
    (line,) = (line for line in output.splitlines() if "data sets: " in line)
    assert (code, "text.txt.gz" in line) == (0, True), output
    assert not [name for name in ("README", "LICENSE", "readme", "SUMS") if name in output], output


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
    "an old schema": (old_schema, "needs 0022", "stablessm migrate"),
    "an open data directory": (lambda folder: folder.chmod(0o755), "readable by everybody", "chmod 700"),
    "an open token": (lambda folder: (folder / "token").chmod(0o644), "token is readable by everybody", "chmod 600"),
    "an open database": (lambda folder: (folder / "stablessm.db").chmod(0o640), "db is readable by its group", "chmod 600"),
    "a missing checkpoint": (lambda folder: checkpoint(folder).unlink(), "1 of 2 are missing", "keep these runs"),
    "missing checkpoints": (lambda folder: shutil.rmtree(folder / "runs"), "2 of 2 are missing", "keep these runs"),
    "a checkpoint cut short": (lambda folder: half(checkpoint(folder)), "1 are incomplete", "keep these runs"),
    "numbers that cannot be read": (damaged_block, "run 1", "stablessm restore"),
    "a database cut short": (damaged_pages, "is damaged", "stablessm restore"),
    "a text cut short": (lambda folder: half(folder / "data" / "text.txt.gz"), "is truncated", "again"),
    "MNIST cut short": (mnist_cut_short, "data set mnist", "again"),
    "a server that ended without a word": (ended, "does not answer", "start"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_doctor_reports_each_fault_with_its_repair(installation: Path, fault: str) -> None:
    make, found, mend = FAULTS[fault]
    make(installation)
    code, output = examine(installation)
    assert code == 1, output
    lines = [line for line in output.splitlines() if line.startswith("missing")]
    assert found in "".join(lines), output
    assert mend in output
    assert "delete" not in output, "the doctor never advises to delete anything"


def test_the_doctor_reports_a_configured_server_that_does_not_answer(installation: Path, sqlite_url: str, tmp_path: Path) -> None:
    code, output = examine(installation, STABLESSM_URL="http://127.0.0.1:1")
    assert (code, "127.0.0.1:1 does not answer" in output) == (1, True), output
    with running(sqlite_url, tmp_path / "other") as (address, _):
        code, output = examine(installation, STABLESSM_URL=address)
        assert (code, "is ready" in output) == (0, True), output
        code, output = examine(installation, STABLESSM_URL=address, STABLESSM_TOKEN="wrong-wrong-wrong-wrong")
        assert (code, "STABLESSM_TOKEN" in output) == (1, True), output


def test_created_files_are_accessible_only_to_their_owner_whatever_the_umask(tmp_path: Path) -> None:
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


def test_checkpoints_on_another_machine_are_not_reported_as_a_fault(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (code, "are on other machines" in output) == (0, True), output
    database.close()


@pytest.fixture
def bucket(installation: Path) -> Iterator[CheckpointStore]:
    """The installation after the worker has copied both newest checkpoints to a bucket and this machine's disk was replaced."""
    with s3_server():
        store = CheckpointStore(f"s3://{BUCKET}/lab")
        for file in installation.glob("runs/*/checkpoints/*/*"):
            store.put(file, str(file.relative_to(installation)))
        database = Database(f"sqlite:///{installation}/stablessm.db")
        with database.write() as session:
            session.execute(update(CheckpointRow).where(CheckpointRow.step > 2).values(stored_at=1.0))
        database.close()
        shutil.rmtree(installation / "runs")
        yield store


def test_checkpoints_in_the_store_count_as_existing(installation: Path, bucket: CheckpointStore) -> None:
    url = {"STABLESSM_CHECKPOINT_STORE": f"s3://{BUCKET}/lab"}
    for more in ((), ("--deep",)):
        code, output = examine(installation, *more, **url)
        assert (code, "2 exist, 2 of them only in the checkpoint store" in output) == (0, True), output
    code, output = examine(installation)
    assert (code, "set STABLESSM_CHECKPOINT_STORE" in output) == (0, True), output
    (path,) = (name for name in bucket.sizes() if "step-6" in name)
    half_copy = installation / "half"
    half_copy.write_bytes(b"wrong!!" * 6)
    bucket.put(half_copy, path)
    code, output = examine(installation, "--deep", **url)
    assert (code, "1 are incomplete or damaged" in output) == (1, True), output
    bucket.remove([path])
    code, output = examine(installation, **url)
    assert (code, "1 of 2 are missing" in output, "delete" in output) == (1, True, False), output


def test_an_unreachable_store_is_reported_without_calling_its_checkpoints_missing(
    installation: Path, bucket: CheckpointStore, tmp_path: Path
) -> None:  # fmt: skip
    assert bucket.sizes()
    code, output = examine(installation, STABLESSM_CHECKPOINT_STORE=f"file://{tmp_path}/unmounted")
    assert (code, "is the shared disk mounted?" in output, "are missing" in output) == (1, True, False), output
