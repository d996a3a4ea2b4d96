"""web/initial_eigenvalues.json, which the server shows, is what the layers start with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stablessm_core.layers.registry import LAYERS

ROOT = Path(__file__).resolve().parents[3]
STORED = json.loads((ROOT / "web" / "initial_eigenvalues.json").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("initial_eigenvalues", ROOT / "docs" / "initial_eigenvalues.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", LAYERS)
def test_the_stored_eigenvalues_are_those_of_the_layer(script: ModuleType, name: str) -> None:
    stored = STORED["layers"].get(name)
    assert stored is not None, "run `python docs/initial_eigenvalues.py`"
    found = script.initial(name)
    assert (found["form"], found["eigenvalues"]) == (stored["form"], stored["eigenvalues"])
    assert found["recorded"].keys() == stored["recorded"].keys()
    for kind, values in found["recorded"].items():
        # gates go through matrix products, whose rounding is the processor's
        np.testing.assert_allclose(values, stored["recorded"][kind], rtol=1e-3, atol=1e-5, err_msg=kind)


def test_only_layers_that_there_are_are_stored() -> None:
    assert set(STORED["layers"]) <= set(LAYERS)


def test_kept_eigenvalues_are_spread_over_all(script: ModuleType) -> None:
    assert script.places(7).tolist() == list(range(7))
    kept = script.places(2048)  # 64 channels of 32 modes
    assert len(kept) == script.MOST
    assert len(set(kept // 32)) == 64
    assert len(set(kept % 32)) == 32
