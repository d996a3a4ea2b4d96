"""The file of a backup: a tar of parts, their digests in a manifest at its end, rows in a form that no engine owns.

    tables/<table>/<number>.zst   rows (server.backup.rows), about PART_BYTES of them, zstd
    files/<path>                  a file of the data directory, as it is
    manifest.json                 schema, tables, columns, sequences; bytes and SHA-256 of every part
    manifest.sha256               of the manifest, and so of everything

A JSON column travels as the text the database gives, so that NULL stays apart from JSON's null; floats as their shortest decimal,
which is exact. Reading checks everything and is bounded: digests find damage, but not malice, since who writes the file
also writes its digests.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from server.backup.rows import CHUNK_BYTES, NotRows, Row, encode_row, read_part

PART_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_READ_BYTES = 4 << 20  # at once: a header that announces more is not ours
MANIFEST_LISTS = 10_000  # more would be a manifest that is made of brackets, to fill memory
FORMAT = 1
MANIFEST, SEAL = "manifest.json", "manifest.sha256"


class BackupError(ValueError):
    """What is wrong with a backup, or with where it should go."""


@dataclass(frozen=True)
class TableInfo:
    """`columns`: (name, kind), kind one of int, float, bool, text, bytes, json. `sequence`: last id given out, if ids are."""

    name: str
    columns: list[tuple[str, str]]
    sequence: int | None
    rows: int = 0


@dataclass(frozen=True)
class Part:
    name: str
    bytes: int
    sha256: str


@dataclass
class Manifest:
    schema: str
    engine: str
    version: str
    created_at: float
    tables: list[TableInfo] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)  # checkpoints that were missing or damaged where the backup was made
    format: int = FORMAT

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


class ArchiveWriter:
    """Adds parts to a tar; `close` seals it."""

    def __init__(self, file: IO[bytes], manifest: Manifest) -> None:
        self.manifest = manifest
        self._tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `close`
        self._compress = zstandard.ZstdCompressor(level=3).compress

    def table(self, info: TableInfo, rows: Iterable[Row]) -> Iterator[int]:
        """Add a table; gives the number of rows so far after each part."""
        binary = [kind == "bytes" for _, kind in info.columns]
        count = number = 0
        buffer = bytearray()
        for row in rows:
            buffer += encode_row(row, binary)
            count += 1
            if len(buffer) >= PART_BYTES:
                number += 1
                self._add(f"tables/{info.name}/{number:06d}.zst", self._compress(bytes(buffer)))
                buffer.clear()
                yield count
        if buffer:
            self._add(f"tables/{info.name}/{number + 1:06d}.zst", self._compress(bytes(buffer)))
        self.manifest.tables.append(TableInfo(info.name, info.columns, info.sequence, count))
        yield count

    def file(self, path: str, content: IO[bytes], size: int) -> str:
        """Add a file of `size` bytes; gives its SHA-256."""
        reader = _Hashing(content)
        self._tar.addfile(_member(f"files/{path}", size), reader)  # type: ignore[arg-type] # reads are all it asks for
        self.manifest.parts.append(Part(f"files/{path}", size, reader.digest.hexdigest()))
        return reader.digest.hexdigest()

    def close(self) -> None:
        data = self.manifest.to_bytes()
        for name, content in ((MANIFEST, data), (SEAL, self.manifest.digest.encode())):
            self._tar.addfile(_member(name, len(content)), io.BytesIO(content))
        self._tar.close()

    def _add(self, name: str, data: bytes) -> None:
        self._tar.addfile(_member(name, len(data)), io.BytesIO(data))
        self.manifest.parts.append(Part(name, len(data), hashlib.sha256(data).hexdigest()))


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of everything in the file, in order. Raises BackupError when it cannot be read as a backup."""
    with _readable(path), path.open("rb") as file, tarfile.open(fileobj=_in_pieces(file), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # it would remember every one
            content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is None:
                raise BackupError(f"{path} is damaged: {member.name[:100]!r} is not a file")
            yield member.name, content


def verify(path: Path) -> Manifest:
    """The manifest, after every byte was compared with its digest. Raises BackupError that says what is wrong."""
    found: dict[str, Part] = {}
    sealed = {}
    with _readable(path):
        for name, content in members(path):
            if name in (MANIFEST, SEAL):
                sealed[name] = content.read(MAX_MANIFEST_BYTES + 1)
            else:
                found[name] = _part(name, content)
    if set(sealed) != {MANIFEST, SEAL}:
        raise BackupError(f"{path} ends before its manifest: it is cut short, or damaged after {len(found)} parts")
    if hashlib.sha256(sealed[MANIFEST]).hexdigest().encode() != sealed[SEAL]:
        raise BackupError(f"{path} is damaged: its manifest does not match its SHA-256")
    manifest = _manifest(path, sealed[MANIFEST])
    wanted = {part.name: part for part in manifest.parts}
    for name in [*wanted, *found]:
        if name not in found:
            raise BackupError(f"{path} is damaged: {name} is missing")
        if name not in wanted:
            raise BackupError(f"{path} is damaged: {name} does not belong to it")
        if found[name] != wanted[name]:
            raise BackupError(f"{path} is damaged: {name} does not match its SHA-256")
        if name.startswith("files/") and not is_inside(name):
            raise BackupError(f"{path} is refused: {name[:200]!r} would lie outside of the runs' folder")
    return manifest


def verify_rows(path: Path, manifest: Manifest) -> None:
    """Every row of a file that `verify` has read, taken apart and counted. Raises BackupError."""
    counted = {info.name: (info, 0) for info in manifest.tables}
    for name, content in members(path):
        if name.startswith("tables/"):
            info, count = counted[table_of(path, name, manifest).name]
            counted[info.name] = (info, count + sum(1 for _ in rows_of(path, name, content, info)))
    for info, count in counted.values():
        check_count(path, info, count)


def table_of(path: Path, name: str, manifest: Manifest) -> TableInfo:
    """The table that a part belongs to. Raises BackupError."""
    table = name.split("/")[1]
    for info in manifest.tables:
        if info.name == table:
            return info
    raise BackupError(f"{path} is damaged: {name[:200]} belongs to no table of its manifest")


def rows_of(path: Path, name: str, content: IO[bytes], info: TableInfo) -> Iterator[Row]:
    """The rows of one part. Raises BackupError."""
    try:
        yield from read_part(content, [kind == "bytes" for _, kind in info.columns])
    except NotRows as error:
        raise BackupError(f"{path} is damaged: {name[:200]}: {error}") from None


def check_count(path: Path, info: TableInfo, count: int) -> None:
    """Raises BackupError when a table has another number of rows than the manifest says."""
    if count != info.rows:
        raise BackupError(f"{path} is damaged: {info.name} has {count:,} rows, its manifest says {info.rows:,}")


def is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) > 2 and parts[:2] == ("files", "runs") and ".." not in parts


def _manifest(path: Path, data: bytes) -> Manifest:
    plausible = len(data) <= MAX_MANIFEST_BYTES and data.count(b"[") <= MANIFEST_LISTS and 8 * data.count(b",") <= len(data)
    try:
        fields = json.loads(data) if plausible else {}
        if fields["format"] != FORMAT:
            raise BackupError(f"{path} has format {fields['format']}; this version of StableSSM reads format {FORMAT}")
        tables = [TableInfo(**t | {"columns": [(str(name), str(kind)) for name, kind in t["columns"]]}) for t in fields["tables"]]
        return Manifest(**fields | {"tables": tables, "parts": [Part(**part) for part in fields["parts"]]})
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError):
        raise BackupError(f"{path} is damaged: its manifest is none") from None


def _part(name: str, content: IO[bytes]) -> Part:
    reader = _Hashing(content)
    size = 0
    while chunk := reader.read(CHUNK_BYTES):
        size += len(chunk)
    return Part(name, size, reader.digest.hexdigest())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise BackupError(f"{path} is cut short, damaged, or no backup: {error}") from None


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Hashing:
    """A file whose bytes are counted into a SHA-256 as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _in_pieces(file: IO[bytes]) -> IO[bytes]:
    return _InPieces(file)  # type: ignore[return-value] # what `tarfile` calls of a file is there


class _InPieces:
    """A file that nobody reads at once: `tarfile` asks for as many bytes as a header announces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header announces {size:,} bytes")
        return self._file.read(size)
