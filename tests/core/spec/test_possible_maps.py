"""The list of a layer's possible maps agrees with the maps that the configuration accepts."""

from __future__ import annotations

import numpy as np
import pytest

from stablessm_core.maps import MAPS, formulas
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.possible_maps import layer_of, possible_maps, small_model

TASK = {"name": "polynomial_memory"}


@pytest.mark.parametrize("name", LAYERS)
def test_the_configuration_accepts_exactly_the_maps_that_are_offered(name: str) -> None:
    offered = {(map_.name, map_.time): map_ for map_ in possible_maps(layer_of({"layer": name}))}
    for map_, known in MAPS.items():
        for time in known.forms:
            one = offered.get((map_, time))
            rep = {"name": map_, "time": time} | ({"b": one.b} if one and one.b else {})
            config = {"task": TASK, "model": {"layer": name, "reparameterization": rep}}
            if one:
                assert parse_config(config).model.name_of_map == map_
            else:
                with pytest.raises(ConfigError):
                    parse_config(config)


def test_the_map_best_gets_a_constant_that_keeps_initial_weights_away_from_0() -> None:
    section = layer_of({"layer": "mamba"})
    best = next(map_ for map_ in possible_maps(section) if map_.name == "best")
    assert best.b is not None
    start = np.array(section.initial_range(64))
    assert (formulas("best", "continuous", np, b=best.b).inverse(start) > 0.1).all()


def test_the_options_of_a_layer_decide_which_maps_are_possible() -> None:
    assert possible_maps(layer_of({"layer": {"name": "mamba", "transition": "s7"}})) == []
    inner = possible_maps(layer_of({"layer": {"name": "hyena", "inner": {"name": "s4d"}}}))
    assert {map_.time for map_ in inner} == {"continuous"}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_a_small_model(name: str) -> None:
    config = RunConfig.model_validate({"task": TASK, "model": small_model(name)})
    assert config.model.sections()[0].name == name
    assert config.model.d_model <= 64
