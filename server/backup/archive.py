"""The format of a backup file: a sealed tar (server.backup.sealed_tar). The encoding of the rows does not depend on the
database engine.

    tables/<table>/<number>.zst   about PART_BYTES of rows (server.backup.rows), compressed with zstd
    files/<path>                  a file of the data directory, unchanged
    manifest.json                 schema, tables, columns, sequences; size and SHA-256 of every part
    manifest.sha256               SHA-256 of the manifest, which covers every other part

A JSON column is written as the text that the database returns, so that NULL and JSON's null stay different. Floats are written
as the shortest decimal that gives back the same float. Digests detect damage but not malice, because whoever writes the file
also writes its digests. So a reader checks every value and limits the memory that it uses.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import zstandard

from server.backup.rows import NotRows, Row, encode_row, read_part
from server.backup.sealed_tar import Part, SealCheck, SealedTarWriter, SealError

PART_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_READ_BYTES = 4 << 20  # maximum size of one read, in bytes; no header that this program writes announces more
MANIFEST_LISTS = 10_000  # maximum number of lists in a manifest; a manifest with more lists is meant to fill memory
FORMAT = 1
MOST_ID = 2**63 - 1
MAX_NAME = 500  # maximum length of a file's name, in characters
_TABLE_PART = re.compile(r"tables/\w+/\d+\.zst")


class BackupError(ValueError):
    """A backup or its target is unusable; the message gives the reason."""


@dataclass(frozen=True)
class TableInfo:
    """A table in a backup. columns: (name, kind) of each column; kind is int, float, bool, text, bytes or json. sequence: the
    last assigned id."""

    name: str
    columns: list[tuple[str, str]]
    sequence: int | None
    rows: int = 0


@dataclass
class Manifest:
    schema: str
    engine: str
    version: str
    created_at: float
    tables: list[TableInfo] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)  # checkpoints that were missing or damaged during the backup
    format: int = FORMAT

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


class ArchiveWriter:
    """Adds tables and files to a backup. `close` adds the manifest, which completes the file."""

    def __init__(self, file: IO[bytes], manifest: Manifest) -> None:
        self.manifest = manifest
        self._tar = SealedTarWriter(file, tarfile.PAX_FORMAT, tarfile.RECORDSIZE)
        self._compress = zstandard.ZstdCompressor(level=3).compress
        manifest.parts = self._tar.parts

    def table(self, info: TableInfo, rows: Iterable[Row]) -> Iterator[int]:
        """Add a table. After each part, yields the number of rows written so far."""
        binary = [kind == "bytes" for _, kind in info.columns]
        count = number = 0
        buffer = bytearray()
        for row in rows:
            buffer += encode_row(row, binary)
            count += 1
            if len(buffer) >= PART_BYTES:
                number += 1
                self.add(f"tables/{info.name}/{number:06d}.zst", self._compress(bytes(buffer)))
                buffer.clear()
                yield count
        if buffer:
            self.add(f"tables/{info.name}/{number + 1:06d}.zst", self._compress(bytes(buffer)))
        self.manifest.tables.append(TableInfo(info.name, info.columns, info.sequence, count))
        yield count

    def file(self, path: str, content: IO[bytes], size: int) -> str:
        """Add a file of `size` bytes and return its SHA-256. Raises OSError if the content has fewer bytes."""
        return self._tar.add_stream(f"files/{path}", content, size).sha256

    def add(self, name: str, data: bytes) -> None:
        self._tar.add(name, data)

    def close(self) -> None:
        self._tar.seal(self.manifest.to_bytes())


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of every part, in order. Raises BackupError if the file cannot be read as a backup."""
    with _readable(path), path.open("rb") as file, tarfile.open(fileobj=_in_pieces(file), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # `tarfile` would keep every member in memory
            content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is None:
                raise BackupError(f"{path} is damaged: {member.name[:100]!r} is not a file")
            yield member.name, content


def verify(path: Path) -> Manifest:
    """Compare every part with its digest and return the manifest. Raises BackupError."""
    check = SealCheck()
    try:
        with _readable(path):
            for name, content in members(path):
                check.add(name, content, MAX_MANIFEST_BYTES)
        manifest = _manifest(path, check.manifest())
        check.compare(manifest.parts)
    except SealError as error:
        raise BackupError(f"{path}: {error}") from None
    for part in manifest.parts:
        if not is_inside(part.name) and not _TABLE_PART.fullmatch(part.name):
            raise BackupError(f"{path} is refused: {part.name[:200]!r} is neither a part of a table nor inside the runs' folder")
    return manifest


def verify_rows(path: Path, manifest: Manifest) -> None:
    """Decode and count every row of a file that `verify` has accepted. Raises BackupError."""
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
    raise BackupError(f"{path} is damaged: {name[:200]} belongs to no table in its manifest")


def rows_of(path: Path, name: str, content: IO[bytes], info: TableInfo) -> Iterator[Row]:
    """The rows of one part. Raises BackupError."""
    try:
        yield from read_part(content, [kind == "bytes" for _, kind in info.columns])
    except NotRows as error:
        raise BackupError(f"{path} is damaged: {name[:200]}: {error}") from None


def check_count(path: Path, info: TableInfo, count: int) -> None:
    """Raises BackupError if the table's number of rows differs from the number in the manifest."""
    if count != info.rows:
        raise BackupError(f"{path} is damaged: {info.name} has {count:,} rows, its manifest says {info.rows:,}")


def is_inside(name: str) -> bool:
    """True if a part with this name is a file below the runs' folder. A name with `//` would be an absolute path there."""
    parts = name.split("/")
    inside = len(parts) > 2 and parts[:2] == ["files", "runs"] and not {"", ".", ".."} & set(parts)
    return inside and len(name) <= MAX_NAME and name.isprintable()


def _manifest(path: Path, data: bytes) -> Manifest:
    plausible = len(data) <= MAX_MANIFEST_BYTES and data.count(b"[") <= MANIFEST_LISTS and 8 * data.count(b",") <= len(data)
    try:
        fields = json.loads(data) if plausible else {}
        if fields["format"] != FORMAT:
            raise BackupError(f"{path} has format {fields['format']}; this version of StableSSM reads format {FORMAT}")
        tables = [TableInfo(**t | {"columns": [(str(name), str(kind)) for name, kind in t["columns"]]}) for t in fields["tables"]]
        manifest = Manifest(**fields | {"tables": tables, "parts": [Part(**part) for part in fields["parts"]]})
        if not _is_plausible(manifest):
            raise TypeError
        return manifest
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, BackupError):
            raise
        raise BackupError(f"{path} is damaged: its manifest is not a backup manifest") from None


def _is_plausible(manifest: Manifest) -> bool:
    """True if every value that a restore uses has the type and the range of a value that a backup writes."""
    names = [info.name for info in manifest.tables]
    return (
        all(isinstance(text, str) for text in (manifest.schema, *names, *(part.name for part in manifest.parts)))
        and len(set(names)) == len(names)
        and all(_is_count(info.rows) and (info.sequence is None or _is_count(info.sequence)) for info in manifest.tables)
        and all(_is_count(part.bytes) and isinstance(part.sha256, str) for part in manifest.parts)
    )


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number <= MOST_ID


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise BackupError(f"{path} is cut short, damaged, or not a backup: {error}") from None


def _in_pieces(file: IO[bytes]) -> IO[bytes]:
    return _InPieces(file)  # type: ignore[return-value] # it has the methods that `tarfile` calls


class _InPieces:
    """A file that refuses huge reads, because `tarfile` reads as many bytes at once as a header announces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header announces {size:,} bytes")
        return self._file.read(size)
