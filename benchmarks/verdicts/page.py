"""The tables of the planted faults, in Markdown, and the section of docs/verdict.md that shows them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.faults import KINDS
from benchmarks.verdicts.grading import GRADES, RIGHT, WRONG

PAGE = Path(__file__).parents[2] / "docs" / "verdict.md"
BEGIN, END = "<!-- planted faults: begin -->\n", "<!-- planted faults: end -->"
WAYS = {"without_autopsy": "from recorded numbers", "with_autopsy": "with autopsy"}

Result = dict[str, Any]


def tables(results: Sequence[Result]) -> str:
    """Three parts: the grades per kind, the verdicts that are wrong, and the share of followed changes that live."""
    return "\n".join([*_grades(results), "", *_misses(results), "", *_advice(results)])


def write(results: Sequence[Result], report: Path, seed: int) -> None:
    """Write the tables into `report` and into the section of docs/verdict.md, between its two marks."""
    made = f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} {platform.machine()} cores"
    died = sum(result["status"] == "diverged" for result in results)
    said = f"`python -m benchmarks.verdicts --seed {seed}`: {len(results)} runs, of which {died} died. {made}."
    report.write_text("\n".join(["# Verdicts on planted faults", "", said, "", tables(results), ""]))
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(results)}\n\n{END}{after}")


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
