"""The `model` section of the configuration: the layers, their sizes, and the map from weight to eigenvalue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from stablessm_core.maps import MAPS, default_eigenvalue_range, formulas, possible_pairs
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.layers.stable_ssm import ActivationName, StableSsm
from stablessm_core.spec.section import Section, as_tuple, not_allowed

MAX_STATES = 2**20  # maximum number of eigenvalues in one run
NATIVE = "native"

if TYPE_CHECKING:
    MapName = str
else:
    MapName = Literal[(*MAPS, NATIVE)]


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _shortest_json(section: LayerSection) -> Any:
    """The shortest JSON of the section: just "stable_ssm" for a stable_ssm layer whose options all have their defaults."""
    return "stable_ssm" if section == StableSsm() else section.model_dump(mode="json")


def _or_a_name(schema: dict[str, Any]) -> None:
    """Extend a layer's JSON schema so that it also allows just the name of a layer."""
    kept = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    parts = {key: schema.pop(key) for key in list(schema)}
    schema.update(anyOf=[{"enum": list(LAYERS), "type": "string"}, parts], **kept)


if TYPE_CHECKING:
    AnyLayer = LayerSection
else:
    _Sections = Annotated[Union[tuple(LAYERS.values())], Field(discriminator="name")]  # noqa: UP007 - made from a tuple
    AnyLayer = Annotated[_Sections, BeforeValidator(_from_name), PlainSerializer(_shortest_json)]


# with defer_build, pydantic builds each section only once, as part of RunConfig
class Reparameterization(Section, defer_build=True):
    """The map from a trainable weight w to an eigenvalue, lambda = f(w) (StableSSM, table 5)."""

    name: MapName = Field("best", description="The map f. native: the map that each layer was published with.")
    time: Literal["continuous", "discrete"] | None = Field(
        "discrete",
        description="discrete: the eigenvalue is f(w). continuous: it is exp(dt f(w)) with a trainable step size dt. null: the "
        "layer's own time; only stable_ssm has both.",
    )
    a: float = Field(1.0, ge=1e-6, le=1e6, description="Used by 'best' only.")
    b: float = Field(0.5, ge=1e-6, le=1e6, description="Used by 'best' only. Discrete time needs b >= 0.5 so that lambda >= -1.")

    @model_validator(mode="after")
    def _has_this_time(self) -> Self:
        if self.time is None or self.name == NATIVE:
            return self  # the time depends on the layer, so `Model` checks it
        form = MAPS[self.name].forms.get(self.time)
        if form is None:
            raise not_allowed("time", f"{self.time!r} with name {self.name!r}", "one of " + ", ".join(sorted(possible_pairs())))
        if self.b < form.least_b:
            allowed = f"b >= {form.least_b} for {self.time} {self.name!r}, so that lambda = {form.text} >= -1"
            raise not_allowed("b", self.b, allowed)
        return self


@dataclass(frozen=True)
class LayerMap:
    """The map lambda = f(w) of one layer of a model, in the layer's own time."""

    name: str
    time: str
    a: float
    b: float


class Model(Section, defer_build=True):
    layer: AnyLayer = Field(
        default_factory=StableSsm,
        description="The state-space layer of every block: a name, or a section {name, options}.",
        json_schema_extra=_or_a_name,
    )
    layers: list[AnyLayer] | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="For a model with different layers: one section per block, instead of `layer`.",
    )
    block: Literal["pre_norm", "post_norm", "bare"] = Field(
        "pre_norm",
        description="pre_norm: x + layer(norm(x)), then x + mlp(norm(x)), and a norm before the head. post_norm: "
        "norm(x + layer(x)), then norm(x + mlp(x)). bare: y = C act(h), the model of the StableSSM paper, without norm, "
        "residual, D, MLP and encoder; only for stable_ssm.",
    )
    n_layers: int = Field(1, ge=1, le=128, description="Number of blocks, each with one state-space layer.")
    d_model: int = Field(
        64,
        ge=1,
        le=8192,
        description="Number of features between the layers. A bare model uses it only as the width of the embedding of tokens.",
    )
    d_state: int = Field(
        64, ge=1, le=65_536, description="Number of eigenvalues of each stable_ssm layer. Other layers have their own option."
    )
    reparameterization: Reparameterization = Field(
        default_factory=Reparameterization,
        description="The map of every layer whose map can be chosen. Default: best for stable_ssm, native for other layers.",
    )
    eigenvalue_range: Annotated[tuple[float, float] | None, BeforeValidator(as_tuple)] = Field(
        None,
        description="Interval of the initial eigenvalues of stable_ssm, the same for every map. The logarithms of their "
        "distances to the boundary are evenly spaced. Default: (0.5, 0.99) in discrete, (-0.99, -0.2) in continuous time.",
    )
    activation: ActivationName = Field("tanh", description="The activation act that stable_ssm applies to its states.")
    mlp_expansion: int = Field(
        2,
        ge=0,
        le=16,
        description="Hidden width of the gated MLP, as a multiple of d_model. 0: no MLP. Default: 0 if `block` is bare.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability after each layer and each MLP.")

    @model_validator(mode="before")
    @classmethod
    def _defaults_by_layer(cls, data: Any) -> Any:
        """Fill in the defaults that depend on other fields: the native map, one block per listed layer, no MLP if bare."""
        if not isinstance(data, dict):
            return data
        if data.get("block") == "bare":
            data = {"mlp_expansion": 0} | data
        listed = data.get("layers")
        named = (
            [_name_of(one) for one in listed]
            if isinstance(listed, list) and listed
            else [_name_of(data.get("layer", "stable_ssm"))]
        )
        if isinstance(listed, list) and listed and "n_layers" not in data:
            data = data | {"n_layers": len(listed)}
        given = data.get("reparameterization", {})
        if not isinstance(given, dict):
            return data
        if set(named) != {"stable_ssm"}:
            return data | {"reparameterization": {"name": NATIVE, "time": None} | given}
        if given.get("name") == NATIVE:
            return data | {"reparameterization": given | {"name": StableSsm.native, "time": given.get("time") or "discrete"}}
        return data

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if self.layers is not None and self.n_layers != len(self.layers):
            raise not_allowed("n_layers", self.n_layers, f"{len(self.layers)}, the number of `layers`, or leave it out")
        if self.layers is not None and self.layer != StableSsm():
            raise not_allowed("layer", repr(self.layer.name), "leave it out, because `layers` lists every layer")
        sections = self.sections()
        for position, section in enumerate(sections):
            path = "layer" if self.layers is None else f"layers.{position}"
            try:
                section.check(self.d_model)
            except PydanticCustomError as error:
                context = error.context or {}
                raise not_allowed(f"{path}.{context['field']}", context["given"], context["allowed"]) from None
            self._check_map(section)
        if not any(isinstance(section, StableSsm) for section in sections):
            for field in ("d_state", "eigenvalue_range", "activation"):
                if (given := getattr(self, field)) != type(self).model_fields[field].default:
                    own = ", ".join(name for name in type(sections[0]).model_fields if name != "name") or "none"
                    raise not_allowed(field, given, f"only for stable_ssm; options of layer {sections[0].name!r}: {own}")
        elif self.name_of_map != NATIVE and all(self.map_of(section) is None for section in sections):
            raise not_allowed("reparameterization.name", self.name_of_map, "'native'")
        if sum(section.eigenvalues(self.d_model) for section in sections) > MAX_STATES:
            raise not_allowed("d_state", f"{self.d_state} in {self.n_layers} layers", f"n_layers * d_state <= {MAX_STATES:,}")
        return self

    @model_validator(mode="after")
    def _bare_has_only_layers(self) -> Self:
        if self.block != "bare":
            return self
        for section in self.sections():
            if not isinstance(section, StableSsm):
                allowed = f"pre_norm or post_norm with layer {section.name!r}; a bare model has only stable_ssm layers"
                raise not_allowed("block", "'bare'", allowed)
        for field in ("mlp_expansion", "dropout"):
            if given := getattr(self, field):
                raise not_allowed(field, given, "0 with block 'bare'")
        return self

    @property
    def name_of_map(self) -> str:
        return self.reparameterization.name

    def sections(self) -> list[LayerSection]:
        """One section per layer, in forward order. Options of stable_ssm that are null take the model's values."""
        of_model = {"d_state": self.d_state, "eigenvalue_range": self.eigenvalue_range, "activation": self.activation}

        def completed(section: LayerSection) -> LayerSection:
            if not isinstance(section, StableSsm):
                return section
            return section.model_copy(update={name: value for name, value in of_model.items() if getattr(section, name) is None})

        return [completed(section) for section in self.layers or [self.layer] * self.n_layers]

    def map_of(self, section: LayerSection) -> LayerMap | None:
        """The map of a layer of this model. None if the layer's eigenvalues are not a function of a weight."""
        rep = self.reparameterization
        time = (rep.time or "discrete") if isinstance(section, StableSsm) else section.time_of_map()
        if time is None:
            return None
        return LayerMap(section.native, time, 1.0, 0.5) if rep.name == NATIVE else LayerMap(rep.name, time, rep.a, rep.b)

    def widest(self) -> int:
        """The number of values per time step in the widest tensor that any layer computes."""
        return max(self.d_model, *(section.activations(self.d_model) for section in self.sections()))

    def _check_map(self, section: LayerSection) -> None:
        rep, map_ = self.reparameterization, self.map_of(section)
        if map_ is None:
            if rep.name != NATIVE and self.layers is None:
                why = f"'native', because layer {section.name!r} has no map that can be chosen"
                raise not_allowed("reparameterization.name", repr(rep.name), why)
            return
        if rep.time is not None and rep.time != map_.time:
            raise not_allowed("reparameterization.time", repr(rep.time), f"{map_.time!r}, or null, for layer {section.name!r}")
        if map_.time not in MAPS[map_.name].forms:
            able = ", ".join(name for name, known in MAPS.items() if map_.time in known.forms)
            raise not_allowed(
                "reparameterization.name",
                repr(map_.name),
                f"the maps in {map_.time} time, the time of layer {section.name!r}: {able}",
            )
        form = MAPS[map_.name].forms[map_.time]
        if map_.b < form.least_b:
            raise not_allowed("reparameterization.b", map_.b, f"b >= {form.least_b} for {map_.time} {map_.name!r}")
        reach = formulas(map_.name, map_.time, np, a=map_.a, b=map_.b).reachable
        if isinstance(section, StableSsm):
            low, high = section.eigenvalue_range or default_eigenvalue_range(map_.time)
            stable = (-1.0, 1.0) if map_.time == "discrete" else (-float("inf"), 0.0)
            if not (low <= high and stable[0] < low and high < stable[1]):
                raise not_allowed("eigenvalue_range", f"[{low}, {high}]", f"low <= high inside {stable} ({map_.time} time)")
            if not (reach.contains(low) and reach.contains(high)):
                raise not_allowed("eigenvalue_range", f"[{low}, {high}]", f"{map_.name!r} ({map_.time}) reaches only {reach}")
            return
        for value in section.initial_range(self.d_model) or ():
            if not reach.contains(value) and (rep.name != NATIVE or value > 0):
                allowed = f"a map that reaches {value:g}, where layer {section.name!r} starts; {map_.name!r} reaches only {reach}"
                if map_.name == "best" and map_.time == "continuous" and value < 0:
                    allowed += f" (with b <= {-1 / value:.3g} it would reach it)"
                raise not_allowed("reparameterization.name", repr(rep.name), allowed)


def _name_of(section: Any) -> Any:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", section)
    return name if isinstance(name, str) else "stable_ssm"
