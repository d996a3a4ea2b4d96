"""Layers are found by their folders: two files make a layer, and no list names them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stablessm_core import layers
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.spec import layers as sections
from stablessm_core.spec.layer import FAMILIES
from stablessm_core.spec.layers import LAYERS


def test_each_layer_has_a_code_file_and_a_section_file_of_the_same_name() -> None:
    folder = Path(sections.__file__).parent
    assert {file.stem for file in folder.glob("[a-z]*.py")} == set(LAYERS)
    assert all((Path(layers.__file__).parent / f"{name}.py").is_file() for name in LAYERS)
    assert all(section.built_by == f"stablessm_core.layers.{name}:build" for name, section in LAYERS.items())


def test_lists_show_the_default_layer_first_and_then_each_family() -> None:
    families = [FAMILIES.index(section.family) for section in LAYERS.values()]
    assert next(iter(LAYERS)) == "stable_ssm"
    assert families == sorted(families)
    fixed = [name for name, section in LAYERS.items() if section.family == FAMILIES[0]]
    assert fixed.index("s4") < fixed.index("s4d") < fixed.index("lru")  # layers are ordered by the year of their papers


def test_every_layer_class_can_be_imported_from_the_package() -> None:
    names = [name for name in dir(layers) if name[0].isupper() and name != "Any"]
    assert len(names) == len(LAYERS)
    assert all(issubclass(getattr(layers, name), WatchedLayer) for name in names)
    assert {"StableSSM", "GatedLinearAttention", "HawkBlock", "S4D"} <= set(names)
    with pytest.raises(AttributeError, match="has no attribute 'Unknown'"):
        _ = layers.Unknown


def test_listing_the_layers_imports_no_torch() -> None:
    code = "import sys, stablessm_core.layers as layers, stablessm_core.spec.layers; dir(layers); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_layer_that_copies_initial_values_from_a_repository_names_the_commit() -> None:
    named = 0
    for path in Path(layers.__file__).parent.glob("*.py"):
        for comment in re.findall(r"as in [\w-]+/[\w-]+[^\n]*", path.read_text()):
            assert re.search(r"commit [0-9a-f]{7,}", comment), f"{path.name}: {comment}"
            named += 1
    assert named >= 2
