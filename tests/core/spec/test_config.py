"""The run configuration: complete defaults, one clear error per mistake, and enforced limits."""

import json
import math
import subprocess
import sys

import pytest

from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import with_settings
from stablessm_core.spec.tasks import TASKS

TASK = {"name": "polynomial_memory"}
PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]


def refused(**sections: object) -> tuple[str, str, str | None]:
    with pytest.raises(ConfigError) as caught:
        parse_config({"task": TASK} | sections)
    return caught.value.problems[0]


def test_only_the_task_name_is_required() -> None:
    config = parse_config({"task": TASK})
    assert config.model.reparameterization.name == "best"
    assert config.optimizer.name == "adamw"
    with pytest.raises(ConfigError, match="task"):
        parse_config({})


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_stored_configuration_is_read_back_unchanged(name: str) -> None:
    config = parse_config({"task": {"name": name}, "model": {"eigenvalue_range": [0.1, 0.9]}})
    assert parse_config(json.loads(config.model_dump_json())) == config
    assert parse_config(config.model_dump(mode="json")) == config
    assert config.task.sequence_length() >= 1


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_every_map_reaches_the_default_eigenvalues(name: str, time: str) -> None:
    parse_config({"task": TASK, "model": {"reparameterization": {"name": name, "time": time}}})


def test_the_error_for_an_impossible_map_lists_the_possible_maps() -> None:
    field, _, allowed = refused(model={"reparameterization": {"name": "tanh", "time": "continuous"}})
    assert field == "model.reparameterization.time"
    assert allowed is not None
    assert all(f"{name} ({time})" in allowed for name, time in PAIRS)


def test_the_map_best_refuses_constants_that_would_allow_eigenvalues_below_minus_one() -> None:
    field, _, allowed = refused(model={"reparameterization": {"name": "best", "b": 0.49}})
    assert field == "model.reparameterization.b"
    assert allowed is not None
    assert ">= 0.5" in allowed
    parse_config({"task": TASK, "model": {"reparameterization": {"name": "best", "time": "continuous", "b": 0.1}}})


def test_the_error_for_unreachable_eigenvalues_names_the_reachable_interval() -> None:
    field, _, allowed = refused(model={"reparameterization": {"name": "clip"}, "eigenvalue_range": [0.5, 0.99995]})
    assert field == "model.eigenvalue_range"
    assert allowed is not None
    assert "[-0.9999, 0.9999]" in allowed


@pytest.mark.parametrize("pair", [[0.5, 1.0], [0.9, 0.5], [-1.0, 0.5], [0.5, math.nan], [0.5], "ab", [0.1, 0.2, 0.3]])
def test_a_bad_eigenvalue_range_is_refused(pair: object) -> None:
    assert refused(model={"eigenvalue_range": pair})[0].startswith("model.eigenvalue_range")


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"bogus": 1}, "bogus"),
        ({"model": {"bogus": 1}}, "model.bogus"),
        ({"model": {"reparameterization": {"bogus": 1}}}, "model.reparameterization.bogus"),
        ({"task": {"name": "mnist", "bogus": 1}}, "task.bogus"),
        ({"task": {"name": "mnist", "mnist": 1}}, "task.mnist"),
        ({"model": {"layer": {"name": "mamba", "mamba": 1}}}, "model.layer.mamba"),
        ({"model": {"layers": [{"name": "mamba", "mamba": 1}]}}, "model.layers.0.mamba"),
    ],
)
def test_the_error_for_an_unknown_field_names_the_field_and_lists_the_existing_fields(
    section: dict[str, object], field: str
) -> None:
    named, _, allowed = refused(**section)
    assert named == field
    known = {"bogus": "optimizer", "model.bogus": "d_state", "model.reparameterization.bogus": "time", "task.bogus": "permuted",
             "task.mnist": "permuted"}.get(field, "expand")  # fmt: skip
    assert allowed is not None
    assert known in allowed


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"optimizer": {"lr": "0.1"}}, "optimizer.lr"),
        ({"optimizer": {"lr": math.nan}}, "optimizer.lr"),
        ({"optimizer": {"lr": math.inf}}, "optimizer.lr"),
        ({"optimizer": {"lr": 10**400}}, "optimizer.lr"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr"),
        ({"optimizer": {"recurrent_lr": -1e-9}}, "optimizer.recurrent_lr"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum"),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, "optimizer.nesterov"),
        ({"train": {"on_warning": "pause"}}, "train.on_warning"),
        ({"train": {"steps": -3}}, "train.steps"),
        ({"train": {"seed": True}}, "train.seed"),
        ({"train": {"seed": 1.5}}, "train.seed"),
        ({"model": {"d_state": 10**30}}, "model.d_state"),
        ({"model": {"reparameterization": {"a": 1e-320}}}, "model.reparameterization.a"),
        ({"task": {"name": "associative_recall", "length": 21}}, "task.length"),
        ({"task": {"name": "char_lm", "file": "../secret"}}, "task.file"),
        ({"task": {"name": "char_lm", "file": "/etc/passwd"}}, "task.file"),
        ({"task": {"name": "nonesuch"}}, "task.name"),
        ({"task": {}}, "task.name"),
        ({"task": "mnist"}, "task"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"tags": ["x"] * 21}, "tags"),
        ({"alerts": {"min_boundary_distance": 1.0}}, "alerts.min_boundary_distance"),
    ],
)
def test_the_error_for_a_wrong_value_names_its_field(section: dict[str, object], field: str) -> None:
    assert refused(**section)[0] == field


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"model": {"n_layers": 128, "d_state": 65_536}}, "model.d_state"),
        ({"model": {"n_layers": 128, "d_model": 8192, "d_state": 8192}}, "model.d_model"),
        ({"train": {"batch_size": 65_536}, "model": {"d_model": 4096}}, "train.batch_size"),
    ],
)
def test_absurd_sizes_are_refused_with_the_limit(sections: dict[str, object], field: str) -> None:
    named, message, allowed = refused(**sections)
    assert named == field
    assert "allowed" in message
    assert allowed is not None
    assert "<=" in allowed or "at most" in allowed


def test_the_schema_states_every_default_and_limit() -> None:
    schema = RunConfig.model_json_schema()
    assert schema["required"] == ["task"]
    optimizer = schema["$defs"]["Optimizer"]["properties"]
    assert optimizer["lr"]["default"] == 0.01
    assert optimizer["lr"]["maximum"] == 1000.0


@pytest.mark.slow
def test_config_and_maps_import_without_torch() -> None:
    code = "import sys, stablessm_core.spec.config, stablessm_core.maps, stablessm_core.theory.memory;"
    code += "import stablessm_core.spec.data_sets; assert not {'torch', 'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_changed_configuration_shares_no_objects_with_the_original() -> None:
    base, given = {"task": {"name": "digits"}}, {"name": "softplus"}
    changed = with_settings(base, {"model.reparameterization": given})
    changed["model"]["reparameterization"]["name"] = "exp"
    changed["task"]["name"] = "mnist"
    assert (given, base) == ({"name": "softplus"}, {"task": {"name": "digits"}})
