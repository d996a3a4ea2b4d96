"""A program for W&B runs on where it uses what StableSSM has not; Python's own tools see an ordinary module."""

from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stablessm as wandb
from stablessm_core.outside import wandb_missing
from tests.core.outside.reading import read

Caught = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs go into tmp_path, and none stays open."""
    monkeypatch.setenv("STABLESSM_MODE", "offline")
    monkeypatch.setenv("STABLESSM_DIR", str(tmp_path))
    monkeypatch.setattr(wandb_missing, "_told", set())
    yield
    wandb.finish()


@pytest.mark.parametrize("name", ["frobnicate", "new_function_of_next_year", "START", "helper"])
@pytest.mark.parametrize("where", ["module", "run", "settings", "util"])
def test_an_unknown_name_is_one_sentence_and_behaves_as_none(name: str, where: str, capfd: Caught) -> None:
    run = wandb.init()
    owner: Any = {"module": wandb, "run": run, "settings": run.settings, "util": wandb.util}[where]
    for _ in range(3):
        found = getattr(owner, name)
        assert not found
        assert found == None  # noqa: E711 - it cannot be None itself
        assert not found(1, key=2).wait().result["a"]
        with found as inside:
            assert not inside
        assert list(found) == []
        assert f"{found} {found:.3f}" == "None None"
    assert capfd.readouterr().err.count(f"has no {name};") == 1


def test_an_unknown_decorator_leaves_the_function_as_it_is() -> None:
    @wandb.trace
    def one() -> int:
        return 1

    @wandb.trace_as(name="two")
    def two() -> int:
        return 2

    assert (one(), two()) == (1, 2)


def test_an_unknown_class_can_be_named_checked_and_inherited(capfd: Caught) -> None:
    class Callback(wandb.integration.somewhere.NewCallback):  # type: ignore[misc, name-defined]
        def value(self) -> int:
            return 3

    assert Callback(model=1).value() == 3
    Callback().on_train_end({}).anything()
    assert isinstance(Callback(), wandb.NewCallback)
    assert not isinstance(3, wandb.Image | wandb.Table)
    assert wandb.data_types.Image is wandb.Image is wandb.sdk.data_types.image.Image
    assert isinstance(wandb.Image([1]), wandb.data_types.Image)
    assert not wandb.Object3D.from_file("x")
    assert capfd.readouterr().err.count("W&B's NewCallback is not recorded") == 1


def test_exceptions_stand_in_except_clauses() -> None:
    for kind in (wandb.Error, wandb.UsageError, wandb.CommError, wandb.errors.CommError, wandb.errors.AuthenticationError,
                 wandb.errors.SomeNewError, wandb.sdk.lib.TimeoutException):  # fmt: skip
        assert issubclass(kind, wandb.Error)
        with pytest.raises(kind):
            raise kind("why")
    assert not issubclass(wandb.UsageError, wandb.CommError)
    assert wandb.errors.CommError is wandb.CommError


def test_lines_for_the_terminal_are_written(capfd: Caught) -> None:
    for write in (wandb.termlog, wandb.termwarn, wandb.termerror, wandb.errors.term.termwarn):
        write("look here")
    wandb.termwarn("once", repeat=False)
    wandb.termwarn("once", repeat=False)
    err = capfd.readouterr().err
    assert (err.count("stablessm: look here\n"), err.count("once")) == (4, 1)


def test_a_name_that_is_almost_ours_is_told(capfd: Caught) -> None:
    assert not wandb.initt
    assert "do you mean init?" in capfd.readouterr().err


def test_python_finds_an_ordinary_module(capfd: Caught) -> None:
    for name in ("__wrapped__", "__path_of_nothing__", "_private", "_repr_html_"):
        assert not hasattr(wandb, name)
        assert not hasattr(wandb.made_up, name)
    assert inspect.unwrap(wandb) is wandb  # type: ignore[arg-type]
    assert doctest.DocTestFinder().find(wandb) is not None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("stablessm.made_up")
    assert copy.copy(wandb.made_up) == pickle.loads(pickle.dumps(wandb.made_up))
    assert capfd.readouterr().err.count("stablessm:") == 1


@pytest.mark.parametrize("dumps", [pickle.dumps, pickle._dumps])  # type: ignore[attr-defined]
def test_pickle_looks_through_the_module_without_a_sentence(dumps: Any, capfd: Caught) -> None:
    assert pickle.loads(dumps(np.sin)) is np.sin
    homeless = type("Homeless", (), {"__module__": None})
    with pytest.raises((pickle.PicklingError, AttributeError)):
        dumps(homeless)
    assert capfd.readouterr().err == ""


def test_the_run_says_what_it_knows(tmp_path: Path) -> None:
    run = wandb.init(project="p", name="n", notes="why", tags=["t"], group="g", job_type="eval", id="mine")
    assert (run.resumed, run.group, run.job_type, run.sweep_id, run.sweep_url) == (False, "g", "eval", None, None)
    assert (run.project_name(), run.project, run.name, run.notes, run.id, run.entity) == ("p", "p", "n", "why", "mine", "")
    assert (run.offline, run.disabled, run.get_url(), run.url, run.step, run.starting_step) == (True, False, None, None, 0, 0)
    assert run.tags == ("group:g", "job:eval", "t")
    assert 0 < run.start_time < 1e11
    assert Path(run.dir).is_dir()
    assert Path(run.dir).parent == tmp_path
    assert (run.settings.run_id, run.settings.project, run.settings.mode) == ("mine", "p", "offline")
    assert run._label(code="x") is None
    assert wandb.init(reinit="create_new", resume="must", id="mine", project="p", from_step=7).resumed


def test_a_run_is_copied_and_sent_to_another_process(capfd: Caught) -> None:
    run = wandb.init(config={"lr": 0.5})
    assert copy.deepcopy({"run": run})["run"] is run
    other = pickle.loads(pickle.dumps(run))
    other.log({"a": 1})
    assert (other.config.lr, other.id) == (0.5, run.id)
    assert "nothing that is logged there is recorded" in capfd.readouterr().err


def test_tensorboard_is_told_with_what_to_do(capfd: Caught) -> None:
    wandb.init(sync_tensorboard=True)
    wandb.tensorboard.patch(root_logdir="runs", pytorch=True)
    err = capfd.readouterr().err
    assert err.count("nothing is recorded from TensorBoard") == 1
    assert "run.log" in err
    assert "stablessm import --follow DIR" in err


def test_tags_of_any_length_and_number_are_stored_and_stay_different(tmp_path: Path, capfd: Caught) -> None:
    long = "x" * 60
    run = wandb.init(group=long + "1", job_type=long + "2", tags=[long + "3", long + "4", *map(str, range(30))])
    assert len(set(run.tags)) == 20
    assert all(len(tag) <= 50 for tag in run.tags)
    assert run.group == long + "1"
    assert read(tmp_path).file.opening["tags"] == list(run.tags)
    err = capfd.readouterr().err
    assert err.count("allowed: at most 50; it becomes") == 4
    assert err.count("init has 34 tags") == 1


@pytest.mark.slow
def test_a_forked_child_is_told_that_nothing_is_recorded(tmp_path: Path) -> None:
    program = """
import multiprocessing, stablessm as wandb
run = wandb.init(config={"a": 1})
def child():
    for i in range(12): wandb.log({"child": i})
    run.config.b = 2
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
run.log({"parent": 1})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("was forked after init, so nothing that it logs is recorded") == 2  # at 1 and 10 calls
    assert "(calls so far: 10)" in done.stderr
    assert "so its changes of config are not recorded" in done.stderr
    found = read(tmp_path)
    assert (set(found.metrics), found.file.opening["config"]) == ({"parent"}, {"a": 1})
