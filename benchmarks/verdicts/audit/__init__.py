"""Checks every sentence of a verdict against the recorded rows, by the audit's own computation.

`audit` takes the verdict as JSON and the records of the run. It uses no function of `stablessm_core.verdict`. Each claim that a
sentence makes is found by its words (`claims_of_*`), the numbers are parsed and computed again. A sentence is true if every claim
in it is true and nothing remains that no claim explains; false if a claim is false; else it is not audited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts.audit.numbers import sentences

Check = Callable[["Context", re.Match[str]], bool | None]
CLAIMS: list[tuple[re.Pattern[str], Check]] = []
FILLER = """
    the a an and or of at in on to by with for from so but that this these it its is was are were be
    been had has have then not because although while which than as no also only too there here step
    steps run loss layer one eigenvalue eigenvalues before after until training number numbers said earlier
"""


@dataclass(frozen=True)
class Checked:
    """A sentence of a verdict. true: None if the audit cannot check all of it. why: what is wrong with it, or what is left."""

    where: str
    name: str
    text: str
    true: bool | None
    why: str = ""


@dataclass(frozen=True)
class Context:
    """What a claim is checked against. item: the item of the verdict that holds the sentence. whole: all of its text."""

    facts: Any
    truth: Any
    verdict: Mapping[str, Any]
    where: str
    item: Mapping[str, Any]
    whole: str

    @property
    def step(self) -> int | None:
        """The step of the event, if the sentence is one of an event."""
        return self.item.get("step") if self.where == "events" else None


def claim(pattern: str) -> Callable[[Check], Check]:
    """Register the check of the claims that this pattern finds. A check returns None if it cannot tell."""

    def register(check: Check) -> Check:
        CLAIMS.append((re.compile(pattern), check))
        return check

    return register


def audit(verdict: Mapping[str, Any], facts: Any, truth: Any) -> list[Checked]:
    """Every sentence of the verdict with its check."""
    return [_checked(facts, truth, verdict, *part) for part in _parts(verdict)]


def _parts(verdict: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """(where, item, text of the item, sentence) of every sentence of the verdict."""
    summary, named = str(verdict.get("summary") or ""), verdict.get("sentences") or ()
    for sentence in sentences(summary):
        item = next((one for one in named if sentence in str(one["text"])), {"text": summary})
        yield "summary", item, summary, sentence
    for where, key in (("events", "text"), ("evidence", "text"), ("try", "because")):
        for one in verdict.get(where) or ():
            for sentence in sentences(str(one.get(key) or "")):
                yield where, one, str(one[key]), sentence


def _checked(
    facts: Any, truth: Any, verdict: Mapping[str, Any], where: str, item: Mapping[str, Any], whole: str, sentence: str
) -> Checked:
    from benchmarks.verdicts.audit import (  # noqa: F401 - they register their claims
        claims_of_alerts,
        claims_of_autopsies,
        claims_of_batches,
        claims_of_causes,
        claims_of_eigenvalues,
        claims_of_rows,
        claims_of_training,
        claims_of_watched,
    )

    context = Context(facts, truth, verdict, where, item, whole)
    name = str(item.get("sentence") or item.get("kind") or "")
    left, unknown = sentence, False
    found = [(match, check) for pattern, check in CLAIMS for match in pattern.finditer(sentence)]
    for match, check in sorted(found, key=lambda one: one[0].start() - one[0].end()):  # the longest first
        if not (set(left[match.start() : match.end()]) - {"\0"}):
            continue  # a longer claim has explained these words
        try:
            true = check(context, match)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError):
            true = None  # the records lack what the claim is about
        if true is False:
            return Checked(where, name, sentence, False, f"{match[0]!r} ({check.__name__.replace('_', ' ')})")
        unknown = unknown or true is None
        left = _without(left, match)
    rest = [
        word for word in re.findall(r"[\w.]*\d[\w.,]*|[A-Za-z]+", left.replace("\0", " ")) if word.lower() not in FILLER.split()
    ]
    if unknown or rest:
        return Checked(where, name, sentence, None, "unknown" if unknown and not rest else f"left: {' '.join(rest)}")
    return Checked(where, name, sentence, True)


def _without(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + "\0" * (match.end() - match.start()) + text[match.end() :]
