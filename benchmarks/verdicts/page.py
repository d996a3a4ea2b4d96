"""The tables of the planted faults, in Markdown."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.faults import KINDS
from benchmarks.verdicts.grading import GRADES, RIGHT, WRONG

CHOSEN_ON = (0, 1, 2, 10, 11)  # seeds whose verdicts were looked at when the rules were written
WAYS = {"without_autopsy": "from recorded numbers", "with_autopsy": "with autopsy"}

Result = dict[str, Any]


def tables(results: Sequence[Result]) -> str:
    """Three parts: the grades per kind, the verdicts that are wrong, and the share of followed changes that live."""
    return "\n".join([*_grades(results), "", *_misses(results), "", *_advice(results)])


def write(folder: Path) -> None:
    """Write the tables of all seeds with results in `folder` into its report."""
    stored = [json.loads(path.read_text()) for path in sorted(folder.glob("verdicts_cpu_seed_*.json"))]
    of = {int(one["seed"]): one["results"] for one in stored}
    made = f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} {platform.machine()} cores"
    parts = [line for seed in sorted(of) for line in _of_seed(seed, of[seed])]
    followed = [result for results in of.values() for result in results]
    parts += [
        "### Advice that was followed",
        "",
        f"Seeds {', '.join(map(str, sorted(of)))} together.",
        "",
        *_advice(followed),
        "",
    ]
    (folder / "verdicts_cpu.md").write_text("\n".join(["# Verdicts on planted faults", "", f"{made}.", "", *parts]))


def _of_seed(seed: int, results: Sequence[Result]) -> Iterator[str]:
    chosen = "the rules were chosen on this seed, among others" if seed in CHOSEN_ON else "held out: no rule was chosen on it"
    died = sum(result["status"] == "diverged" for result in results)
    yield from (f"### Seed {seed} ({chosen})", "")
    yield f"`python -m benchmarks.verdicts --seed {seed}`: {len(results)} runs, of which {died} died."
    yield from ("", *_grades(results), "", *_misses(results), "")


def _grades(results: Sequence[Result]) -> Iterator[str]:
    ways = [way for way in WAYS if any(way in result for result in results)]
    head = [f"{WAYS[way]}: {grade}" for way in ways for grade in GRADES]
    yield "| fault | runs | died | " + " | ".join(head) + " |"
    yield "| --- | --- | --- | " + " | ".join("---" for _ in head) + " |"
    for name in [kind.name for kind in KINDS] + ["All"]:
        own = [result for result in results if name in ("All", result["kind"])]
        if not own:
            continue
        died = sum(result["status"] == "diverged" for result in own)
        counts = [str(sum(result[way]["grade"] == grade for result in own)) for way in ways for grade in GRADES]
        yield f"| {name} | {len(own)} | {died} | " + " | ".join(counts) + " |"


def _misses(results: Sequence[Result]) -> Iterator[str]:
    found = [(result, way) for result in results for way in WAYS if way in result and result[way]["grade"] == WRONG]
    if not found:
        yield "No verdict was wrong."
        return
    yield "| number | fault | judged | the verdict's mistake |"
    yield "| --- | --- | --- | --- |"
    for result, way in found:
        yield f"| {result['number']} | {result['kind']}: {result['fault']} | {WAYS[way]} | {result[way]['why']} |"


def _advice(results: Sequence[Result]) -> Iterator[str]:
    followed = [(result, one) for result in results for one in result.get("advice", [])]
    if not followed:
        return
    yield "| advice | after the verdict | followed | lives | followed after a right verdict | lives |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind in sorted({one["kind"] for _, one in followed}):
        for cause in sorted({one["cause"] for _, one in followed if one["kind"] == kind}):
            own = [(result, one) for result, one in followed if (one["kind"], one["cause"]) == (kind, cause)]
            after_right = [one for result, one in own if _last_grade(result) == RIGHT]
            yield f"| {kind} | `{cause}` | {_lives([one for _, one in own])} | {_lives(after_right)} |"


def _last_grade(result: Result) -> str:
    return str(result["with_autopsy" if "with_autopsy" in result else "without_autopsy"]["grade"])


def _lives(followed: Sequence[Result]) -> str:
    lives = sum(one["lives"] for one in followed)
    return f"{len(followed)} | {lives} ({100 * lives / len(followed):.0f} %)" if followed else "0 | "
