"""An unknown name in a configuration gets the name that was probably meant, and the allowed names once."""

from __future__ import annotations

from typing import Any

import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.suggestions import did_you_mean, listed


@pytest.mark.parametrize(
    ("config", "field", "message", "allowed"),
    [
        ({"optimzer": {}}, "optimzer", "there is no such field; did you mean optimizer?", "optimizer"),
        ({"optimizer": {"lrr": 1}}, "optimizer.lrr", "there is no such field; did you mean lr?", "recurrent_lr"),
        ({"lr": 1}, "lr", "there is no such field; did you mean optimizer.lr?", "optimizer"),
        ({"seed": 1}, "seed", "there is no such field; did you mean train.seed?", "train"),
        ({"optimizer": {"name": "adm"}}, "optimizer.name", "'adm' is unknown; did you mean adamw?", "adamw, sgd"),
        ({"task": {"name": "digts"}}, "task.name", "'digts' is not installed here; did you mean digits?", "digits"),
        ({"model": {"layer": "mmaba"}}, "model.layer.name", "'mmaba' is unknown; did you mean mamba?", "mamba"),
        ({"train": {"steps": 0}}, "train.steps", "0 is not allowed", ">= 1"),
    ],
)
def test_an_unknown_name_gets_one_suggestion_and_one_list(config: dict[str, Any], field: str, message: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "digits"}} | config)
    (found,) = refused.value.problems
    assert found[:2] == (field, message)
    assert allowed in str(found[2])
    assert str(found[2]) not in found[1]


def test_names_without_a_similar_name_get_no_suggestion() -> None:
    assert did_you_mean("weather", ["loss", "lr"]) == ""
    assert did_you_mean("LOSS", ["loss", "lr"]) == "; did you mean loss?"


def test_a_long_list_is_cut() -> None:
    assert listed("abc") == "a, b, c"
    assert listed("abcdef", 2, others="GET /api/fields") == "a, b and 4 more (GET /api/fields)"
