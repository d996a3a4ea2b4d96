"""A linear functional with polynomially decaying memory, used to measure stability (StableSSM, section 4.1, appendix F.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.tasks.base import EVALUATION, TRAIN, Device, OnDevice, Task, generator, in_batches

EVALUATION_SEQUENCES = 2048
EVALUATION_NUMBERS = 1 << 20  # maximum number of values in the evaluation set; a set of very long sequences is smaller


def memory_kernel(kernel: str, length: int) -> Tensor:
    """rho(0..length-1), float64. "paper" is 1/(t+1)^1.1; "authors" is 1/(1+0.1 t)^1.1, as in the authors' released code."""
    t = torch.arange(length, dtype=torch.float64)
    return (1 + (t if kernel == "paper" else 0.1 * t)) ** -1.1


class PolynomialMemoryTask(Task):
    """The inputs x_t are independent and N(0, 1); y_t = sum_{s=0..t} rho(s) x_{t-s}. Every training batch is new;
    evaluation uses up to 2,048 fixed sequences."""

    kind = "regression"
    input_size = 1
    output_size = 1

    def __init__(self, section: PolynomialMemory, data_root: Path) -> None:  # noqa: ARG002 - it needs no data
        self.length = section.length
        self._fft_length = 1 << (2 * section.length - 1).bit_length()  # avoids wrap-around; a power of 2 keeps the FFT fast
        rho = memory_kernel(section.kernel, section.length)
        self._kernel = OnDevice(torch.fft.rfft(rho, n=self._fft_length).to(torch.complex64))
        count = max(1, min(EVALUATION_SEQUENCES, EVALUATION_NUMBERS // section.length))
        x = torch.randn(count, section.length, 1, generator=generator("cpu", 0, 0, EVALUATION))
        self._evaluation = OnDevice(x, self._target(x))
        self.facts = {"kernel": section.kernel, "evaluation_sequences": count}

    def batch(self, step: int, batch_size: int, seed: int, device: Device) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch_size, self.length, 1, device=device, generator=generator(device, seed, step, TRAIN))
        return x, self._target(x)

    def evaluation_batches(self, batch_size: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self._evaluation(device)
        return in_batches(batch_size, x, y)

    def _target(self, x: Tensor) -> Tensor:
        (kernel,) = self._kernel(x.device)
        spectrum = torch.fft.rfft(x.squeeze(-1), n=self._fft_length) * kernel
        target: Tensor = torch.fft.irfft(spectrum, n=self._fft_length)[:, : self.length, None]
        return target.contiguous()
