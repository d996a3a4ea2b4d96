"""The time mixing of RWKV-4 (arXiv 2305.13048; BlinkDL/RWKV-LM, RWKV-v4/src/model.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.rwkv import current_share, depth, log_rates, token_shift, zigzag
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.rwkv4 import LOG_RATES, Rwkv4
from stablessm_core.watch.watchable import Record

NOTHING_YET = -1e38  # m before the first step, as in the published code: it is finite, and e^m is 0
FASTEST = 1e12  # maximum decrease of m in one step: larger than any difference of two keys, and small enough for sums in float64
LARGEST_EXPONENT = 80.0  # e^80 is finite in float32
SMALLEST_LOG = 24.0  # e^-(80 + 24) is below the smallest float32

State = tuple[Tensor, Tensor, Tensor, Tensor]  # x_{t-1}, N / e^m, D / e^m, m; each (batch, d_model)


class RWKV4(WatchedLayer):
    """y_t = W_o (sigmoid(r_t) * a_t) with the weighted average a_t = (N_{t-1} + e^{u+k_t} v_t) / (D_{t-1} + e^{u+k_t}) of

        N_t = lambda_bar N_{t-1} + e^{k_t} v_t,   D_t = lambda_bar D_{t-1} + e^{k_t},

    in each channel. Input and output are (batch, length, d_model). r, k and v are linear in mu x_t + (1 - mu) x_{t-1}, each with
    a separate mu (token shift). lambda_bar = f(w); the published map is exp(-e^w). u gives the current step a different weight
    from the earlier steps. The other half of the published block, the channel mixing, is not part of the layer; the model's MLP
    replaces it.

    N and D are stored divided by e^{m_t}, m_t = max(m_{t-1} + ln|lambda_bar|, k_t), because e^k may overflow. No result depends
    on m. If the map is lambda = e^-rate, the recurrence uses the rate itself, because lambda may underflow where D does not. If
    a map reaches negative eigenvalues, D may become 0, and the average is then undefined.

    Parameters: w, u, and one mu each for r, k and v (d_model,); receptance, key, value, output (d_model, d_model). Initial
    values as published: key, receptance and output are 0, value is orthogonal, and w, u and mu depend on the channel and the
    depth. The recurrence runs in w's dtype even under autocast.
    """

    def __init__(
        self,
        d_model: int,
        *,
        reparameterization: Reparameterization,
        index: int = 0,
        n_layers: int = 1,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization, scan_backend)
        rho = depth(index, n_layers)
        lambda_ = torch.exp(-log_rates(*LOG_RATES, d_model, rho).exp())
        self.w = nn.Parameter(reparameterization.inverse(lambda_).float())
        self.u = nn.Parameter((math.log(0.3) + 0.5 * zigzag(d_model)).float())
        share = current_share(d_model, index, n_layers)
        self.mix_r = nn.Parameter(current_share(d_model, index, n_layers, 0.5).float())
        self.mix_k = nn.Parameter(share.float())
        self.mix_v = nn.Parameter((share + 0.3 * rho).float())
        self.receptance = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        nn.init.orthogonal_(self.value.weight)
        for zero in (self.receptance, self.key, self.output):
            nn.init.zeros_(zero.weight)

    def forward(self, x: Tensor) -> Tensor:
        r, k, v = self._projections(x, token_shift(x))
        with self.full_precision(x):
            average, last = _weighted_average(self._lambda_bar(), self.u, k, v, self.scan_backend, self._rate())
        self.watch(last.detach().clone())
        y: Tensor = self.output(torch.sigmoid(r) * average)
        return y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (y_t, next state)."""
        x_before, N, D, m = state
        r, k, v = self._projections(x_t, x_before)
        lambda_bar, rate = self._lambda_bar(), self._rate()
        with self.full_precision(x_t):
            average = _read(N, D, m, self.u + k, v)
            m_next = torch.maximum(m - _fall(lambda_bar, rate), k).detach()
            fade, weight = _fade(lambda_bar, rate, m - m_next), torch.exp(k - m_next)
            following = x_t, fade * N + weight * v, fade * D + weight, m_next
        return self.output(torch.sigmoid(r) * average), following

    def initial_state(self, batch: int) -> State:
        zero = self.w.new_zeros(batch, self.w.shape[0])
        return zero, zero, zero, torch.full_like(zero, NOTHING_YET)

    def transition(self, x_t: Tensor) -> Tensor:
        """The factor by which one step multiplies N. N is stored divided by e^m, so the result is multiplied by e^m."""
        zero = torch.zeros_like(x_t)
        (_, moved, _, m), (_, start, _, _) = (self.step(x_t, (zero, N, zero, zero))[1] for N in (torch.ones_like(x_t), zero))
        return ((moved - start) * m.exp()).view(-1, 1)

    def records(self) -> list[Record]:
        return [Record(self.reparameterization.form, self.w)]

    def _lambda_bar(self) -> Tensor:
        return self.reparameterization.lambda_bar(self.w)

    def _rate(self) -> Tensor | None:
        return self.reparameterization.rate(self.w)

    def _projections(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r in the dtype of the matrix products; k and v in the recurrence's dtype."""
        change = x - before
        r = self.receptance(before + change * self.mix_r)
        k = self.key(before + change * self.mix_k)
        v = self.value(before + change * self.mix_v)
        return r, k.to(self.w.dtype), v.to(self.w.dtype)


def _weighted_average(
    lambda_bar: Tensor, u: Tensor, k: Tensor, v: Tensor, backend: str, rate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """a_t of all steps, (batch, length, d_model), and the larger of |N| and |D| after the last step, (batch, d_model).

    rate: -ln(lambda_bar), if the map gives it.
    """
    with torch.no_grad():  # m cancels, so its gradient is 0
        m = _scale(_fall(lambda_bar, rate), k)
        before = torch.cat([torch.full_like(m[:, :1], NOTHING_YET), m[:, :-1]], 1)
    fade, weight = _fade(lambda_bar, rate, before - m), torch.exp(k - m)
    N = linear_scan(fade, weight * v, backend=backend)
    D = linear_scan(fade, weight, backend=backend)
    average = _read(token_shift(N), token_shift(D), before, u + k, v)
    return average, torch.maximum(N[:, -1].abs(), D[:, -1].abs())


def _read(N: Tensor, D: Tensor, m: Tensor, bonus: Tensor, v: Tensor) -> Tensor:
    """(N e^m + e^bonus v) / (D e^m + e^bonus), scaled so that the larger exponential is 1."""
    largest = torch.maximum(m, bonus).detach()
    past, present = torch.exp(m - largest), torch.exp(bonus - largest)
    return (past * N + present * v) / (past * D + present)


def _fall(lambda_bar: Tensor, rate: Tensor | None) -> Tensor:
    """The decrease of m in a step: -ln|lambda_bar|, with an upper limit."""
    return (-lambda_bar.detach().abs().log() if rate is None else rate.detach()).clamp(max=FASTEST)


def _fade(lambda_bar: Tensor, rate: Tensor | None, change: Tensor) -> Tensor:
    """lambda_bar e^change, at most 1. Without a rate e^change may overflow where lambda_bar underflows, so it is split in two."""
    if rate is not None:
        return torch.exp(change - rate)
    rest = (change - LARGEST_EXPONENT).clamp(0, SMALLEST_LOG)
    return lambda_bar * torch.exp(change.clamp(max=LARGEST_EXPONENT)) * torch.exp(rest)


def _scale(fall: Tensor, k: Tensor) -> Tensor:
    """m_t = max(m_{t-1} - fall, k_t) for all steps. In float64, because the sum of all falls must not round a key away."""
    fallen = torch.arange(k.shape[1], dtype=torch.float64, device=k.device)[:, None] * fall
    return (torch.cummax(k + fallen, 1).values - fallen).to(k.dtype)


def build(section: Rwkv4, given: Surroundings) -> RWKV4:  # noqa: ARG001 - it has no options
    assert given.reparameterization is not None
    return RWKV4(
        given.d_model,
        reparameterization=given.reparameterization,
        index=given.index,
        n_layers=given.n_layers,
        scan_backend=given.scan_backend,
    )
