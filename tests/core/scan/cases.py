"""Shared by the tests of scan and layer: random problems, the float64 loop and its gradients, tolerances, poisoned memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stablessm_core import scan
from stablessm_core.scan import linear_scan, why_not_compiled

# largest error relative to the largest true value, by the dtype of the result
TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 3e-6,
    torch.complex64: 3e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}


@pytest.fixture(params=["cpu", "torch"], autouse=True)
def fast_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend that "auto" selects. Each test of a file that imports this fixture runs with every backend of a CPU."""
    name: str = request.param
    if name == "cpu" and (reason := why_not_compiled(torch.device("cpu"))):
        pytest.skip(reason)
    found = scan.resolve_backend
    monkeypatch.setattr(scan, "resolve_backend", lambda wanted, device: name if wanted == "auto" else found(wanted, device))
    return name


@dataclass(frozen=True)
class Problem:
    a: Tensor
    b: Tensor
    h0: Tensor | None
    weight: Tensor  # dL/dh, where L is the loss that is differentiated
    reverse: bool

    def solve(self, backend: str, dtype: torch.dtype | None = None, device: str = "cpu") -> dict[str, Tensor]:
        """h and the gradients of all inputs, computed in `dtype` (default: that of the inputs) on `device`."""
        leaves = {name: x.detach().to(device, dtype or x.dtype).requires_grad_() for name, x in self.inputs().items()}
        h = linear_scan(**leaves, reverse=self.reverse, backend=backend)
        h.backward(self.weight.to(device, h.dtype))
        gradients = {f"d{name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
        return {"h": h.detach().cpu()} | {name: gradient.cpu() for name, gradient in gradients.items()}

    def inputs(self) -> dict[str, Tensor]:
        return {"a": self.a, "b": self.b} | ({} if self.h0 is None else {"h0": self.h0})


def problem(shape: tuple[int, int, int], dtype: torch.dtype, *, lti: bool, h0: bool, reverse: bool = False) -> Problem:
    """A random problem with |a| up to 0.99; half of the real a are negative, and complex a have any angle."""
    batch, _, d_state = shape
    random = torch.Generator().manual_seed(sum(shape) + 2 * lti + h0)
    wide = torch.complex128 if dtype.is_complex else torch.float64

    def normal(*size: int) -> Tensor:
        return torch.randn(size, dtype=wide, generator=random).to(dtype)

    size = (d_state,) if lti else shape
    radius = 0.99 * torch.rand(size, dtype=torch.float64, generator=random) ** 0.25
    angle = torch.rand(size, dtype=torch.float64, generator=random) * 2 * torch.pi
    a = torch.polar(radius, angle) if dtype.is_complex else radius * torch.sign(torch.cos(angle))
    return Problem(a.to(dtype), normal(*shape), normal(batch, d_state) if h0 else None, normal(*shape), reverse)


def assert_matches_the_float64_loop(given: Problem, backend: str, device: str = "cpu") -> None:
    wide = torch.complex128 if given.b.is_complex() else torch.float64
    truth = given.solve("reference", wide)
    for name, value in given.solve(backend, device=device).items():
        assert value.dtype == given.b.dtype
        assert relative_error(value, truth[name]) <= TOLERANCE[value.dtype], name


def assert_matches_up_to_cancellation(given: Problem, backend: str, device: str = "cpu") -> None:
    """As above, but relative to the largest value without cancellation: a few random terms may all cancel, even in the loop."""
    wide = torch.complex128 if given.b.is_complex() else torch.float64
    sizes = [None if x is None else x.to(wide).abs() for x in (given.a, given.b, given.h0, given.weight)]
    truth, scale = given.solve("reference", wide), Problem(*sizes, given.reverse).solve("reference")  # type: ignore[arg-type]
    for name, value in given.solve(backend, device=device).items():
        assert value.shape == truth[name].shape
        error = (value.to(wide) - truth[name]).abs().max().item()
        assert error <= TOLERANCE[value.dtype] * scale[name].max().item(), name


def relative_error(value: Tensor, truth: Tensor) -> float:
    assert value.shape == truth.shape
    scale = truth.abs().max().item()
    return (value.to(truth.dtype) - truth).abs().max().item() / (scale or 1.0)


def loop64(a: Tensor, b: Tensor) -> Tensor:
    """The recurrence in float64 numpy, for long sequences. The shape of a is (d_state,)."""
    wide = np.complex128 if b.is_complex() else np.float64
    a_wide, h = a.numpy().astype(wide), b.transpose(0, 1).numpy().astype(wide)
    for t in range(1, len(h)):
        h[t] += a_wide * h[t - 1]
    return torch.from_numpy(h).transpose(0, 1)


def peak_memory(work: Callable[[], object]) -> int:
    """Peak memory in bytes, from the allocations that PyTorch's profiler recorded."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        work()
    assert seen.profiler is not None
    alive = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


def patch_the_language_once(monkeypatch: Any) -> None:
    """Patch Triton's language once per module. The interpreter patches it at every call, which takes most of its time."""
    from triton.runtime import interpreter

    patched: set[str] = set()

    def call(function: Any, *given: Any, **named: Any) -> Any:
        if function.fn.__module__ not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(function.fn.__module__)
        return function.rewrite()(*given, **named)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)


class PoisoningTorch:
    """Replaces the name `torch` in a module so that memory from `torch.empty` starts as NaN or as another poison value."""

    def __init__(self, poison: float = float("nan")) -> None:
        self._poison = poison

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: Any, **options: Any) -> Tensor:
        return torch.empty(*size, **options).fill_(self._poison)
