"""Records on disk are read back in order, each record completely or not at all, and never exceed their size limit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.messages import (
    CatalogueMessage,
    CheckpointMessage,
    EndMessage,
    EnvironmentMessage,
    TelemetryMessage,
    TruncateMessage,
    from_bytes,
    to_bytes,
)
from stablessm_core.telemetry.series import layer_catalogue
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.spool import Spool, left_behind

LIMIT = 1 << 20


def test_records_are_read_in_order_and_an_empty_spool_deletes_its_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "spool", LIMIT)
    records = [os.urandom(size) for size in (0, 1, 4096, 70_000)]
    assert all(spool.append(record) for record in records)
    assert list(left_behind(spool.path)) == records
    for record in records:
        assert spool.first() == record
        assert spool.first() == record, "a record must stay in the spool until it is dropped"
        spool.drop()
    assert len(spool) == 0
    assert spool.first() is None
    assert not spool.path.exists()
    assert spool.append(b"again")
    assert spool.first() == b"again"


def test_a_full_spool_refuses_a_new_record_and_keeps_its_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 1000)
    assert spool.append(b"a" * 600)
    assert not spool.append(b"b" * 600)
    assert spool.path.stat().st_size <= 1000
    assert spool.first() == b"a" * 600


@pytest.mark.parametrize("cut", [1, 5, 8, 300])
def test_a_record_truncated_by_a_kill_is_skipped(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path / "spool", LIMIT)
    spool.append(b"first" * 100)
    spool.append(b"second" * 100)
    os.truncate(spool.path, spool.path.stat().st_size - cut)
    assert list(left_behind(spool.path)) == [b"first" * 100]


def test_reading_stops_before_a_record_with_a_flipped_bit(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", LIMIT)
    for letter in (b"a", b"b", b"c"):
        spool.append(letter * 50)
    data = bytearray(spool.path.read_bytes())
    data[58 + 20] ^= 1
    spool.path.write_bytes(data)
    assert list(left_behind(spool.path)) == [b"a" * 50]
    spool.drop()
    with pytest.raises(OSError, match="damaged"):
        spool.first()


def test_a_missing_spool_file_holds_no_records(tmp_path: Path) -> None:
    assert list(left_behind(tmp_path / "none")) == []


def _flush() -> Flush:
    values = np.array([[1.0, np.nan, np.inf], [-0.0, 1e-45, -np.inf]], np.float32)
    stats = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    alert = KINDS["nonfinite_loss"].alert(step=7, series="train/loss", tensor="loss", value=float("nan"), message="loss is NaN")
    return Flush([Block("ssm/0", 0, 5, 1, values), Block("ssm/0", 1, 1, 16, stats)], [alert], 7, 123.5)


@pytest.mark.parametrize(
    "record",
    [
        CatalogueMessage(layer_catalogue(0, 8, Form.of_map("best", "continuous"))),
        EnvironmentMessage({"device": "cpu", "versions": {"torch": "2"}}),
        CheckpointMessage(20, "runs/1/checkpoints/step-20.safetensors", "ab" * 32),
        TruncateMessage(10, "loss is NaN"),
        EndMessage("diverged", "loss is NaN", {"train_loss": float("inf")}, {"step": 7, "value": "NaN"}),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_survives_a_round_trip_through_bytes(record: TelemetryMessage) -> None:
    assert from_bytes(to_bytes(record)) == record


def test_a_flush_survives_a_round_trip_through_bytes_bit_for_bit() -> None:
    flush = _flush()
    back = from_bytes(to_bytes(flush))
    assert isinstance(back, Flush)
    assert (back.step, back.steps_per_second) == (7, 123.5)
    assert repr(back.alerts) == repr(flush.alerts)
    for one, other in zip(back.blocks, flush.blocks, strict=True):
        assert (one.group, one.level, one.first_step, one.stride) == (other.group, other.level, other.first_step, other.stride)
        assert one.values.tobytes() == other.values.tobytes()


@pytest.mark.parametrize("length", [0, 3, 20])
def test_truncated_bytes_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut short"):
        from_bytes(to_bytes(_flush())[:length])
