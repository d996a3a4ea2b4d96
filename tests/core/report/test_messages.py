"""Messages survive their bytes, and a flush of any size is cut into messages that a server accepts."""

from __future__ import annotations

import numpy as np
import pytest

from stablessm_core.report.messages import (
    CatalogueMessage,
    CheckpointMessage,
    EndMessage,
    EnvironmentMessage,
    TelemetryMessage,
    TruncateMessage,
    catalogues,
    from_bytes,
    parts,
    to_bytes,
)
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SeriesSpec, layer_catalogue
from stablessm_core.telemetry.sink import Flush


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


def test_a_large_flush_is_cut_into_parts_of_bounded_size_with_the_same_numbers() -> None:
    wide, long = (
        Block("ssm/0", 0, 1, 1, np.arange(3_000_000, dtype=np.float32).reshape(-1, 6)),
        Block("scalars", 0, 1, 2, np.arange(9000, dtype=np.float32)[None]),
    )
    alerts = [KINDS["nonfinite_loss"].alert(step=i, message="") for i in range(450)]
    found = list(parts(Flush([wide, long], alerts, 18_000, 1.0, {"largest_ratio": 2.0})))
    assert [alert for part in found for alert in part.alerts] == alerts
    assert [dict(part.so_far) for part in found if part.so_far] == [{"largest_ratio": 2.0}]
    assert {part.step for part in found} == {18_000}
    for whole in (wide, long):
        pieces = [b for part in found for b in part.blocks if b.group == whole.group]
        assert np.array_equal(np.concatenate([piece.values for piece in pieces], axis=-1), whole.values)
        assert [b.first_step for b in pieces] == [1, *(b.last_step + b.stride for b in pieces[:-1])]


def test_a_long_catalogue_is_cut_between_groups() -> None:
    series = [SeriesSpec(f"ssm/{i}/weight", f"ssm/{i}", 3, "", "") for i in range(2000) for _ in range(3)]
    found = list(catalogues(series))
    assert [one for message in found for one in message.series] == series
    assert all(len(message.series) <= 4096 for message in found)
    groups = [{one.group for one in message.series} for message in found]
    assert not groups[0] & groups[1]
