"""Makes hostile backup files from a genuine one: damaged bytes, and wrong contents with correct digests."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable
from typing import Any

import zstandard

from server.backup.sealed_tar import MANIFEST, SEAL, SealedTarWriter

Parts = dict[str, bytes]
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    2**70,
    1e308,
    0.5,
    "",
    "x",
    "runs",
    "0001",
    "\0",
    "\ud800",
    "é",
    [],
    [[]],
    {},
)
SCHEMAS = ("9999", "0001", "0016_from_0020", "head", "base", "", "../0001", "0016 ", 16, None, ["0016"])
PATHS = (
    "files/runs/../../escaped", "files/runs/1/../../../escaped", "/escaped", "files/../escaped", "files/token", "files/runs/..",
    "files/runs//escaped", "files/runs/./", "files/runs/1", "files/runs/1/x\0y", "files/runs/" + "a" * 300,
    "files\\runs\\escaped",
    "files/runs/1/" + "d/" * 3000 + "x", "files/runs/\udc80", "tables/../escaped/1.zst", "tables/runs", "../escaped", "runs/1/x",
)  # fmt: skip


def parts_of(genuine: bytes) -> Parts:
    """Every part of a backup by name, the manifest included."""
    with tarfile.open(fileobj=io.BytesIO(genuine)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
    return {name: content.read() for name, content in found.items() if content is not None and name != SEAL}


def sealed(parts: Parts, manifest: dict[str, Any]) -> bytes:
    """The parts as a backup whose digests are correct. The manifest lists the parts unless it already says what they are."""
    file = io.BytesIO()
    writer = SealedTarWriter(file, tarfile.PAX_FORMAT)
    for name, data in parts.items():
        if name != MANIFEST:
            writer.add(name, data)
    listed = [vars(part) for part in writer.parts]
    writer.seal(json.dumps({"parts": listed} | manifest).encode())
    return file.getvalue()


def hostile(genuine: bytes, seed: int) -> tuple[str, bytes]:
    """(kind, content) of the backup file that this seed determines."""
    chance = random.Random(seed)
    kinds = [*BYTES, *CONTENTS]
    kind = kinds[seed % len(kinds)]
    if kind in BYTES:
        return kind, BYTES[kind](genuine, chance)
    parts = parts_of(genuine)
    manifest = json.loads(parts[MANIFEST])
    del manifest["parts"]
    CONTENTS[kind](parts, manifest, chance)
    return kind, sealed(parts, manifest)


# ---- damaged bytes ----


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _hole(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) // 512) * 512
    return data[:at] + data[at + 512 * chance.randint(1, 9) :]


def _zeros(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    size = min(len(data) - at, chance.randint(1, 4096))
    return data[:at] + bytes(size) + data[at + size :]


def _links(data: bytes, chance: random.Random) -> bytes:
    """A link, a device or a folder in front of the genuine parts."""
    info = tarfile.TarInfo("files/runs/1")
    info.type = chance.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE))
    info.linkname = chance.choice(("/etc", "..", "/etc/passwd"))
    return info.tobuf() + data


def _noise(data: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 511, 512, 10_240, len(data))))


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncated": _cut, "flipped bits": _flip, "blocks missing": _hole, "zeros inside": _zeros, "links and devices": _links,
    "not a backup": _noise,
}  # fmt: skip


# ---- wrong contents with correct digests ----


def _path(parts: Parts, _manifest: dict[str, Any], chance: random.Random) -> None:
    parts[chance.choice(PATHS)] = b"escaped"


def _schema(_parts: Parts, manifest: dict[str, Any], chance: random.Random) -> None:
    manifest["schema"] = chance.choice(SCHEMAS)


def _bomb(parts: Parts, _manifest: dict[str, Any], chance: random.Random) -> None:
    """A part of a few kilobytes that unpacks to more than 256 MiB."""
    made = zstandard.ZstdCompressor(level=1).compressobj()
    piece = chance.choice((bytes(1 << 20), (b"\2\0\0\0[]" * (1 << 18))[: 1 << 20], b"\xff\xff\xff\0" + b"[" * (1 << 20)))
    parts[_table(parts, chance)] = b"".join(made.compress(piece) for _ in range(300)) + made.flush()


def _rows(parts: Parts, _manifest: dict[str, Any], chance: random.Random) -> None:
    """Change bytes of rows before they are compressed."""
    name = _table(parts, chance)
    plain = zstandard.ZstdDecompressor().decompress(parts[name], max_output_size=64 << 20)
    changed = chance.choice((_flip, _zeros, _cut, lambda data, _: data + data))(plain, chance)
    parts[name] = zstandard.ZstdCompressor().compress(changed)


def _missing(parts: Parts, _manifest: dict[str, Any], chance: random.Random) -> None:
    del parts[_table(parts, chance)]


def _fields(_parts: Parts, manifest: dict[str, Any], chance: random.Random) -> None:
    """Replace or remove one value of the manifest, at any depth."""
    place: Any = manifest
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], dict | list) and place[key]) or chance.random() < 0.25:
            break
        place = place[key]
    if chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(VALUES)


def _listed(parts: Parts, manifest: dict[str, Any], chance: random.Random) -> None:
    """A wrong list of parts."""
    listed = [{"name": name, "bytes": len(data), "sha256": "0" * 64} for name, data in parts.items() if name != MANIFEST]
    chance.choice(listed)[chance.choice(("name", "bytes", "sha256"))] = chance.choice(VALUES)
    manifest["parts"] = listed


def _table(parts: Parts, chance: random.Random) -> str:
    return chance.choice([name for name in parts if name.startswith("tables/")])


CONTENTS: dict[str, Callable[[Parts, dict[str, Any], random.Random], None]] = {
    "paths outside": _path, "wrong schema": _schema, "decompression bomb": _bomb, "changed rows": _rows, "part missing": _missing,
    "changed manifest": _fields, "wrong list of parts": _listed,
}  # fmt: skip
