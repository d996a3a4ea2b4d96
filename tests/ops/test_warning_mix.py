"""The mix of the warning benchmark covers every layer, and judges a run from its kept rows as the trainer does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from benchmarks.warnings.mix import OPTIMIZERS, mixed_runs
from benchmarks.warnings.mix_page import record_of
from benchmarks.warnings.rows_of_run import rows_of_run
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.layers import LAYERS
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import train


def test_the_mix_covers_every_layer_and_optimizer_and_depends_on_its_seed() -> None:
    runs = list(mixed_runs(5 * len(LAYERS), 1))
    configs = [parse_config(run) for run in runs]
    assert [c.model.layer.name for c in configs] == list(LAYERS) * 5
    assert {run["tags"][1] for run in runs} == set(OPTIMIZERS)
    assert {c.model.name_of_map for c in configs} >= {"direct", "native"}
    assert runs == list(mixed_runs(5 * len(LAYERS), 1))
    assert runs[:18] == list(mixed_runs(18, 1))
    assert runs != list(mixed_runs(5 * len(LAYERS), 2))


def test_kept_rows_are_judged_as_the_trainer_judges_the_run(tmp_path: Path) -> None:
    run = next(r for r in mixed_runs(200, 1) if r["model"]["layer"]["name"] == "stable_ssm" and r["model"]["n_layers"] == 1)
    run["model"]["reparameterization"] = {"name": "direct"}
    run["model"].pop("eigenvalue_range", None)
    run["optimizer"] = {"name": "adamw", "lr": 0.3}
    first = rows_of_run(run, tmp_path)
    assert [path.stem for path in tmp_path.iterdir()] == [run["name"]]
    record = record_of(rows_of_run(run, tmp_path))
    assert record == record_of(first)
    sink = MemorySink()
    outcome = train(parse_config(run), sink=sink, data_root=tmp_path, checkpoint_dir=tmp_path)
    assert (record.status, record.steps) == (outcome.status, outcome.step) == ("diverged", record.steps)
    told = [(a.kind, a.severity, a.step) for a in sink.alerts if not a.kind.startswith("nonfinite")]
    assert sorted(record.alerts) == sorted(told)
    assert 0 < min(record.warned) < record.steps


def test_kept_rows_of_another_configuration_are_not_used(tmp_path: Path) -> None:
    (run,) = islice(mixed_runs(1, 1), 1)
    run["train"]["steps"] = 3
    assert len(rows_of_run(run, tmp_path).rows) == 3
    run["train"]["steps"] = 4
    assert len(rows_of_run(run, tmp_path).rows) == 4
