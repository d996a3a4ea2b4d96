"""One plant of a family from its draw to the grade of its verdict, with and without the autopsy."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.advice import follow
from benchmarks.verdicts.audit import Checked, audit
from benchmarks.verdicts.audit.recorded_facts import Facts
from benchmarks.verdicts.autopsies import opened
from benchmarks.verdicts.families.drawing import Family, FamilyPlant
from benchmarks.verdicts.families.truths import establish_family
from benchmarks.verdicts.grading import CANNOT_TELL, RIGHT, WRONG, grade
from benchmarks.verdicts.recorded import Recorded, run_and_source, trained
from benchmarks.verdicts.trial import DRAWS, SHOWN, _as_json, _shortened
from benchmarks.verdicts.truth import NotPlanted, Truth, establish
from benchmarks.verdicts.watched.trial import watched_trial
from stablessm_core.verdict import judge


def family_trial(
    family: Family, seed: int, number: int, *, autopsy: bool = True, advice: bool = True, texts: bool = False
) -> dict[str, Any]:
    """The result of plant `number` of the family, as JSON. autopsy, advice: False to leave this part out. texts: True to keep
    every sentence of the verdicts with its check."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    draw = random.Random(f"{seed} {family.name} {number}")
    known = {"family": family.name, "group": family.group, "place": family.place, "number": number}
    plant = family.draw(random.Random(f"{seed} {family.name} {number}"))
    if plant.watched is not None:
        return known | _of_watched(family, draw, texts=texts) | {"seconds": round(time.perf_counter() - began, 1)}
    with tempfile.TemporaryDirectory() as folder:
        plant, recorded, truth = _planted(family, draw, Path(folder))
        run, source = run_and_source(recorded)
        findings = opened(recorded, run, source, Path(folder)) if autopsy and recorded.died else None
        result: dict[str, Any] = known | {
            "fault": plant.fault,
            "config": plant.config,
            "status": recorded.outcome.status,
            "step": recorded.outcome.step,
            "truth": _as_json(truth),
        }
        verdict = judge(run, source)
        facts = Facts(recorded, findings=None)
        result["without_autopsy"] = judged(truth, verdict, facts, recorded.outcome.status, texts=texts)
        if autopsy:
            verdict = judge(replace(run, autopsy=findings), source)
            facts = Facts(recorded, findings=findings)
            result["with_autopsy"] = judged(truth, verdict, facts, recorded.outcome.status, texts=texts)
            if findings is not None and result["with_autopsy"]["grade"] != RIGHT:
                result["findings"] = _shortened(findings)  # of a right verdict nobody will ask for them
    if advice and recorded.died:
        result["advice"] = follow(recorded, run, source, verdict)
    return result | {"seconds": round(time.perf_counter() - began, 1)}


def _of_watched(family: Family, draw: random.Random, *, texts: bool) -> dict[str, Any]:
    plant, watched, verdict = watched_trial(family.draw, draw)
    causes: frozenset[str | None] = plant.causes if watched.died else frozenset({None})
    mentions = plant.mentions if watched.died else plant.alive
    truth = Truth(causes, step=plant.step if watched.died else None, mentions=mentions)
    graded = judged(truth, verdict, watched, watched.status, texts=texts)
    if watched.died and watched.status == "failed" and verdict["cause"] is None and not graded["false"]:
        # a program may fail for other reasons, and the record need not show why
        graded |= {"grade": CANNOT_TELL, "by_cause": CANNOT_TELL, "why": ""}
    return {
        "fault": plant.fault,
        "watched": plant.watched,
        "status": "diverged" if watched.died else watched.status,
        "step": watched.died_at or watched.last,
        "truth": _as_json(truth),
        "without_autopsy": graded,
    }


def _planted(family: Family, draw: random.Random, folder: Path) -> tuple[FamilyPlant, Recorded, Truth]:
    why = ""
    for number in range(DRAWS):
        plant = family.draw(draw)
        recorded = trained(plant.config, folder=folder / str(number))
        try:
            return plant, recorded, establish(plant, recorded) if family.first else establish_family(plant, recorded)
        except NotPlanted as error:
            why = str(error)
    raise RuntimeError(f"{family.name}: none of {DRAWS} draws is a plant of its family: {why}")


def judged(truth: Truth, verdict: Mapping[str, Any], facts: Any, status: str, *, texts: bool = False) -> dict[str, Any]:
    """The grade of a verdict, and how many of its sentences are true, false and not audited."""
    by_cause, why = grade(truth, verdict, status)
    checked = audit(verdict, facts, truth)
    false = [one for one in checked if one.true is False]
    given = by_cause
    if false and by_cause in (RIGHT, CANNOT_TELL):
        given, why = WRONG, f"a false sentence: {false[0].why}"
    shown = {name: verdict.get(name) for name in SHOWN} | {"grade": given, "by_cause": by_cause, "why": why}
    return shown | _counted(checked) | ({"texts": [vars(one) for one in checked]} if texts else {})


def _counted(checked: Sequence[Checked]) -> dict[str, Any]:
    return {
        "true": sum(one.true is True for one in checked),
        "false": [{"where": one.where, "text": one.text, "why": one.why} for one in checked if one.true is False],
        "not_audited": [f"{one.text} [{one.why}]" for one in checked if one.true is None],
    }
