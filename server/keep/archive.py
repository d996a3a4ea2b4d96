"""The file that moves runs from one installation to another: a sealed tar (server.backup.sealed_tar) with these parts, in this
order.

    runs/<id>/run.json            {"run": {...}, "series": [...], "alerts": [...], "history": [...], "autopsy": {...} or null}:
                                  columns by name
    runs/<id>/blocks/<n>.bin      blocks: length of a head (4 bytes, little-endian), head (JSON: the block's columns, and
                                  "payload", the length of what follows), then the payload as stored (telemetry/blocks.py)
    manifest.json                 format, version, source, exported_at, sweeps, runs; bytes and SHA-256 of every part
    manifest.sha256               SHA-256 of the manifest, which covers everything

No name in the tar is used as a file path: parts are read one by one, never unpacked. Names, types and sizes are checked before
the content is read, so even a malicious archive can use only a limited amount of memory.
"""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import IO, Any

from server.backup.sealed_tar import MANIFEST, SEAL, Part, SealCheck, SealedTarWriter, SealError

FORMAT = "stablessm-runs/1"
PART = re.compile(r"runs/([1-9][0-9]{0,18})/(run\.json|blocks/[0-9]{6}\.bin)", re.ASCII)
BLOCK_PART_BYTES = 4 << 20  # a part ends once it has this many bytes; the last block may exceed this size
MAX_JSON_BYTES, MAX_BLOCKS_BYTES = 16 << 20, 64 << 20  # maximum size of a part in bytes
MAX_PARTS = 100_000
_RECORD = tarfile.BLOCKSIZE
_LENGTH = struct.Struct("<I")


class ArchiveError(ValueError):
    """An archive of runs is invalid. The message gives the reason and refers to the archive as "it"."""


class ArchiveWriter:
    """Adds parts to an archive of runs. `close` seals the archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self._tar = SealedTarWriter(file, tarfile.USTAR_FORMAT)

    def add(self, name: str, data: bytes) -> None:
        """Add a part. Raises ArchiveError if the part is so large that readers would refuse it."""
        if len(data) > _most(name):
            raise ArchiveError(f"{name} would have {len(data):,} bytes; a part has at most {_most(name):,}")
        self._tar.add(name, data)

    def add_blocks(self, run_id: int, blocks: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        """Add the blocks of a run, in as many parts as they need."""
        buffer, number = bytearray(), 0
        for head, payload in blocks:
            text = json.dumps(head | {"payload": len(payload)}).encode()
            buffer += _LENGTH.pack(len(text)) + text + payload
            if len(buffer) >= BLOCK_PART_BYTES:
                number += 1
                self.add(f"runs/{run_id}/blocks/{number:06d}.bin", bytes(buffer))
                buffer.clear()
        if buffer:
            self.add(f"runs/{run_id}/blocks/{number + 1:06d}.bin", bytes(buffer))

    def close(self, facts: dict[str, Any]) -> None:
        parts = [asdict(part) for part in self._tar.parts]
        self._tar.seal(json.dumps({"format": FORMAT, **facts, "parts": parts}, indent=1).encode())


def read_parts(file: IO[bytes], proceed: Callable[[], None] = lambda: None) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every part, including manifest and seal. Raises ArchiveError. `proceed` is called before each part and
    may raise an exception to stop the reading.

    This function parses the headers itself, because `tarfile` would follow headers that announce further headers of any size.
    """
    file.seek(0)
    for _ in range(MAX_PARTS):
        proceed()
        header = file.read(_RECORD)
        if header == bytes(_RECORD):
            return
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except (tarfile.TarError, UnicodeError, ValueError):
            raise ArchiveError("it is cut short, damaged, or not an archive of runs") from None
        if info.type != tarfile.REGTYPE or not (PART.fullmatch(info.name) or info.name in (MANIFEST, SEAL)):
            raise ArchiveError(f"{info.name[:80]!r} does not belong in an archive of runs")
        if not 0 <= info.size <= _most(info.name):
            raise ArchiveError(f"{info.name} has {info.size:,} bytes; a part has at most {_most(info.name):,}")
        data = file.read(info.size)
        if len(data) < info.size or len(file.read(-info.size % _RECORD)) < -info.size % _RECORD:
            raise ArchiveError(f"it is cut short: {info.name} is not complete")
        yield info.name, data
    raise ArchiveError(f"it has more than {MAX_PARTS:,} parts")


def _most(name: str) -> int:
    return MAX_BLOCKS_BYTES if name.endswith(".bin") else MAX_JSON_BYTES


def verify(file: IO[bytes], proceed: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Compare every part with its digest and return the manifest. Raises ArchiveError."""
    check = SealCheck()
    try:
        for name, data in read_parts(file, proceed):
            check.add(name, io.BytesIO(data), MAX_JSON_BYTES)
        manifest = read_json(MANIFEST, check.manifest())
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ArchiveError(f"its format is not {FORMAT}, the only one that this version of StableSSM reads")
        check.compare([Part(str(part["name"]), part["bytes"], part["sha256"]) for part in manifest["parts"]])
    except SealError as error:
        raise ArchiveError(str(error)) from None
    except (KeyError, TypeError):
        raise ArchiveError(f"{MANIFEST} does not list the parts") from None
    return manifest


def blocks_in(name: str, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(columns, payload) of each block of a part. Raises ArchiveError."""
    at = 0
    while at < len(data):
        try:
            (length,) = _LENGTH.unpack_from(data, at)
            head = read_json(name, data[at + 4 : at + 4 + length])
            size = head.pop("payload")
            payload = data[at + 4 + length : at + 4 + length + size]
            complete = type(size) is int and len(payload) == size > 0
        except (struct.error, KeyError, TypeError, AttributeError):
            raise ArchiveError(f"{name} does not hold blocks") from None
        if not complete:
            raise ArchiveError(f"{name} holds a block that is not complete")
        yield head, payload
        at += 4 + length + size


def read_json(name: str, data: bytes) -> Any:
    """The decoded JSON. Raises ArchiveError for invalid JSON, NaN and infinities."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return json.load(io.TextIOWrapper(io.BytesIO(data), "utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{name} is not JSON: {str(error)[:100]}") from None
