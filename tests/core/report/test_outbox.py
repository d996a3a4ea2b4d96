"""The file of a run: what was written is read back, up to the first damaged frame, and a disk that fails is one warning."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stablessm
from server.ingest.records import read_records
from stablessm_core.outside.metrics import messages_of
from stablessm_core.report.frames import HEAD, ends, frame
from stablessm_core.report.link import Server
from stablessm_core.report.messages import to_bytes
from stablessm_core.report.outbox import MAGIC, NotARunFile, Outbox, in_use, left_behind, read_run_file
from stablessm_core.report.sync import StillRunning, sync_file
from tests.core.outside.reading import read

OPENING = {"id": "8d3b2c6e-43b5-4a43-8d8a-3c05e7d1a001", "project": "p"}


def outbox(path: Path | None) -> tuple[Outbox, list[str]]:
    said: list[str] = []
    return Outbox(path, OPENING, said.append), said


def test_records_are_read_back_in_order(tmp_path: Path) -> None:
    box, said = outbox(tmp_path / "deep" / "run.ssmr")
    records = [random.Random(i).randbytes(i * 7) for i in range(50)]
    for record in records:
        box.append(record)
    box.close(delete=False)
    found = read_run_file(tmp_path / "deep" / "run.ssmr")
    assert found.opening == OPENING
    assert list(found.records()) == records
    assert found.damaged is None
    assert said == []


def test_frames_are_read_whole_from_any_position(tmp_path: Path) -> None:
    for path in (tmp_path / "run.ssmr", None):
        box, _ = outbox(path)
        records = [bytes([i]) * (i * 30) for i in range(40)]
        for record in records:
            box.append(record)
        for limit in (1, 100, 5000):
            position, found = 0, b""
            while data := box.read(position, limit):
                assert [*ends(data)][-1] == len(data)
                found += data
                position += len(data)
            assert found == b"".join(map(frame, records))
        assert position == box.size
        box.close(delete=True)
        assert path is None or not path.exists()


def test_a_damaged_file_is_read_up_to_the_first_bad_frame(tmp_path: Path) -> None:
    path = tmp_path / "run.ssmr"
    box, _ = outbox(path)
    for i in range(20):
        box.append(bytes([i]) * 100)
    box.close(delete=False)
    whole = path.read_bytes()
    start = len(whole) - 20 * (100 + HEAD.size)
    for cut in range(start, len(whole), 37):
        path.write_bytes(whole[:cut])
        found = read_run_file(path)
        assert len(list(found.records())) == (cut - start) // (100 + HEAD.size)
    for i in range(3):
        at = start + 5 * (100 + HEAD.size) + (0, 4, 50)[i]
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        found = read_run_file(path)
        assert len(list(found.records())) == 5
        assert found.damaged == start + 5 * (100 + HEAD.size)


@pytest.mark.parametrize("content", [b"", b"hello", b"SSMR1\n", b"SSMR1\n" + frame(b"[1]"), b"SSMR1\n" + b"\xff" * 8])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NotARunFile):
        read_run_file(path)


def test_a_file_that_is_being_written_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "run.ssmr"
    box, _ = outbox(path)
    assert in_use(path)
    box.close(delete=False)
    assert not in_use(path)


def test_a_full_outbox_refuses_a_record_and_keeps_the_others(tmp_path: Path) -> None:
    box = Outbox(tmp_path / "run", OPENING, pytest.fail, file_bytes=1000, memory_bytes=0)
    assert box.append(b"a" * 600)
    assert not box.append(b"b" * 600)
    assert (box.dropped, box.failed) == (1, False)
    assert box.append(b"c" * 300)
    assert list(left_behind(tmp_path / "run")) == [b"a" * 600, b"c" * 300]


def test_what_a_killed_process_left_is_read_with_and_without_an_opening(tmp_path: Path) -> None:
    box, _ = outbox(tmp_path / "run")
    records = [b"first" * 100, b"second" * 100]
    for record in records:
        box.append(record)
    for cut in (1, 5, 8, 300):
        data = (tmp_path / "run").read_bytes()
        (tmp_path / "cut").write_bytes(data[:-cut])
        assert list(left_behind(tmp_path / "cut")) == records[:1]
    (tmp_path / "old").write_bytes(b"".join(map(frame, records)))
    assert list(left_behind(tmp_path / "old")) == records
    (tmp_path / "empty").write_bytes(MAGIC)
    assert list(left_behind(tmp_path / "empty")) == list(left_behind(tmp_path / "none")) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 kB, as if the disk were full."""
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_one_warning_and_what_follows_stays_in_memory(tmp_path: Path) -> None:
    box, said = outbox(tmp_path / "run.ssmr")
    records = [bytes([i]) * 300 for i in range(40)]
    for record in records:
        box.append(record)
    assert len(said) == 1
    position, found = 0, b""
    while data := box.read(position, 1000):
        found, position = found + data, position + len(data)
    assert found == b"".join(map(frame, records))


@pytest.mark.usefixtures("small_files")
def test_a_run_on_a_full_disk_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        for i in range(20_000):
            run.log({"a": i})
    assert capfd.readouterr().err.count("cannot write") == 1
    assert len(read(tmp_path).metrics.get("a", [])) < 20_000


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with stablessm.log_only(mode="offline", dir=tmp_path / "file" / "below") as run:
        for i in range(10):
            run.log({"a": i})
        assert run.path is None
    err = capfd.readouterr().err
    assert err.count("cannot write") == 1
    assert "bytes are lost" in err
    assert "stablessm sync" not in err
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_system_without_locks_does_not_make_a_file_look_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    path = tmp_path / "run.ssmr"
    box, _ = outbox(path)
    box.close(delete=False)
    monkeypatch.setattr("fcntl.flock", unsupported)
    assert not in_use(path)


@pytest.mark.slow
def test_metrics_logged_quickly_fit_into_the_records_that_the_server_takes() -> None:
    logged = [(step, {f"metric/{i}": -1.2345678901234567e-300 / (i + 1) for i in range(8)}) for step in range(60_000)]
    messages = list(messages_of(logged))
    assert sum(len(message.steps) for message in messages) == 60_000
    for message in messages:
        read_records(frame(to_bytes(message)))


def test_a_file_of_a_run_that_another_process_continues_is_not_sent(tmp_path: Path) -> None:
    old, new = (tmp_path / f"2025010{i}-000000-{OPENING['id'][:8]}-{i}.ssmr" for i in (1, 2))
    outbox(old)[0].close(delete=False)
    box, _ = outbox(new)
    with pytest.raises(StillRunning, match="another program continues"):
        sync_file(old, Server("http://127.0.0.1:9", None))
    box.close(delete=False)
