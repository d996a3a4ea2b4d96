"""Every machine removes the folders of deleted runs and no other folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from server.database.connection import Database
from server.database.models import DeletedRun, Installation
from server.keep import folders
from server.keep.folders import installation_name, mark, remove_deleted
from server.settings import run_folder
from tests.server.recording import submitted

pytestmark = pytest.mark.both_engines

WEIGHTS = b"weights"
PLACE = "checkpoints/attempt-1/step-1.safetensors"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return tmp_path / "machine"


def gone(database: Database, *numbers: int) -> None:
    """Record that these runs were deleted permanently; each had one checkpoint."""
    with database.write() as session:
        for number in numbers:
            files = [[f"runs/{number}/{PLACE}", hashlib.sha256(WEIGHTS).hexdigest()]]
            session.add(DeletedRun(run_id=number, at=1.0, files=files))


def trained(machine: Path, number: int, name: str | None, content: bytes = WEIGHTS) -> Path:
    folder = run_folder(machine, number)
    if name is not None:
        mark(folder, name)
    (folder / PLACE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PLACE).write_bytes(content)
    return folder


def test_only_folders_of_this_installation_s_deleted_runs_are_removed(database: Database, machine: Path) -> None:
    own = installation_name(database)
    assert installation_name(database) == own
    there = submitted(database)
    gone(database, there, 101, 102, 103, 104)
    mine, marked_elsewhere = trained(machine, 101, own), trained(machine, 102, "another")
    older, unknown = trained(machine, 103, None), trained(machine, 104, None, b"of somebody else")
    # The folders of a stored run and of a run that was never deleted.
    kept = [trained(machine, there, own), trained(machine, 105, own)]
    assert remove_deleted(database, machine) == [101, 103]
    assert not mine.exists()
    assert not older.exists()
    assert all(folder.is_dir() for folder in (marked_elsewhere, unknown, *kept))
    assert remove_deleted(database, machine) == []


def test_a_worker_removes_no_folder_of_another_database(database: Database, machine: Path) -> None:
    folder = trained(machine, 101, "the first database's")
    gone(database, 101)
    assert remove_deleted(database, machine) == []
    mark(folder, installation_name(database))  # this database's own run 101 then trains in the same folder
    assert remove_deleted(database, machine) == [], "the folder now belongs to both databases, so it must stay"
    assert (folder / PLACE).read_bytes() == WEIGHTS


def test_a_folder_with_unknown_content_is_not_treated_as_ours(database: Database, machine: Path) -> None:
    folder = trained(machine, 101, None, b"of somebody else")
    mark(folder, installation_name(database))
    gone(database, 101)
    assert remove_deleted(database, machine) == []


def test_symbolic_links_are_not_followed(database: Database, machine: Path, tmp_path: Path) -> None:
    own = installation_name(database)
    gone(database, 101, 102, 103)
    elsewhere = trained(tmp_path / "elsewhere", 101, own)
    (machine / "runs").mkdir(parents=True)
    run_folder(machine, 101).symlink_to(elsewhere)
    folder = trained(machine, 102, own)
    (folder / "link").symlink_to(elsewhere)
    run_folder(machine, 103).mkdir()
    (run_folder(machine, 103) / folders.NOTE).symlink_to(elsewhere / folders.NOTE)
    assert remove_deleted(database, machine) == [102]
    assert (elsewhere / PLACE).read_bytes() == WEIGHTS
    assert run_folder(machine, 103).exists()


def test_an_interrupted_folder_removal_is_finished(database: Database, machine: Path) -> None:
    half = machine / "runs" / f"{folders.DOOMED}7-abc"
    (half / "checkpoints").mkdir(parents=True)
    assert remove_deleted(database, machine) == []
    assert list((machine / "runs").iterdir()) == []


def test_the_folder_of_a_recently_purged_run_is_kept_while_processes_may_still_write(database: Database, machine: Path) -> None:
    folder = trained(machine, 101, installation_name(database))
    gone(database, 101)
    assert remove_deleted(database, machine, settled=1e10) == []
    assert remove_deleted(database, machine, pause=lambda: True) == []
    assert folder.exists()


def test_a_machine_without_runs_writes_nothing_to_the_database(database: Database, machine: Path) -> None:
    assert remove_deleted(database, machine) == []
    with database.read() as session:
        assert session.query(Installation).count() == 0
