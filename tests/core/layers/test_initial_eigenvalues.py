"""stablessm_core/theory/initial_eigenvalues.json, which the server shows, equals the layers' initial eigenvalues."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stablessm_core.spec.layers import LAYERS

ROOT = Path(__file__).resolve().parents[3]
STORED = json.loads((ROOT / "stablessm_core" / "theory" / "initial_eigenvalues.json").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("initial_eigenvalues", ROOT / "docs" / "initial_eigenvalues.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", LAYERS)
def test_the_stored_eigenvalues_match_the_initial_eigenvalues_of_the_layer(script: ModuleType, name: str) -> None:
    stored = STORED["layers"].get(name)
    assert stored is not None, "the layer is not stored: run `python docs/initial_eigenvalues.py`"
    found = script.initial(name)
    assert (found["form"], found["eigenvalues"]) == (stored["form"], stored["eigenvalues"])
    assert found["recorded"].keys() == stored["recorded"].keys()
    for kind, values in found["recorded"].items():
        # gates depend on matrix products, which round differently on each processor
        np.testing.assert_allclose(values, stored["recorded"][kind], rtol=1e-3, atol=1e-5, err_msg=kind)


def test_eigenvalues_are_stored_only_for_existing_layers() -> None:
    assert set(STORED["layers"]) <= set(LAYERS)


def test_the_eigenvalues_kept_of_a_wide_layer_cover_all_channels_and_modes(script: ModuleType) -> None:
    assert script.places(7).tolist() == list(range(7))
    kept = script.places(2048)  # 64 channels of 32 modes
    assert len(kept) == script.MOST
    assert len(set(kept // 32)) == 64
    assert len(set(kept % 32)) == 32
