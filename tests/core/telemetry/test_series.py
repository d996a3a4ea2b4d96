"""The catalogue: recorded series first, in the order of their group's columns; every series has one meaning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names


@pytest.mark.parametrize(("time", "recorded"), [("discrete", 2), ("continuous", 3)])
def test_a_layers_recorded_series_come_before_its_derived_ones(time: str, recorded: int) -> None:
    catalogue = names.layer_catalogue(3, 64, Form.of_map("exp", time))
    assert [s.derived for s in catalogue] == [False] * recorded + [True] * 2
    assert [s.name for s in catalogue][:2] == ["ssm/3/grad_over_weight", "ssm/3/weight"]
    assert [s.name for s in catalogue][-2:] == ["ssm/3/eigenvalue", "ssm/3/boundary_distance"]
    assert {s.width for s in catalogue} == {64}
    assert {s.group for s in catalogue} == {"ssm/3"}


def test_names_are_unique_and_every_series_says_what_it_means() -> None:
    scalars = [n for n in names.MEANINGS if "/" in n]
    catalogue = [names.scalar(n) for n in scalars]
    form = Form.of_map("exp", "continuous")
    for layer in range(2):
        catalogue += names.layer_catalogue(layer, 4, form) + names.wide_layer_catalogue(layer + 2, form)
    assert len({s.name for s in catalogue}) == len(catalogue)
    assert all(s.meaning.endswith(".") for s in catalogue)


def test_what_the_server_needs_of_telemetry_imports_no_torch() -> None:
    modules = ["series", "blocks", "detectors", "monitor", "sinks"]
    code = "".join(f"import stablessm_core.telemetry.{m}\n" for m in modules) + "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
