"""The state-space layers, one file per layer. The options of a layer are in the file of the same name in `spec.layers`.

`from stablessm_core.layers import StableSSM` imports torch and that layer's file; importing this package alone imports neither.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any


@cache
def _modules() -> dict[str, str]:
    """The module of each layer class. The classes are found in the source files, because importing them would import torch."""
    sources = {file.name.removesuffix(".py"): file.read_text() for file in files(__name__).iterdir() if file.name.endswith(".py")}
    layer_class = re.compile(r"^class (\w+)\((?:WatchedLayer|ConvolutionLayer)\):", re.MULTILINE)
    return {name: module for module, text in sorted(sources.items()) for name in layer_class.findall(text) if module != "base"}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_modules()[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_modules()])
