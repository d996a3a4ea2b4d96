"""Reads data files that may be missing, damaged or malicious. A file must be in the data directory, and its size is limited."""

from __future__ import annotations

import gzip
import lzma
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

CHUNK = 1 << 20
T = TypeVar("T")

_Version = tuple[tuple[str, int, int], ...]  # path, modification time and size of each file
_known: dict[tuple[str, str], tuple[_Version, int | DataError]] = {}
_last: tuple[tuple[object, ...], _Version, Any] | None = None  # the last result of `read_unless_last`
_lock = threading.Lock()


class DataError(ValueError):
    """Raised for a data file that cannot be used. The message contains the file's path and the reason."""


class MissingData(DataError):
    """Raised for a data file that does not exist here. Another machine may have it."""


def locate(data_root: Path, relative: str) -> Path:
    """The real path of a file, with symbolic links resolved. Raises DataError unless it is a regular file in `data_root`."""
    root = Path(os.path.realpath(data_root))
    path = Path(os.path.realpath(root / relative))
    if not path.is_relative_to(root):
        raise DataError(f"{relative}: lies outside the data directory {root}")
    if not path.exists():
        raise MissingData(f"{path}: no such file in the data directory")
    if not path.is_file():
        raise DataError(f"{path}: is not a regular file")
    return path


def chunks(path: Path, *, limit: int) -> Iterator[bytes]:
    """The file's bytes in pieces of at most 1 MiB; .gz and .xz files are decompressed.

    Raises DataError if the file is damaged or truncated, or if its decompressed size exceeds `limit` bytes.
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
    """The result of read(), cached until one of the files `paths` changes. A DataError is also cached.

    A call for unchanged files costs one `stat` call per file. key: (task name, name of the data).
    """
    version = _version(paths)
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


def read_unless_last(key: tuple[object, ...], paths: list[Path], read: Callable[[], T]) -> T:
    """The result of read(), or the result of the last call if it had the same key and the files `paths` have not changed.

    Only one result is kept, because it may be large. Its readers share it, so they must not change it.
    """
    global _last
    version = _version(paths)
    if _last is not None and _last[:2] == (key, version):
        kept: T = _last[2]
        return kept
    _last = None  # frees the memory before the next data is read
    made = read()
    _last = key, version, made
    return made


def forget_last() -> None:
    """Free the memory of the result that `read_unless_last` keeps."""
    global _last
    _last = None


def existing(data_root: Path, names: Iterable[str]) -> list[Path]:
    """The paths of those files that exist in the data directory, sorted by name."""
    return [path for path in (data_root / name for name in sorted(names)) if path.exists()]


def _version(paths: list[Path]) -> _Version:
    stats = [(str(path), path.stat()) for path in paths]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")
