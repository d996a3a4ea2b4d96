"""Reads MNIST's original IDX files: a big-endian header (magic number, size of each dimension), then bytes, row-major."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stablessm_core.spec.data.files import DataError, MissingData, chunks, locate

SPLITS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MAX_BYTES = 1 << 28
IMAGES, LABELS = 2051, 2049  # magic numbers of uint8 arrays with three dimensions and with one dimension


def load_mnist(data_root: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 784) and labels (n,) of the "train" or "test" split, from `mnist/` in the data directory, .gz or plain.

    Raises DataError, with path and reason, for a missing or damaged file, images that are not 28 x 28, or wrong labels.
    """
    image_path, label_path = (_find(data_root, name) for name in SPLITS[split])
    images, labels = read_idx(image_path, magic=IMAGES), read_idx(label_path, magic=LABELS)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{image_path}: holds images of {images.shape[1]} x {images.shape[2]} pixels, expected 28 x 28")
    if len(images) != len(labels):
        raise DataError(f"{label_path}: holds {len(labels):,} labels for {len(images):,} images in {image_path.name}")
    if len(labels) == 0:
        raise DataError(f"{label_path}: holds no examples")
    if labels.max() > 9:
        raise DataError(f"{label_path}: holds a label {labels.max()}, expected 0 to 9")
    return images.reshape(-1, 784), labels


def read_idx(path: Path, *, magic: int) -> NDArray[np.uint8]:
    """The uint8 array of an IDX file. The header is checked before the rest of the file is read."""
    dimensions = magic & 0xFF
    stream = chunks(path, limit=MAX_BYTES)
    head = next(stream, b"")
    size = 4 * (1 + dimensions)
    if len(head) < size:
        raise DataError(f"{path}: is truncated ({len(head)} bytes, its header alone has {size})")
    found, *shape = struct.unpack(f">{1 + dimensions}I", head[:size])
    if found != magic:
        raise DataError(f"{path}: is not the expected IDX file (magic number {found}, expected {magic})")
    promised = math.prod(shape)
    layout = f"{' x '.join(f'{n:,}' for n in shape)} = {promised:,} bytes"
    if promised > MAX_BYTES - size:
        raise DataError(f"{path}: its header promises {layout}, more than the {MAX_BYTES:,} allowed")
    pieces, present = [head[size:]], len(head) - size
    for piece in stream:
        pieces.append(piece)
        present += len(piece)
        if present > promised:
            break
    if present != promised:
        amount = "more" if present > promised else f"only {present:,} bytes"
        raise DataError(f"{path}: its header promises {layout}, but the file holds {amount}")
    return np.frombuffer(bytearray().join(pieces), dtype=np.uint8).reshape(shape)


def _find(data_root: Path, name: str) -> Path:
    for candidate in (f"mnist/{name}", f"mnist/{name}.gz"):
        if (data_root / candidate).exists():
            return locate(data_root, candidate)
    raise MissingData(f"{data_root / 'mnist' / name}(.gz): no such file; mnist needs its four IDX files, compressed or not")
