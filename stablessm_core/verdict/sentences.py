"""The sentences of a verdict. Each one carries its check.

A sentence is a function that returns its text, or None where its predicate does not hold. The decorator `sentence` states the
predicate in words (`holds`) and the records that the predicate reads (`rests_on`: series, alerts, or fields of the autopsy's
findings). tests/core/verdict/test_every_sentence.py shows for each of them one record where it is said, and one near it where
it is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, ParamSpec

Basis = Literal["measured", "inferred"]
Given = ParamSpec("Given")


@dataclass(frozen=True)
class Sentence:
    """A sentence that the verdict can say. holds: what must be true of the records so that it is said."""

    name: str
    holds: str
    rests_on: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class Said:
    """A sentence about one run. basis: "measured" if it states recorded values or results of the autopsy, "inferred" if it
    concludes from them. numbers: the numbers that it quotes."""

    sentence: str
    text: str
    basis: Basis = "measured"
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def item(self) -> dict[str, Any]:
        """The sentence as JSON."""
        return {"text": self.text, "basis": self.basis, "sentence": self.sentence, **self.numbers}


SENTENCES: dict[str, Sentence] = {}

Written = str | tuple[str, dict[str, Any]] | None


def sentence(
    *rests_on: str, holds: str, basis: Basis = "measured"
) -> Callable[[Callable[Given, Written]], Callable[Given, Said | None]]:
    """Make a function a sentence. The function returns its text, or (text, numbers), or None where the predicate does not hold.
    Among the numbers, `basis` replaces the usual basis."""

    def register(write: Callable[Given, Written]) -> Callable[Given, Said | None]:
        name = write.__name__
        if name in SENTENCES:
            raise ValueError(f"two sentences are called {name!r}")
        SENTENCES[name] = Sentence(name, holds, rests_on, write.__module__)

        @wraps(write)
        def say(*given: Given.args, **named: Given.kwargs) -> Said | None:
            written = write(*given, **named)
            text, numbers = written if isinstance(written, tuple) else (written, {})
            if not text:
                return None
            numbers = dict(numbers)
            return Said(name, text, numbers.pop("basis", basis), numbers)

        return say

    return register


def said(*sentences: Said | None) -> list[Said]:
    """The sentences whose predicates hold."""
    return [one for one in sentences if one is not None]


def joined(sentences: Iterable[Said]) -> str:
    """The text of a summary."""
    return " ".join(one.text for one in sentences)
