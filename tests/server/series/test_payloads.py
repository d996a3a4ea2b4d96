"""If a stored payload differs from what was written, every read reports it as damaged, with run, series and steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select, update

from server.backup.create import backup
from server.cli import doctor
from server.database.connection import Database
from server.database.models import BlockRow
from server.database.payloads import DamagedPayload, examine, stored_numbers, verify
from server.lifecycle import transitions as lifecycle
from server.series import compaction, reading
from server.series.events import events_after
from server.settings import Settings
from stablessm_core.telemetry.blocks import encode
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import Recording, claimed, run_of
from tests.server.storing import truncate

pytestmark = pytest.mark.both_engines

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "one bit": lambda payload: payload[:20] + bytes([payload[20] ^ 1]) + payload[21:],
    "cut short": lambda payload: payload[: len(payload) // 2],
    "empty": lambda _payload: b"",
    "another codec": lambda payload: b"\x63" + payload[1:],
}
GROUP = "ssm/0"


@pytest.fixture
def recorded(database: Database) -> Recording:
    run = Recording(database, claimed(database), layers=2, width=3)
    for points in (64, 64, 64):
        run.write(points)
    return run


def damage(recorded: Recording, how: str, first_step: int = 65, *, unchecked: bool = False) -> None:
    place = (BlockRow.run_id == recorded.claim.run_id, BlockRow.group_name == GROUP, BlockRow.level == 0)
    with recorded.database.write() as session:
        row = session.scalars(select(BlockRow).where(*place, BlockRow.first_step == first_step)).one()
        row.payload = DAMAGES[how](row.payload)
        if unchecked:
            row.checksum = None


def test_every_block_is_stored_with_a_matching_checksum(recorded: Recording) -> None:
    with recorded.database.read() as session:
        assert all(verify(row) for row in session.scalars(select(BlockRow)))
        found = examine(session, 60)
    assert (found.unchecked, found.damaged, found.complete) == (0, [], True)
    assert found.matching >= 9


@pytest.mark.parametrize("how", DAMAGES)
def test_reading_a_damaged_payload_names_run_series_and_steps(recorded: Recording, how: str) -> None:
    damage(recorded, how)
    run_id = recorded.claim.run_id
    with recorded.database.read() as session:
        assert len(reading.read_series(session, run_id, "ssm/1/weight").step) == 192
        assert len(reading.read_series(session, run_id, "ssm/0/weight", to_step=64).step) == 64
        for name in ("ssm/0/weight", "ssm/0/boundary_distance"):
            with pytest.raises(DamagedPayload, match=rf"run {run_id}: the stored numbers of {name}, steps 65 to 128 are damaged"):
                reading.read_series(session, run_id, name)


def test_a_damaged_payload_without_a_checksum_gives_the_same_clear_error(recorded: Recording) -> None:
    damage(recorded, "cut short", unchecked=True)
    with recorded.database.read() as session, pytest.raises(DamagedPayload, match="ssm/0/weight, steps 65 to 128 are damaged"):
        reading.read_series(session, recorded.claim.run_id, "ssm/0/weight")


def test_a_live_stream_skips_damaged_blocks_and_logs_them(recorded: Recording, caplog: pytest.LogCaptureFixture) -> None:
    damage(recorded, "one bit")
    with recorded.database.read() as session, caplog.at_level(logging.ERROR):
        events = events_after(session, recorded.claim.run_id, 0)
    seen = {(point.name, int(step)) for event in events for point in event.points for step in point.step}
    assert ("train/loss", 65) in seen
    assert {step for name, step in seen if name == "ssm/0/weight"} == {*range(1, 65), *range(129, 193)}
    assert "steps 65 to 128 are damaged" in caplog.text


def test_compaction_and_truncation_keep_checksums_and_skip_damaged_blocks(recorded: Recording) -> None:
    damage(recorded, "one bit")
    claim, database = recorded.claim, recorded.database
    with database.write() as session:
        truncate(session, claim.run_id, claim.attempt, 180, "taken back")
        lifecycle.finish(session, claim.run_id, claim.attempt, "failed", "it ended")
    assert compaction.compact(database, claim.run_id)
    assert run_of(database, claim.run_id).compacted_at is not None
    with database.read() as session:
        found = examine(session, 60)
        merged = reading.read_series(session, claim.run_id, "ssm/1/weight")
    assert merged.step.tolist() == list(range(1, 180))
    assert len(found.damaged) == 1
    assert found.unchecked == 0


def test_truncating_inside_a_damaged_block_deletes_the_whole_block(recorded: Recording) -> None:
    damage(recorded, "one bit", first_step=129)
    claim = recorded.claim
    with recorded.database.write() as session:
        truncate(session, claim.run_id, claim.attempt, 150, "taken back")
    with recorded.database.read() as session:
        assert reading.read_series(session, claim.run_id, "ssm/0/weight").step.tolist() == list(range(1, 129))
        assert reading.read_series(session, claim.run_id, "ssm/1/weight").step.tolist() == list(range(1, 150))


def test_a_block_rewritten_by_an_older_program_counts_as_unchecked_instead_of_damaged(recorded: Recording) -> None:
    with recorded.database.write() as session:
        one = session.scalars(select(BlockRow).where(BlockRow.group_name == GROUP, BlockRow.level == 0)).first()
        assert one is not None
        shorter = encode(stored_numbers(one)[:, :10])
        place = (BlockRow.group_name == GROUP, BlockRow.level == 0, BlockRow.first_step == one.first_step)
        session.execute(update(BlockRow).where(*place).values(payload=shorter, point_count=10))
        session.expire_all()
        assert not verify(session.scalars(select(BlockRow).where(*place)).one())


def test_a_backup_contains_damaged_payloads_and_warns_about_them(recorded: Recording, tmp_path: Path) -> None:
    damage(recorded, "one bit")
    said: list[str] = []
    backup(recorded.database, tmp_path, tmp_path / "site.backup", said.append)
    warnings = [line for line in said if line.startswith("warning")]
    assert len(warnings) == 1
    assert (
        f"1 payloads are damaged; the backup has them unchanged: run {recorded.claim.run_id}: the stored numbers of ssm/0"
        in warnings[0]
    )


def test_reading_damaged_numbers_over_the_api_gives_a_clear_error(recorded: Recording, tmp_path: Path) -> None:
    damage(recorded, "one bit")
    run_id = recorded.claim.run_id
    with client_of(application(recorded.database.url, tmp_path)) as client:
        error = error_of(client.get(f"/api/runs/{run_id}/series/ssm/0/weight"), 500)
    assert error["message"].startswith(f"run {run_id}: the stored numbers of ssm/0/weight, steps 65 to 128 are damaged")


def test_the_doctor_finds_damaged_payloads_and_suggests_a_repair(recorded: Recording, tmp_path: Path) -> None:
    settings = Settings(database_url=recorded.database.url, data_dir=tmp_path)
    [whole] = doctor._payloads(settings, deep=True)
    assert whole[0] == doctor.OK
    damage(recorded, "one bit")
    [damaged] = doctor._payloads(settings, deep=True)
    assert damaged[0] == doctor.BAD
    assert "ssm/0, steps 65 to 128 are damaged" in damaged[2]
    assert "stablessm restore" in damaged[3]
