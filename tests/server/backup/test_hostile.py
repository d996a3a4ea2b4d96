"""A malicious or unreadable backup is refused with one clear line and within bounded memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner
from sqlalchemy import make_url, text

from server.backup.archive import ArchiveWriter, BackupError, Manifest, TableInfo
from server.backup.create import kind_of
from server.backup.restore import restore
from server.backup.sealed_tar import MANIFEST, SEAL
from server.cli.main import main
from server.database.connection import Database
from server.database.models import Base
from server.database.revision import newest_revision
from tests.server.filled import fill

pytestmark = pytest.mark.long

MOST_MIB = 300  # limit on memory in addition to that of the program itself; the files below unpack to gigabytes
COLUMNS = [(column.name, kind_of(column)) for column in Base.metadata.tables["blocks"].c]
PLACE = {name: number for number, (name, _) in enumerate(COLUMNS)}


def sealed(
    file: Path, part: bytes, *, rows: int = 1, name: str = "tables/blocks/000001.zst", columns: list[tuple[str, str]] = COLUMNS
) -> Path:
    """A file with correct digests and one malformed part."""
    with file.open("wb") as out:
        writer = ArchiveWriter(out, Manifest(f"{newest_revision():04d}", "sqlite", "9", 0.0))
        writer.add(name, part)
        writer.manifest.tables.append(TableInfo("blocks", columns, 0, rows))
        writer.close()
    return file


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def streamed(pieces: list[tuple[bytes, int]]) -> bytes:
    """Compress the pieces, each repeated the given number of times."""
    made = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([made.compress(piece) for piece, times in pieces for _ in range(times)]) + made.flush()


def head(values: bytes) -> bytes:
    return struct.pack("<I", len(values)) + values


def announced(size: int) -> bytes:
    return head(json.dumps([size if kind == "bytes" else 0 for _, kind in COLUMNS], separators=(",", ":")).encode())


MIB = b"\0" * (1 << 20)
BOMBS: dict[str, Callable[[Path], Path]] = {
    "zeros": lambda file: sealed(file, streamed([(announced(2000 << 20), 1), (MIB, 2000)])),
    "rows for ever": lambda file: sealed(file, streamed([(head(b"[0]" * 300_000), 600)])),
    "many rows": lambda file: sealed(file, streamed([(announced(0) * 5000, 20)])),
    "brackets": lambda file: sealed(file, streamed([(struct.pack("<I", 32 << 20) + b"[", 1), (b"[]," * (1 << 18), 43)])),
    "a frame that announces 2^40 bytes": lambda file: sealed(
        file, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x02\x00\x00"
    ),
    "no zstd": lambda file: sealed(file, b"nothing of that kind"),
    "no rows": lambda file: sealed(file, zstd(b"nothing of that kind, and long enough for a head" * 9)),
    "half a row": lambda file: sealed(file, zstd(announced(50)[:-3])),
    "too few values": lambda file: sealed(file, zstd(head(b"[1,2]"))),
    "a deep number": lambda file: sealed(file, zstd(head(b"[" + b"9" * 6000 + b"]"))),
    "no such table": lambda file: sealed(file, zstd(announced(1) + b"x"), name="tables/unknown/000001.zst"),
    "fewer rows than announced": lambda file: sealed(file, zstd(b""), rows=3),
    "a long header": lambda file: long_header(file),
    "a sparse file": lambda file: sparse(file),
    "a manifest of brackets": lambda file: manifest_of(file, b'{"format":1,"x":[' + b"[]," * 20_000_000 + b"0]}"),
    "a manifest of numbers": lambda file: manifest_of(file, b'{"format":1,"x":[' + b"1," * 30_000_000 + b"0]}"),
    "a manifest that is a list": lambda file: manifest_of(file, b"[1]"),
    "a manifest without parts": lambda file: manifest_of(file, b'{"format":1,"tables":[]}'),
}


def manifest_of(file: Path, data: bytes) -> Path:
    with tarfile.open(file, "w") as tar:
        for name, content in ((MANIFEST, data), (SEAL, hashlib.sha256(data).hexdigest().encode())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def long_header(file: Path) -> Path:
    """A PAX header of two gigabytes that occupies no space on disk."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2 << 30
    with file.open("wb") as out:
        out.write(info.tobuf())
        out.truncate(3 << 30)
    return file


def sparse(file: Path) -> Path:
    """A sparse member: eight bytes that claim to be four exabytes."""
    info = tarfile.TarInfo("tables/blocks/000001.zst")
    info.size, info.mode = 8, 0o600
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[386:410] = b"00000000000\0" + b"00000000010\0"
    block[483:495] = b"\x80" + (4 << 60).to_bytes(11, "big")
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    file.write_bytes(bytes(block) + b"12345678".ljust(512, b"\0") + b"\0" * 1024)
    return file


PROBE = """
import sys
from pathlib import Path
from server.backup.archive import BackupError, verify, verify_rows
from server.backup.restore import restore
from server.database.connection import Database

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10

Database(f"sqlite:///{sys.argv[1]}/warm.db").migrate()
before = peak()
for name in sys.argv[2:]:
    file = Path(name)
    for act in ("verify", "restore"):
        try:
            if act == "verify":
                verify_rows(file, verify(file))
            else:
                database = Database(f"sqlite:///{sys.argv[1]}/new.db")
                restore(database, Path(sys.argv[1]) / "state", file, lambda _: None)
            print(f"{file.name}|{act}|accepted|{peak() - before}")
        except BackupError as error:
            print(f"{file.name}|{act}|{error}|{peak() - before}".replace(chr(10), " // "))
    file.unlink()
"""


def test_decompression_bombs_and_malformed_backups_are_reported_as_damaged_in_bounded_memory(tmp_path: Path) -> None:
    files = [str(make(tmp_path / name.replace(" ", "_"))) for name, make in BOMBS.items()]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), *files], capture_output=True, text=True, timeout=500, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(BOMBS)
    for name, act, answer, mib in lines:
        assert "damaged" in answer, (name, act, answer)
        assert "//" not in answer, "the error must be one line"
        assert int(mib) < MOST_MIB, (name, act, mib)
    print("peak MiB:", max(int(line[3]) for line in lines))
    assert not (tmp_path / "new.db").exists()
    assert not (tmp_path / "state" / "runs").exists()


def test_a_backup_with_rows_that_the_database_refuses_is_reported_as_damaged(tmp_path: Path) -> None:
    part = zstd(head(b"[" + b",".join([b"null"] * len(COLUMNS)) + b"]"))  # NULL in columns that do not allow it
    target = Database(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(BackupError, match="damaged: table blocks cannot hold its rows"):
        restore(target, tmp_path / "state", sealed(tmp_path / "file", part), lambda _: None)
    with pytest.raises(BackupError, match="has no table"):
        restore(target, tmp_path / "state", sealed(tmp_path / "file", part, columns=[("id", "pickle")]), lambda _: None)
    target.close()


def stablessm(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output.strip().splitlines()


def test_an_unwritable_backup_path_is_reported_in_one_line(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    for target in (file / "x.backup", Path("/proc/x.backup"), Path("/dev/full/x.backup")):
        code, lines = stablessm("backup", str(target), "--data-dir", str(data_dir), "--database-url", sqlite.url)
        assert code == 1
        assert len(lines) == 1, lines
        assert lines[0].startswith("Error: no backup was written: "), lines
        assert str(target.parent) in lines[0]


def test_a_damaged_database_is_reported_in_one_line(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    fill(sqlite)
    path = sqlite.path
    assert path is not None
    sqlite.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096 * 3 :] = b"\x5a" * (len(data) - 4096 * 3)
    path.write_bytes(data)
    code, lines = stablessm("backup", str(tmp_path / "x.backup"), "--data-dir", str(data_dir), "--database-url", sqlite.url)
    assert (code, len(lines)) == (1, 1), lines
    assert "malformed" in lines[0]
    assert not list(tmp_path.glob("*.backup*"))


@pytest.mark.postgres
def test_missing_read_permissions_are_reported_in_one_line(postgres_url: str, data_dir: Path, tmp_path: Path) -> None:
    database = Database(postgres_url)
    role = f"backup_test_{os.getpid()}"
    with database.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret-of-it'"))
        connection.execute(text(f"GRANT SELECT ON alembic_version, runs, checkpoints TO {role}"))
    try:
        url = make_url(postgres_url).set(username=role, password="secret-of-it").render_as_string(hide_password=False)
        code, lines = stablessm("backup", str(tmp_path / "x.backup"), "--data-dir", str(data_dir), "--database-url", url)
    finally:
        with database.engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
        database.close()
    assert code == 1
    assert "permission denied for table" in lines[-1]
    assert "owner" in lines[-1]
    assert "secret-of-it" not in "".join(lines)


def test_an_unreachable_database_is_reported_in_one_line(data_dir: Path, tmp_path: Path) -> None:
    url = "postgresql://nobody:secret-of-it@127.0.0.1:1/none"
    for command in (("backup", str(tmp_path / "x.backup")), ("migrate",)):
        code, lines = stablessm(*command, "--data-dir", str(data_dir), "--database-url", url)
        assert (code, len(lines)) == (1, 1), lines
        assert "secret" not in lines[0]
