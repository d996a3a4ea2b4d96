"""Reading data files that may be missing, damaged or hostile: inside the data directory only, never more than announced."""

from __future__ import annotations

import gzip
import lzma
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20

_Version = tuple[tuple[str, int, int], ...]  # path, modification time and size of each file
_known: dict[tuple[str, str], tuple[_Version, int | DataError]] = {}
_lock = threading.Lock()


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


def once_per_version(key: tuple[str, str], paths: list[Path], read: Callable[[], int]) -> int:
    """read(), or what it gave or raised (DataError) before for the same versions of the files `paths`.

    Files are read to their end when they are new or changed; later questions cost a stat each. key: (task, what of it).
    """
    stats = [(str(path), path.stat()) for path in paths]
    version = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
    with _lock:
        known = _known.get(key)
    if known is None or known[0] != version:
        try:
            known = (version, read())
        except DataError as error:
            known = (version, error.with_traceback(None))
        with _lock:
            _known[key] = known
    if isinstance(known[1], DataError):
        raise type(known[1])(str(known[1]))
    return known[1]


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")
