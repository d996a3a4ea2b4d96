"""Each sentence of the verdict is said where its predicate holds, and not said where one number is on the other side."""

from __future__ import annotations

import re

import pytest

from stablessm_core.verdict import SENTENCES
from tests.core.verdict import (
    examples_of_causes,
    examples_of_eigenvalues,
    examples_of_endings,
    examples_of_evidence,
    examples_of_steps,
)
from tests.core.verdict.examples import EXAMPLES, texts

FILES = (examples_of_causes, examples_of_eigenvalues, examples_of_endings, examples_of_evidence, examples_of_steps)


def test_every_sentence_has_an_example_and_no_example_is_left_over() -> None:
    assert set(EXAMPLES) == set(SENTENCES)


@pytest.mark.parametrize("name", SENTENCES)
def test_it_is_said_where_its_predicate_holds(name: str) -> None:
    one = EXAMPLES[name]
    assert one.text in texts(one.make(one.said)).get(name, "")


@pytest.mark.parametrize("name", SENTENCES)
def test_it_is_not_said_where_its_predicate_just_fails(name: str) -> None:
    one = EXAMPLES[name]
    assert name not in texts(one.make(one.near))


@pytest.mark.parametrize("name", SENTENCES)
def test_no_text_about_these_records_quotes_a_missing_number(name: str) -> None:
    for value in (EXAMPLES[name].said, EXAMPLES[name].near):
        for text in texts(EXAMPLES[name].make(value)).values():
            assert not re.search(r"not a number|\bnan\b|\bNone\b(?! of)", text)
