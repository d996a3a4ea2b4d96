"""The benchmarks run by hand, so a renamed function would go unnoticed: each of their modules must at least import."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if file.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_the_benchmarks_imports(module: str) -> None:
    importlib.import_module(module)
