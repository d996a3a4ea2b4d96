"""Functions that the chunked recurrences share: check and convert arguments, split time into chunks, join the chunks' states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.scan import linear_scan

Shapes = tuple[tuple[int, ...], ...]


def check_shapes(q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None, **others: tuple[Tensor, Shapes]) -> None:
    """Raise ValueError if the shapes do not match. `others` maps an argument's name to its tensor and its allowed shapes."""
    if v.dim() != 4 or k.dim() != 4 or v.shape[1] == 0:
        raise ValueError(
            f"v must be (batch, length, heads, values) with length at least 1, k alike; got {_shape(v)} and {_shape(k)}"
        )
    batch, _length, heads, values = v.shape
    if q.shape != k.shape or k.shape[:2] != v.shape[:2] or heads % k.shape[2]:
        raise ValueError(
            f"q and k must be {_shape(v.shape[:2])[:-1]}, heads that divide {heads}, keys), got {_shape(q)} and {_shape(k)}"
        )
    if initial is not None:
        others["initial"] = (initial, ((batch, heads, k.shape[3], values),))
    for name, (x, allowed) in others.items():
        if tuple(x.shape) not in allowed:
            raise ValueError(f"{name} must be {' or '.join(map(_shape, allowed))}, got {_shape(x)}")


def _shape(x: Tensor | tuple[int, ...]) -> str:
    return str(tuple(x.shape if isinstance(x, Tensor) else x))


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch autocast off in the `with` block, because products under autocast would reduce the precision of the states."""
    with torch.autocast(device.type, enabled=False):
        yield


def to_one_dtype(*tensors: Tensor | None) -> list[Tensor]:
    """The tensors as float64 if one of them is float64, otherwise as float32. None stays None."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    dtype = torch.float64 if wide else torch.float32
    return [x if x is None else x.to(dtype) for x in tensors]  # type: ignore[misc]


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """(batch, length, ...) -> (batch, chunks, chunk, ...). The padding consists of zeros, which do not change a state."""
    missing = -x.shape[1] % chunk
    if missing:
        x = functional.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    return torch.unflatten(x, 1, (-1, chunk))


def states_before(decay: Tensor, written: Tensor, initial: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
    """S before each chunk, and S after the last chunk, for S_i = decay_i S_{i-1} + written_i over the chunks i.

    written: (batch, chunks, ...). decay: the same shape, but with size 1 on axes along which the decay is constant, or without
    the axes batch and chunks.
    """
    first = torch.zeros_like(written[:, :1]) if initial is None else initial[:, None]
    if written.shape[1] == 1:
        last = written[:, 0] if initial is None else initial * decay.broadcast_to(written.shape)[:, 0] + written[:, 0]
        return first, last
    fixed = decay.dim() < written.dim()
    a = decay.expand(written.shape[2:]).flatten() if fixed else decay.expand(written.shape).flatten(2)
    h0 = None if initial is None else initial.flatten(1)
    S = linear_scan(a, written.flatten(2), h0=h0, backend=backend).view(written.shape)
    return torch.cat([first, S[:, :-1]], 1), S[:, -1]
