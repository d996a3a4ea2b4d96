"""Sections of the plug-in layers `planted_<layer>`: each built-in layer with a fault that a table of faults describes.

A section is that of the built-in layer, with four more options. This module does not import torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers.dss import Dss
from stablessm_core.spec.layers.gated_deltanet import GatedDeltaNet
from stablessm_core.spec.layers.gla import Gla
from stablessm_core.spec.layers.hgrn import Hgrn
from stablessm_core.spec.layers.hyena import Hyena
from stablessm_core.spec.layers.l2ru import L2ru
from stablessm_core.spec.layers.lru import Lru
from stablessm_core.spec.layers.mamba import Mamba
from stablessm_core.spec.layers.mamba2 import Mamba2
from stablessm_core.spec.layers.min_gru import MinGru
from stablessm_core.spec.layers.retnet import RetNet
from stablessm_core.spec.layers.rg_lru import RgLru
from stablessm_core.spec.layers.rwkv4 import Rwkv4
from stablessm_core.spec.layers.rwkv6 import Rwkv6
from stablessm_core.spec.layers.s4 import S4
from stablessm_core.spec.layers.s4d import S4d
from stablessm_core.spec.layers.s5 import S5
from stablessm_core.spec.layers.stable_ssm import StableSsm

SECTIONS: tuple[type[LayerSection], ...] = (
    Dss, GatedDeltaNet, Gla, Hgrn, Hyena, L2ru, Lru, Mamba, Mamba2, MinGru, RetNet, RgLru, Rwkv4, Rwkv6, S4, S4d, S5, StableSsm,
)  # fmt: skip
BUILT_IN = {str(section.model_fields["name"].default): section for section in SECTIONS}


def _planted(name: str, section: type[LayerSection]) -> type[LayerSection]:
    """The section of the built-in layer `name` with a fault."""
    planted = f"planted_{name}"
    options: dict[str, Any] = {
        "name": (Literal[planted], planted),
        "fault": (str, Field("none", description="The fault: a key of the table of layer faults.")),
        "at": (int, Field(1, ge=1, description="The training step of the fault, or the first of them.")),
        "how": (str, Field("from", description="In which steps: once, from, every.")),
        "period": (int, Field(3, ge=1, description="Every how many steps, if `how` is every.")),
        "size": (float, Field(1.0, description="The size of the fault.")),
    }
    made: type[LayerSection] = create_model(planted, __base__=section, __module__=__name__, **options)
    made.built_by = "benchmarks.verdicts.families.layer:build"
    made.__doc__ = f"{section.title} with a planted fault."
    return made


globals().update({f"planted_{name}": _planted(name, section) for name, section in BUILT_IN.items()})
