"""The run configuration: one schema for the REST body, the CLI file, the stored run and the trainer.

Everything has a default but `task.name`. Unknown fields are refused. Limits are part of the schema, so the OpenAPI
document, the submission form and the error messages state the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from stablessm_core.layers.registry import LAYERS
from stablessm_core.layers.section import LayerSection
from stablessm_core.layers.stable_ssm.section import ActivationName, StableSsm
from stablessm_core.maps import MAPS, default_eigenvalue_range, formulas, possible_pairs
from stablessm_core.section import Section, Text, as_tuple, not_allowed
from stablessm_core.tasks.registry import REFUSED, TASKS
from stablessm_core.tasks.section import TaskSection
from stablessm_core.telemetry.detectors.registry import SETTINGS

MAX_STATES = 2**20  # eigenvalues one run may own
MAX_PARAMETERS = 2**31
MAX_ACTIVATIONS = 2**33  # batch_size * length * the widest of each layer, summed: numbers kept for backward
NATIVE = "native"

if TYPE_CHECKING:
    MapName = str
else:
    MapName = Literal[(*MAPS, NATIVE)]


Name = Annotated[Text, Field(min_length=1, max_length=200)]
Tag = Annotated[Text, Field(min_length=1, max_length=50)]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _short(section: LayerSection) -> Any:
    """As short as it can be written: "stable_ssm" where nothing is said beside the name."""
    return "stable_ssm" if section == StableSsm() else section.model_dump(mode="json")


def _or_a_name(schema: dict[str, Any]) -> None:
    told = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    parts = {key: schema.pop(key) for key in list(schema)}
    schema.update(anyOf=[{"enum": list(LAYERS), "type": "string"}, parts], **told)


if TYPE_CHECKING:
    AnyTask = TaskSection
    AnyLayer = LayerSection
else:
    _Sections = Annotated[Union[tuple(LAYERS.values())], Field(discriminator="name")] if len(LAYERS) > 1 else StableSsm  # noqa: UP007
    AnyLayer = Annotated[_Sections, BeforeValidator(_named), PlainSerializer(_short)]
    AnyTask = Annotated[Union[tuple(TASKS.values())], Field(discriminator="name")]  # noqa: UP007 - made from a tuple


# defer_build, here and below: a section is built once, inside RunConfig, and not by itself as well
class Reparameterization(Section, defer_build=True):
    """The map from trainable weight w to eigenvalue: lambda = f(w) (paper, table 5)."""

    name: MapName = Field("best", description="The map f; native: the one that each layer was published with.")
    time: Literal["continuous", "discrete"] | None = Field(
        "discrete",
        description="discrete: f(w) is the eigenvalue; continuous: exp(dt f(w)) with a trainable step dt. null: as the "
        "layer has it; only stable_ssm has both.",
    )
    a: float = Field(1.0, ge=1e-6, le=1e6, description="Only used by 'best'.")
    b: float = Field(0.5, ge=1e-6, le=1e6, description="Only used by 'best'; discrete time needs b >= 0.5 so that lambda >= -1.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.time is None or self.name == NATIVE:
            return self  # each layer says what it is; `Model` looks
        form = MAPS[self.name].forms.get(self.time)
        if form is None:
            raise not_allowed("time", f"{self.time!r} with name {self.name!r}", "one of " + ", ".join(sorted(possible_pairs())))
        if self.b < form.least_b:
            allowed = f"b >= {form.least_b} for {self.time} {self.name!r}, so that lambda = {form.text} >= -1"
            raise not_allowed("b", self.b, allowed)
        return self


@dataclass(frozen=True)
class LayerMap:
    """The map that one layer of a model has: lambda = f(w) in the layer's own time."""

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
        description="A model of several kinds of layers: one section per block, instead of `layer`.",
    )
    n_layers: int = Field(1, ge=1, le=128, description="Residual blocks, each with one state-space layer.")
    d_model: int = Field(64, ge=1, le=8192, description="Features between the layers.")
    d_state: int = Field(64, ge=1, le=65_536, description="Eigenvalues of each stable_ssm layer; others have their own option.")
    reparameterization: Reparameterization = Field(
        default_factory=Reparameterization,
        description="Of every layer that can have another map; default native but for stable_ssm.",
    )
    eigenvalue_range: Annotated[tuple[float, float] | None, BeforeValidator(as_tuple)] = Field(
        None,
        description="Initial eigenvalues run over this interval, spaced so that log(distance to the boundary) is even; the "
        "same for every map. Default (0.5, 0.99) in discrete time, (-0.99, -0.2) in continuous time. Of stable_ssm.",
    )
    activation: ActivationName = Field("tanh", description="act, applied to the states of stable_ssm.")
    mlp_expansion: int = Field(2, ge=0, le=16, description="Hidden width of the gated MLP over d_model; 0 leaves it out.")
    dropout: float = Field(0.0, ge=0, lt=1, description="After each layer and each MLP.")

    @model_validator(mode="before")
    @classmethod
    def _by_layer(cls, data: Any) -> Any:
        """What is not said depends on the layer: its own map, and as many blocks as are listed."""
        if not isinstance(data, dict):
            return data
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
    def _fits(self) -> Self:
        if self.layers is not None and self.n_layers != len(self.layers):
            raise not_allowed("n_layers", self.n_layers, f"{len(self.layers)}, as `layers` lists, or leave it out")
        if self.layers is not None and self.layer != StableSsm():
            raise not_allowed("layer", repr(self.layer.name), "leave it out where `layers` lists every layer")
        sections = self.sections()
        for place, section in enumerate(sections):
            where = "layer" if self.layers is None else f"layers.{place}"
            try:
                section.check(self.d_model)
            except PydanticCustomError as error:
                context = error.context or {}
                raise not_allowed(f"{where}.{context['field']}", context["given"], context["allowed"]) from None
            self._map_fits(section)
        if not any(isinstance(section, StableSsm) for section in sections):
            for field in ("d_state", "eigenvalue_range", "activation"):
                if (given := getattr(self, field)) != type(self).model_fields[field].default:
                    own = ", ".join(name for name in type(sections[0]).model_fields if name != "name") or "none"
                    raise not_allowed(field, given, f"only of stable_ssm; options of layer {sections[0].name!r}: {own}")
        elif self.name_of_map != NATIVE and all(self.map_of(section) is None for section in sections):
            raise not_allowed("reparameterization.name", self.name_of_map, "'native'")
        if sum(section.eigenvalues(self.d_model) for section in sections) > MAX_STATES:
            raise not_allowed("d_state", f"{self.d_state} in {self.n_layers} layers", f"n_layers * d_state <= {MAX_STATES:,}")
        return self

    @property
    def name_of_map(self) -> str:
        return self.reparameterization.name

    def sections(self) -> list[LayerSection]:
        """One section per layer, in forward order, with nothing left open."""
        said = {"d_state": self.d_state, "eigenvalue_range": self.eigenvalue_range, "activation": self.activation}

        def whole(section: LayerSection) -> LayerSection:
            if not isinstance(section, StableSsm):
                return section
            return section.model_copy(update={name: value for name, value in said.items() if getattr(section, name) is None})

        return [whole(section) for section in self.layers or [self.layer] * self.n_layers]

    def map_of(self, section: LayerSection) -> LayerMap | None:
        """The map of a layer of this model; None where no map leads from a weight to its eigenvalues."""
        rep = self.reparameterization
        time = (rep.time or "discrete") if isinstance(section, StableSsm) else section.time_of_map()
        if time is None:
            return None
        return LayerMap(section.native, time, 1.0, 0.5) if rep.name == NATIVE else LayerMap(rep.name, time, rep.a, rep.b)

    def widest(self) -> int:
        """Numbers per step of a sequence that the widest intermediate of the widest layer holds."""
        return max(self.d_model, *(section.activations(self.d_model) for section in self.sections()))

    def _map_fits(self, section: LayerSection) -> None:
        rep, map_ = self.reparameterization, self.map_of(section)
        if map_ is None:
            if rep.name != NATIVE and self.layers is None:
                why = f"'native': the eigenvalues of layer {section.name!r} are no free function of a weight"
                raise not_allowed("reparameterization.name", repr(rep.name), why)
            return
        if rep.time is not None and rep.time != map_.time:
            raise not_allowed("reparameterization.time", repr(rep.time), f"{map_.time!r}, or null, for layer {section.name!r}")
        if map_.time not in MAPS[map_.name].forms:
            able = ", ".join(name for name, known in MAPS.items() if map_.time in known.forms)
            raise not_allowed(
                "reparameterization.name", repr(map_.name), f"in {map_.time} time, as layer {section.name!r} has: {able}"
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
                raise not_allowed("eigenvalue_range", f"[{low}, {high}]", f"{map_.name!r} ({map_.time}) reaches {reach} only")
            return
        for value in section.initial_range(self.d_model) or ():
            if rep.name != NATIVE and not reach.contains(value):
                allowed = f"a map that reaches {value:g}, where layer {section.name!r} starts; {map_.name!r} reaches {reach} only"
                if map_.name == "best" and map_.time == "continuous" and value < 0:
                    allowed += f", with b <= {-1 / value:.3g} it would"
                raise not_allowed("reparameterization.name", repr(map_.name), allowed)


def _name_of(section: Any) -> Any:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", section)
    return name if isinstance(name, str) else "stable_ssm"


class Optimizer(Section, defer_build=True):
    name: Literal["adamw", "sgd"] = Field(
        "adamw", description="adamw: each weight's step is about lr, however large its gradient; sgd: lr times the gradient."
    )
    lr: float = Field(0.01, gt=0, le=1000.0, description="Learning rate after the warm-up.")
    recurrent_lr: float | None = Field(
        None, ge=0, le=1000.0, description="For the eigenvalue weights and step sizes; null means lr, 0 freezes them."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Only used by sgd: velocity = momentum * velocity + gradient.")
    nesterov: bool = Field(False, description="Only used by sgd: look ahead along the velocity; needs momentum > 0.")
    weight_decay: float = Field(
        0.01, ge=0, le=10.0, description="Of all but the recurrent parameters; decoupled from the gradient for sgd as for adamw."
    )
    recurrent_weight_decay: float = Field(0.0, ge=0, le=10.0, description="For the eigenvalue weights and step sizes.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="After the warm-up; cosine and linear end at 0."
    )
    warmup_steps: int = Field(0, ge=0, le=10_000_000, description="Linear warm-up from 0 over this many steps.")
    grad_clip: float | None = Field(None, gt=0, le=1e9, description="Clip the global gradient norm to this; null never clips.")

    @model_validator(mode="after")
    def _looks_ahead_along_something(self) -> Self:
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise not_allowed("nesterov", "true with momentum 0", "momentum > 0 with nesterov")
        return self


class Train(Section, defer_build=True):
    steps: int = Field(1000, ge=1, le=10_000_000, description="Training steps, numbered from 1.")
    batch_size: int = Field(128, ge=1, le=65_536, description="Sequences per step.")
    seed: int = Field(0, ge=0, lt=2**31, description="Fixes the initial weights and every batch.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where the worker has it, else CPU.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: autocast; eigenvalues and states stay float32."
    )
    scan_backend: Literal["auto", "cpu", "torch", "triton", "reference"] = Field(
        "auto",
        description="auto: on CUDA triton if there is a C compiler, on a CPU cpu (compiled kernels) if they were built, "
        "else torch; reference: the slow loop that tests use.",
    )
    fused: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Layers that keep no states for the backward pass but make them again: less memory. auto: where measured "
        "faster on the device at hand; the run's environment says what was chosen and why.",
    )
    execution: Literal["auto", "eager", "compile", "graph"] = Field(
        "auto",
        description="How steps are launched. auto: on CUDA as one CUDA graph, compiled first where the run is long enough; "
        "elsewhere eager. What cannot be had falls back, and the run's environment says why.",
    )
    eval_every: int = Field(200, ge=0, le=10_000_000, description="Evaluate after each N-th step; 0: at the end only.")
    checkpoint_every: int = Field(500, ge=0, le=10_000_000, description="Checkpoint after each N-th step; 0: at the end only.")
    on_nonfinite: Literal["stop", "continue", "rollback"] = Field(
        "stop", description="stop: end as 'diverged'; continue: train on; rollback: last checkpoint with a lower learning rate."
    )
    on_warning: Literal["continue", "stop", "rollback", "lower_lr"] = Field(
        "continue",
        description="Acts before numbers are lost, at the critical alerts overflow_near and, with sgd, training_explodes. "
        "stop: end there, as 'cancelled'; rollback: as with on_nonfinite; lower_lr: lower learning rate from that step on.",
    )
    max_rollbacks: int = Field(
        3, ge=0, le=100, description="Rollbacks and lowerings in all; then lost numbers end the run and warnings change nothing."
    )
    rollback_lr_factor: float = Field(
        0.5, gt=0, lt=1, description="Each rollback or lowering multiplies the learning rate by this."
    )


class Telemetry(Section, defer_build=True):
    every: int = Field(1, ge=1, le=1_000_000, description="Record each N-th step.")
    all_eigenvalues: bool = Field(False, description="Record every eigenvalue also in layers of more than 4,096.")


class Alerts(*SETTINGS):  # type: ignore[misc]  # each alert brings its own setting
    """Thresholds; null switches that alert off. Non-finite values always raise an alert."""


class RunConfig(Section):
    """One training run. `name` is for people; `tags` group runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task": {"name": "polynomial_memory"},
                    "model": {"reparameterization": {"name": "best"}},
                    "train": {"steps": 500},
                }
            ]
        },
    )

    name: Name | None = Field(None, description="For people; null lets the server make one.")
    tags: list[Tag] = Field(default_factory=list, max_length=20, description="Labels to filter and group runs by.")
    task: AnyTask = Field(description="What is learned, and from which data.")
    model: Model = Field(default_factory=Model)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    train: Train = Field(default_factory=Train)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    alerts: Alerts = Field(default_factory=Alerts)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        model, hidden = self.model, self.model.d_model * self.model.mlp_expansion
        sections = model.sections()
        parameters = sum(section.parameters(model.d_model) + 3 * model.d_model * hidden for section in sections)
        if parameters > MAX_PARAMETERS:
            raise not_allowed(
                "model.d_model", f"{model.d_model} (about {parameters:,} parameters)", f"at most {MAX_PARAMETERS:,} parameters"
            )
        heeded = [self.alerts.max_overflow_budget] + [self.alerts.max_loss_over_best] * (self.optimizer.name == "sgd")
        if self.train.on_warning != "continue" and heeded == [None] * len(heeded):
            raise not_allowed("train.on_warning", f"{self.train.on_warning!r} with its alerts switched off", "'continue'")
        per_step = sum(max(model.d_model, section.activations(model.d_model), hidden) for section in sections)
        activations = self.train.batch_size * self.task.sequence_length() * per_step
        if activations > MAX_ACTIVATIONS:
            raise not_allowed(
                "train.batch_size",
                f"{self.train.batch_size} ({activations:,} activations)",
                f"batch_size * length * width * n_layers <= {MAX_ACTIVATIONS:,}",
            )
        return self


class ConfigError(ValueError):
    """A configuration that is refused: `problems` lists (field, message, allowed or None), the first one in the text."""

    def __init__(self, problems: list[tuple[str, str, str | None]]) -> None:
        self.problems = problems
        field, message, _ = problems[0]
        super().__init__(f"{field}: {message}" if field else message)


def parse_config(data: Any) -> RunConfig:
    """RunConfig from decoded JSON; raises ConfigError that names the field, what was given and what is allowed."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe_errors(error)) from None


def describe_errors(error: ValidationError) -> list[tuple[str, str, str | None]]:
    """(dotted field, message, allowed) of each problem; never echoes the input as JSON (NaN would break the answer)."""
    return describe_items(error.errors(include_url=False))


def describe_items(items: Sequence[Mapping[str, Any]], model: Any = RunConfig) -> list[tuple[str, str, str | None]]:
    """describe_errors for pydantic's list of error items; `model`: what was to be read, for the names of its fields."""
    problems: list[tuple[str, str, str | None]] = []
    for item in items:
        path = [str(p) for p in item["loc"]]
        if str(item["type"]).startswith("union_tag") and path[:1] == ["task"]:
            problems.append(_no_such_task(item.get("ctx", {}).get("tag")))
            continue
        if str(item["type"]).startswith("union_tag"):
            problems.append(_no_such_layer(".".join(_without_branches(path)), item.get("ctx", {})))
            continue
        if len(path) > 1 and path[0] == "task" and path[1] in TASKS:
            path.pop(1)  # pydantic names the union's branch, the user's JSON does not
        path = _without_branches(path)
        ctx = item.get("ctx", {})
        if "field" in ctx:
            path.append(str(ctx["field"]))
        allowed = ctx.get("allowed") or ctx.get("expected") or ctx.get("expected_tags")
        if item["type"] == "extra_forbidden":
            allowed = _fields_beside(item["loc"], model)
        if allowed is None:
            signs = {
                "ge": ">=",
                "gt": ">",
                "le": "<=",
                "lt": "<",
                "max_length": "length <=",
                "min_length": "length >=",
                "multiple_of": "multiple of",
                "pattern": "matches",
            }
            allowed = " and ".join(f"{signs[k]} {v}" for k, v in ctx.items() if k in signs) or None
        message = item["msg"]
        if item["type"] not in ("not_allowed", "missing", "extra_forbidden") and isinstance(
            item.get("input"), str | int | float | bool
        ):
            message += f" (given: {repr(item['input'])[:100]})"
        problems.append((".".join(path), message, str(allowed) if allowed is not None else None))
    return problems


def _no_such_task(name: str | None) -> tuple[str, str, str]:
    allowed = ", ".join(TASKS)
    if name is None:
        return "task.name", "Field required", allowed
    why = f" ({REFUSED[name]})" if name in REFUSED else ""
    return "task.name", f"is {name[:100]!r}, which is not installed here{why}; allowed: {allowed}", allowed


def _no_such_layer(field: str, context: Mapping[str, Any]) -> tuple[str, str, str]:
    allowed, name = str(context.get("expected_tags", ", ".join(LAYERS))).replace("'", ""), context.get("tag")
    return f"{field}.name", "Field required" if name is None else f"is {name[:100]!r}; allowed: {allowed}", allowed


def _without_branches(path: list[str]) -> list[str]:
    """The path without the union's branches that pydantic names after `layer`, or after a place in `layers`."""
    kept: list[str] = []
    for part in path:
        of_layer = kept[-1:] in (["layer"], ["inner"]) or kept[-2:-1] == ["layers"]
        if not (part in LAYERS and of_layer):
            kept.append(part)
    return kept


def _fields_beside(loc: Sequence[int | str], model: Any) -> str | None:
    """Names of the section of the model that has no field `loc[-1]`; None where the path is not one of the model."""
    sections = _sections(model)
    for key in map(str, loc[:-1]):
        inside = [part for section in sections if key in section.model_fields for part in _sections(_type(section, key))]
        # of the tasks pydantic names the one that was chosen, the user's JSON does not
        sections = inside or [section for section in sections if section in (TASKS.get(key), LAYERS.get(key))] or sections
    return ", ".join(dict.fromkeys(name for section in sections for name in section.model_fields)) or None


def _type(section: type[BaseModel], field: str) -> Any:
    return section.model_fields[field].annotation


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation allows: itself, or the parts of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _sections(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [section for part in get_args(annotation) for section in _sections(part)]
    return []


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a decoded configuration with values at dotted paths such as "optimizer.lr"; raises ConfigError for a bad path."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    for path, value in settings.items():
        *sections, last = path.split(".")
        if not all((*sections, last)) or len(path) > 200:
            raise ConfigError([(path[:200], "is no path of the configuration", "a dotted path such as optimizer.lr")])
        at = changed
        for name in sections:
            if at.get(name) is None:
                at[name] = {}
            elif name == "layer" and isinstance(at[name], str):
                at[name] = {"name": at[name]}  # the short way to write it
            at = at[name]
            if not isinstance(at, dict):
                raise ConfigError([(path, f"{name!r} is a value and has no fields", "a dotted path such as optimizer.lr")])
        at[last] = copy.deepcopy(value)
    return changed
