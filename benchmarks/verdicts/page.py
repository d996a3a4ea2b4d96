"""The tables of the planted faults, in Markdown, and the section of docs/verdict.md that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.verdicts.faults import KINDS
from benchmarks.verdicts.grading import GRADES, WRONG

PAGE = Path(__file__).parents[2] / "docs" / "verdict.md"
TITLE = "## Measured with planted faults"
WAYS = {"without_autopsy": "from recorded numbers", "with_autopsy": "with autopsy"}

Result = dict[str, Any]


def tables(results: Sequence[Result]) -> str:
    """Three parts: the grades per kind, the verdicts that are wrong, and the share of followed changes that live."""
    return "\n".join([*_grades(results), "", *_misses(results), "", *_advice(results)])


def write(results: Sequence[Result]) -> None:
    """Replace the generated part of the section in docs/verdict.md."""
    text = PAGE.read_text()
    begin, end = "<!-- planted faults: begin -->\n", "<!-- planted faults: end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(before + begin + "\n" + tables(results) + "\n\n" + end + after)


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
    followed = [one for result in results for one in result.get("advice", [])]
    if not followed:
        return
    yield "| advice | after the verdict | followed | lives |"
    yield "| --- | --- | --- | --- |"
    for kind in sorted({one["kind"] for one in followed}):
        of_kind = [one for one in followed if one["kind"] == kind]
        for cause in sorted({one["cause"] for one in of_kind}):
            own = [one for one in of_kind if one["cause"] == cause]
            lives = sum(one["lives"] for one in own)
            yield f"| {kind} | `{cause}` | {len(own)} | {lives} ({100 * lives / len(own):.0f} %) |"
