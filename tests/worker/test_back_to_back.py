"""A training process trains several runs in turn, with the bits of fresh processes, and a fault affects only its own run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import CheckpointRow, Run, SeriesRow
from server.lifecycle import transitions as lifecycle
from server.series.reading import read_series
from server.settings import Settings
from stablessm_core.spec.config import parse_config
from tests.extending import ROOT, install_package
from tests.worker.station import SMALL, STEPS, Station, TooLate, in_time

pytestmark = pytest.mark.long

TINY = {"d_model": 8, "d_state": 8}
BRIEF = {"steps": 12, "batch_size": 8, "eval_every": 5, "checkpoint_every": 6}
MIXED: list[dict[str, Any]] = [
    {"task": {"name": "polynomial_memory", "length": 40}, "model": TINY | {"dropout": 0.2}},
    {"task": {"name": "copying", "noise_length": 20}, "model": {"d_model": 8, "layer": "mamba"}},
    {"task": {"name": "digits"}, "model": {"d_model": 8, "layer": "s5"}, "train": BRIEF | {"precision": "bfloat16"}},
    # this run diverges
    {
        "task": {"name": "polynomial_memory", "length": 100},
        "model": TINY | {"reparameterization": {"name": "direct"}},
        "optimizer": {"lr": 0.5},
        "train": BRIEF | {"steps": 60},
    },
    {"task": {"name": "modular_counting", "length": 40}, "model": {"d_model": 8, "layer": "gated_deltanet"}},
    {"task": {"name": "associative_recall", "length": 40}, "model": {"d_model": 8, "layer": "rwkv4"}},
    {"task": {"name": "induction_heads", "length": 40}, "model": {"d_model": 8, "layer": "s4"}, "optimizer": {"name": "sgd"}},
    {"task": {"name": "polynomial_memory", "length": 30}, "model": TINY, "train": BRIEF | {"scan_backend": "reference"}},
    {"task": {"name": "polynomial_memory", "length": 40}, "model": TINY | {"n_layers": 2}, "train": BRIEF | {"seed": 3}},
    {"task": {"name": "polynomial_memory", "length": 40}, "model": TINY | {"dropout": 0.2}},
]
TIMED = ("train/tokens_per_second", "train/step_seconds", "system/")  # series that describe the machine and not the run

SECTION = """
from typing import ClassVar, Literal
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory

class Remembering(PolynomialMemory):
    name: Literal["remembering"]
    trained_by: ClassVar[str] = "stablessm_remembering.task:make"
"""
TASK = """
import logging
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask

made = []

def make(section, data_root):
    made.append(section)
    logging.getLogger(__name__).info("tasks made in this process: %d", len(made))
    return PolynomialMemoryTask(section, data_root)
"""


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A worker with one lane, which has a plug-in task with module state."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("state")
    modules = {"stablessm_remembering/section.py": SECTION, "stablessm_remembering/task.py": TASK}
    tasks = {"stablessm.tasks": {"remembering": "stablessm_remembering.section:Remembering"}}
    install_package(site, "stablessm-remembering", "1.0", modules, tasks)
    made = Station(Database(Settings(data_dir=folder).database_url), folder)
    made.database.migrate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{site}:{ROOT}")
        made.start("--slots", "1")
    yield made
    made.close()


def submit(station: Station, configs: list[dict[str, Any]]) -> list[int]:
    """Queue all runs in one transaction, so that no run is claimed before the last one is queued."""
    with station.database.write() as session:
        return [lifecycle.submit(session, parse_config(config)).id for config in configs]


def log_lines(station: Station, run_id: int) -> list[dict[str, Any]]:
    text = (station.data_dir / "runs" / str(run_id) / "log.txt").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def trained_before(station: Station, run_id: int) -> int:
    """How many runs the process of this run's newest attempt had trained before it."""
    newest = max(line["attempt"] for line in log_lines(station, run_id))
    told = [
        line["msg"] for line in log_lines(station, run_id) if line["attempt"] == newest and "has trained before" in line["msg"]
    ]
    return int(told[0].rpartition(" ")[2]) if told else 0


def record(station: Station, run_id: int) -> dict[str, bytes]:
    """The bits of every recorded series and of every checkpoint, except for times and memory."""
    bits: dict[str, bytes] = {}
    with station.database.read() as session:
        for name in session.scalars(select(SeriesRow.name).where(SeriesRow.run_id == run_id)):
            if not name.startswith(TIMED):
                data = read_series(session, run_id, name, max_points=1_000_000)
                assert data.value is not None
                bits[name] = np.ascontiguousarray(data.value).tobytes() + np.ascontiguousarray(data.step).tobytes()
        for step, path in session.execute(select(CheckpointRow.step, CheckpointRow.path).where(CheckpointRow.run_id == run_id)):
            for name, value in load_file(station.data_dir / path).items():
                if not name.startswith("levels/scalars"):  # these contain the times
                    bits[f"checkpoint {step} {name}"] = value.tobytes()
        run = session.get_one(Run, run_id)
    result = {name: value for name, value in (run.result or {}).items() if "seconds" not in name and "per_second" not in name}
    return bits | {"end": repr((run.status, run.step, run.divergence, sorted(result.items()))).encode()}


def test_runs_trained_back_to_back_have_the_bits_of_runs_in_fresh_processes(station: Station) -> None:
    configs = [{"train": BRIEF} | config for config in MIXED]
    fresh = []
    for config in configs:
        fresh += submit(station, [config])
        station.until_ended(fresh[-1])
        station.until("the end of a process that no run follows", lambda: len(station.children()) == len(station.idle()) == 1)
    together = submit(station, configs)
    ends = [station.until_ended(run_id).status for run_id in together]
    assert ends.count("diverged") == 1
    assert ends.count("finished") == len(MIXED) - 1
    assert [trained_before(station, run_id) for run_id in fresh] == [0] * len(MIXED)
    assert [trained_before(station, run_id) for run_id in together] == list(range(len(MIXED)))
    for config, alone, after_others in zip(configs, fresh, together, strict=True):
        one, other = record(station, alone), record(station, after_others)
        assert len(one) > 10
        assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == set(), config


def test_each_log_contains_only_lines_of_its_own_run(station: Station) -> None:
    runs = submit(station, [SMALL | {"train": BRIEF}] * 3)
    for run_id in runs:
        station.until_ended(run_id)
        assert {line["run"] for line in log_lines(station, run_id)} == {run_id}
        assert sum("training ended" in line["msg"] for line in log_lines(station, run_id)) == 1
    assert [trained_before(station, run_id) for run_id in runs] == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_affects_only_the_run_in_training(station: Station, number: signal.Signals) -> None:
    def scenario() -> list[int]:
        runs = submit(station, [SMALL] * 5)
        station.until_step(runs[2], 35)
        station.hit_trainer(runs[2], number)
        ended = [station.until_ended(run_id) for run_id in runs]
        if ended[2].attempt == 1:
            raise TooLate(f"run {runs[2]} had finished when its process was killed")
        assert [(run.status, run.step) for run in ended] == [("finished", STEPS)] * 5
        assert [run.attempt for run in ended] == [1, 1, 2, 1, 1]
        return runs

    runs = in_time(scenario)
    assert [trained_before(station, run_id) for run_id in runs[:2]] == [0, 1]
    assert trained_before(station, runs[2]) == 0, "an interrupted run must get a fresh process"
    assert len({station.losses(run_id)[1] for run_id in runs}) == 1, "an interrupted run must have the bits of the others"
    hit = [run_id for run_id in runs if any(number.name in reason for reason in station.reasons(run_id))]
    assert hit == [runs[2]]


def test_a_cancel_stops_only_its_run_and_the_next_run_gets_a_fresh_process(station: Station) -> None:
    def scenario() -> list[int]:
        runs = submit(station, [SMALL] * 4)
        station.until_step(runs[1], 20)
        station.cancel(runs[1])
        statuses = [station.until_ended(run_id).status for run_id in runs]
        if statuses[1] == "finished":
            raise TooLate(f"run {runs[1]} had finished when it was cancelled")
        assert statuses == ["finished", "cancelled", "finished", "finished"]
        return runs

    runs = in_time(scenario)
    assert [trained_before(station, run_id) for run_id in runs] == [0, 1, 0, 1]
    assert [station.run(run_id).attempt for run_id in runs] == [1] * 4
    assert len({station.losses(run_id)[1] for run_id in (runs[0], *runs[2:])}) == 1


def test_a_task_of_another_package_gets_a_fresh_process_for_every_run(station: Station) -> None:
    with station.database.write() as session:
        made = [lifecycle.submit(session, parse_config(SMALL | {"train": BRIEF})) for _ in range(4)]
        for run in made[1:3]:  # the package is not installed for this process
            run.config = run.config | {"task": {"name": "remembering", "length": 50}}
            run.needs_task = "remembering"
    runs = [run.id for run in made]
    assert [station.until_ended(run_id).status for run_id in runs] == ["finished"] * 4
    counts = [[line["msg"] for line in log_lines(station, run_id) if "tasks made" in line["msg"]] for run_id in runs[1:3]]
    assert counts == [["tasks made in this process: 1"]] * 2
    assert [trained_before(station, run_id) for run_id in runs] == [0, 1, 0, 0]


def test_an_idle_lane_keeps_no_used_process(station: Station) -> None:
    for run_id in submit(station, [SMALL | {"train": BRIEF}] * 2):
        station.until_ended(run_id)
    station.until("one warm process", lambda: len(station.children()) == len(station.idle()) == 1)


def test_a_resumed_run_is_the_last_of_its_process(station: Station) -> None:
    def scenario() -> tuple[int, int]:
        first = submit(station, [SMALL])[0]
        station.until_step(first, 65)
        second = submit(station, [SMALL])[0]
        station.hit_trainer(first, signal.SIGKILL)
        if station.until_ended(first).attempt == 1:
            raise TooLate(f"run {first} had finished when its process was killed")
        station.until_ended(second)
        return first, second

    first, second = in_time(scenario)
    assert any("continued from a checkpoint" in line["msg"] for line in log_lines(station, first))
    assert trained_before(station, second) == 0
    assert station.losses(first) == station.losses(second)
