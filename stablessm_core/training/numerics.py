"""Which code computes a run, chosen when it begins and kept when it is resumed: another one rounds otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stablessm_core import products
from stablessm_core.scan import resolve_backend, why_not_compiled, why_not_triton


@dataclass(frozen=True)
class Numerics:
    """scan_backend: never "auto"; reason: why it is not the one that would be expected, if so. products: as `products.chosen`."""

    scan_backend: str
    reason: str | None = None
    products: dict[str, Any] | None = None

    def saved(self) -> dict[str, str]:
        """What a checkpoint keeps of it."""
        return {"scan_backend": self.scan_backend} | ({"products": self.products["library"]} if self.products else {})

    def described(self) -> dict[str, Any]:
        """What the environment of the run says."""
        return (
            {"scan_backend": self.scan_backend}
            | ({"scan_backend_reason": self.reason} if self.reason else {})
            | ({"products": self.products} if self.products else {})
        )


def choose_numerics(wanted: str, device: torch.device, saved: dict[str, str] | None = None) -> Numerics:
    """The fastest that works here; of a resumed run what its checkpoint `saved`, if that works here.

    wanted: `train.scan_backend`. Raises ValueError for one asked for by name that cannot run here.
    """
    backend, reason = resolve_backend(wanted, device), None
    if wanted == "auto" and saved is not None and saved["scan_backend"] != backend:
        try:
            backend = resolve_backend(saved["scan_backend"], device)
            reason = "the run began with it"
        except ValueError as error:
            reason = f"the run began with another, but {error}"
    elif wanted == "auto":
        reason = _why_not_the_fastest(device)
    if backend != "cpu":
        return Numerics(backend, reason)
    if saved is not None and "products" in saved:
        products.use(saved["products"])
    return Numerics(backend, reason, products.chosen())


def saved_before(device: torch.device) -> dict[str, str] | None:
    """What runs were computed with whose checkpoints do not say: on a CPU there was one fast backend."""
    return {"scan_backend": "torch"} if device.type == "cpu" else None


def _why_not_the_fastest(device: torch.device) -> str | None:
    if device.type == "cuda":
        return why_not_triton(device)
    return why_not_compiled(device) if device.type == "cpu" else None
