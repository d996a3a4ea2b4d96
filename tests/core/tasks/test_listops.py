"""ListOps draws and evaluates expressions as Long Range Arena defines them, and encodes them as S4 does."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import numpy as np
import pytest
import torch

from stablessm_core.model import build_model
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.data.listops_trees import TOKENS, Shape, expressions, share_of_lengths
from stablessm_core.spec.errors import ConfigError
from tests.core.tasks.made import made

SPELLED = ["<pad>", "<unk>", "<eos>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]
OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda arguments: int(statistics.median(arguments)),
    "[SM": lambda arguments: sum(arguments) % 10,
}
Node = int | tuple[str, list["Node"]]


def parsed(words: list[str]) -> Node:
    """Remove the expression at the start of `words` and return it."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    arguments = []
    while words[0] != "]":
        arguments.append(parsed(words))
    words.pop(0)
    return word, arguments


def value(node: Node) -> int:
    return node if isinstance(node, int) else OPERATORS[node[0]]([value(argument) for argument in node[1]])


def length(node: Node) -> int:
    return 1 if isinstance(node, int) else 2 + sum(map(length, node[1]))


def depth(node: Node) -> int:
    return 1 if isinstance(node, int) else 1 + max(map(depth, node[1]))


def operators(node: Node) -> list[tuple[str, list[Node]]]:
    return [] if isinstance(node, int) else [node, *(inner for argument in node[1] for inner in operators(argument))]


def published(rng: random.Random, at: int, max_depth: int, max_args: int) -> Node:
    """A random tree, drawn according to the description of Long Range Arena's generator."""
    if at == max_depth or rng.random() > 0.25:
        return rng.choice(range(10))
    arguments = [published(rng, at + 1, max_depth, max_args) for _ in range(rng.randint(2, max_args))]
    return rng.choice(list(OPERATORS)), arguments


def read(shape: Shape, count: int, seed: int = 0) -> tuple[list[Node], list[int]]:
    """(expressions, values) from our generator; the expressions are parsed from their tokens."""
    tokens, values = expressions(count, shape, np.random.default_rng(seed))
    nodes = []
    for row in tokens.tolist():
        words = [SPELLED[token] for token in row]
        end = words.index("<eos>")
        assert set(words[end + 1 :]) <= {"<pad>"}
        body = words[:end]
        nodes.append(parsed(body))
        assert body == []
    return nodes, values.tolist()


@pytest.mark.parametrize("shape", [Shape(30, 100, 10, 10), Shape(501, 1999, 10, 10), Shape(4, 9, 2, 3), Shape(20, 40, 4, 5)])
def test_every_sequence_is_an_expression_of_the_requested_shape_labelled_with_its_value(shape: Shape) -> None:
    nodes, values = read(shape, 200)
    for node, found in zip(nodes, values, strict=True):
        assert value(node) == found
        assert shape.min_length <= length(node) <= shape.max_length
        assert depth(node) <= shape.max_depth
        assert all(2 <= len(arguments) <= shape.max_args for _, arguments in operators(node))


@pytest.mark.slow
def test_operators_argument_counts_and_digits_are_drawn_uniformly() -> None:
    nodes, _ = read(Shape(4, 8000, 3, 10), 4000)  # at this depth no expression exceeds the limits on length
    roots = [node for node in nodes if not isinstance(node, int)]
    assert len(roots) == 4000  # no root is a digit, because a digit alone is too short
    inner = [argument for _, arguments in roots for argument in arguments]
    nested = [argument for argument in inner if not isinstance(argument, int)]
    assert len(nested) / len(inner) == pytest.approx(0.25, abs=0.01)
    for evenly, choices in (
        ([len(arguments) for _, arguments in roots], 9),
        ([len(arguments) for _, arguments in nested], 9),
        ([name for name, _ in roots], 4),
        ([argument for argument in inner if isinstance(argument, int)], 10),
    ):
        often = Counter(evenly)
        assert len(often) == choices
        assert all(n / len(evenly) == pytest.approx(1 / choices, abs=0.02) for n in often.values())


@pytest.mark.slow
def test_lengths_have_the_distribution_of_the_published_generator() -> None:
    shape, rng = Shape(10, 60, 5, 6), random.Random(0)
    drawn = [length(published(rng, 1, shape.max_depth, shape.max_args)) for _ in range(60_000)]
    expected = Counter(n for n in drawn if shape.min_length <= n <= shape.max_length)
    ours = Counter(length(node) for node in read(shape, 8000)[0])
    exact = share_of_lengths(shape)[shape.min_length :]
    assert sum(expected.values()) / sum(n > 1 for n in drawn) == pytest.approx(exact.sum(), abs=0.01)
    for n in range(shape.min_length, shape.max_length + 1):
        wanted = exact[n - shape.min_length] / exact.sum()
        assert expected[n] / sum(expected.values()) == pytest.approx(wanted, abs=0.012), n
        assert ours[n] / 8000 == pytest.approx(wanted, abs=0.012), n


def test_a_model_classifies_an_expression_from_its_tokens() -> None:
    config = parse_config({"task": {"name": "listops"}, "model": {"d_model": 8, "d_state": 8}})
    task = made("listops")
    assert (task.length, task.vocabulary, task.output_size) == (101, TOKENS, 10)
    assert len(SPELLED) == TOKENS == 18
    x, y = task.batch(1, 5, 0, "cpu")
    output = build_model(config, task)(x)
    assert output.shape == (5, 10)
    assert task.loss(output, y).isfinite()
    assert sum(len(y) for _, y in task.evaluation_batches(300, "cpu")) == 2000
    assert torch.equal(torch.cat([y for _, y in task.evaluation_batches(300, "cpu")]).unique(), torch.arange(10))


@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 101},
        {"max_depth": 2},  # at most 12 tokens
        {"max_depth": 3, "min_length": 110, "max_length": 122},  # possible, but drawn too rarely
        {"min_length": 8000, "max_length": 8192},
    ],
)
def test_length_limits_that_almost_no_expression_meets_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "listops"} | options})
    field, message, allowed = refused.value.problems[0]
    assert field == "task.min_length"
    assert allowed
    assert str(options.get("min_length", 30)) in message
