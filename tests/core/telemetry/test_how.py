"""How a run trains: from our configuration, and from whatever another program reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.how import How, how_of, how_of_config, read_how

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["optimizer", "lr", "train", "x"]), inner, max_size=4)
    ),
)


def test_our_configuration_says_how_a_trained_run_trains() -> None:
    config = parse_config({
        "task": {"name": "polynomial_memory", "length": 64},
        "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9, "nesterov": True, "grad_clip": 2.0},
        "train": {"steps": 300, "precision": "bfloat16"}, "telemetry": {"every": 4},
    }).model_dump(mode="json")  # fmt: skip
    expected = How(
        optimizer="sgd", lr="recorded", momentum=0.9, nesterov=True, grad_clip=2.0, length=64, every=4, precision="bfloat16",
        total_steps=300,
    )  # fmt: skip
    assert how_of_config(config) == expected
    assert how_of(SimpleNamespace(config=config, how=None)) == expected


def test_the_stored_record_of_a_reported_run_comes_before_its_empty_configuration() -> None:
    how = How(optimizer="lion", lr=0.1, total_steps=2**52)
    assert how_of(SimpleNamespace(config={}, how=how.data)) == how
    assert how_of(SimpleNamespace(config={}, how={})) == How()


@pytest.mark.parametrize(
    ("field", "value"),
    [("optimizer", 3), ("optimizer", ""), ("optimizer", "x" * 61), ("lr", "fast"), ("lr", True), ("lr", float("nan")),
     ("lr", -1.0), ("momentum", [0.9]), ("nesterov", 1), ("grad_clip", float("inf")), ("length", 0), ("length", 2.5),
     ("every", -1), ("precision", {}), ("total_steps", 2**53), ("total_steps", "100"), ("total_steps", 10**400)],
)  # fmt: skip
def test_an_impossible_value_is_unknown_and_the_others_are_kept(field: str, value: object) -> None:
    assert read_how({"length": 7, "every": 2} | {field: value}) == read_how({"length": 7, "every": 2} | {field: None})


@given(JSON)
def test_any_stored_json_gives_a_record(data: Any) -> None:
    assert read_how(read_how(data).data) == read_how(data)
