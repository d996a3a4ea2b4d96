"""The choice of the code that computes a run. A resumed run uses the code that was chosen at its start, because different code
rounds differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stablessm_core.kernels import build, library
from stablessm_core.numerics import products
from stablessm_core.scan import resolve_backend, why_not_compiled, why_not_triton


@dataclass(frozen=True)
class Numerics:
    """The scan backend and the matrix products that compute a run.

    scan_backend: the resolved backend, never "auto". reason: why scan_backend is not the fastest backend, or None. products:
    see `products.choice_facts`. model_backend: the backend to build the model with, or None if the configuration's setting
    already resolves to `scan_backend` on this device.
    """

    scan_backend: str
    reason: str | None = None
    products: dict[str, Any] | None = None
    model_backend: str | None = None

    def saved(self) -> dict[str, str]:
        """The fields that are stored in a checkpoint."""
        return {"scan_backend": self.scan_backend} | ({"products": self.products["library"]} if self.products else {})

    def described(self) -> dict[str, Any]:
        """The fields that are stored in the environment of the run. kernels: the instruction set of the compiled kernels."""
        return (
            {"scan_backend": self.scan_backend}
            | ({"kernels": f"{build.machine()}-{library.target()}"} if self.scan_backend == "cpu" else {})
            | ({"scan_backend_reason": self.reason} if self.reason else {})
            | ({"products": self.products} if self.products else {})
        )


def choose_numerics(wanted: str, device: torch.device, saved: dict[str, str] | None = None) -> Numerics:
    """The fastest code that works on this device. A resumed run gets the code in its checkpoint if that code works on this
    device.

    wanted: `train.scan_backend`. saved: `Numerics.saved` from the checkpoint of a resumed run. Raises ValueError if `wanted`
    names a backend that cannot run on this device.
    """
    default = resolve_backend(wanted, device)
    backend, reason = default, None
    if wanted == "auto" and saved is not None and saved["scan_backend"] != default:
        try:
            backend = resolve_backend(saved["scan_backend"], device)
            reason = "the run began with it"
        except ValueError as error:
            reason = f"the run began with another, but {error}"
    elif wanted == "auto":
        reason = _why_not_the_fastest(device)
    model_backend = None if backend == default else backend
    if backend != "cpu":
        return Numerics(backend, reason, model_backend=model_backend)
    if saved is not None and "products" in saved:
        products.use(saved["products"])
    return Numerics(backend, reason, products.choice_facts(), model_backend)


def saved_by_default(device: torch.device) -> dict[str, str] | None:
    """The code of a run whose checkpoint does not contain the choice. When such runs began, there was only one fast backend for
    CPUs."""
    return {"scan_backend": "torch"} if device.type == "cpu" else None


def _why_not_the_fastest(device: torch.device) -> str | None:
    if device.type == "cuda":
        return why_not_triton(device)
    return why_not_compiled(device) if device.type == "cpu" else None
