"""Reads the record of a message that another program sent. `messages.from_bytes` trusts its bytes; this file does not.

The kinds, names, counts, shapes and strides are checked, and every payload is decompressed once, so that a stored payload can
always be read. The payloads themselves are kept as they came: they need not be encoded again.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from stablessm_core.telemetry.blocks import BUCKET, LEVELS, RAW, STATS, ZSTD_DELTA, ZSTD_SHUFFLE, decode
from stablessm_core.telemetry.detectors import KINDS, Alert
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.free_json import Refused, check_json, entries, fields, integer, number, shown, text
from stablessm_core.telemetry.messages import CatalogueMessage, EndMessage, EnvironmentMessage, MetricsMessage, TruncateMessage
from stablessm_core.telemetry.metrics import check_metrics, is_metric_group
from stablessm_core.telemetry.nonfinite import NONFINITE
from stablessm_core.telemetry.series import SO_FAR, SeriesSpec
from stablessm_core.telemetry.statuses import FINAL

LAST_TIME = 1e11  # epoch seconds
MAX_STEP = 2**53 - 1  # JavaScript reads larger integers inexactly
MAX_HEAD_BYTES = 1 << 20
MAX_BLOCKS = 8192  # blocks in a body
MAX_POINTS = 8192  # points or buckets in one block
MAX_BLOCK_BYTES = 16 << 20  # one block after decompression
MAX_WINDOW_BYTES = 16 << 20  # what zstd may need to remember while it decompresses
MAX_SERIES, MAX_WIDTH, MAX_COLUMNS = 4096, 1 << 20, 1 << 20
MAX_ALERTS = 1000  # alerts in a body
MAX_CATALOGUES = 16  # catalogues in a body: the server reads and checks the whole catalogue of the run for each of them
MAX_MESSAGE, MAX_REASON = 2000, 2000
MAX_NUMBER = 2**31 - 1  # of a layer, an eigenvalue, a length
GROUP = re.compile(r"[!#-\[\]-~]+")  # without " and \, which mean something in the paths of SQLite
NAME = re.compile(r"[!-~]([ -~]*[!-~])?")
RESULT_NAMES = 100

_FLUSH = frozenset(("alerts", "step", "steps_per_second", "blocks"))
_ALERT = frozenset(("kind", "severity", "step", "message"))
_ALERT_MORE = frozenset(("series", "layer", "eigenvalue", "tensor", "value", "lasted"))
_SERIES = frozenset(("name", "group", "width", "unit", "meaning"))
_FORM = frozenset(("map", "time", "rule"))
_FORM_MORE = frozenset(("scale", "a", "b", "dt", "length", "phase", "gate", "bounded"))
_DIVERGENCE_MORE = frozenset(("layer", "eigenvalue", "tensor", "value", "series"))


@dataclass(frozen=True)
class PackedBlock:
    """A checked block with its payload as it came. At level 0 the payload holds (columns, point_count) numbers, at the levels
    above (columns, 4, point_count)."""

    group: str
    level: int
    first_step: int
    stride: int
    columns: int
    point_count: int
    payload: bytes

    @property
    def last_step(self) -> int:
        """The last recorded step that the block covers."""
        return self.first_step + self.point_count * self.stride - self.stride // int(BUCKET**self.level)

    @property
    def values(self) -> np.ndarray:
        """The numbers as float32."""
        return self.decoded(slice(None))

    def decoded(self, columns: slice) -> np.ndarray:
        """The numbers of these columns as float32."""
        shape = (self.columns, len(STATS), self.point_count) if self.level else (self.columns, self.point_count)
        return decode(self.payload, shape, columns)


@dataclass(frozen=True)
class PackedFlush:
    """A `Flush` whose blocks keep their payloads."""

    blocks: list[PackedBlock]
    alerts: list[Alert]
    step: int
    steps_per_second: float | None
    so_far: Mapping[str, float]


Received = PackedFlush | CatalogueMessage | EnvironmentMessage | TruncateMessage | EndMessage | MetricsMessage


@dataclass
class Budget:
    """How many blocks, alerts and catalogues may still follow in a body, and how many bytes its blocks may have after
    decompression."""

    decoded_bytes: int
    blocks: int = MAX_BLOCKS
    alerts: int = MAX_ALERTS
    catalogues: int = MAX_CATALOGUES

    def take(self, size: int, field: str) -> None:
        """Count a block of this size. Raises Refused if it is too large, or one block too many."""
        if self.blocks == 0:
            raise Refused(field, "one block too many", f"{MAX_BLOCKS:,} blocks in a body")
        if size > min(self.decoded_bytes, MAX_BLOCK_BYTES):
            allowed = f"at most {MAX_BLOCK_BYTES:,} bytes in a block, and {self.decoded_bytes:,} in the rest of this body"
            raise Refused(field, f"{size:,} bytes", allowed)
        self.decoded_bytes, self.blocks = self.decoded_bytes - size, self.blocks - 1


def read_record(record: memoryview, budget: Budget) -> Received:
    """The message in a record. Raises Refused."""
    if len(record) < 4:
        raise Refused("record", f"{len(record)} bytes long", "at least 4 bytes: the length of the head")
    (length,) = struct.unpack_from("<I", record)
    if length > min(MAX_HEAD_BYTES, len(record) - 4):
        raise Refused("head", f"{length:,} bytes long", f"at most {min(MAX_HEAD_BYTES, len(record) - 4):,} bytes in this record")
    try:
        head = json.loads(bytes(record[4 : 4 + length]))
    except (ValueError, RecursionError):
        raise Refused("head", "not JSON", "a JSON object in UTF-8, without very deep nesting or very long integers") from None
    if not isinstance(head, dict):
        raise Refused("head", shown(head), "a JSON object")
    kind, payloads = head.pop("kind", None), record[4 + length :]
    if kind == "Flush":
        return _flush(head, payloads, budget)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Refused("kind", shown(kind), ", ".join(["Flush", *_READERS]))
    if len(payloads):
        raise Refused("record", f"{len(payloads):,} bytes longer than its head", "payloads only in a Flush")
    if kind == "CatalogueRecord":
        budget.catalogues -= 1
        if budget.catalogues < 0:
            raise Refused("kind", "one catalogue too many", f"at most {MAX_CATALOGUES} catalogues in a body")
    return reader(head)


def _flush(head: dict[str, Any], payloads: memoryview, budget: Budget) -> PackedFlush:
    fields(head, "", _FLUSH, frozenset(("so_far",)))
    step, blocks, at = integer(head["step"], "step", 0, MAX_STEP), [], 0
    for i, described in enumerate(entries(head["blocks"], "blocks", MAX_BLOCKS)):
        block = _block(f"blocks.{i}", described, payloads[at:], budget)
        if block.last_step > step:
            raise Refused("step", f"{step:,}", f"at least {block.last_step:,}, the last step of block {i}")
        blocks.append(block)
        at += len(block.payload)
    if at != len(payloads):
        raise Refused("blocks", f"{at:,} bytes of payloads", f"{len(payloads):,} bytes, what follows the head")
    alerts = [_alert(f"alerts.{i}", one) for i, one in enumerate(entries(head["alerts"], "alerts", budget.alerts))]
    budget.alerts -= len(alerts)
    so_far = fields(head.get("so_far", {}), "so_far", frozenset(), frozenset(SO_FAR))
    rate = head["steps_per_second"]
    return PackedFlush(
        blocks, alerts, step, None if rate is None else number(rate, "steps_per_second", 0, 1e12),
        {name: number(value, f"so_far.{name}") for name, value in so_far.items()},
    )  # fmt: skip


def _block(field: str, described: Any, rest: memoryview, budget: Budget) -> PackedBlock:
    if len(entries(described, field, 6)) != 6:
        raise Refused(field, f"{len(described)} entries long", "group, level, first_step, stride, shape, size")
    group = text(described[0], f"{field}.group", 60, least=1, pattern=GROUP)
    if is_metric_group(group):
        raise Refused(f"{field}.group", shown(group), "groups other than those of free metrics (a MetricsRecord)")
    level = integer(described[1], f"{field}.level", 0, LEVELS)
    first = integer(described[2], f"{field}.first_step", 0, MAX_STEP)
    bucket = BUCKET**level
    stride = integer(described[3], f"{field}.stride", bucket, MAX_STEP)
    if stride % bucket:
        raise Refused(f"{field}.stride", f"{stride:,}", f"multiples of {bucket:,} at level {level}")
    shape = [integer(n, f"{field}.shape", 1, MAX_COLUMNS) for n in entries(described[4], f"{field}.shape", 3)]
    if len(shape) != (3 if level else 2) or (level and shape[1] != len(STATS)) or shape[-1] > MAX_POINTS:
        inner = f"{len(STATS)}, " if level else ""
        raise Refused(f"{field}.shape", shown(shape) + f": {shape}", f"[columns, {inner}points], at most {MAX_POINTS:,} points")
    budget.take(4 * math.prod(shape), f"{field}.shape")
    size = integer(described[5], f"{field}.size", 1, len(rest)) if len(rest) else 0
    block = PackedBlock(group, level, first, stride, shape[0], shape[-1], bytes(rest[:size]))
    if not size:
        raise Refused(f"{field}.size", shown(described[5]), "the bytes of a payload, which are missing here")
    if block.last_step > MAX_STEP:
        raise Refused(f"{field}.first_step", f"{first:,}", f"a block that ends before step {MAX_STEP + 1:,}")
    _check_payload(field, block)
    return block


def _check_payload(field: str, block: PackedBlock) -> None:
    codec, body = block.payload[0], block.payload[1:]
    if codec not in (RAW, ZSTD_SHUFFLE, ZSTD_DELTA):
        raise Refused(f"{field}.payload", f"codec {codec}", f"codecs {RAW}, {ZSTD_SHUFFLE} and {ZSTD_DELTA}")
    try:
        if codec != RAW and zstandard.get_frame_parameters(body).window_size > MAX_WINDOW_BYTES:
            raise Refused(f"{field}.payload", "a zstd frame with a large window", f"a window of {MAX_WINDOW_BYTES:,} bytes")
        numbers = block.decoded(slice(None) if block.level else slice(0, 1))  # raw numbers may be anything: only decompress them
    except (zstandard.ZstdError, MemoryError) as error:
        raise Refused(f"{field}.payload", f"damaged: {error}", "what `blocks.encode` returns") from None
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"{field}.payload", str(error), "what `blocks.encode` returns for this shape") from None
    if block.level:
        lost = numbers[:, STATS.index("nonfinite")]
        if not ((lost >= 0) & (lost <= BUCKET**block.level)).all():
            raise Refused(f"{field}.payload", "an impossible number of non-finite values", f"0 to {BUCKET**block.level:,}")


def _alert(field: str, given: Any) -> Alert:
    fields(given, field, _ALERT, _ALERT_MORE)
    if given["severity"] not in ("warning", "critical"):
        raise Refused(f"{field}.severity", shown(given["severity"]), "warning, critical")
    if not isinstance(given["kind"], str) or given["kind"] not in KINDS:
        raise Refused(f"{field}.kind", shown(given["kind"]), ", ".join(KINDS))
    value = given.get("value")
    if value is not None and not (isinstance(value, float) and math.isnan(value)):
        number(value, f"{field}.value")
    return Alert(
        kind=given["kind"],
        severity=given["severity"],
        step=integer(given["step"], f"{field}.step", 0, MAX_STEP),
        message=text(given["message"], f"{field}.message", MAX_MESSAGE),
        series=text(given.get("series", ""), f"{field}.series", 120),
        layer=_optional_number(given.get("layer"), f"{field}.layer"),
        eigenvalue=_optional_number(given.get("eigenvalue"), f"{field}.eigenvalue"),
        tensor=text(given.get("tensor", ""), f"{field}.tensor", 200),
        value=None if value is None else float(value),
        lasted=integer(given.get("lasted", 1), f"{field}.lasted", 1, MAX_STEP),
    )


def _catalogue(head: dict[str, Any]) -> CatalogueMessage:
    described = entries(fields(head, "", frozenset(("series",)))["series"], "series", MAX_SERIES)
    series = [_series(f"series.{i}", one) for i, one in enumerate(described)]
    if (columns := sum(one.width for one in series)) > MAX_COLUMNS:
        raise Refused("series", f"{columns:,} columns", f"at most {MAX_COLUMNS:,} columns")
    if len({one.name for one in series}) < len(series):
        raise Refused("series", "a list that names a series twice", "each name once")
    return CatalogueMessage(series)


def _series(field: str, given: Any) -> SeriesSpec:
    fields(given, field, _SERIES, frozenset(("derived", "form")))
    form, derived = given.get("form"), given.get("derived", False)
    if is_metric_group(text(given["group"], f"{field}.group", 60, least=1, pattern=GROUP)):
        raise Refused(f"{field}.group", shown(given["group"]), "groups other than those of free metrics (a MetricsRecord)")
    if not isinstance(derived, bool):
        raise Refused(f"{field}.derived", shown(derived), "true, false")
    return SeriesSpec(
        text(given["name"], f"{field}.name", 120, least=1, pattern=NAME),
        given["group"],
        integer(given["width"], f"{field}.width", 1, MAX_WIDTH),
        text(given["unit"], f"{field}.unit", 20),
        text(given["meaning"], f"{field}.meaning", 1000),
        derived,
        None if form is None else _form(f"{field}.form", form),
    )


def _form(field: str, given: Any) -> dict[str, Any]:
    fields(given, field, _FORM, _FORM_MORE)
    for name in ("map", "time", "rule", "phase"):
        if given.get(name) is not None or name in _FORM:
            text(given[name], f"{field}.{name}", 40)
    for name in ("scale", "a", "b"):
        if name in given:
            number(given[name], f"{field}.{name}", -1e30, 1e30)
    if not isinstance(given.get("dt"), str | None) and number(given["dt"], f"{field}.dt", 0, 1e30) == 0:
        raise Refused(f"{field}.dt", "0", "a positive number, or dt")
    if isinstance(given.get("dt"), str) and given["dt"] != "dt":
        raise Refused(f"{field}.dt", shown(given["dt"]), "a positive number, or dt")
    if given.get("length") is not None:
        integer(given["length"], f"{field}.length", 1, MAX_NUMBER)
    for name in ("gate", "bounded"):
        if not isinstance(given.get(name, False), bool):
            raise Refused(f"{field}.{name}", shown(given[name]), "true, false")
    try:
        return Form.from_data(given).data
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(field, f"not a form: {str(error)[:300]}", "a form that this version can compute") from None


def _environment(head: dict[str, Any]) -> EnvironmentMessage:
    facts = fields(head, "", frozenset(("facts",)))["facts"]
    check_json(facts, "facts")
    if not isinstance(facts, dict):
        raise Refused("facts", shown(facts), "an object")
    if (data := facts.get("data")) is not None:
        if not isinstance(data, dict):
            raise Refused("facts.data", shown(data), "an object")
        if data.get("length") is not None:
            integer(data["length"], "facts.data.length", 1, MAX_NUMBER)
    if facts.get("parameters") is not None:
        integer(facts["parameters"], "facts.parameters", 0, MAX_STEP)
    return EnvironmentMessage(facts)


def _truncate(head: dict[str, Any]) -> TruncateMessage:
    fields(head, "", frozenset(("to_step", "reason")))
    return TruncateMessage(integer(head["to_step"], "to_step", 0, MAX_STEP), text(head["reason"], "reason", MAX_REASON))


def _end(head: dict[str, Any]) -> EndMessage:
    fields(head, "", frozenset(("status", "reason")), frozenset(("result", "divergence", "ended_at")))
    status, result, divergence = head["status"], head.get("result"), head.get("divergence")
    if status not in FINAL:
        raise Refused("status", shown(status), ", ".join(FINAL))
    if result is not None:
        if not isinstance(result, dict) or len(result) > RESULT_NAMES:
            raise Refused("result", shown(result), f"an object of at most {RESULT_NAMES} numbers")
        for name, value in result.items():
            _result(f"result.{text(name, 'result', 100)}", value)
    if divergence is not None:
        fields(divergence, "divergence", frozenset(("step",)), _DIVERGENCE_MORE)
        integer(divergence["step"], "divergence.step", 0, MAX_STEP)
        for name in ("layer", "eigenvalue"):
            _optional_number(divergence.get(name), f"divergence.{name}")
        for name in ("tensor", "series"):
            if divergence.get(name) is not None:
                text(divergence[name], f"divergence.{name}", 200)
        _result("divergence.value", divergence.get("value"))
    ended_at = head.get("ended_at")
    if ended_at is not None:
        ended_at = number(ended_at, "ended_at", 0, LAST_TIME)
    return EndMessage(status, text(head["reason"], "reason", MAX_REASON), result, divergence, ended_at)


def _metrics(head: dict[str, Any]) -> MetricsMessage:
    fields(head, "", frozenset(("steps", "values")))
    try:
        check_metrics(head["steps"], head["values"])
    except ValueError as error:  # the message is "field is given; allowed: ..."
        wrong, _, allowed = str(error).partition("; allowed: ")
        field, _, given = wrong.partition(" is ")
        raise Refused(field, given, allowed) from None
    for name in head["values"]:
        text(name, "values", 120)
    return MetricsMessage(head["steps"], head["values"])


def _result(field: str, value: Any) -> None:
    if value is None or isinstance(value, bool) or value in NONFINITE or (isinstance(value, float) and math.isnan(value)):
        return
    if isinstance(value, int):
        integer(value, field, -MAX_STEP, MAX_STEP)
    number(value, field)


def _optional_number(value: Any, field: str) -> int | None:
    return None if value is None else integer(value, field, 0, MAX_NUMBER)


_READERS: dict[str, Callable[[dict[str, Any]], Received]] = {
    "CatalogueRecord": _catalogue,
    "EnvironmentRecord": _environment,
    "TruncateRecord": _truncate,
    "EndRecord": _end,
    "MetricsRecord": _metrics,
}
