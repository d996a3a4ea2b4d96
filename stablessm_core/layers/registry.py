"""Which layers there are. A layer is one folder here, one line in BUILT_IN, and its class in `layers/__init__.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablessm_core.layers.dss.section import Dss
from stablessm_core.layers.gated_deltanet.section import GatedDeltaNet
from stablessm_core.layers.gla.section import Gla
from stablessm_core.layers.hgrn.section import Hgrn
from stablessm_core.layers.hyena.section import Hyena
from stablessm_core.layers.l2ru.section import L2ru
from stablessm_core.layers.lru.section import Lru
from stablessm_core.layers.mamba.section import Mamba
from stablessm_core.layers.mamba2.section import Mamba2
from stablessm_core.layers.min_gru.section import MinGru
from stablessm_core.layers.retnet.section import RetNet
from stablessm_core.layers.rg_lru.section import RgLru
from stablessm_core.layers.rwkv4.section import Rwkv4
from stablessm_core.layers.rwkv6.section import Rwkv6
from stablessm_core.layers.s4.section import S4
from stablessm_core.layers.s4d.section import S4d
from stablessm_core.layers.s5.section import S5
from stablessm_core.layers.section import LayerSection
from stablessm_core.layers.stable_ssm.section import StableSsm

# in the order in which pages show them: fixed in time, varying with the input, with a matrix state, around another layer
BUILT_IN: tuple[type[LayerSection], ...] = (
    StableSsm, S4, S4d, Dss, S5, Lru, L2ru, Rwkv4,
    Mamba, RgLru, Hgrn, MinGru,
    RetNet, Mamba2, Gla, Rwkv6, GatedDeltaNet,
    Hyena,
)  # fmt: skip

LAYERS: dict[str, type[LayerSection]] = {section.model_fields["name"].default: section for section in BUILT_IN}


def layer_names(model: Mapping[str, Any]) -> list[str]:
    """The layers of a `model` of the configuration, by name: of every block where `layers` lists them, else the one of all."""
    sections = model.get("layers") or [model.get("layer", "stable_ssm")]
    return [section["name"] if isinstance(section, Mapping) else section for section in sections]


def layers_text(config: Mapping[str, Any]) -> str:
    """The different layers of a run's configuration for people: "mamba", or "lru, mamba"."""
    return ", ".join(dict.fromkeys(layer_names(config.get("model") or {})))
