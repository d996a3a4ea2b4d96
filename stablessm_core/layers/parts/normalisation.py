"""Root-mean-square normalisation with a gate, for the output of a recurrence whose state is a matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class GatedRMSNorm(nn.Module):
    """weight * o / sqrt(mean(o^2) + eps) * silu(gate), with the mean over `width` neighbouring features: (..., features).

    gate_first: normalise o * silu(gate), as in Mamba-2 (arXiv 2405.21060). Otherwise normalise o alone, as in RetNet (arXiv
    2307.08621, equation 8, which has no weight) and in the successors of RetNet. Parameter: weight (features,) with
    `gate_first`, otherwise (width,), the same for every head; initially all 1. The result is computed in the weight's dtype,
    float32 or float64, even under autocast.
    """

    def __init__(self, features: int, width: int, *, gate_first: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.width, self.gate_first, self.eps = width, gate_first, eps
        self.weight = nn.Parameter(torch.ones(features if gate_first else width))

    def forward(self, o: Tensor, gate: Tensor) -> Tensor:
        with torch.autocast(o.device.type, enabled=False):
            opening = functional.silu(gate.to(self.weight.dtype))
            if not self.gate_first:
                return self._normalised(o, self.weight) * opening
            if self.width == len(self.weight):
                return self._normalised(o * opening, self.weight)
            return self._normalised(o * opening, None) * self.weight

    def _normalised(self, o: Tensor, weight: Tensor | None) -> Tensor:
        if o.shape[-1] == self.width:
            return functional.rms_norm(o, (self.width,), weight, self.eps)
        return functional.rms_norm(torch.unflatten(o, -1, (-1, self.width)), (self.width,), weight, self.eps).flatten(-2)
