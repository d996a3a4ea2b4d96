"""Reads CIFAR-10's binary records: one label byte, then the red, green and blue planes of 32 x 32 bytes each, row-major."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.files import DataError, chunks, locate

FOLDERS = ("cifar10", "cifar-10-batches-bin")  # the second name is used in the official archive
FULL = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
SAMPLE = {"train": ("cifar10-sample/train-first4000.bin",), "test": ("cifar10-sample/test-first1000.bin",)}
ENDINGS = ("", ".gz", ".xz")
RECORD = 1 + 3 * 1024
IMAGES_PER_FILE = 10_000  # number of images in each file of the full set; also the maximum for any file


def load_cifar10(data_root: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 1024, 3) and labels (n,) of the "train" or "test" split.

    The images come from the sample if no file of the full set exists. Raises DataError, with path and reason, if a file is
    missing or damaged, or if only some files of the full set exist.
    """
    folder = full_set(data_root)
    names = [f"{folder}/{name}" for name in FULL[split]] if folder else SAMPLE[split]
    records = np.concatenate([read_records(_find(data_root, name), whole=folder is not None) for name in names])
    # a contiguous copy, with three numbers per pixel instead of three planes
    return np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)), records[:, 0].copy()


def full_set(data_root: Path) -> str | None:
    """The folder in the data directory that contains at least one file of the full set; None if no folder does."""
    for folder in FOLDERS:
        if any(
            (data_root / folder / (name + ending)).exists() for names in FULL.values() for name in names for ending in ENDINGS
        ):
            return folder
    return None


def read_records(path: Path, *, whole: bool) -> NDArray[np.uint8]:
    """The records of one file, (n, 3073) bytes. whole: True if the file must hold 10,000 images, as in the full set."""
    content = b"".join(chunks(path, limit=IMAGES_PER_FILE * RECORD))
    count, rest = divmod(len(content), RECORD)
    if rest or count == 0 or (whole and count != IMAGES_PER_FILE):
        expected = f"{IMAGES_PER_FILE:,}" if whole else "a whole number"
        raise DataError(
            f"{path}: is truncated or not a CIFAR-10 file ({len(content):,} bytes; {expected} of {RECORD:,} each expected)"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, RECORD)
    if records[:, 0].max() > 9:
        raise DataError(f"{path}: holds a label {records[:, 0].max()}, expected 0 to 9")
    return records


def _find(data_root: Path, name: str) -> Path:
    for ending in ENDINGS:
        if (data_root / (name + ending)).exists():
            return locate(data_root, name + ending)
    raise DataError(
        f"{data_root / name}(.gz, .xz): no such file; cifar10 needs the six files of the binary version in {FOLDERS[0]}/, or "
        f"the two of cifar10-sample/"
    )
