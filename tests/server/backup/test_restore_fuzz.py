"""A hostile backup file is restored completely, or refused in one sentence, and then nothing has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.restore_fuzz.hostile import BYTES, CONTENTS, PATHS, hostile, parts_of, sealed
from benchmarks.restore_fuzz.trial import Tally, Targets, genuine_backup
from server.backup.sealed_tar import MANIFEST

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return genuine_backup(tmp_path_factory.mktemp("genuine") / "installation")


def test_the_genuine_file_is_restored_fully(tmp_path: Path, genuine: bytes) -> None:
    tally, targets = Tally(), Targets(tmp_path / "targets")
    for seed in (0, 1):
        targets.take("genuine", genuine, seed, tally)
    assert (dict(tally.restored), dict(tally.refused), tally.wrong) == ({"genuine": 2}, {}, [])


def test_every_part_with_a_name_that_a_backup_does_not_write_is_refused(tmp_path: Path, genuine: bytes) -> None:
    tally, targets = Tally(), Targets(tmp_path / "targets")
    absolute = tmp_path / "absolute"
    for name in (f"files/runs/{absolute}", *PATHS):
        parts = parts_of(genuine)
        manifest = json.loads(parts[MANIFEST])
        del manifest["parts"]
        targets.take(name, sealed(parts | {name: b"x"}, manifest), 0, tally)
    assert tally.wrong == []
    assert not tally.restored
    assert not absolute.exists()


def test_hostile_files_are_restored_fully_or_refused_with_nothing_changed(tmp_path: Path, genuine: bytes) -> None:
    tally, targets = Tally(), Targets(tmp_path / "targets")
    for seed in range(3 * (len(BYTES) + len(CONTENTS))):
        targets.take(*hostile(genuine, seed), seed, tally)
    assert tally.wrong == []
    assert tally.refused.total() > 25
