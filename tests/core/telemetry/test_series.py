"""The list of series: recorded series come first, in the column order of their group; every series has one meaning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form


@pytest.mark.parametrize(("time", "recorded"), [("discrete", 2), ("continuous", 3)])
def test_recorded_series_of_a_layer_come_before_its_derived_series(time: str, recorded: int) -> None:
    catalogue = names.layer_catalogue(3, 64, Form.of_map("exp", time))
    assert [s.derived for s in catalogue] == [False] * recorded + [True] * 2
    assert [s.name for s in catalogue][:2] == ["ssm/3/grad_over_weight", "ssm/3/weight"]
    assert [s.name for s in catalogue][-2:] == ["ssm/3/eigenvalue", "ssm/3/boundary_distance"]
    assert {s.width for s in catalogue} == {64}
    assert {s.group for s in catalogue} == {"ssm/3"}


def test_series_names_are_unique_and_every_series_has_an_explanation() -> None:
    scalars = [n for n in names.MEANINGS if "/" in n]
    catalogue = [names.scalar(n) for n in scalars]
    form = Form.of_map("exp", "continuous")
    for layer in range(2):
        catalogue += names.layer_catalogue(layer, 4, form) + names.wide_layer_catalogue(layer + 2, form)
    assert len({s.name for s in catalogue}) == len(catalogue)
    assert all(s.meaning.endswith(".") for s in catalogue)


@pytest.mark.parametrize(
    ("name", "larger"),
    [("val/acc", True), ("accuracy", True), ("val/Accuracy@5", True), ("eval/f1_macro", True), ("env/reward", True),
     ("val/auc", True), ("eval/accuracy", True), ("train/loss", False), ("val/accumulated", False), ("acc/loss", False)],
)  # fmt: skip
def test_the_name_of_a_metric_says_whether_larger_is_better(name: str, larger: bool) -> None:
    assert names.larger_is_better(name) is larger


def test_the_telemetry_modules_that_the_server_uses_do_not_import_torch() -> None:
    modules = ["series", "blocks", "detectors", "column_reader", "sink"]
    code = "".join(f"import stablessm_core.telemetry.{m}\n" for m in modules) + "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
