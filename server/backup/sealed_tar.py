"""A sealed tar contains parts, a manifest that lists the size and SHA-256 of each part, and the SHA-256 of the manifest.

Backups (server.backup.archive) and archives of runs (server.keep.archive) are written and checked by this module. Other modules
read them in different ways: a backup has huge files and comes from the owner; an archive of runs has small parts and may come
from anybody.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Literal

MANIFEST, SEAL = "manifest.json", "manifest.sha256"
CHUNK_BYTES = 1 << 20


class SealError(ValueError):
    """A sealed tar is invalid. The message gives the reason and refers to the tar as "it"."""


@dataclass(frozen=True)
class Part:
    name: str
    bytes: int
    sha256: str


class SealedTarWriter:
    """Adds parts to a tar; `seal` adds the manifest and ends the tar.

    tar_format: a format constant of `tarfile`. record_bytes: the file is padded to a multiple of this number of bytes.
    """

    def __init__(self, file: IO[bytes], tar_format: Literal[0, 1, 2], record_bytes: int = tarfile.BLOCKSIZE) -> None:
        self._file, self._format, self._record_bytes = file, tar_format, record_bytes
        self._written = 0
        self.parts: list[Part] = []

    def add(self, name: str, data: bytes) -> None:
        self.add_stream(name, io.BytesIO(data), len(data))

    def add_stream(self, name: str, content: IO[bytes], size: int) -> Part:
        """Add the next `size` bytes of the content. Raises OSError if fewer bytes remain."""
        part = self._write(name, content, size)
        self.parts.append(part)
        return part

    def seal(self, manifest: bytes) -> None:
        """Add the manifest and its SHA-256, then the end of the tar."""
        for name, data in ((MANIFEST, manifest), (SEAL, hashlib.sha256(manifest).hexdigest().encode())):
            self._write(name, io.BytesIO(data), len(data))
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self._written % self._record_bytes))

    def _write(self, name: str, content: IO[bytes], size: int) -> Part:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._put(info.tobuf(self._format))
        digest, left = hashlib.sha256(), size
        while left:
            data = content.read(min(left, CHUNK_BYTES))
            if not data:
                raise OSError(f"{name} ends {left:,} bytes early")
            digest.update(data)
            self._put(data)
            left -= len(data)
        self._put(bytes(-size % tarfile.BLOCKSIZE))
        return Part(name, size, digest.hexdigest())

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._written += len(data)


class SealCheck:
    """Collects the parts of a sealed tar as they are read, and compares them with its manifest."""

    def __init__(self) -> None:
        self._found: dict[str, Part] = {}
        self._sealed: dict[str, bytes] = {}

    def add(self, name: str, content: IO[bytes], manifest_bytes: int) -> None:
        """Read one part. At most `manifest_bytes` + 1 bytes of a manifest are read. Raises SealError."""
        if name in self._found or name in self._sealed:
            raise SealError(f"it is damaged: {name[:200]} is in it twice")
        if name in (MANIFEST, SEAL):
            self._sealed[name] = content.read(manifest_bytes + 1)
            return
        digest, size = hashlib.sha256(), 0
        while data := content.read(CHUNK_BYTES):
            digest.update(data)
            size += len(data)
        self._found[name] = Part(name, size, digest.hexdigest())

    def manifest(self) -> bytes:
        """The manifest, if it is complete and its SHA-256 matches. Raises SealError."""
        if set(self._sealed) != {MANIFEST, SEAL}:
            raise SealError(f"it ends before its manifest: it is cut short, or damaged after {len(self._found)} parts")
        if hashlib.sha256(self._sealed[MANIFEST]).hexdigest().encode() != self._sealed[SEAL]:
            raise SealError("it is damaged: its manifest does not match its SHA-256")
        return self._sealed[MANIFEST]

    def compare(self, listed: Iterable[Part]) -> None:
        """Compare every part with the manifest's list. Raises a SealError that names the first difference."""
        wanted: Mapping[str, Part] = {str(part.name): part for part in listed}
        for name in [*wanted, *self._found]:
            if self._found.get(name) == wanted.get(name):
                continue
            missing, listed_too = name not in self._found, name in wanted
            why = "is missing" if missing else "does not match its SHA-256" if listed_too else "is not in its manifest"
            raise SealError(f"it is damaged: {str(name)[:200]} {why}")
