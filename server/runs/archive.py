"""The file in which runs travel from one installation to another: an uncompressed tar of plain files, in this order.

    runs/<id>/run.json            {"run": {...}, "series": [...], "alerts": [...], "history": [...]}: columns by name
    runs/<id>/blocks/<n>.bin      blocks: length of a head (4 bytes, little-endian), head (JSON: the block's columns, and
                                  "payload", the length of what follows), then the payload as stored (telemetry/blocks.py)
    manifest.json                 format, version, source, exported_at, sweeps, runs; bytes and SHA-256 of every part
    manifest.sha256               of the manifest, and so of everything

Nothing in it is a path of a file: parts are read one by one, never unpacked. Names, types and sizes are checked before anything
is read, so what an archive can make a reader hold is bounded, whoever wrote it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

FORMAT = "stablessm-runs/1"
MANIFEST, SEAL = "manifest.json", "manifest.sha256"
PART = re.compile(r"runs/([1-9][0-9]{0,18})/(run\.json|blocks/[0-9]{6}\.bin)", re.ASCII)
BLOCK_PART_BYTES = 4 << 20  # written; one block more may be in it
MAX_JSON_BYTES, MAX_BLOCKS_BYTES = 16 << 20, 64 << 20  # of a part
MAX_PARTS = 100_000
_RECORD = tarfile.BLOCKSIZE
_LENGTH = struct.Struct("<I")


class ArchiveError(ValueError):
    """What is wrong with an archive of runs."""


class ArchiveWriter:
    """Adds parts to an archive; `close` seals it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._parts: list[dict[str, Any]] = []

    def add(self, name: str, data: bytes) -> None:
        """Raises ArchiveError for a part that nobody would read."""
        if len(data) > _most(name):
            raise ArchiveError(f"{name} would have {len(data):,} bytes; a part has at most {_most(name):,}")
        self._write(name, data)
        self._parts.append({"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})

    def add_blocks(self, run_id: int, blocks: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        """Add the blocks of a run, as many parts as they need."""
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
        manifest = json.dumps({"format": FORMAT, **facts, "parts": self._parts}, indent=1).encode()
        self._write(MANIFEST, manifest)
        self._write(SEAL, hashlib.sha256(manifest).hexdigest().encode())
        self._file.write(bytes(2 * _RECORD))

    def _write(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o600
        self._file.write(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict") + data + bytes(-len(data) % _RECORD))


def read_parts(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every part from the beginning, manifest and seal included. Raises ArchiveError.

    Headers are read by hand: the library would follow those that announce more headers, of any size.
    """
    file.seek(0)
    for _ in range(MAX_PARTS):
        header = file.read(_RECORD)
        if header == bytes(_RECORD):
            return
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except (tarfile.TarError, UnicodeError, ValueError):
            raise ArchiveError("it is cut short, damaged, or no archive of runs") from None
        if info.type != tarfile.REGTYPE or not (PART.fullmatch(info.name) or info.name in (MANIFEST, SEAL)):
            raise ArchiveError(f"{info.name[:80]!r} does not belong into an archive of runs")
        if not 0 <= info.size <= _most(info.name):
            raise ArchiveError(f"{info.name} has {info.size:,} bytes; a part has at most {_most(info.name):,}")
        data = file.read(info.size)
        if len(data) < info.size or len(file.read(-info.size % _RECORD)) < -info.size % _RECORD:
            raise ArchiveError(f"it is cut short: {info.name} is not complete")
        yield info.name, data
    raise ArchiveError(f"it has more than {MAX_PARTS:,} parts")


def _most(name: str) -> int:
    return MAX_BLOCKS_BYTES if name.endswith(".bin") else MAX_JSON_BYTES


def verify(file: IO[bytes]) -> dict[str, Any]:
    """The manifest, after every byte was compared with its digest. Raises ArchiveError that says what is wrong."""
    found: dict[str, tuple[int, str]] = {}
    sealed: dict[str, bytes] = {}
    for name, data in read_parts(file):
        if name in found or name in sealed:
            raise ArchiveError(f"{name} is in it twice")
        if name in (MANIFEST, SEAL):
            sealed[name] = data
        else:
            found[name] = (len(data), hashlib.sha256(data).hexdigest())
    if set(sealed) != {MANIFEST, SEAL}:
        raise ArchiveError(f"it ends before its manifest: it is cut short, after {len(found)} parts")
    if hashlib.sha256(sealed[MANIFEST]).hexdigest().encode() != sealed[SEAL]:
        raise ArchiveError("it is damaged: its manifest does not match its SHA-256")
    manifest = read_json(MANIFEST, sealed[MANIFEST])
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArchiveError(f"its format is not {FORMAT}, which this version of StableSSM reads")
    try:
        wanted = {part["name"]: (part["bytes"], part["sha256"]) for part in manifest["parts"]}
    except (KeyError, TypeError):
        raise ArchiveError(f"{MANIFEST} does not list the parts") from None
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            missing = "is missing" if name not in found else "does not match its SHA-256" if name in wanted else "is not listed"
            raise ArchiveError(f"it is damaged: {str(name)[:80]} {missing}")
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
    """Decoded JSON without NaN. Raises ArchiveError."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return json.load(io.TextIOWrapper(io.BytesIO(data), "utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{name} is not JSON: {str(error)[:100]}") from None
