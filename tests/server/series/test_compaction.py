"""Compaction moves numbers without changing what a reader sees in raw, zoomed, replayed and truncated series."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import BlockRow, Run
from server.lifecycle import transitions as lifecycle
from server.live.frames import read_events
from server.series import compaction, reading
from server.series.catalogue import read_catalogue
from server.series.compaction import compact, compact_next
from server.series.recording import store_checkpoint
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import EVAL, EVAL_LOSS, scalar
from tests.server.recording import Recording, claim, claimed, nonfinite, run_of
from tests.server.storing import store_catalogue, store_flush

pytestmark = [pytest.mark.spread, pytest.mark.both_engines, pytest.mark.slow]

FLUSHES = (1, 7, 64, 3, 120, 300, 64, 128, 9)
OWN = re.compile(rb'"(id|run_id|created_at)":[^,}]+')  # fields of frames in which two equal runs differ
ZOOMS = ((None, None, 10**7), (None, None, 100), (37, 700, 90), (None, None, 40), (100, 163, 64), (5, 9000, 7), (2000, 2001, 1))


def record(database: Database, *, every: int = 1, scale: int = 1, **changes: Any) -> Recording:
    """Record a running run with flushes of many lengths, unusual numbers, alerts and single evaluations."""
    recording = Recording(database, claimed(database, **changes), layers=2, width=3, every=every)
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    with database.write() as session:
        store_catalogue(session, run_id, attempt, [scalar(EVAL_LOSS, EVAL)])
    for i, points in enumerate(FLUSHES):
        recording.write(points * scale, [nonfinite(step=recording.next)] if i == 4 else [])
        evaluate(recording)
    return recording


def evaluate(recording: Recording) -> None:
    step = recording.next - recording.every
    block = Block(EVAL, 0, step, 1, np.float32([[np.nan if step % 2 else step]]))
    with recording.database.write() as session:
        store_flush(session, recording.claim.run_id, recording.claim.attempt, [block], step=step)


def end(database: Database, run_id: int, status: str = "failed") -> None:
    with database.write() as session:
        run = session.get(Run, run_id)
        assert run is not None
        lifecycle.finish(session, run_id, run.attempt, status, "it ended")


def everything(database: Database, run_id: int, zooms: tuple[Any, ...] = ZOOMS) -> list[Any]:
    """Everything that can be read from a run: catalogue, every series at every zoom as bytes, events from every cursor."""
    seen: list[Any] = []
    with database.read() as session:
        infos = read_catalogue(session, run_id)
        seen.append(infos)
        for info in infos:
            for low, high, points in zooms:
                data = reading.read_series(session, run_id, info.name, from_step=low, to_step=high, max_points=points)
                parts = {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in vars(data).items() if isinstance(v, np.ndarray)}
                seen.append((info.name, low, high, points, hashlib.sha256(repr(parts).encode()).digest()))
        run = session.get(Run, run_id)
        assert run is not None
        for cursor in range(run.seq + 1):
            answer = read_events(session, run_id, cursor, 64 if cursor == 3 else 2)
            assert answer is not None
            frames = [(event.seq, OWN.sub(b"", event.encode(None))) for event in answer[0]]
            seen.append((cursor, answer[1], hashlib.sha256(repr(frames).encode()).digest()))
    return seen


def count(database: Database, run_id: int) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(BlockRow).where(BlockRow.run_id == run_id)) or 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits merged blocks to 256 points, so that a short run has several."""
    monkeypatch.setattr(compaction, "POINTS", 256)


@pytest.mark.parametrize(("every", "scale"), [(3, 1), (1, 8)])
def test_a_compacted_run_reads_the_same_bit_for_bit(database: Database, small: None, every: int, scale: int) -> None:
    recording = record(database, every=every, scale=scale)
    run_id = recording.claim.run_id
    end(database, run_id)
    before, blocks_before = everything(database, run_id), count(database, run_id)
    assert compact(database, run_id)
    assert everything(database, run_id) == before
    assert count(database, run_id) < blocks_before * (0.5 if scale == 1 else 0.8)
    assert run_of(database, run_id).compacted_at is not None
    merged = count(database, run_id)
    assert compact(database, run_id), "a second compaction must report success"
    assert (count(database, run_id), everything(database, run_id)) == (merged, before)


def test_a_gap_in_the_recorded_steps_stays_a_gap(database: Database) -> None:
    recording = Recording(database, claimed(database), width=2)
    for _ in range(5):
        recording.write(40)
        recording.next += 13  # 13 steps are dropped
    end(database, recording.claim.run_id)
    before = everything(database, recording.claim.run_id)
    assert compact(database, recording.claim.run_id)
    assert everything(database, recording.claim.run_id) == before


@pytest.mark.parametrize("from_step", [1, 300, 2049, 4100])
def test_a_resume_truncates_a_compacted_run_exactly_like_an_uncompacted_run(
    database: Database, small: None, from_step: int
) -> None:
    """Two equal runs, one of them compacted, continue from the same checkpoint. A reader never sees any difference."""
    seen = []
    for compacted in (False, True):
        recording = record(database, scale=6)
        run_id = recording.claim.run_id
        with database.write() as session:
            store_checkpoint(session, run_id, 1, from_step - 1, "x", "0" * 64)
        end(database, run_id)
        if compacted:
            assert compact(database, run_id)
        with database.write() as session:
            lifecycle.resume_run(session, run_id)
        recording.claim = claim(database)
        assert (recording.claim.run_id, recording.claim.attempt) == (run_id, 2)
        recording.cut(from_step)
        stages = [everything(database, run_id, ZOOMS[:3])]
        for points in (64, 5, 200):
            recording.write(points)
        stages.append(everything(database, run_id, ZOOMS[:3]))
        end(database, run_id, "finished")
        if compacted:
            assert run_of(database, run_id).compacted_at is None
            assert compact(database, run_id)
        stages.append(everything(database, run_id, ZOOMS[:3]))
        seen.append(stages)
    assert seen[0] == seen[1]


def test_compaction_can_be_interrupted_anywhere_and_continued(database: Database, small: None) -> None:
    recording = record(database)
    run_id = recording.claim.run_id
    end(database, run_id)
    before, deaths, counts = everything(database, run_id), 0, []

    def die_at_the_second() -> bool:
        nonlocal deaths
        deaths += 1
        if deaths % 2 == 0:
            raise KeyboardInterrupt
        return False

    while run_of(database, run_id).compacted_at is None and deaths < 1000:
        try:
            compact(database, run_id, pause=die_at_the_second)
        except KeyboardInterrupt:
            counts.append(count(database, run_id))
            if len(counts) == 3:
                assert everything(database, run_id) == before
    assert counts == sorted(set(counts), reverse=True), "every attempt must make progress"
    assert len(counts) > 3
    assert everything(database, run_id) == before


def test_compaction_stops_at_once_when_the_run_is_resumed(database: Database, small: None) -> None:
    """The run is resumed between two batches: the remaining blocks are not merged, and the new attempt is left unchanged."""
    recording = record(database)
    run_id = recording.claim.run_id
    end(database, run_id)
    batches = 0

    def resume_at_the_third() -> bool:
        nonlocal batches
        batches += 1
        if batches == 3:
            with database.write() as session:
                lifecycle.resume_run(session, run_id)
        return False

    assert not compact(database, run_id, pause=resume_at_the_third)
    assert batches == 3
    assert run_of(database, run_id).compacted_at is None
    recording.claim = claim(database)
    recording.cut(1)
    recording.write(50)
    before = everything(database, run_id)
    assert not compact(database, run_id)
    assert everything(database, run_id) == before


@pytest.mark.parametrize("status", ["queued", "running"])
def test_only_ended_runs_are_compacted(database: Database, status: str) -> None:
    recording = record(database)
    run_id = recording.claim.run_id
    if status == "queued":
        with database.write() as session:
            lifecycle.release(session, run_id, 1, "drained")
    before = count(database, run_id)
    assert not compact(database, run_id)
    assert compact_next(database, settled=-1.0) is None
    assert count(database, run_id) == before


def test_the_oldest_ended_run_is_compacted_next_after_a_waiting_time(database: Database) -> None:
    first, second = record(database), record(database)
    for recording in (second, first):
        end(database, recording.claim.run_id)
    assert compact_next(database) is None, "runs that have just ended must not be compacted yet"
    done = [compact_next(database, settled=-1.0) for _ in range(3)]
    assert done == [first.claim.run_id, second.claim.run_id, None]


def test_several_compactors_can_compact_the_same_run(database: Database, small: None) -> None:
    recording = record(database)
    run_id = recording.claim.run_id
    end(database, run_id)
    before, start = everything(database, run_id), threading.Barrier(3)

    def work(act: Callable[[], bool]) -> None:
        start.wait()
        for _ in range(100):
            if act():
                return

    threads = [threading.Thread(target=work, args=(lambda: compact(database, run_id),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run_of(database, run_id).compacted_at is not None
    assert everything(database, run_id) == before


def test_compaction_stops_when_its_run_is_deleted(database: Database) -> None:
    recording = record(database)
    run_id = recording.claim.run_id
    end(database, run_id)

    def delete() -> bool:
        with database.write() as session:
            session.delete(session.get(Run, run_id))
        return False

    assert not compact(database, run_id, pause=delete)
    assert count(database, run_id) == 0


def test_a_run_without_blocks_is_compacted_at_once(database: Database) -> None:
    own = claimed(database)
    end(database, own.run_id)
    assert compact(database, own.run_id)
    assert run_of(database, own.run_id).compacted_at is not None
