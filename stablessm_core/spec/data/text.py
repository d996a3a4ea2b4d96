"""Reads UTF-8 text files (plain, .gz or .xz) as one number per character."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.files import DataError, chunks, once_per_version

MAX_BYTES = 1 << 30
MAX_VOCABULARY = 65_536


class NotText(DataError):
    """The file is not UTF-8."""


@dataclass(frozen=True)
class Text:
    """A text as numbers. ids: each character's position in the sorted `vocabulary`, (characters,) uint8, int16 or int32."""

    ids: NDArray[np.integer[Any]]
    vocabulary: str


def load_text(path: Path) -> Text:
    """A whole text file. Raises DataError if it is damaged, not UTF-8, over 1 GiB, or has over 65,536 distinct characters."""
    pieces, seen = [], np.zeros(0x110000, dtype=bool)
    for part in characters(path):
        points = np.frombuffer(part.encode("utf-32-le"), dtype="<u4")
        seen[points] = True
        # the smallest dtype that fits, because for most languages int32 would need four times the file's size
        pieces.append(points.astype(np.min_scalar_type(points.max())))
    alphabet = np.flatnonzero(seen)
    check_vocabulary(path, len(alphabet))
    dtype = np.uint8 if len(alphabet) <= 256 else np.int16 if len(alphabet) <= 32_768 else np.int32
    position = np.zeros(0x110000, dtype=dtype)
    position[alphabet] = np.arange(len(alphabet))
    ids: NDArray[np.integer[Any]] = np.concatenate([position[piece] for piece in pieces]) if pieces else np.zeros(0, dtype=dtype)
    return Text(ids, "".join(map(chr, alphabet)))


def characters(path: Path, *, limit: int = MAX_BYTES) -> Iterator[str]:
    """The file's text piece by piece, without a byte order mark. Raises DataError at the first byte that is not UTF-8."""
    decoder, decoded = codecs.getincrementaldecoder("utf-8-sig")(), 0
    try:
        for chunk in itertools.chain(chunks(path, limit=limit), [b""]):
            if text := decoder.decode(chunk, final=not chunk):
                yield text
            decoded += len(chunk)
    except UnicodeDecodeError as error:
        raise NotText(f"{path}: is not UTF-8 text ({error.reason} after about {decoded:,} bytes)") from None


def count_characters(path: Path) -> int:
    """The number of characters in the file. Raises DataError as `load_text` does."""

    def read() -> int:
        count, seen = 0, set[str]()
        for part in characters(path):
            count += len(part)
            seen.update(part)
        check_vocabulary(path, len(seen))
        return count

    return once_per_version(("char_lm", str(path)), [path], read)


def check_vocabulary(path: Path, size: int) -> None:
    if size == 0:
        raise DataError(f"{path}: is empty")
    if size > MAX_VOCABULARY:
        raise DataError(f"{path}: has {size:,} distinct characters, allowed: at most {MAX_VOCABULARY:,}")


def split_point(path: Path, count: int, length: int) -> int:
    """Index of the first character of the evaluation part, the last 10 %.

    Raises DataError unless both parts hold at least length + 1 characters.
    """
    train = count * 9 // 10
    if count - train < length + 1 or train < length + 1:
        raise DataError(
            f"{path}: has {count:,} characters; length {length:,} needs {10 * (length + 1):,} (the last 10 % is for evaluation)"
        )
    return train
