"""Frames are written and read bit for bit as documented, and no byte of a stranger costs more than its own size."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import zstandard

from server.ingest.records import read_records
from stablessm_core.report.frames import LIMITS, BadFrame, Limits, pack, read_file, unpack
from stablessm_core.report.messages import CheckpointMessage, EndMessage, MetricsMessage, to_bytes
from stablessm_core.telemetry.blocks import SCATTERED, ZSTD_SHUFFLE, Block
from stablessm_core.telemetry.free_json import Refused, check_json
from stablessm_core.telemetry.scattered import pack_scattered
from stablessm_core.telemetry.series import SCALARS
from stablessm_core.telemetry.sink import Flush
from tests.mutated_frames import CATALOGUE, flush, messages, mutate

MUTATIONS = 20_000


def frame(head: Any, payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return pack([struct.pack("<I", len(text)) + text + payload])


def scalars(**changes: Any) -> dict[str, Any]:
    """The head of a flush with one raw block of the group scalars, of two points, as RAW payload."""
    block = {"group": SCALARS, "level": 0, "first_step": 1, "stride": 1, "shape": [1, 2], "size": 9}
    inside = {name: changes.pop(name) for name in block.keys() & changes.keys()}
    return {
        "kind": "Flush",
        "alerts": [],
        "step": 2,
        "steps_per_second": None,
        "blocks": [[*(block | inside).values()]],
    } | changes


RAW_PAYLOAD = b"\0" + struct.pack("<2f", 1.5, -2.0)


def test_the_bytes_of_a_frame_are_as_documented() -> None:
    head = b'{"kind": "EndRecord", "status": "finished", "reason": "done", "result": null, "divergence": null}'
    record = len(head).to_bytes(4, "little") + head
    golden = len(record).to_bytes(4, "little") + zlib.crc32(record).to_bytes(4, "little") + record
    assert pack([to_bytes(EndMessage("finished", "done"))]) == golden
    assert golden[:12].hex() == "6500000018eedc1d61000000"
    assert read_records(golden) == [EndMessage("finished", "done")]


def test_the_bytes_of_a_block_are_as_documented() -> None:
    body = pack([to_bytes(Flush([Block(SCALARS, 0, 1, 1, np.array([[1.5, -2.0]], np.float32))], [], 2, None))])
    head = (
        b'{"kind": "Flush", "alerts": [], "step": 2, "steps_per_second": null, "so_far": {}, '
        b'"blocks": [["scalars", 0, 1, 1, [1, 2], 9]]}'
    )
    record = len(head).to_bytes(4, "little") + head + bytes.fromhex("000000c03f000000c0")
    assert body == len(record).to_bytes(4, "little") + zlib.crc32(record).to_bytes(4, "little") + record
    (read,) = read_records(body)
    assert isinstance(read, Flush)
    assert read.blocks[0].values.tolist() == [[1.5, -2.0]]


def test_a_record_of_each_kind_is_read_as_it_was_written_and_payloads_stay_as_they_came() -> None:
    written = messages()
    read = read_records(pack(map(to_bytes, written)))
    assert [type(one) for one in read if not isinstance(one, Flush)] == [
        type(one) for one in written if not isinstance(one, Flush)
    ]
    assert str([one for one in read if not isinstance(one, Flush)]) == str([one for one in written if not isinstance(one, Flush)])
    (got,), (sent,) = ([m for m in found if isinstance(m, Flush)] for found in (read, written))
    assert (got.step, got.so_far, got.steps_per_second) == (sent.step, sent.so_far, sent.steps_per_second)
    assert str(got.alerts) == str(sent.alerts)
    for mine, theirs in zip(got.blocks, sent.blocks, strict=True):
        assert (mine.group, mine.level, mine.first_step, mine.stride) == (
            theirs.group,
            theirs.level,
            theirs.first_step,
            theirs.stride,
        )
        assert mine.last_step == theirs.last_step
        assert mine.values.tobytes() == theirs.values.tobytes()
        assert mine.payload in to_bytes(sent)


BAD: dict[str, tuple[bytes, str]] = {
    "no head": (pack([b"abc"]), "record"),
    "head longer than the record": (pack([struct.pack("<I", 100) + b"{}"]), "head"),
    "not JSON": (pack([struct.pack("<I", 2) + b"{]"]), "head"),
    "a list": (frame([1]), "head"),
    "deep nesting": (pack([struct.pack("<I", 200_000) + b"[" * 200_000]), "head"),
    "a very long integer": (pack([struct.pack("<I", 100_000) + b"1" * 100_000]), "head"),
    "an unknown kind": (frame({"kind": "Shell"}), "kind"),
    "a checkpoint": (pack([to_bytes(CheckpointMessage(1, "../x", "0"))]), "kind"),
    "a kind that is no text": (frame({"kind": ["Flush"]}), "kind"),
    "an unknown field": (frame(scalars(more=1), RAW_PAYLOAD), "more"),
    "a missing field": (frame({"kind": "Flush", "alerts": [], "blocks": [], "step": 1}), "steps_per_second"),
    "a negative step": (frame(scalars(step=-1), RAW_PAYLOAD), "step"),
    "a step of 2^53": (frame(scalars(step=2**53), RAW_PAYLOAD), "step"),
    "a step before its blocks": (frame(scalars(step=1), RAW_PAYLOAD), "step"),
    "a step that is true": (frame(scalars(step=True), RAW_PAYLOAD), "step"),
    "a block past 2^53": (frame(scalars(first_step=2**53 - 1, step=2**53 - 1), RAW_PAYLOAD), "blocks.0.first_step"),
    "a fractional step": (frame(scalars(first_step=1.5), RAW_PAYLOAD), "blocks.0.first_step"),
    "a level that does not exist": (frame(scalars(level=4), RAW_PAYLOAD), "blocks.0.level"),
    "a stride that is no multiple": (frame(scalars(level=1, stride=17, shape=[1, 4, 2], size=33), b"\0" * 33), "blocks.0.stride"),
    "a stride of 0": (frame(scalars(stride=0), RAW_PAYLOAD), "blocks.0.stride"),
    "a shape without statistics": (frame(scalars(level=1, stride=16), RAW_PAYLOAD), "blocks.0.shape"),
    "no points": (frame(scalars(shape=[1, 0]), RAW_PAYLOAD), "blocks.0.shape"),
    "more bytes than announced": (frame(scalars(shape=[1, 3]), RAW_PAYLOAD), "blocks.0.payload"),
    "too many bytes at once": (frame(scalars(shape=[2**20, 8192]), RAW_PAYLOAD), "blocks.0.shape"),
    "a size beyond the record": (frame(scalars(size=10), RAW_PAYLOAD), "blocks.0.size"),
    "bytes after the payloads": (frame(scalars(), RAW_PAYLOAD + b"x"), "blocks"),
    "payloads after another record": (frame({"kind": "EndRecord", "status": "finished", "reason": ""}, b"x"), "record"),
    "a group of free metrics": (frame(scalars(group="metrics/0"), RAW_PAYLOAD), "blocks.0.group"),
    "an unknown codec": (frame(scalars(), b"\x09" + RAW_PAYLOAD[1:]), "blocks.0.payload"),
    "a bomb": (frame(scalars(size=5), bytes([ZSTD_SHUFFLE]) + b"\x28\xb5\x2f\xfd"), "blocks.0.payload"),
    "an infinite rate": (frame(scalars(steps_per_second=float("inf")), RAW_PAYLOAD), "steps_per_second"),
    "an extreme that is NaN": (frame(scalars(so_far={"largest_ratio": float("nan")}), RAW_PAYLOAD), "so_far.largest_ratio"),
    "an unknown extreme": (frame(scalars(so_far={"id": 1}), RAW_PAYLOAD), "so_far.id"),
    "an unknown alert": (
        frame(scalars(alerts=[{"kind": "x", "severity": "warning", "step": 1, "message": ""}]), RAW_PAYLOAD),
        "alerts.0.kind",
    ),
    "a shrill alert": (
        frame(scalars(alerts=[{"kind": "no_progress", "severity": "fatal", "step": 1, "message": ""}]), RAW_PAYLOAD),
        "alerts.0.severity",
    ),
    "a long message": (
        frame(scalars(alerts=[{"kind": "no_progress", "severity": "warning", "step": 1, "message": "x" * 2001}]), RAW_PAYLOAD),
        "alerts.0.message",
    ),
    "NUL in a text": (frame({"kind": "EndRecord", "status": "failed", "reason": "a\0b"}), "reason"),
    "half of a pair": (frame({"kind": "EndRecord", "status": "failed", "reason": "\ud800"}), "reason"),
    "a status that is not final": (frame({"kind": "EndRecord", "status": "running", "reason": ""}), "status"),
    "a status of the queue": (frame({"kind": "EndRecord", "status": "queued", "reason": ""}), "status"),
    "the status lost": (frame({"kind": "EndRecord", "status": "lost", "reason": ""}), "status"),
    "a result that is a list": (frame({"kind": "EndRecord", "status": "failed", "reason": "", "result": [1]}), "result"),
    "a result with a text": (
        frame({"kind": "EndRecord", "status": "failed", "reason": "", "result": {"loss": "high"}}),
        "result.loss",
    ),
    "a divergence without a step": (
        frame({"kind": "EndRecord", "status": "diverged", "reason": "", "divergence": {"layer": 0}}),
        "divergence.step",
    ),
    "a truncation to a text": (frame({"kind": "TruncateRecord", "to_step": "1", "reason": ""}), "to_step"),
    "an environment of 64 KiB and more": (frame({"kind": "EnvironmentRecord", "facts": {"a": "x" * 65_536}}), "facts"),
    "a form that nobody can compute": (
        frame(
            {"kind": "CatalogueRecord", "series": [vars(CATALOGUE[1]) | {"form": {"map": "os", "time": "discrete", "rule": ""}}]}
        ),
        "series.0.form",
    ),
    "a width of 0": (frame({"kind": "CatalogueRecord", "series": [vars(CATALOGUE[0]) | {"width": 0}]}), "series.0.width"),
    "a name with a line break": (
        frame({"kind": "CatalogueRecord", "series": [vars(CATALOGUE[0]) | {"name": "a\nb"}]}),
        "series.0.name",
    ),
    **{
        f"a group with {character}": (
            frame({"kind": "CatalogueRecord", "series": [vars(CATALOGUE[0]) | {"group": f"a{character}b"}]}),
            "series.0.group",
        )
        for character in ('"', "\\")
    },
    "a series twice": (frame({"kind": "CatalogueRecord", "series": [vars(CATALOGUE[0])] * 2}), "series"),
    "metrics without steps": (pack([to_bytes(MetricsMessage([], {"a": []}))]), "steps"),
    "a metric with NUL": (pack([to_bytes(MetricsMessage([1], {"a\0": [1.0]}))]), "values"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_record_is_refused_by_one_error_that_names_frame_field_given_and_allowed(name: str) -> None:
    body, field = BAD[name]
    good = pack([to_bytes(EndMessage("finished", "done"))])
    with pytest.raises(BadFrame) as refusal:
        read_records(good + body)
    assert (refusal.value.index, refusal.value.field) == (1, field)
    assert refusal.value.given
    assert refusal.value.allowed
    assert len(str(refusal.value)) < 3000


def test_a_frame_that_is_cut_short_damaged_or_too_long_is_named() -> None:
    good = pack([to_bytes(EndMessage("finished", "done"))])
    damaged = bytearray(good)
    damaged[-1] ^= 1
    for body, field in [
        (good + good[:7], ""),
        (good + good[:-1], "length"),
        (good + bytes(damaged), "crc32"),
        (good + struct.pack("<II", 2**32 - 1, 0), "length"),
    ]:
        with pytest.raises(BadFrame) as refusal:
            read_records(body)
        assert (refusal.value.index, refusal.value.field) == (1, field)
    with pytest.raises(BadFrame, match="frame 2: is one frame too many"):
        read_records(good * 3, Limits(records=2))


def test_the_decompressed_size_of_a_body_is_bounded_before_it_is_decompressed() -> None:
    packed = bytes([ZSTD_SHUFFLE]) + zstandard.ZstdCompressor().compress(bytes(4 << 20))
    head = scalars(shape=[256, 4096], size=len(packed), step=4096)
    body = frame(head, packed) * 20
    assert len(body) < 30_000
    with pytest.raises(BadFrame) as refusal:
        read_records(body)
    assert (refusal.value.index, refusal.value.field) == (16, "blocks.0.shape"), "64 MiB fit, the next 4 MiB do not"


def test_a_payload_cannot_make_zstd_remember_more_than_a_block() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=wide).compressobj(size=8)
    packed = bytes([ZSTD_SHUFFLE]) + writer.compress(bytes(8)) + writer.flush()
    body = frame(scalars(size=len(packed)), packed)
    if zstandard.get_frame_parameters(packed[1:]).window_size > 16 << 20:
        with pytest.raises(BadFrame, match="window"):
            read_records(body)


def test_a_payload_with_a_table_of_steps_is_refused() -> None:
    packed = pack_scattered(np.ones((1, 2), np.float32), np.array([5, 1]), np.array([1, 1]))
    with pytest.raises(BadFrame, match=f"codec {SCATTERED}"):
        read_records(frame(scalars(size=len(packed)), packed))


@pytest.mark.slow
def test_20_000_mutations_are_read_or_refused_in_bounded_memory() -> None:
    rng, records = random.Random(23), [to_bytes(message) for message in messages()]
    read = refused = peak = 0
    tracemalloc.start()  # it slows everything down, so it watches only the first tenth
    for i in range(MUTATIONS):
        if i == MUTATIONS // 10:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        try:
            read_records(mutate(rng, records))
            read += 1
        except BadFrame:
            refused += 1
    assert read > 100, "some mutations must be harmless, or the test proves nothing"
    assert refused > MUTATIONS / 2
    assert 0 < peak < 8 << 20


def test_a_file_of_frames_is_read_up_to_the_first_damaged_frame() -> None:
    records = [to_bytes(message) for message in messages()]
    whole = pack(records)
    assert list(read_file(BytesIO(whole), 1 << 26)) == records
    assert [bytes(record) for record in unpack(whole)] == records
    cut = bytearray(whole)
    cut[len(pack(records[:3])) + 20] ^= 8
    assert list(read_file(BytesIO(bytes(cut)), 1 << 26)) == records[:3]
    assert list(read_file(BytesIO(whole[:-1]), 1 << 26)) == records[:-1]


@pytest.mark.parametrize(
    "value",
    ["x" * 65_535, {"a": 2**63}, {"a": "\0"}, {"\ud800": 1}, json.loads("[" * 40 + "]" * 40), {"k" * 201: 1}],
    ids=["long", "integer", "NUL", "surrogate", "deep", "key"],
)
def test_free_json_that_a_database_or_a_page_could_not_keep_is_refused(value: Any) -> None:
    with pytest.raises(Refused):
        check_json(value, "config")
    check_json({"a": [1, None, True, 2.5, "ü", {"b": {}}], "n": float("nan")}, "config")


def test_the_limits_leave_room_for_the_frames_that_a_program_sends() -> None:
    big = flush(1, 4096)
    assert len(pack([to_bytes(big)])) < LIMITS.body_bytes
    read_records(pack([to_bytes(flush(1 + 64 * i)) for i in range(10)]))
