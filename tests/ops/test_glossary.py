"""The words that stand for numbers in a verdict are defined with the numbers that the verdict uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stablessm_core.autopsy import gradient
from stablessm_core.verdict import batches, case, facts, levels, measured, overflowed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text()
DEFINED: dict[str, float] = {  # word: the number of its definition
    "usual level": levels.LEVEL_ROWS,
    "far above usual": levels.EXCESS,
    "usual batch": batches.FAR,
    "too large a batch": batches.FAR_ALONE,
    "risen": facts.ROSE,
    "calm": levels.CALM,
    "spike": facts.SPIKE,
    "rows before a spike": facts.SPIKE_ROWS,
    "small update": facts.SMALL_UPDATE,
    "ordinary number": measured.MODERATE,
    "agrees (a gradient)": 100 * gradient.AGREES,
    "wrong (a gradient)": 100 * gradient.DIFFERS,
    "the same loss": 100 * measured.NEAR_LOSS,
    "inside, on, outside the boundary": 0,
    "may have a part": case.CONTRIBUTES,
    "overflowed": overflowed.OVERFLOWS,
    "dies too": case.SOON,
}


def meanings() -> dict[str, str]:
    """The meanings of the words of verdicts."""
    section = PAGE[PAGE.index("## Verdicts") :]
    return dict(re.findall(r"^\| ([^|`]+?) \| `[\w.]+` \| ([^|]+) \|$", section, flags=re.MULTILINE))


@pytest.mark.parametrize("word", DEFINED)
def test_a_word_of_the_verdict_is_defined_by_the_number_of_the_code(word: str) -> None:
    printed = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e\d+)?(?!\w)", meanings()[word])
    assert [float(number) for number in printed] == pytest.approx([DEFINED[word]] * max(1, len(printed)))


def test_every_number_of_the_definitions_is_checked() -> None:
    with_numbers = {word for word, meaning in meanings().items() if re.search(r"(?<![\w.])\d", meaning)}
    assert with_numbers == set(DEFINED)


def test_a_gradient_is_wrong_from_the_same_difference_on_in_autopsy_and_verdict() -> None:
    assert (gradient.AGREES, gradient.DIFFERS) == (measured.SAME_NORM, 2 * measured.SAME_NORM)
