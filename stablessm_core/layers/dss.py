"""DSS (arXiv 2203.14343): diagonal state spaces whose channels share their modes.

The block is a convolution, a GELU and a linear map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import ConvolutionLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.gates import gate_statistics
from stablessm_core.layers.parts.hippo import legs_basis
from stablessm_core.layers.parts.long_convolution import long_convolution
from stablessm_core.layers.parts.modes import final_states, mode_kernel, wide
from stablessm_core.layers.parts.step_sizes import log_uniform
from stablessm_core.numerics.differentiation import transformed
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.dss import Dss
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

Version = Literal["exp", "softmax"]
EPSILON = 1e-7  # as in the published kernels; the docstring of DSS gives its effect


class DSS(ConvolutionLayer):
    """z_t = readout(y_t) with y_t = sum_s K_s x_{t-s} + D x_t in each channel. Input and output are (batch, length, d_model).

    All channels share the d_state modes lambda = f(w) + i Lambda_imag. Each channel has two step sizes, dt_1 and dt_2, and z =
    dt_1 Re lambda + i dt_2 Im lambda. The paper defines two kernels (proposition 1).
    "exp" is K_l = Re sum_n W_n (e^z - 1)/lambda e^{z l}. The published map is f(w) = -e^w.
    "softmax" is K_l = Re sum_n W_n/lambda e^{z l} / sum_{r < L} e^{z r}. The published map is f(w) = w. Re lambda > 0 is
    allowed. A mode with Re lambda > 0 grows, and its kernel gives the most weight to the distant past.

    Both kernels divide as the published code does, which prevents a division by zero. "softmax" replaces 1/d by
    conj(d) / (|d|^2 + 1e-7) with d = (e^{zL} - 1) lambda (e^{-zL} for a growing mode). So it multiplies a mode by
    |d|^2 / (|d|^2 + 1e-7): 0.999 for |d| = 0.01, 0.94 for 0.00125, 0.91 for 0.001 and 0 for d = 0. "exp" divides by |lambda|^2,
    but by at least 1e-7.

    Initial values: Re lambda is -1/2. The values of Im lambda are the positive frequencies of HiPPO-LegS with 2 d_state states. D
    and both parts of W are normally distributed. The two step sizes of a channel are equal, and log-uniform in dt_range.

    Parameters: w, Lambda_imag (d_state,), log_dt (d_model, 2), W (d_model, d_state, 2), D (d_model,), and the parameters of the
    readout, which is a GELU followed by nn.Linear.

    reparameterization: a continuous map. length: L of "softmax". If `length` is None, L is the length of each input. In that
    case there is no recurrence, so `step` raises an error. form: "convolution" or "scan" (over the states). "scan"
    needs much more memory than "convolution". The two forms agree up to rounding.
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
        super().__init__(reparameterization, scan_backend)
        self.version: Version = version
        self.length = length
        self.form = form
        frequencies, _ = legs_basis(2 * d_state)
        rate = torch.full((d_state,), -0.5, dtype=torch.float64)
        self.w = nn.Parameter(reparameterization.inverse(rate).float())
        self.Lambda_imag = nn.Parameter(frequencies.flip(0).float())
        self.log_dt = nn.Parameter(log_uniform(*dt_range, d_model, 1).repeat(1, 2))
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
            # if time is counted backwards from the last step, a growing mode decays
            decaying = torch.where(grows, -z, z).exp()
            W, early = torch.view_as_complex(self.W), gain * ~grows
            late = gain * grows * torch.where(grows, z * (length - (self.length or length)), 0).exp()
            kernel = mode_kernel(decaying, W * early.to(W.dtype), length)
            if self.version == "softmax" and _any(grows):
                kernel = kernel + mode_kernel(decaying, W * late.to(W.dtype), length).flip(1)
            y = long_convolution(x, kernel, self.D, backend=self.scan_backend)
            self.watch_later(_final_sizes, decaying, early.to(W.dtype), late.to(W.dtype), x)
        self._gates = {"dt": gate_statistics(self.log_dt[None, :, :1].exp())}
        out: Tensor = self.readout(y)
        return out

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state complex (batch, d_model, d_state) -> (z_t, next state).

        Raises ValueError for a softmax over the length of each input, because a single step does not know that length.
        """
        length = self._known_length()
        lambda_, z = self._modes()
        gain, grows = self._gain(lambda_, z, length)
        h = z.exp().to(state.dtype) * state + self._input_gain(z, gain, grows, length).to(state.dtype) * x_t[..., None]
        return self.readout(self._output(h) + self.D * x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_model, d_state). Raises ValueError in the same case as `step`."""
        self._known_length()
        return self.W.new_zeros(batch, *self.W.shape[:2], dtype=self.W.dtype.to_complex())

    @property
    def not_probed(self) -> str:  # type: ignore[override]
        without_steps = self.version == "softmax" and self.length is None
        return "softmax over the length of each input has no single steps" if without_steps else ""

    def recurrent(self, state: Tensor) -> Tensor:
        return state.transpose(1, 2)  # (batch, d_state, d_model): all channels share the modes

    def records(self) -> list[Record]:
        """The modes, with the step sizes of all channels as their gate, and the logarithms of the step sizes."""
        form = replace(self.reparameterization.form, dt=None, phase="half_plane", gate=True, bounded=self.version == "exp")
        steps = Record(Form("none", "discrete", "none"), self.log_dt, name="log_dt")
        return [Record(form, self.w, phase=self.Lambda_imag, gate="dt", gates=1), steps]

    def gates(self) -> dict[str, Tensor]:
        """dt: smallest, mean and largest dt_1 over the channels, (3, 1)."""
        return self._gates

    def _modes(self) -> tuple[Tensor, Tensor]:
        """lambda (d_state,) and z (d_model, d_state), complex, in float64 because large powers of e^z are needed."""
        rate, frequency = self.reparameterization(wide(self.w)), wide(self.Lambda_imag)
        dt = wide(self.log_dt).exp()
        return torch.complex(rate, frequency), torch.complex(dt[:, :1] * rate, dt[:, 1:] * frequency)

    def _gain(self, lambda_: Tensor, z: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The factor that multiplies W, (d_model, d_state), and a mask of the modes that grow in a softmax, (d_state,).

        In a softmax, the largest exponential of each mode is 1. It occurs at the last step if the mode grows, and at the first
        step if the mode decays.
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
        with self.full_precision(x):
            driven = (gain.to(kind) * x.to(self.W.dtype)[..., None]).flatten(2)
            h = linear_scan(z.exp().to(kind).flatten(), driven, backend=self.scan_backend)
        h = h.view(*x.shape, -1)
        self.watch(h[:, -1].detach().abs().amax(1))
        return self._output(h)

    def _output(self, h: Tensor) -> Tensor:
        """Re(W h), h complex (..., d_model, d_state)."""
        return (torch.view_as_complex(self.W) * h).sum(-1).real


def _any(mask: Tensor) -> bool:
    """True if any element is not 0. Always True on a GPU, because reading the value would wait for the device, and inside a
    transform of torch.func, because vmap cannot read the value.
    """
    return mask.device.type != "cpu" or transformed() or bool(mask.any())


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
