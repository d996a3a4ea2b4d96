"""An import is bounded in time and in points per block, decodes each block once, leaves other writers free while it checks, and
stores nothing if it is stopped."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from benchmarks.archive_fuzz.genuine import genuine_archive
from benchmarks.archive_fuzz.mutation import Archive
from server.database.connection import Database
from server.database.models import BlockRow, DeletedRun, Run, SeriesRow, Sweep
from server.http.api import exports
from server.keep import imported_blocks, imports
from server.keep.archive import ArchiveError
from server.keep.imports import ImportStopped, import_archive
from stablessm_core.telemetry.blocks import decode, encode
from tests.server.http_service import TOKEN, running
from tests.server.recording import submitted

TEN_MILLION = 10_000_000
pytestmark = pytest.mark.slow  # archives of millions of points


@pytest.fixture(scope="module")
def genuine() -> bytes:
    return genuine_archive()


def imported(database: Database, content: bytes, **options: Any) -> imports.Imported:
    return import_archive(database, io.BytesIO(content), submitted_by=None, user_id=None, **options)


def stored(database: Database) -> list[int]:
    """The numbers of stored runs, sweeps, blocks and series."""
    with database.read() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in (Run, Sweep, BlockRow, SeriesRow)]


def test_a_small_archive_with_a_block_of_ten_million_points_is_refused_in_one_sentence(
    sqlite: Database, genuine: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(genuine)
    part = next(name for name in archive.blocks if name.startswith("runs/1/"))
    head = next(head for head, _ in archive.blocks[part] if head["group_name"] == "scalars" and head["level"] == 0)
    head |= {"first_step": 1, "last_step": TEN_MILLION, "point_count": TEN_MILLION, "stride": 1}
    archive.blocks = {part: [(head, encode(np.zeros((head["column_count"], TEN_MILLION), np.float32)))]}
    content = archive.sealed()
    assert len(content) < 100_000

    def never(*_: Any) -> None:
        pytest.fail("the block was decoded")

    monkeypatch.setattr(imported_blocks, "decode", never)
    with pytest.raises(ArchiveError, match="point_count cannot be 10000000; allowed: 1 to 4,096 points in a block"):
        imported(sqlite, content)
    assert stored(sqlite) == [0, 0, 0, 0]


def test_a_long_run_without_coarse_levels_is_refused_because_each_page_would_read_all_of_its_points(
    sqlite: Database, genuine: bytes
) -> None:
    archive, points = Archive(genuine), 4096
    part = next(name for name in archive.blocks if name.startswith("runs/1/"))
    head = next(head for head, _ in archive.blocks[part] if head["group_name"] == "batch" and head["level"] == 0)
    payload = encode(np.zeros((head["column_count"], points), np.float32))
    blocks = [
        (head | {"first_step": 1 + first, "last_step": first + points, "point_count": points, "stride": 1}, payload)
        for first in range(0, 100 * points, points)
    ]
    archive.blocks = {part: blocks}
    with pytest.raises(ArchiveError, match="level 0 of group 'batch' covers 409,600 points, but level 1 only 0"):
        imported(sqlite, archive.sealed())
    archive.blocks = {part: blocks[:50]}
    assert len(imported(sqlite, archive.sealed()).runs) == 3


def test_an_import_decodes_each_block_once_and_other_processes_can_write_meanwhile(
    sqlite: Database, genuine: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, decoded = submitted(sqlite), []

    def counted(payload: bytes, shape: tuple[int, ...]) -> np.ndarray:
        decoded.append(payload)
        with sqlite.write() as session:  # raises an error after a while if the import holds SQLite's write lock
            session.execute(update(Run).where(Run.id == waiting).values(notes=f"heartbeat {len(decoded)}"))
        return decode(payload, shape)

    monkeypatch.setattr(imported_blocks, "decode", counted)
    imported(sqlite, genuine)
    assert len(decoded) == stored(sqlite)[2] == sum(map(len, Archive(genuine).blocks.values()))


@pytest.mark.parametrize("when", ["check", "store", "read"])
def test_an_import_that_is_stopped_leaves_nothing_behind(
    sqlite: Database, genuine: bytes, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    stop = threading.Event()

    def stopping(work: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any) -> Any:
            found = work(*arguments)
            stop.set()
            return found

        return do

    if when == "check":
        monkeypatch.setattr(imports.BlockCheck, "check", stopping(imports.BlockCheck.check))
    else:
        name = {"store": "_store", "read": "read_back"}[when]
        monkeypatch.setattr(imports, name, stopping(getattr(imports, name)))
    with pytest.raises(ImportStopped):
        imported(sqlite, genuine, stop=stop)
    assert stored(sqlite) == [0, 0, 0, 0]


def test_an_import_that_takes_too_long_is_refused(sqlite: Database, genuine: bytes) -> None:
    with pytest.raises(ArchiveError, match="takes more than 0 s; import fewer runs at once"):
        imported(sqlite, genuine, seconds=0)
    assert stored(sqlite) == [0, 0, 0, 0]


def test_a_client_that_disconnects_stops_its_import(
    sqlite: Database, genuine: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    found: list[BaseException] = []

    def slow(*arguments: Any, stop: threading.Event, **options: Any) -> Any:
        begun.set()
        assert stop.wait(60), "the import was not told that its client disconnected"
        try:
            return import_archive(*arguments, stop=stop, **options)
        except BaseException as error:
            found.append(error)
            raise
        finally:
            ended.set()

    monkeypatch.setattr(exports, "import_archive", slow)
    with running(sqlite.url, tmp_path) as (address, _):
        host, port = address.removeprefix("http://").split(":")
        head = f"POST /api/imports HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Type: application/x-tar\r\nContent-Length: {len(genuine)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + genuine)
            assert begun.wait(60)
        assert ended.wait(60)
    assert [type(error) for error in found] == [ImportStopped]
    assert stored(sqlite) == [0, 0, 0, 0]


def test_an_incomplete_configuration_of_an_older_version_is_completed(sqlite: Database, genuine: bytes) -> None:
    archive = Archive(genuine)
    for described in archive.described.values():
        del described["run"]["config"]["train"]["on_warning"], described["run"]["config"]["telemetry"]
    done = imported(sqlite, archive.sealed())
    with sqlite.read() as session:
        configs = [session.get_one(Run, run_id).config for run_id, _ in done.runs]
        assert session.scalar(select(func.count()).select_from(DeletedRun)) == 0
    assert [config["train"]["on_warning"] for config in configs] == ["continue"] * 3
    assert all(json.dumps(config["telemetry"]) for config in configs)
