"""Fused or not: the one place where that is decided, from what was measured and nothing else.

`python -m benchmarks.layer --table` measures on the device at hand and prints the rows to put here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stablessm_core.compiling import constant_when_compiled
from stablessm_core.fused.operator import why_not_triton

MODES = ("auto", "on", "off")


@dataclass(frozen=True)
class Row:
    """Measured: at most this d_model and d_state, at least this many steps in a batch (batch x length)."""

    d_model: int
    d_state: int
    steps: int
    fused: bool


# by device name as PyTorch gives it, "cpu" for every CPU; the first row that fits decides, none means unfused. On CPUs the
# states made twice cost more than the memory saved is worth (docs/performance.md). No GPU has been measured yet.
TABLE: dict[str, tuple[Row, ...]] = {"cpu": (Row(1 << 30, 1 << 30, 0, fused=False),)}


@dataclass(frozen=True)
class Choice:
    """backend: of the fused layer, None for the unfused one; and why."""

    backend: str | None
    reason: str

    def described(self) -> dict[str, str]:
        return {"form": "unfused" if self.backend is None else f"fused, {self.backend}", "reason": self.reason}


@constant_when_compiled
def choose(
    wanted: str,
    device: torch.device,
    *,
    d_model: int,
    d_state: int,
    steps: int,
    dtype: torch.dtype,
    scan_backend: str = "auto",
    name: str | None = None,
) -> Choice:
    """Which form a layer takes for `steps` = batch x length. name: of the device, as TABLE has it.

    "on" takes the Triton kernels where they can run and pieces in PyTorch elsewhere, "off" never fuses, "auto" asks TABLE. A scan
    backend asked for by name other than the fused one's own means unfused under "auto": its numbers are wanted.
    """
    if wanted not in MODES:
        raise ValueError(f"fused must be one of {', '.join(MODES)}, got {wanted!r}")
    if wanted == "off":
        return Choice(None, "asked for")
    if wanted == "on":
        obstacle = why_not_triton(device, d_model, dtype, scan_backend)
        return Choice("torch" if obstacle else "triton", "asked for" + (f"; no Triton: {obstacle}" if obstacle else ""))
    name = name or _name(device)
    if scan_backend not in ("auto", "cpu"):
        return Choice(None, f"the scan backend {scan_backend!r} was asked for")
    if name not in TABLE:
        return Choice(None, f"not measured on {name}")
    for row in TABLE[name]:
        if d_model <= row.d_model and d_state <= row.d_state and steps >= row.steps:
            if not row.fused:
                return Choice(None, f"measured slower on {name}")
            obstacle = why_not_triton(device, d_model, dtype, scan_backend)  # imports Triton, which takes its time
            if obstacle and device.type == "cuda":
                return Choice(None, f"no Triton: {obstacle}")
            return Choice("torch" if obstacle else "triton", f"measured faster on {name}")
    return Choice(None, f"not measured at this shape on {name}")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
