"""A map of an installed package is found by its entry point, or refused by name with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.extending import ROOT, blocks, install_package

pytestmark = pytest.mark.long

HYPERBOLA = blocks("python")["stablessm_core/maps/hyperbola.py"]
PARSE = """
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
try:
    config = parse_config({"task": {"name": "digits"}, "model": {"reparameterization": {"name": "NAME"}}})
    print(config.model.reparameterization.name)
except ConfigError as error:
    print(error)
"""


PROJECT = tomllib.loads(blocks("toml")["curves/pyproject.toml"])["project"]


def install(site: Path, code: str = HYPERBOLA, name: str = "hyperbola") -> None:
    target = PROJECT["entry-points"]["stablessm.maps"]["hyperbola"]
    install_package(site, PROJECT["name"], PROJECT["version"], {"curves/hyperbola.py": code}, {"stablessm.maps": {name: target}})


def answer(site: Path, code: str) -> str:
    """The output of the code in a process in which the packages of `site` are installed."""
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_map_of_an_installed_package_is_listed_after_built_in_maps_and_can_be_configured(tmp_path: Path) -> None:
    install(tmp_path)
    listed = answer(tmp_path, "from stablessm_core.maps import MAPS; print(*MAPS)").split()
    assert listed[-2:] == ["sigmoid", "hyperbola"]
    assert answer(tmp_path, PARSE.replace("NAME", "hyperbola")) == "hyperbola"


def test_a_package_can_import_its_own_map_first(tmp_path: Path) -> None:
    install(tmp_path)
    code = "from curves.hyperbola import MAP; from stablessm_core.maps import MAPS; print(MAP is MAPS[MAP.name])"
    assert answer(tmp_path, code) == "True"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("import annotations", "import annotations\nimport no_such_module", "No module named 'no_such_module'"),
        ("MAP = Map(", "MAP = dict(guarded=True) or Map(", "it is no stablessm_core.map.Map"),
        ('Map("hyperbola"', 'Map("parabola"', "the entry point is named 'hyperbola', its map 'parabola'"),
        ("def inverse", "def inverted", "Can't instantiate abstract class"),
        (
            "return (1 / lambda_ - lambda_) / 2",
            "return 1 / lambda_",
            "continuous inverse(f(w)) gives other eigenvalues",
        ),
        ("return -self.rate(w) / self._root(w)", "return self.rate(w)", "continuous derivative(w) is not the slope of f(w)"),
        (
            "    def gradient_scale(self, w: Array) -> Array:  # |f'| / (1 - f)^2",
            """
    def f(self, w: Array) -> Array:
        return 3 * super().f(w)

    def derivative(self, w: Array) -> Array:
        return super().derivative(w)

    def inverse(self, lambda_: Array) -> Array:
        return super().inverse(lambda_ / 3)

    def gradient_scale(self, w: Array) -> Array:  # |f'| / (1 - f)^2""",
            "it declares guarded=True, but its discrete f(0) is 1.10364, outside the stability boundary; "
            "allowed: |f(w)| <= 1 at every weight, or guarded=False",
        ),
    ],
)
def test_an_unusable_map_is_refused_by_name_with_the_reason(tmp_path: Path, before: str, after: str, reason: str) -> None:
    assert before in HYPERBOLA
    install(tmp_path, HYPERBOLA.replace(before, after, 1))
    refusal = answer(tmp_path, PARSE.replace("NAME", "hyperbola"))
    assert refusal.startswith("model.reparameterization.name: ")
    assert reason in refusal
    assert answer(tmp_path, PARSE.replace("NAME", "exp")) == "exp"


def test_a_package_cannot_replace_a_built_in_map(tmp_path: Path) -> None:
    install(tmp_path, HYPERBOLA.replace('Map("hyperbola"', 'Map("exp"'), name="exp")
    assert answer(tmp_path, "from stablessm_core.maps import MAPS, REFUSED; print(MAPS['exp'].order, *REFUSED)") == "4 exp"
