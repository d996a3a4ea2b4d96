"""Every state-space layer: one folder each with its section of the configuration and the layer itself.

`from stablessm_core.layers import StableSSM` and the like import torch when the name is asked for; the sections never do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "DSS": "dss",
    "GatedDeltaNetBlock": "gated_deltanet",
    "GatedLinearAttention": "gla",
    "HGRN": "hgrn",
    "HawkBlock": "rg_lru",
    "HyenaMixer": "hyena",
    "L2RU": "l2ru",
    "LRU": "lru",
    "Mamba2Block": "mamba2",
    "MambaBlock": "mamba",
    "MinGRU": "min_gru",
    "MultiScaleRetention": "retnet",
    "RWKV4": "rwkv4",
    "RWKV6": "rwkv6",
    "S4": "s4",
    "S4D": "s4d",
    "S5": "s5",
    "StableSSM": "stable_ssm",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}.layer"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
