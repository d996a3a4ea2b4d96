"""Names of files for series: one name for each series, also on file systems that ignore case, normalize Unicode or reserve
names."""

from __future__ import annotations

import hashlib

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.")
SLASH = "-"  # stands for a slash; every other character that is not plain is written as % and the digits of its bytes
RESERVED = frozenset(
    ("con", "prn", "aux", "nul", "run", "series", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10)))
)  # devices of Windows, and the files that an export writes beside the series
LONGEST = 180  # characters, so that every file system takes the name with its ending


def file_name(series: str) -> str:
    """The name of the file of a series, without its ending. Two series never get names that differ only in case."""
    name = "".join(SLASH if c == "/" else c if c in PLAIN else _escaped(c) for c in series)
    if name.partition(".")[0] in RESERVED or name.startswith("."):
        name = _escaped(name[0]) + name[1:]
    if name.endswith("."):
        name = name[:-1] + _escaped(".")
    if len(name) > LONGEST:
        digest = hashlib.sha256(series.encode(errors="surrogatepass")).hexdigest()[:32]
        name = f"{name[: LONGEST - 40].rstrip('%')}~{digest}"  # no other name has a ~
    return name


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode(errors="surrogatepass"))
