"""The families of faults are drawn as their tables say, and the audit tells a true sentence from a false one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verdicts.audit import audit
from benchmarks.verdicts.audit.numbers import says, sentences
from benchmarks.verdicts.audit.recorded_facts import Facts
from benchmarks.verdicts.recorded import Recorded, trained
from benchmarks.verdicts.truth import Truth

ROOT = Path(__file__).resolve().parents[2]
COUNTS = """
import json
from random import Random
from benchmarks.verdicts.families import held_out, development
from stablessm_core.spec.config import parse_config

families = (*held_out.FAMILIES, *development.FAMILIES)
for family in families:
    for number in range(3):
        plant = family.draw(Random(f"{number}"))
        assert (plant.watched is None) != (plant.config == {}), family.name
        if plant.watched is None:
            parse_config(plant.config)
print(json.dumps([[one.name, one.group, one.place, one.share] for one in families]))
"""


def run_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_family_draws_valid_runs_and_held_out_ones_are_many() -> None:
    families = json.loads(run_python("-c", COUNTS))
    names = [name for name, *_ in families]
    assert len(names) == len(set(names))
    held_out = [one for one in families if one[1] == "held_out"]
    planted = [share for *_, place, share in held_out if place not in ("watched", "lives")]
    assert sum(planted) >= 400
    assert sum(share for *_, place, share in held_out if place == "watched") >= 60
    assert sum(share for *_, place, share in held_out if place == "lives") >= 60
    assert sum(share for name, *_, share in families if name.startswith("First benchmark")) == 202


@pytest.mark.slow
def test_runs_of_families_are_trained_judged_and_audited(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    command = ["-m", "benchmarks.verdicts", "--families", "Half precision inside", "Watched: NaN in the loss", "--limit", "1"]
    printed = run_python(*command, "--processes", "1", "--results", str(target))
    results = json.loads(target.read_text())["results"]
    assert [one["status"] for one in results] == ["diverged"] * 3
    assert all(one["without_autopsy"]["true"] for one in results)
    assert "| All | 3 | 3 |" in printed


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """A run that dies of its learning rate."""
    return trained({
        "task": {"name": "polynomial_memory", "length": 32},
        "model": {"d_model": 8, "d_state": 8},
        "optimizer": {"name": "sgd", "lr": 0.6, "weight_decay": 0.0},
        "train": {"steps": 40, "batch_size": 4, "seed": 1, "device": "cpu", "eval_every": 0, "checkpoint_every": 0},
    })  # fmt: skip


def checked(recorded: Recorded, summary: str, **verdict: Any) -> list[bool | None]:
    truth = Truth(frozenset({"explosion"}))
    found = audit({"summary": summary, "events": [], "evidence": [], "try": [], **verdict}, Facts(recorded), truth)
    return [one.true for one in found]


def test_a_sentence_is_true_only_with_the_recorded_numbers(recorded: Recorded) -> None:
    assert recorded.died
    facts = Facts(recorded)
    died = facts.died_at
    assert died is not None
    last, best = facts.loss[died - 1], facts.best(died - 1)
    assert checked(recorded, f"Loss at step {died - 1}: {last:.6e}.") == [True]
    assert checked(recorded, f"Loss at step {died - 1}: {1.1 * last:.6e}.") == [False]
    assert checked(recorded, f"At step {died - 1} the loss was {last / best:.6e} x its best ({best:.6e}).") == [True]
    assert checked(recorded, f"At step {died - 1} the loss was {last / best:.6e} x its best ({2 * best:.6e}).") == [False]


def test_a_sentence_that_no_claim_explains_is_not_audited(recorded: Recorded) -> None:
    assert checked(recorded, "The moon was full and 7 owls were calling.") == [None]
    assert checked(recorded, f"Loss at step 1: {Facts(recorded).loss[1]:.6e}, because the moon was full.") == [None]


def test_usual_is_checked_against_the_rows_before(recorded: Recorded) -> None:
    said = "The loss and the batch of step {} were usual."
    died = Facts(recorded).died_at
    assert died is not None
    assert checked(recorded, said.format(1)) == [False]  # nothing is usual in the first step
    assert checked(recorded, said.format(died - 1)) == [False]


def test_the_words_of_the_audit_do_not_come_from_the_verdict() -> None:
    for path in (ROOT / "benchmarks" / "verdicts" / "audit").glob("*.py"):
        assert "stablessm_core.verdict" not in path.read_text().replace("uses no function of `stablessm_core.verdict`", ""), path


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("1.3", 1.31, True), ("1.3", 1.45, False), ("12,300", 12_340.0, True), ("12,300", 12_500.0, False),
        ("3.4e38", 3.4028e38, True), ("1.9e44", 1.7e44, False), ("NaN", float("nan"), True), ("infinite", 3.0, False),
        ("0", 0.0, True), ("-4.5", -4.52, True),
    ],
)  # fmt: skip
def test_a_number_is_compared_as_exactly_as_it_is_written(text: str, value: float, right: bool) -> None:
    assert says(text, value) is right


def test_a_full_stop_inside_a_number_ends_no_sentence() -> None:
    assert sentences("The loss was 1.3 x its best (0.7). It rose at step 4.") == [
        "The loss was 1.3 x its best (0.7).",
        "It rose at step 4.",
    ]
