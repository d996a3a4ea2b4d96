"""Every benchmark module can be imported. Benchmarks are run by hand, so nothing else would notice a renamed function."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.series import WIDE

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if file.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_every_benchmark_module_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_the_mnist_benchmark_records_every_eigenvalue_at_every_step() -> None:
    from benchmarks.mnist import CONFIG

    config = parse_config(CONFIG)
    assert config.telemetry.every == 1
    assert config.model.d_state <= WIDE or config.telemetry.all_eigenvalues
