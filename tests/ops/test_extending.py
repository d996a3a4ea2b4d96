"""docs/extending.md: each extension works in a copy of this repository that has it, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import ROOT, extend_a_copy

pytestmark = pytest.mark.slow

TRAIN = """
import sys
from pathlib import Path
from stablessm_core.config import parse_config
from stablessm_core.telemetry.recorder import MemorySink
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


def test_a_task_in_the_repository_is_trained(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
outcome, _ = trained({"task": {"name": "echo", "length": 16, "delay": 2}})
assert outcome.status == "finished" and outcome.result["eval_loss"] > 0, outcome
"""
    )
    run_in(extended, code, tmp_path)


def test_a_layer_is_trained_and_watched_with_any_map(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
for map_ in ("native", "best", "exp"):
    model = {"layer": "leaky", "d_state": 64, "reparameterization": {"name": map_}}
    outcome, sink = trained({"task": {"name": "polynomial_memory", "length": 16}, "model": model})
    assert outcome.status == "finished" and outcome.result["telemetry_errors"] == 0, outcome
    assert sink.series("ssm/0/weight")[1].shape == (5, 4)
    assert sink.catalogue["ssm/0/eigenvalue"].form["map"] == {"native": "sigmoid"}.get(map_, map_)
"""
    )
    run_in(extended, code, tmp_path)


def test_a_map_is_trained_and_its_eigenvalues_are_read(extended: Path, tmp_path: Path) -> None:
    code = (
        TRAIN
        + """
import numpy as np
from stablessm_core.forms import Form
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


def test_the_formulas_of_a_map_pass_the_tests_of_all_maps(extended: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "core" / "test_maps.py", tmp_path)
    arguments = ["-p", "no:cacheprovider", "-c", os.devnull, "-k", "hyperbola", str(tmp_path)]
    run_in(extended, f"import pytest; assert pytest.main({arguments}) == 0", tmp_path)


def test_an_alert_fires_and_has_its_setting_in_the_configuration(extended: Path, tmp_path: Path) -> None:
    code = """
import numpy as np
from stablessm_core.config import RunConfig, parse_config
from stablessm_core.telemetry.detectors import Detectors, Rows
config = parse_config({"task": {"name": "polynomial_memory"}, "alerts": {"max_loss": 2.0}})
loss = np.array([1, 2, 2.5, 3, 1], np.float32)
def found(config):
    return Detectors([], **config.alerts.model_dump()).scan(Rows(11, loss, np.ones((5, 0), np.float32), []))
(alert,) = found(config)
assert (alert.kind, alert.step, alert.value, alert.series) == ("high_loss", 13, 2.5, "train/loss"), alert
assert found(parse_config({"task": {"name": "polynomial_memory"}})) == []
assert "max_loss" in RunConfig.model_json_schema()["$defs"]["Alerts"]["properties"]
"""
    run_in(extended, code, tmp_path)


def test_a_chart_is_listed_and_shows_the_numbers_of_a_run(extended: Path, tmp_path: Path) -> None:
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
assert small_charts()[-1].name == "step_time" and "step_time" in figures.OF_A_RUN
"""
    )
    run_in(extended, code, tmp_path)
