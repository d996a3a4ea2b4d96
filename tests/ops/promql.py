"""Evaluates the part of PromQL that the shipped rules use. A scrape is (seconds, samples by name and labels); oldest first."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = tuple[float, dict[tuple[str, Labels], float]]

ARITHMETIC: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
QUANTILE_NEEDS = "histogram_quantile of a sum of rates"


def selectors(node: Any) -> Iterator[Any]:
    """All vector selectors of an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    for name in ("lhs", "rhs", "expr", "param"):
        if getattr(node, name, None) is not None:
            yield from selectors(getattr(node, name))
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def grouped(node: Any) -> Iterator[tuple[Any, list[str]]]:
    """(inner expression, labels) of every aggregation in an expression."""
    if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
        yield node.expr, node.modifier.labels
    for name in ("lhs", "rhs", "expr"):
        if getattr(node, name, None) is not None:
            yield from grouped(getattr(node, name))
    for argument in getattr(node, "args", None) or ():
        yield from grouped(argument)


def evaluate(node: Any, scrapes: list[Scrape]) -> Vector | float:
    """The value of an expression at the last scrape. A rule fires if its value is a vector with at least one element."""
    match node:
        case promql.NumberLiteral():
            return float(node.val)
        case promql.ParenExpr():
            return evaluate(node.expr, scrapes)
        case promql.VectorSelector():
            return _select(node, scrapes[-1][1])
        case promql.BinaryExpr():
            return _binary(str(node.op), node, evaluate(node.lhs, scrapes), evaluate(node.rhs, scrapes))
        case promql.AggregateExpr():
            return _sum(node, evaluate(node.expr, scrapes))
        case promql.Call() if node.func.name in ("increase", "rate"):
            return _increase(node.args[0], scrapes)
        case promql.Call() if node.func.name == "histogram_quantile":
            return _quantile(float(node.args[0].val), evaluate(node.args[1], scrapes))
    raise NotImplementedError(f"{type(node).__name__}: {node}")


def _select(selector: Any, samples: dict[tuple[str, Labels], float]) -> Vector:
    return {
        labels: value
        for (name, labels), value in samples.items()
        if name == selector.name and all(_matches(matcher, dict(labels)) for matcher in selector.matchers.matchers)
    }


def _matches(matcher: Any, labels: dict[str, str]) -> bool:
    value, kind = labels.get(matcher.name, ""), str(matcher.op).rpartition(".")[2]
    return {"Equal": value == matcher.value, "Re": re.fullmatch(matcher.value, value) is not None}[kind]


def _binary(op: str, node: Any, left: Vector | float, right: Vector | float) -> Vector:
    assert isinstance(left, dict)
    if op == "or":
        assert isinstance(right, dict)
        return right | left
    if op.startswith("and"):
        assert isinstance(right, dict)
        assert getattr(node.modifier, "matching", None) is not None, (
            "write `and on ()`, because plain `and` requires equal labels"
        )
        return left if right else {}
    pairs = [
        (k, v, right if isinstance(right, float) else right[k]) for k, v in left.items() if isinstance(right, float) or k in right
    ]
    if op in COMPARISONS:
        return {labels: value for labels, value, other in pairs if COMPARISONS[op](value, other)}
    if op == "/":
        return {labels: value / other if other else float("nan") for labels, value, other in pairs}
    return {labels: ARITHMETIC[op](value, other) for labels, value, other in pairs}


def _increase(matrix: Any, scrapes: list[Scrape]) -> Vector:
    """The increase without extrapolation to the whole range, because the rules only compare the increase with a limit."""
    inside = [samples for at, samples in scrapes if scrapes[-1][0] - at <= matrix.range.total_seconds()]
    found: Vector = {}
    for before, after in pairwise(inside):
        old = _select(matrix.vector_selector, before)
        for labels, value in _select(matrix.vector_selector, after).items():
            if labels in old:
                found[labels] = found.get(labels, 0.0) + (value - old[labels] if value >= old[labels] else value)
    return found


def _sum(node: Any, values: Vector | float) -> Vector:
    assert str(node.op) == "sum"
    assert isinstance(values, dict)
    found: Vector = {}
    for labels, value in values.items():
        kept = frozenset((name, text) for name, text in labels if name in node.modifier.labels)
        found[kept] = found.get(kept, 0.0) + value
    return found


def _quantile(q: float, values: Vector | float) -> Vector:
    """The upper bound of the bucket that contains the quantile. Empty without observations."""
    assert isinstance(values, dict), QUANTILE_NEEDS
    buckets = sorted((float(dict(labels)["le"].replace("+Inf", "inf")), count) for labels, count in values.items())
    if not buckets or not buckets[-1][1]:
        return {}
    return {frozenset(): next(bound for bound, count in buckets if count >= q * buckets[-1][1])}
