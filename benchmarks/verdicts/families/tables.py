"""The tables of the families, in Markdown: grades per family or place, false sentences, sentences that were not audited, advice.

The names of held-out families are not written, unless somebody asks for them: whoever writes rules reads the tables too.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.verdicts.grading import CANNOT_TELL, RIGHT, WRONG

PAGE = Path(__file__).parents[3] / "docs" / "verdict.md"
BEGIN, END = "<!-- families: begin -->\n", "<!-- families: end -->"
BEFORE, AFTER = "without_autopsy", "with_autopsy"
HELD_OUT = "held_out"
SHOWN = 40  # maximum number of kinds of sentences that are shown

Result = Mapping[str, Any]


def report(results: Sequence[Result], *, names: bool) -> str:
    """All tables. names: True to name held-out families and to quote sentences about them."""
    parts = ["## Groups", "", *groups(results), "", "## Where the fault is", "", *_by(results, _group_and_place, "group, place")]
    parts += ["", "## Families", "", *_by(results, lambda one: _family(one, names), "family")]
    parts += ["", "## Advice that was followed", "", *_advice(results), "", "## Sentences", "", *_sentences(results, names)]
    failed = [one for one in results if "error" in one]
    if failed:
        parts += ["", "## Trials that failed", "", *(_failure(one, names) for one in failed)]
    return "\n".join(parts)


def groups(results: Sequence[Result]) -> Iterator[str]:
    """The table of the groups, with one row for the runs that we train and one for watched loops."""
    yield from _by(results, lambda one: f"{_title(one['group'])}{', watched' if one['place'] == 'watched' else ''}", "families")


def write(results: Sequence[Result], folder: Path, seed: int, seconds: float) -> None:
    """Write the report of a seed."""
    made = f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} {platform.machine()} cores"
    head = [
        "# Verdicts on families of faults",
        "",
        f"Seed {seed}, {made}, {seconds / 60:.0f} min.",
        "",
        report(results, names=False),
    ]
    (folder / "families_cpu.md").write_text("\n".join(head) + "\n")


def write_page(results: Sequence[Result], page: Path = PAGE) -> bool:
    """Write the table of the groups between the two marks of docs/verdict.md. False if the page has no marks."""
    text = page.read_text()
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        return False
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(groups(results)) + f"\n\n{END}{after}")
    return True


def read(path: Path) -> tuple[int, float, list[dict[str, Any]]]:
    """(seed, seconds, results) of a file that `study.store` wrote."""
    stored = json.loads(path.read_text())
    return int(stored["seed"]), float(stored["seconds"]), stored["results"]


def _title(group: str) -> str:
    return group.replace("_", " ")


def _group_and_place(one: Result) -> str:
    return f"{_title(one['group'])}, {one['place']}"


def _family(one: Result, names: bool) -> str:
    if one["group"] == HELD_OUT and not names:
        return f"held out, {one['place']}, family {_code(one['family'])}"
    return str(one["family"])


def _code(name: str) -> str:
    """Four letters for a name, always the same ones."""
    number = sum((i + 1) * ord(letter) for i, letter in enumerate(name)) % 26**4
    return "".join(chr(ord("a") + number // 26**i % 26) for i in range(4))


def _by(results: Sequence[Result], key: Any, title: str) -> Iterator[str]:
    head = [f"{when}: {grade}" for when in ("before the autopsy", "after it") for grade in ("right", "cannot tell", "wrong")]
    head += ["of these only a false sentence", "followed advice that lives"]
    yield f"| {title} | runs | died | " + " | ".join(head) + " |"
    yield "| --- | --- | --- | " + " | ".join("---" for _ in head) + " |"
    done = [one for one in results if "error" not in one]
    for name in sorted({key(one) for one in done}):
        yield _row(name, [one for one in done if key(one) == name])
    yield _row("All", done)


def _row(name: str, own: Sequence[Result]) -> str:
    last = [one.get(AFTER, one[BEFORE]) for one in own]
    counts = [
        sum(one["grade"] == grade for one in part)
        for part in ([o[BEFORE] for o in own], last)
        for grade in (RIGHT, CANNOT_TELL, WRONG)
    ]
    only_false = sum(one["grade"] == WRONG and one["by_cause"] != WRONG for one in last)
    followed = [one for result in own for one in result.get("advice") or () if "(a test)" not in one["kind"]]
    lives = f"{sum(one['lives'] for one in followed)} of {len(followed)}" if followed else ""
    died = sum(one["status"] == "diverged" for one in own)
    return f"| {name} | {len(own)} | {died} | " + " | ".join(map(str, counts)) + f" | {only_false} | {lives} |"


def _advice(results: Sequence[Result]) -> Iterator[str]:
    yield "| group | advice | after the verdict | followed | lives |"
    yield "| --- | --- | --- | --- | --- |"
    followed = [(one["group"], each) for one in results for each in one.get("advice") or ()]
    for key in sorted({(group, each["kind"], each["cause"]) for group, each in followed}):
        own = [each for group, each in followed if (group, each["kind"], each["cause"]) == key]
        lives = sum(each["lives"] for each in own)
        yield f"| {_title(key[0])} | {key[1]} | `{key[2]}` | {len(own)} | {lives} ({100 * lives / len(own):.0f} %) |"


def _sentences(results: Sequence[Result], names: bool) -> Iterator[str]:
    judged = [(one, one[when]) for one in results for when in (BEFORE, AFTER) if when in one]
    true = sum(each["true"] for _, each in judged)
    false = [(one, sentence) for one, each in judged for sentence in each["false"]]
    unknown = [(one, text) for one, each in judged for text in each["not_audited"]]
    total = true + len(false) + len(unknown)
    yield f"{total:,} sentences: {true:,} true, {len(false):,} false, {len(unknown):,} not audited."
    open_to_all = [(one, sentence) for one, sentence in false if names or one["group"] != HELD_OUT]
    yield from ("", "| false, number of times | an example | what is false |", "| --- | --- | --- |")
    by_kind = Counter(_kind(sentence["text"]) for _, sentence in open_to_all)
    examples = {_kind(sentence["text"]): sentence for _, sentence in open_to_all}
    for kind, count in by_kind.most_common(SHOWN):
        yield f"| {count} | {_cell(examples[kind]['text'])} | {_cell(examples[kind]['why'])} |"
    yield from ("", "| not audited, number of times | an example |", "| --- | --- |")
    seen = [text for one, text in unknown if names or one["group"] != HELD_OUT]
    texts = {_kind(text): text for text in seen}
    for kind, count in Counter(map(_kind, seen)).most_common(SHOWN):
        yield f"| {count} | {_cell(texts[kind])} |"


def _kind(text: str) -> str:
    return re.sub(r"blocks[\w.]*|-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", "#", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _failure(one: Result, names: bool) -> str:
    said = one["error"] if names or one["group"] != HELD_OUT else one["error"].partition(":")[0]
    return f"- {_family(one, names)}, number {one['number']}: {said}"
