"""Reading data files that may be missing, damaged or hostile: inside the data directory only, never more than announced."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20


class DataError(ValueError):
    """A data file that cannot be used; the message has its path and the reason."""


def locate(data_root: Path, relative: str) -> Path:
    """The real path of a regular file inside `data_root`, symbolic links followed; DataError otherwise."""
    root = Path(os.path.realpath(data_root))
    path = Path(os.path.realpath(root / relative))
    if not path.is_relative_to(root):
        raise DataError(f"{relative}: lies outside the data directory {root}")
    if not path.exists():
        raise DataError(f"{path}: no such file in the data directory")
    if not path.is_file():
        raise DataError(f"{path}: is not a regular file")
    return path


def chunks(path: Path, *, limit: int) -> Iterator[bytes]:
    """The file's bytes, unpacked if it ends in .gz or .xz, in pieces of at most 1 MiB.

    Raises DataError for a damaged or truncated file, and as soon as more than `limit` bytes come out.
    """
    total = 0
    try:
        with _open(path) as file:
            while chunk := file.read(CHUNK):
                total += len(chunk)
                if total > limit:
                    raise DataError(f"{path}: holds more than {limit:,} bytes")
                yield chunk
    except EOFError:
        raise DataError(f"{path}: is truncated (its compressed data ends after {total:,} bytes of content)") from None
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")
