"""DSS (arXiv 2203.14343): diagonal state spaces whose channels share their modes, in their block: convolution, GELU, linear."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.convolution import fft_convolution
from stablessm_core.layers.dss.section import Dss
from stablessm_core.layers.gates import gate_statistics
from stablessm_core.layers.hippo import legs_basis
from stablessm_core.layers.modes import FinalState, final_states, mode_kernel, wide
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.telemetry.watch import Record

Version = Literal["exp", "softmax"]
EPSILON = 1e-7  # of what the published kernels divide by, where it vanishes


class DSS(nn.Module):
    """z_t = readout(y_t), in each channel y_t = sum_s K_s x_{t-s} + D x_t: (batch, length, d_model) to the same.

    lambda = f(w) + i Lambda_imag, d_state modes that all channels share; z = dt_1 Re lambda + i dt_2 Im lambda with two step
    sizes per channel. Kernels (proposition 1): "exp" K_l = Re sum_n W_n (e^z - 1)/lambda e^{z l}, published is f(w) = -e^w;
    "softmax" K_l = Re sum_n W_n/lambda e^{z l} / sum_{r < L} e^{z r}, published is f(w) = w, and a mode with Re lambda > 0 is
    legal: it grows, and its kernel favours the far past.

    Start: Re lambda = -1/2, Im lambda the positive frequencies of HiPPO-LegS of 2 d_state states, W normal in each part, D
    normal, the steps of a channel alike and log-uniform in dt_range.

    Parameters: w, Lambda_imag (d_state,), log_dt (d_model, 2), W (d_model, d_state, 2), D (d_model,), and the readout's, a GELU
    and nn.Linear.

    reparameterization: a continuous map. length: L of "softmax"; None: the length of each input, and then there is no recurrence,
    so no step. form: "convolution" by FFT, or "scan" over the states, which needs much more memory; they agree to rounding.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization,
        version: Version = "exp",
        length: int | None = None,
        dt_range: tuple[float, float] = (1e-3, 1e-1),
        form: Literal["convolution", "scan"] = "convolution",
        scan_backend: str = "auto",
    ) -> None:
        super().__init__()
        self.reparameterization = reparameterization
        self.version: Version = version
        self.length = length
        self.form = form
        self.scan_backend = scan_backend
        self._final = FinalState()
        self._gates: dict[str, Tensor] = {}
        frequencies, _ = legs_basis(2 * d_state)
        rate = torch.full((d_state,), -0.5, dtype=torch.float64)
        start, end = map(math.log, dt_range)
        self.w = nn.Parameter(reparameterization.inverse(rate).float())
        self.Lambda_imag = nn.Parameter(frequencies.flip(0).float())
        self.log_dt = nn.Parameter((start + (end - start) * torch.rand(d_model, 1)).repeat(1, 2))
        self.W = nn.Parameter(torch.randn(d_model, d_state, 2))
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout: nn.Module = nn.Sequential(nn.GELU(), nn.Linear(d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        lambda_, z = self._modes()
        gain, grows = self._gain(lambda_, z, self.length or length)
        if self.form == "scan":
            y = self._scanned(x, z, self._input_gain(z, gain, grows, self.length or length)) + self.D * x
        else:
            # a mode that grows is one that decays against time, from the last step on
            decaying = torch.where(grows, -z, z).exp()
            W, early = torch.view_as_complex(self.W), gain * ~grows
            late = gain * grows * torch.where(grows, z * (length - (self.length or length)), 0).exp()
            kernel = mode_kernel(decaying, W * early.to(W.dtype), length)
            if self.version == "softmax" and _any(grows):
                kernel = kernel + mode_kernel(decaying, W * late.to(W.dtype), length).flip(1)
            y = fft_convolution(x, kernel, self.D)
            self._final.follows_from(_final_sizes, decaying, early.to(W.dtype), late.to(W.dtype), x)
        self._gates = {"dt": gate_statistics(self.log_dt[None, :, :1].exp())}
        out: Tensor = self.readout(y)
        return out

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state complex (batch, d_model, d_state) -> (z_t, next state).

        Raises ValueError for a softmax over the length of each input, which a step does not know.
        """
        length = self._known_length()
        lambda_, z = self._modes()
        gain, grows = self._gain(lambda_, z, length)
        h = z.exp().to(state.dtype) * state + self._input_gain(z, gain, grows, length).to(state.dtype) * x_t[..., None]
        return self.readout(self._output(h) + self.D * x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_model, d_state). Raises ValueError as `step` does."""
        self._known_length()
        return self.W.new_zeros(batch, *self.W.shape[:2], dtype=self.W.dtype.to_complex())

    @property
    def last_state(self) -> Tensor | None:
        """Largest |h| of each mode over the channels after the last step of the last forward, (batch, d_state)."""
        return self._final.size

    def records(self) -> list[Record]:
        """The modes, whose step sizes of all channels stand for a gate; and the logarithms of the steps."""
        form = replace(self.reparameterization.form, dt=None, phase="half_plane", gate=True, bounded=self.version == "exp")
        steps = Record(Form("none", "discrete", "none"), self.log_dt, name="log_dt")
        return [Record(form, self.w, phase=self.Lambda_imag, gate="dt", gates=1), steps]

    def gates(self) -> dict[str, Tensor]:
        """dt: smallest, mean and largest dt_1 over the channels, (3, 1)."""
        return self._gates

    def extra_repr(self) -> str:
        d_model, d_state, _ = self.W.shape
        return f"d_model={d_model}, d_state={d_state}, reparameterization={self.reparameterization.name}, version={self.version}"

    def _modes(self) -> tuple[Tensor, Tensor]:
        """lambda (d_state,) and z (d_model, d_state), complex, in float64 for the sake of large powers."""
        rate, frequency = self.reparameterization(wide(self.w)), wide(self.Lambda_imag)
        dt = wide(self.log_dt).exp()
        return torch.complex(rate, frequency), torch.complex(dt[:, :1] * rate, dt[:, 1:] * frequency)

    def _gain(self, lambda_: Tensor, z: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """What W is multiplied by, (d_model, d_state), and which modes of a softmax grow, (d_state,).

        Of a growing mode the largest exponential of the kernel is its last, and is 1; of a decaying one the first.
        """
        if self.version == "exp":
            size = (lambda_.real.square() + lambda_.imag.square()).clamp(min=EPSILON)
            return torch.expm1(z) * (lambda_.conj() / size), torch.zeros_like(lambda_.real, dtype=torch.bool)
        grows = lambda_.real > 0
        inward = torch.where(grows, -z, z)
        denominator = torch.expm1(inward * length) * lambda_
        size = denominator.real.square() + denominator.imag.square() + EPSILON
        return torch.expm1(inward) * (denominator.conj() / size), grows

    def _input_gain(self, z: Tensor, gain: Tensor, grows: Tensor, length: int) -> Tensor:
        """B_bar of h_t = e^z h_{t-1} + B_bar x_t, y_t = Re(W h_t)."""
        return gain * torch.where(grows, -z * (length - 1), 0).exp()

    def _known_length(self) -> int:
        if self.version == "softmax" and self.length is None:
            raise ValueError("length is None: softmax over the length of each input has no single steps; needs a length")
        return self.length or 1

    def _scanned(self, x: Tensor, z: Tensor, gain: Tensor) -> Tensor:
        kind = self.W.dtype.to_complex()
        with torch.autocast(x.device.type, enabled=False):
            driven = (gain.to(kind) * x.to(self.W.dtype)[..., None]).flatten(2)
            h = linear_scan(z.exp().to(kind).flatten(), driven, backend=self.scan_backend)
        h = h.view(*x.shape, -1)
        self._final.set(h[:, -1].detach().abs().amax(1))
        return self._output(h)

    def _output(self, h: Tensor) -> Tensor:
        """Re(W h), h complex (..., d_model, d_state)."""
        return (torch.view_as_complex(self.W) * h).sum(-1).real


def _any(mask: Tensor) -> bool:
    """Whether any is not 0; True on a device, which would have to be waited for."""
    return mask.device.type != "cpu" or bool(mask.any())


def _final_sizes(decaying: Tensor, early: Tensor, late: Tensor, x: Tensor) -> Tensor:
    x = x.to(early.dtype.to_real())
    h = early * final_states(decaying, x)
    if _any(late):
        h = h + late * final_states(decaying, x.flip(1))
    return h.abs().amax(1)


def build(section: Dss, given: Surroundings) -> DSS:
    assert given.reparameterization is not None
    return DSS(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        version=section.version,
        length=section.length,
        dt_range=(section.dt_min, section.dt_max),
        scan_backend=given.scan_backend,
    )
