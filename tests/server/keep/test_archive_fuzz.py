"""An archive is either refused, or every page and every answer that shows its runs can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.archive_fuzz import reading
from benchmarks.archive_fuzz.genuine import genuine_archive
from benchmarks.archive_fuzz.mutation import Archive, mutated
from benchmarks.archive_fuzz.reading import Tally, take
from benchmarks.archive_fuzz.service import Service, service

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def genuine() -> bytes:
    return genuine_archive()


def test_the_genuine_archive_is_accepted_and_readable(server: Service, genuine: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DETAILS", 10)
    tally = Tally()
    take(server, genuine, tally, 0)
    assert (tally.accepted, list(tally.refusals), list(tally.unreadable)) == (1, [], [])
    assert tally.gets > 80


def test_runs_without_any_block_are_readable(server: Service, genuine: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DETAILS", 20)
    archive, tally = Archive(genuine), Tally()
    archive.blocks = {}
    take(server, archive.sealed(), tally, 0)
    assert (tally.accepted, list(tally.refusals), list(tally.unreadable)) == (1, [], [])


def test_steps_are_readable_without_a_recorded_learning_rate(server: Service, genuine: bytes) -> None:
    archive = Archive(genuine)
    for part, blocks in archive.blocks.items():
        archive.blocks[part] = [one for one in blocks if one[0]["group_name"] != "scalars"]
    run = server.post_archive(archive.sealed()).json()["runs"][0]["id"]
    found = server.get(f"/api/runs/{run}/steps?step=1&to_step=3").json()
    assert found["step"] == [1, 2, 3]
    assert set(found["lr"][0]) == {"NaN"}


def test_mutated_archives_are_refused_or_readable(server: Service, genuine: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DETAILS", 5)
    tally = _fuzzed(server, genuine, range(3000, 3012))
    assert list(tally.unreadable) == []
    assert tally.refused > 3
    assert tally.accepted > 1


@pytest.mark.long
def test_hundreds_of_mutated_archives_are_refused_or_readable(server: Service, genuine: bytes) -> None:
    tally = _fuzzed(server, genuine, range(200))
    assert list(tally.unreadable) == []
    assert tally.refused > 50
    assert tally.accepted > 20


def _fuzzed(server: Service, genuine: bytes, seeds: range) -> Tally:
    archive, tally = Archive(genuine), Tally()
    for seed in seeds:
        take(server, mutated(archive, seed), tally, seed)
    return tally
