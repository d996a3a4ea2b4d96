"""Each extension that docs/extending.md describes works in a copy of this repository, in a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import ROOT, extend_a_copy

pytestmark = pytest.mark.long

TRAIN = """
import sys
from pathlib import Path
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import train

def trained(sections, folder=Path(sys.argv[1])):
    small = {"model": {"d_model": 4, "d_state": 4}, "train": {"steps": 5, "batch_size": 4, "eval_every": 0, "device": "cpu"}}
    config = parse_config({key: small.get(key, {}) | sections.get(key, {}) for key in {*small, *sections}})
    sink = MemorySink()
    return train(config, sink=sink, data_root=folder, checkpoint_dir=folder / "checkpoints"), sink
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("extended")
    extend_a_copy(copy)
    return copy


def run_in(copy: Path, code: str, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_task_can_be_trained(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
outcome, _ = trained({"task": {"name": "echo", "length": 16, "delay": 2}})
assert outcome.status == "finished" and outcome.result["eval_loss"] > 0, outcome
"""
    )
    run_in(extended, code, tmp_path)


def test_the_example_complex_layer_is_trained_and_recorded_with_any_map(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
import numpy as np
from stablessm_core.telemetry.forms import Form
for map_ in ("native", "best", "exp"):
    model = {"layer": "turning", "d_state": 64, "reparameterization": {"name": map_}}
    outcome, sink = trained({"task": {"name": "polynomial_memory", "length": 16}, "model": model})
    assert outcome.status == "finished" and outcome.result["telemetry_errors"] == 0, outcome
    form = Form.from_data(sink.catalogue["ssm/0/eigenvalue"].form)
    assert (form.map, form.phase) == ({"native": "sigmoid"}.get(map_, map_), "radians")
    theta = sink.series("ssm/0/phase_weight")[1]
    assert theta.shape == (5, 4) and 0 <= theta.min() and theta.max() <= 3.1
    recorded = {kind: sink.series(f"ssm/0/{kind}")[1].astype(float) for kind in form.inputs}
    np.testing.assert_allclose(form.derive("phase", recorded), theta, rtol=1e-6)
"""
    )
    run_in(extended, code, tmp_path)


def test_the_example_layer_passes_the_tests_of_all_layers(extended: Path, tmp_path: Path) -> None:
    folder = extended / "tests" / "core" / "layers"
    folder.mkdir(parents=True)
    for name in ("test_every_layer.py", "alerts.py"):
        shutil.copy(ROOT / "tests" / "core" / "layers" / name, folder)
    arguments = ["-p", "no:cacheprovider", "-c", os.devnull, "-k", "turning", str(folder / "test_every_layer.py")]
    run_in(extended, f"import pytest; assert pytest.main({arguments}) == 0", tmp_path)


def test_the_example_map_is_trained_and_its_eigenvalues_are_derived(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
import numpy as np
from stablessm_core.telemetry.forms import Form
for time in ("discrete", "continuous"):
    task, map_ = {"name": "polynomial_memory", "length": 16}, {"name": "hyperbola", "time": time}
    _, sink = trained({"task": task, "model": {"reparameterization": map_}})
    series = sink.catalogue["ssm/0/eigenvalue"]
    form = Form(**series.form)
    recorded = {kind: sink.series(f"ssm/0/{kind}")[1].astype(float) for kind in form.inputs}
    w, dt = recorded["weight"], recorded.get("dt", 1)
    eigenvalues = form.derive("eigenvalue", recorded)
    assert form.map == "hyperbola" and eigenvalues.shape == (5, 4) and series.derived, (form, eigenvalues.shape)
    assert (eigenvalues[0] != eigenvalues[-1]).any()
    np.testing.assert_allclose(eigenvalues, np.exp(-dt * (w + np.sqrt(1 + w * w))), rtol=1e-6)
"""
    )
    run_in(extended, code, tmp_path)


def test_the_formulas_of_the_example_map_pass_the_tests_of_all_maps(extended: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "core" / "maps" / "test_maps.py", tmp_path)
    arguments = ["-p", "no:cacheprovider", "-c", os.devnull, "-k", "hyperbola", str(tmp_path)]
    run_in(extended, f"import pytest; assert pytest.main({arguments}) == 0", tmp_path)


def test_the_example_alert_fires_and_has_a_setting_in_the_configuration(extended: Path, tmp_path: Path) -> None:
    code = """
import numpy as np
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.telemetry.detectors import Detectors, Rows
config = parse_config({"task": {"name": "polynomial_memory"}, "alerts": {"max_loss": 2.0}})
loss = np.array([1, 2, 2.5, 3, 1], np.float32)
def found(config):
    return Detectors([], **config.alerts.model_dump(exclude={"rules"})).scan(Rows(11, loss, np.ones((5, 0), np.float32), []))
(alert,) = found(config)
assert (alert.kind, alert.step, alert.value, alert.series) == ("high_loss", 13, 2.5, "train/loss"), alert
assert found(parse_config({"task": {"name": "polynomial_memory"}})) == []
assert "max_loss" in RunConfig.model_json_schema()["$defs"]["Alerts"]["properties"]
"""
    run_in(extended, code, tmp_path)


def test_the_example_chart_is_listed_and_shows_the_numbers_of_a_run(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
from fastapi import FastAPI
from fastapi.testclient import TestClient
from server.http.api import figures
from web.binding import bind
from web.figures import small_charts
app = FastAPI()
app.include_router(figures.router)
(entry,) = [one for name, one in TestClient(app).get("/api/figures").json()["figures"].items() if name == "step_time"]
_, sink = trained({"task": {"name": "polynomial_memory", "length": 16}})
(name,) = entry["series"]
step, value = sink.series(name)
shown = bind(entry["figure"], {name: {"step": step, "value": value}})
(line,) = [trace for trace in shown["data"] if trace["meta"]["field"] == "last"]
assert len(step) and line["y"]["bdata"] and value[-1, 0] > 0
assert "step_time" in [chart.name for chart in small_charts()] and "step_time" in figures.OF_A_RUN
"""
    )
    run_in(extended, code, tmp_path)
