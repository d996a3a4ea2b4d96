"""One planted fault from its draw to the grade of its verdict, with and without the autopsy."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.advice import follow
from benchmarks.verdicts.autopsies import opened
from benchmarks.verdicts.faults import Kind, Plant
from benchmarks.verdicts.grading import grade
from benchmarks.verdicts.recorded import Recorded, run_and_source, trained
from benchmarks.verdicts.truth import NotPlanted, Truth, establish
from stablessm_core.verdict import judge

DRAWS = 20  # maximum number of draws until the run would live without its fault
SHOWN = ("cause", "thrown_by", "culprit", "confidence", "runner_up", "summary")


def trial(kind: Kind, seed: int, number: int, *, autopsy: bool = True, advice: bool = True) -> dict[str, Any]:
    """The result of plant `number`, as JSON. autopsy, advice: False to leave this part out."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plant, recorded, truth = _planted(kind, random.Random(f"{seed} {number}"), Path(folder))  # text: a tuple is no seed
        run, source = run_and_source(recorded)
        findings = opened(recorded, run, source, Path(folder)) if autopsy and recorded.died else None
    verdict = judge(run, source)
    result = {
        "number": number,
        "kind": plant.kind,
        "fault": plant.fault,
        "config": plant.config,
        "status": recorded.outcome.status,
        "step": recorded.outcome.step,
        "truth": _as_json(truth),
        "without_autopsy": _judged(truth, verdict, recorded),
    }
    if autopsy:
        verdict = judge(replace(run, autopsy=findings), source)
        result |= {"with_autopsy": _judged(truth, verdict, recorded), "findings": findings and _shortened(findings)}
    if advice and recorded.died:
        result["advice"] = follow(recorded, run, source, verdict)
    return result | {"seconds": round(time.perf_counter() - began, 1)}


def _planted(kind: Kind, draw: random.Random, folder: Path) -> tuple[Plant, Recorded, Truth]:
    for number in range(DRAWS):
        plant = kind.draw(draw)
        recorded = trained(plant.config, folder=folder / str(number))
        try:
            return plant, recorded, establish(plant, recorded)
        except NotPlanted:
            continue
    raise RuntimeError(f"{kind.name}: none of {DRAWS} draws lives without its fault")


def _judged(truth: Truth, verdict: dict[str, Any], recorded: Recorded) -> dict[str, Any]:
    found, why = grade(truth, verdict, recorded.outcome.status)
    return {name: verdict.get(name) for name in SHOWN} | {"grade": found, "why": why}


def _shortened(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings without the magnitudes of each module, the rows of the replay, the curves of the counterfactuals, and the
    time."""
    left_out = ("modules", "replayed", "instruments", "notes", "seconds")
    kept = {name: value for name, value in findings.items() if name not in left_out}
    trained_again = findings["counterfactuals"] or []
    kept["counterfactuals"] = [{k: v for k, v in one.items() if k not in ("steps", "loss")} for one in trained_again]
    return kept


def _as_json(truth: Truth) -> dict[str, Any]:
    found = asdict(truth)
    return {name: sorted(value, key=str) if isinstance(value, frozenset) else value for name, value in found.items()}
