"""Reads the records that another program sent. `messages.from_bytes` trusts its bytes; this file does not.

Every payload is decompressed once, so that a stored payload can always be read. The payloads themselves are kept as they came:
they need not be encoded again.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import zstandard

from server.ingest.message_schemas import RECORDS, BlockRecord, FlushRecord
from server.ingest.schemas import check
from stablessm_core.report.frames import LIMITS, BadFrame, Limits, unpack
from stablessm_core.report.messages import Received
from stablessm_core.telemetry import limits as most
from stablessm_core.telemetry.blocks import BUCKET, RAW, STATS, ZSTD_DELTA, ZSTD_SHUFFLE, PackedBlock
from stablessm_core.telemetry.free_json import Refused, shown
from stablessm_core.telemetry.sink import Flush


@dataclass
class Budget:
    """How many blocks, alerts and catalogues may still follow in a body, and how many bytes its blocks may have after
    decompression."""

    decoded_bytes: int
    blocks: int = most.MAX_BLOCKS
    alerts: int = most.MAX_ALERTS
    catalogues: int = most.MAX_CATALOGUES

    def take(self, size: int, field: str) -> None:
        """Count a block of this size. Raises Refused if it is too large, or one block too many."""
        if self.blocks == 0:
            raise Refused(field, "one block too many", f"{most.MAX_BLOCKS:,} blocks in a body")
        if size > min(self.decoded_bytes, most.MAX_BLOCK_BYTES):
            allowed = f"at most {most.MAX_BLOCK_BYTES:,} bytes in a block, and {self.decoded_bytes:,} in the rest of this body"
            raise Refused(field, f"{size:,} bytes", allowed)
        self.decoded_bytes, self.blocks = self.decoded_bytes - size, self.blocks - 1


def read_records(body: bytes, limits: Limits = LIMITS) -> list[Received]:
    """The messages in a body, each checked as far as that is possible without the run's catalogue. Raises BadFrame."""
    budget, found = Budget(limits.decoded_bytes), []
    for index, record in enumerate(unpack(body, limits)):
        try:
            found.append(read_record(record, budget))
        except Refused as refused:
            raise BadFrame(index, refused.field, refused.given, refused.allowed) from None
    return found


def read_record(record: memoryview, budget: Budget) -> Received:
    """The message in a record. Raises Refused."""
    head, payloads = _head(record)
    kind = head.pop("kind", None)
    if kind == "Flush":
        return _flush(head, payloads, budget)
    model = RECORDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise Refused("kind", shown(kind), ", ".join(["Flush", *RECORDS]))
    if len(payloads):
        raise Refused("record", f"{len(payloads):,} bytes longer than its head", "payloads only in a Flush")
    if kind == "CatalogueRecord":
        budget.catalogues -= 1
        if budget.catalogues < 0:
            raise Refused("kind", "one catalogue too many", f"at most {most.MAX_CATALOGUES} catalogues in a body")
    return check(model, head).message


def _head(record: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The head of a record, and what follows it."""
    if len(record) < 4:
        raise Refused("record", f"{len(record)} bytes long", "at least 4 bytes: the length of the head")
    (length,) = struct.unpack_from("<I", record)
    if length > (longest := min(most.MAX_HEAD_BYTES, len(record) - 4)):
        raise Refused("head", f"{length:,} bytes long", f"at most {longest:,} bytes in this record")
    try:
        head = json.loads(bytes(record[4 : 4 + length]))
    except (ValueError, RecursionError):
        raise Refused("head", "not JSON", "a JSON object in UTF-8, without very deep nesting or very long integers") from None
    if not isinstance(head, dict):
        raise Refused("head", shown(head), "a JSON object")
    return head, record[4 + length :]


def _flush(head: dict[str, Any], payloads: memoryview, budget: Budget) -> Flush:
    described, blocks, at = check(FlushRecord, head), [], 0
    for i, one in enumerate(described.blocks):
        block = _block(f"blocks.{i}", one, payloads[at:], budget)
        if block.last_step > described.step:
            raise Refused("step", f"{described.step:,}", f"at least {block.last_step:,}, the last step of block {i}")
        blocks.append(block)
        at += len(block.payload)
    if at != len(payloads):
        raise Refused("blocks", f"{at:,} bytes of payloads", f"{len(payloads):,} bytes, what follows the head")
    if len(described.alerts) > budget.alerts:
        raise Refused("alerts", f"{len(described.alerts):,} entries long", f"at most {budget.alerts:,} entries")
    budget.alerts -= len(described.alerts)
    return described.message(blocks)


def _block(field: str, described: BlockRecord, rest: memoryview, budget: Budget) -> PackedBlock:
    if described.size > len(rest):
        raise Refused(f"{field}.size", f"{described.size:,}", f"at most the {len(rest):,} bytes that follow")
    of, shape = described, described.shape
    block = PackedBlock(of.group, of.level, of.first_step, of.stride, shape[0], shape[-1], bytes(rest[: of.size]))
    budget.take(block.nbytes, f"{field}.shape")
    try:
        check_payload(block)
    except Refused as refused:
        raise Refused(f"{field}.{refused.field}", refused.given, refused.allowed) from None
    return block


def check_payload(block: PackedBlock) -> None:
    """Check that the payload holds the numbers of the block. Raises Refused."""
    codec, body = block.payload[0], block.payload[1:]
    if codec not in (RAW, ZSTD_SHUFFLE, ZSTD_DELTA):
        raise Refused("payload", f"codec {codec}", f"codecs {RAW}, {ZSTD_SHUFFLE} and {ZSTD_DELTA}")
    try:
        if codec != RAW and zstandard.get_frame_parameters(body).window_size > most.MAX_WINDOW_BYTES:
            raise Refused("payload", "a zstd frame with a large window", f"a window of {most.MAX_WINDOW_BYTES:,} bytes")
        numbers = block.decoded(slice(None) if block.level else slice(0, 1))  # raw numbers may be anything: only decompress them
    except (zstandard.ZstdError, MemoryError) as error:
        raise Refused("payload", f"damaged: {error}", "what `blocks.encode` returns") from None
    except Refused:
        raise
    except ValueError as error:
        raise Refused("payload", str(error), "what `blocks.encode` returns for this shape") from None
    if block.level:
        lost = numbers[:, STATS.index("nonfinite")]
        if not ((lost >= 0) & (lost <= BUCKET**block.level)).all():
            raise Refused("payload", "an impossible number of non-finite values", f"0 to {BUCKET**block.level:,}")
