"""Multi-scale retention (RetNet, arXiv 2307.08621, section 2.2).

Public code: fla-org/flash-linear-attention, fla/layers/multiscale_retention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.normalisation import GatedRMSNorm
from stablessm_core.layers.parts.rotation import rotated
from stablessm_core.matrix_state import scalar_decay, step
from stablessm_core.spec.layers.retnet import RetNet
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

State = tuple[Tensor, Tensor]  # S (batch, heads, keys, values), the number of earlier steps (batch,) int64


class MultiScaleRetention(WatchedLayer):
    """W_o (norm(o) * silu(W_g x)) with o_t = S_t^T q_t / sqrt(keys), S_t = gamma_h S_{t-1} + k_t v_t^T in each head.

    Input and output are (batch, length, d_model). q_t, k_t and v_t are linear in x_t; q_t and k_t are also rotated by their
    position t. gamma_h = 1 - 2^{-5-h} for head h = 0, 1, ... The recurrence has no trained weights, so its eigenvalues never
    change. With the rotation, a head's state has pairs of eigenvalues gamma_h e^{i angle}. Only gamma_h is recorded.

    Parameters: q_proj, k_proj (d_model, d_model), v_proj, g_proj (expand d_model, d_model), o_proj (d_model, expand d_model),
    norm (values,). Buffer: decay (heads,), -ln gamma, exact in each dtype. The recurrence runs in the parameters' dtype even
    under autocast. scan_backend: as in `scalar_decay`.
    """

    def __init__(self, d_model: int, n_heads: int = 4, expand: int = 2, *, scan_backend: str = "auto") -> None:
        super().__init__(scan_backend=scan_backend)
        if d_model % n_heads:
            raise ValueError(f"n_heads is {n_heads}; it must divide d_model = {d_model}")
        inner = expand * d_model
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, inner, bias=False)
        self.g_proj = nn.Linear(d_model, inner, bias=False)
        self.norm = GatedRMSNorm(inner, inner // n_heads)
        self.o_proj = nn.Linear(inner, d_model, bias=False)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.g_proj):  # as in microsoft/torchscale, commit 05a9628
            nn.init.xavier_uniform_(projection.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.o_proj.weight)
        self.decay: Tensor
        self.register_buffer("decay", _decay(n_heads).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(x, torch.arange(x.shape[1], device=x.device))
        o, S = scalar_decay(q, k, v, -self.decay, backend=self.scan_backend)
        self.watch(S.detach().abs().amax((2, 3)))
        out: Tensor = self.o_proj(self.norm(o.flatten(2), self.g_proj(x)))
        return out

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (out_t, next state)."""
        S, position = state
        q, k, v = self._heads(x_t, position)
        with self.full_precision(x_t):
            o, S = step(q, k, v, -self.decay[:, None], S)
        return self.o_proj(self.norm(o.flatten(1), self.g_proj(x_t))), (S, position + 1)

    def initial_state(self, batch: int) -> State:
        heads, inner, d_model = len(self.decay), self.o_proj.in_features, self.o_proj.out_features
        S = self.decay.new_zeros(batch, heads, d_model // heads, inner // heads)
        return S, torch.zeros(batch, dtype=torch.int64, device=S.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # computed again, because a conversion from float32 to float64 would keep the rounding error of float32
        self.decay.copy_(_decay(len(self.decay)).to(self.decay.dtype))
        return self

    def recurrent(self, state: State) -> Tensor:
        return state[0]

    def records(self) -> list[Record]:
        return [Record(Form("fixed", "discrete", "none"), self.decay)]

    def _heads(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (len(self.decay), -1)
        q, k, v = (
            torch.unflatten(project(x).to(self.decay.dtype), -1, heads) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotated(q, position) * k.shape[-1] ** -0.5, rotated(k, position), v


def _decay(n_heads: int) -> Tensor:
    """-ln gamma of each head, float64."""
    return -torch.log1p(-(2.0 ** (-5 - torch.arange(n_heads, dtype=torch.float64))))


def build(section: RetNet, given: Surroundings) -> MultiScaleRetention:
    return MultiScaleRetention(given.d_model, section.n_heads, section.expand, scan_backend=given.scan_backend)
