"""One record where a sentence of the verdict is said, and one near it where it is not: both differ in a single number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stablessm_core.verdict import Run, judge
from stablessm_core.verdict.memory_source import MemorySource

Record = tuple[Run, MemorySource]
Make = Callable[[Any], Record]


@dataclass(frozen=True)
class Example:
    """make: the record with this value. said, near: the value with which the sentence is said, and the one with which it is not.
    text: what the sentence says, or a part of it."""

    make: Make
    said: Any
    near: Any
    text: str


EXAMPLES: dict[str, Example] = {}


def example(*, said: Any, near: Any, text: str) -> Callable[[Make], Make]:
    """Make a function an example of the sentence that has its name."""

    def register(make: Make) -> Make:
        if make.__name__ in EXAMPLES:
            raise ValueError(f"two examples are called {make.__name__!r}")
        EXAMPLES[make.__name__] = Example(make, said, near, text)
        return make

    return register


def texts(record: Record) -> dict[str, str]:
    """The texts of the sentences of this record's verdict, by the names of the sentences."""
    verdict = judge(*record)
    found: dict[str, str] = {}
    for one in verdict["sentences"] + verdict["evidence"]:
        found[one["sentence"]] = f"{found.get(one['sentence'], '')} {one['text']}".strip()
    return found
