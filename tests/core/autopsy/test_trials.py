"""The trials of an autopsy: one file per change, planned with what was measured, and compared with an unchanged control."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest

from stablessm_core.autopsy import changes as changes_module
from stablessm_core.autopsy import counterfactuals
from stablessm_core.autopsy.bench import Row
from stablessm_core.autopsy.change import Change
from stablessm_core.autopsy.changes import CHANGES, in_order
from stablessm_core.autopsy.counterfactuals import difference
from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import AutopsyRequest, Trouble
from stablessm_core.autopsy.words import BEGINS, SHOWS
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from stablessm_core.verdict import trouble
from tests.core.autopsy.faulty_tasks import SPOILED
from tests.core.autopsy.runs import config_of, request_of, trained
from web.palette import COLORS

SHORT: dict[str, Any] = {
    "task.length": 20, "train.steps": 30, "optimizer.lr": 0.01, "model.reparameterization.name": "best",
}  # fmt: skip


def request_for(folder: Path, changes: Mapping[str, Any], **given: Any) -> AutopsyRequest:
    config = config_of(changes)
    return request_of(config, *trained(config, folder), **given)


def trials(findings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trial["change"]: trial for trial in findings["counterfactuals"]}


# ---- words and order ----


def test_every_change_has_a_file_a_label_and_a_colour_of_its_own() -> None:
    folder = Path(changes_module.__file__).parent
    assert set(CHANGES) == {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert len({change.label for change in CHANGES.values()}) == len({change.how for change in CHANGES.values()}) == len(CHANGES)
    assert {change.line for change in CHANGES.values()} <= set(COLORS)
    assert len({change.line for change in CHANGES.values()}) == len(CHANGES)


def test_every_kind_of_trouble_has_words() -> None:
    assert set(SHOWS) == set(BEGINS) == set(trouble.KINDS)


def test_the_control_comes_first_and_the_others_in_the_order_that_fits_the_trouble() -> None:
    orders = {kind: [change.name for change in in_order(kind)] for kind in trouble.KINDS}
    assert {order[0] for order in orders.values()} == {"unchanged"}
    assert {kind: order[1] for kind, order in orders.items()} == {
        "batch": "batch_left_out", "crossing": "recurrence_frozen", "loss": "tenth_of_rate", "gradient": "tenth_of_rate",
        "fatal": "tenth_of_rate", "rate": "usual_rate", "decay": "no_weight_decay",
    }  # fmt: skip


def test_the_words_need_no_torch() -> None:
    program = (
        "import sys, stablessm_core.autopsy.changes, stablessm_core.autopsy.words, stablessm_core.autopsy.request\n"
        "import server.lifecycle.autopsy_findings, web.formatting\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


NEW_CHANGE = """
from stablessm_core.autopsy.change import Change, usual_place


def make(start):
    start.bench.restore(start.state)
    start.bench.change_rates(2.0)
    return start.bench, {"optimizer.lr": start.bench.config.optimizer.lr / 2}


CHANGE = Change(name="half_rate", label="half the rate", how="with half the rate", line="line-0", make=make,
                place=usual_place(12.0))
"""


def test_one_new_file_is_a_new_change_that_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_rate.py").write_text(NEW_CHANGE)
    monkeypatch.setattr(changes_module, "__path__", [*changes_module.__path__, str(tmp_path)])
    found = changes_module._of_this_folder()
    assert set(found) - set(CHANGES) == {"half_rate"}
    monkeypatch.setattr(changes_module, "CHANGES", found)
    monkeypatch.setattr(counterfactuals, "CHANGES", found)
    tried = trials(perform(request_for(tmp_path / "run", SHORT, step=5, trouble=Trouble(3, "loss", 4))))
    assert (tried["half_rate"]["lives"], tried["half_rate"]["settings"]) == (True, {"optimizer.lr": 0.005})


# ---- comparable or not ----


def row(step: int, loss: float = 1.0, *, finite: bool = True) -> Row:
    return Row(step, np.float32(loss), np.float32(1.0), finite, np.zeros(1, np.float32))


def control(lives: bool | None, step: int, **more: Any) -> dict[str, Any]:
    return {"change": "unchanged", "lives": lives, "step": step, "steps": [], "loss": [], "reason": None} | more


ROWS = [row(5), row(6, 3.0), row(7, np.nan, finite=False)]


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (control(False, 7), None),
        (control(False, 7, steps=[6, 7], loss=[3.0, np.nan]), None),
        (control(True, 7), "it lived to step 7"),
        (control(False, 6), "it died at step 6"),
        (control(None, 3, reason="no time left"), "was not finished (no time left)"),
        (None, "was not finished"),
        (control(False, 7, steps=[6], loss=[4.0]), "its loss at step 6 is 4 instead of 3"),
    ],
)
def test_trials_are_comparable_only_if_the_control_repeated_the_run(one: dict[str, Any] | None, why: str | None) -> None:
    said = difference(one, ROWS[-1], ROWS)
    assert (why in said) if why and said else said is why


# ---- real runs ----


@pytest.mark.slow
def test_the_control_is_finished_even_if_no_time_is_left(tmp_path: Path) -> None:
    seconds = 3.0
    begun = thread_time()

    def plan_slowly(_findings: dict[str, Any]) -> None:
        while thread_time() < begun + 2 * seconds:
            pass

    request = request_for(tmp_path, {"optimizer.lr": 0.2}, trouble=Trouble(1, "crossing", 2))
    begun = thread_time()
    request = dataclasses.replace(request, seconds=seconds, plan=plan_slowly)
    tried = trials(perform(request))
    assert (tried["unchanged"]["lives"], tried["unchanged"]["step"]) == (False, request.step)
    assert {one["reason"] for name, one in tried.items() if name != "unchanged"} == {"no time left"}
    assert {one["comparable"] for one in tried.values()} == {True}


@pytest.mark.slow
def test_a_trial_that_dies_earlier_is_comparable_if_the_control_still_repeats_the_run(tmp_path: Path) -> None:
    """Frozen eigenvalues do not follow the other weights, so such a run may die earlier without any hidden state."""
    changes = {
        "task.length": 48, "model": {"d_model": 16, "layer": "rg_lru"}, "train.batch_size": 4,
        "optimizer": {"name": "sgd", "lr": 0.3, "weight_decay": 0.0},
    }  # fmt: skip
    request = request_for(tmp_path, changes, trouble=Trouble(2, "loss", 3))
    tried = trials(perform(request))
    assert tried["recurrence_frozen"]["step"] < request.step == tried["unchanged"]["step"]
    assert {one["comparable"] for one in tried.values()} == {True}


@pytest.mark.slow
def test_a_task_that_changes_after_the_control_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", "tests.core.autopsy.faulty_tasks:LateLoss")
    found = perform(request_for(tmp_path, SHORT | {"train.steps": 20}, trouble=Trouble(2, "loss", 3)))
    tried = trials(found)
    assert (tried["unchanged"]["lives"], tried["unchanged"]["step"]) == (False, SPOILED)
    assert {one["comparable"] for one in tried.values()} == {False}
    assert any("the unchanged control did not repeat the run, it died at step" in note for note in found["notes"])


@pytest.mark.slow
def test_a_run_that_its_weight_decay_kills_lives_without_it(tmp_path: Path) -> None:
    changes = {
        "model.reparameterization.name": "exp", "optimizer.recurrent_lr": 0.5, "optimizer.recurrent_weight_decay": 10.0,
        "optimizer.lr": 0.01, "task.length": 20,
    }  # fmt: skip
    request = request_for(tmp_path, changes, trouble=Trouble(5, "loss", 6))
    tried = trials(perform(request))
    one = tried["no_weight_decay"]
    assert one["lives"]
    assert one["settings"] == {"optimizer.weight_decay": 0.0, "optimizer.recurrent_weight_decay": 0.0}
    assert not tried["unchanged"]["lives"]
    assert tried["unchanged"]["comparable"]


@pytest.mark.slow
def test_without_a_decay_and_without_a_jump_of_the_rate_these_changes_are_not_tried(tmp_path: Path) -> None:
    changes = {"optimizer": {"name": "sgd", "lr": 0.25, "weight_decay": 0.0}, "model.reparameterization.name": "best"}
    tried = trials(perform(request_for(tmp_path, changes, trouble=Trouble(3, "loss", 4))))
    assert (tried["no_weight_decay"]["lives"], tried["no_weight_decay"]["reason"]) == (None, "no weight of the run decays")
    assert (tried["usual_rate"]["lives"], tried["usual_rate"]["reason"]) == (None, "the learning rate did not jump")


@pytest.mark.slow
def test_a_run_whose_rate_rose_lives_with_the_rate_before(tmp_path: Path) -> None:
    changes = {"optimizer.lr": 0.5, "optimizer.warmup_steps": 60}
    request = request_for(tmp_path, changes, trouble=Trouble(3, "loss", 4))
    assert request.step > 5
    one = trials(perform(request))["usual_rate"]
    assert (one["lives"], one["settings"]) == (True, {})


@pytest.mark.slow
def test_trials_are_planned_again_when_a_measurement_shows_that_the_trouble_began_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", "tests.core.autopsy.faulty_tasks:NanBatch")
    seen: list[dict[str, Any]] = []

    def plan(findings: dict[str, Any]) -> Trouble | None:
        seen.append(dict(findings))
        return Trouble(SPOILED, "batch") if findings["batch"]["nonfinite"] else None

    request = request_for(tmp_path, SHORT, trouble=Trouble(2, "crossing", 3), plan=plan)
    found = perform(request)
    assert found["trouble"] == {"step": SPOILED, "kind": "batch", "shown": None}
    assert {one["from_step"] for one in found["counterfactuals"]} == {SPOILED - 1}
    assert [one["change"] for one in found["counterfactuals"]][:2] == ["unchanged", "batch_left_out"]
    assert trials(found)["batch_left_out"]["lives"]
    assert seen[-1]["onset"]["step"] == SPOILED, "the onset is measured where the replay shows it"
    assert any(f"The trials start before step {SPOILED}" in note for note in found["notes"])
    earlier = perform(dataclasses.replace(request, trouble=Trouble(SPOILED, "batch"), plan=lambda _: Trouble(2, "loss", 3)))
    assert earlier["trouble"]["step"] == 2
    assert trials(earlier)["tenth_of_rate"]["from_step"] == 1


def test_a_change_says_what_it_is() -> None:
    assert all(isinstance(change, Change) and change.make.__module__.endswith(change.name) for change in CHANGES.values())
