"""Chooses between the fused and the unfused layer. By default, measurements decide.

`python -m benchmarks.layer --table` measures both layers on this machine's device and prints the device's rows for TABLE.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stablessm_core.fused.operator import why_not_triton
from stablessm_core.numerics.compiling import constant_when_compiled

MODES = ("auto", "on", "off")


@dataclass(frozen=True)
class Row:
    """A measurement.

    It applies to layers with at most this d_model and d_state, and to at least this number of steps (batch x length).
    """

    d_model: int
    d_state: int
    steps: int
    fused: bool


# Keys are PyTorch's device names; the key for all CPUs is "cpu". The first row that applies decides. If no row applies, the
# layer is unfused. On CPUs the fused layer is slower than the unfused layer, because it computes the states twice
# (docs/performance.md). No GPU has been measured yet.
TABLE: dict[str, tuple[Row, ...]] = {"cpu": (Row(1 << 30, 1 << 30, 0, fused=False),)}


@dataclass(frozen=True)
class Choice:
    """`backend` is the backend of the fused layer, or None for the unfused layer. `reason` explains the choice."""

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
    """Chooses the fused or the unfused layer for inputs of `steps` = batch x length. name: the device's key in TABLE.

    wanted: "on" uses the Triton kernels if they can run this layer on this device, otherwise chunks in PyTorch. "off" never
    fuses. "auto" follows TABLE, but does not fuse if the user requests a scan backend by name, because the fused layer would
    not use that backend.
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
            obstacle = why_not_triton(device, d_model, dtype, scan_backend)  # slow, because this call imports Triton
            if obstacle and device.type == "cuda":
                return Choice(None, f"no Triton: {obstacle}")
            return Choice("torch" if obstacle else "triton", f"measured faster on {name}")
    return Choice(None, f"not measured at this shape on {name}")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
