"""The run configuration: one schema for the REST body, the CLI file, the stored run and the trainer.

Everything has a default but `task.name`. Unknown fields are refused. Limits are part of the schema, so the OpenAPI
document, the submission form and the error messages state the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from stablessm_core.maps import MAPS, default_eigenvalue_range, formulas, possible_pairs
from stablessm_core.section import Section
from stablessm_core.telemetry.detectors.registry import SETTINGS

MAX_STATES = 2**20  # n_layers * d_state: eigenvalues one run may own
MAX_PARAMETERS = 2**31
MAX_ACTIVATIONS = 2**33  # batch_size * length * max(d_model, d_state) * n_layers, numbers kept for backward

if TYPE_CHECKING:
    MapName = str
else:
    MapName = Literal[tuple(MAPS)]


def _refuse(field: str, given: object, allowed: str) -> PydanticCustomError:
    """Error of a rule that spans fields; `describe_errors` appends `field` to the section's path."""
    return PydanticCustomError(
        "not_allowed", "is {given}; allowed: {allowed}", {"field": field, "given": str(given), "allowed": allowed}
    )


def _tuple(value: Any) -> Any:
    # JSON has lists only; strict mode would refuse them for a tuple.
    return tuple(value) if isinstance(value, list) else value


def _clean_text(value: str) -> str:
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise ValueError("control characters are not allowed")
    return value


Text = Annotated[str, AfterValidator(_clean_text)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
Tag = Annotated[Text, Field(min_length=1, max_length=50)]
# one spelling per file: neither "..", "//" nor hidden files, so that what a worker lists can be compared with what is asked
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"
RelativePath = Annotated[Text, Field(min_length=1, max_length=300, pattern=FILE_PATTERN)]


class PolynomialMemory(Section):
    """Learn y_t = sum_s rho(s) x_{t-s} with rho decaying polynomially (paper, section 4.1 and appendix F.1)."""

    name: Literal["polynomial_memory"]
    kernel: Literal["paper", "authors"] = Field("paper", description="rho(t): paper 1/(t+1)^1.1, authors' code 1/(1+0.1 t)^1.1")
    length: int = Field(100, ge=1, le=131_072, description="Sequence length in steps.")


class Mnist(Section):
    """Classify MNIST digits read pixel by pixel: 784 steps of one grey value (IDX files in the data directory)."""

    name: Literal["mnist"]
    permuted: bool = Field(False, description="Shuffle the pixels by one fixed random permutation.")


class Digits(Section):
    """Classify scikit-learn's 8 x 8 digits read pixel by pixel: 64 steps of one grey value. Needs no download."""

    name: Literal["digits"]
    permuted: bool = Field(False, description="Shuffle the pixels by one fixed random permutation.")


class AssociativeRecall(Section):
    """Read key-value pairs, then recall the value of the queried key (the last token is scored)."""

    name: Literal["associative_recall"]
    length: int = Field(20, ge=2, le=131_072, multiple_of=2, description="Tokens of key-value pairs before the query.")
    vocabulary_size: int = Field(10, ge=6, le=10_000, description="Tokens, the two special ones included.")


class CharLm(Section):
    """Predict the next character of a text file in the data directory (plain, .gz or .xz; last 10 % is for evaluation)."""

    name: Literal["char_lm"]
    file: RelativePath = Field("tinyshakespeare/input.txt.xz", description="Path relative to the data directory.")
    length: int = Field(256, ge=1, le=131_072, description="Context length in characters.")


TASKS: dict[str, type[Section]] = {
    "polynomial_memory": PolynomialMemory,
    "mnist": Mnist,
    "digits": Digits,
    "associative_recall": AssociativeRecall,
    "char_lm": CharLm,
}
Task = Annotated[PolynomialMemory | Mnist | Digits | AssociativeRecall | CharLm, Field(discriminator="name")]


class Reparameterization(Section):
    """The map from trainable weight w to eigenvalue: lambda = f(w) (paper, table 5)."""

    name: MapName = Field("best", description="The map f.")
    time: Literal["continuous", "discrete"] = Field(
        "discrete", description="discrete: f(w) is the eigenvalue; continuous: exp(dt f(w)) with a trainable step dt."
    )
    a: float = Field(1.0, ge=1e-6, le=1e6, description="Only used by 'best'.")
    b: float = Field(0.5, ge=1e-6, le=1e6, description="Only used by 'best'; discrete time needs b >= 0.5 so that lambda >= -1.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        form = MAPS[self.name].forms.get(self.time)
        if form is None:
            raise _refuse("time", f"{self.time!r} with name {self.name!r}", "one of " + ", ".join(sorted(possible_pairs())))
        if self.b < form.least_b:
            allowed = f"b >= {form.least_b} for {self.time} {self.name!r}, so that lambda = {form.text} >= -1"
            raise _refuse("b", self.b, allowed)
        return self


class Model(Section):
    layer: Literal["stable_ssm"] = Field("stable_ssm", description="Real diagonal state-space layer, y = C act(h) + D x.")
    n_layers: int = Field(1, ge=1, le=128, description="Residual blocks, each with one state-space layer.")
    d_model: int = Field(64, ge=1, le=8192, description="Features between the layers.")
    d_state: int = Field(64, ge=1, le=65_536, description="Eigenvalues of each layer.")
    reparameterization: Reparameterization = Field(default_factory=Reparameterization)
    eigenvalue_range: Annotated[tuple[float, float] | None, BeforeValidator(_tuple)] = Field(
        None,
        description="Initial eigenvalues run over this interval, spaced so that log(distance to the boundary) is even; the "
        "same for every map. Default (0.5, 0.99) in discrete time, (-0.99, -0.2) in continuous time.",
    )
    activation: Literal["tanh", "gelu", "silu", "relu", "identity"] = Field("tanh", description="act, applied to the states.")
    mlp_expansion: int = Field(2, ge=0, le=16, description="Hidden width of the gated MLP over d_model; 0 leaves it out.")
    dropout: float = Field(0.0, ge=0, lt=1, description="After each layer and each MLP.")

    @model_validator(mode="after")
    def _eigenvalues_reachable(self) -> Self:
        rep = self.reparameterization
        low, high = self.eigenvalue_range or default_eigenvalue_range(rep.time)
        stable = (-1.0, 1.0) if rep.time == "discrete" else (-float("inf"), 0.0)
        if not (low <= high and stable[0] < low and high < stable[1]):
            raise _refuse("eigenvalue_range", f"[{low}, {high}]", f"low <= high inside {stable} ({rep.time} time)")
        reach = formulas(rep.name, rep.time, np, a=rep.a, b=rep.b).reachable
        if not (reach.contains(low) and reach.contains(high)):
            raise _refuse("eigenvalue_range", f"[{low}, {high}]", f"{rep.name!r} ({rep.time}) reaches {reach} only")
        if self.n_layers * self.d_state > MAX_STATES:
            raise _refuse("d_state", f"{self.d_state} in {self.n_layers} layers", f"n_layers * d_state <= {MAX_STATES:,}")
        return self


class Optimizer(Section):
    name: Literal["adamw"] = Field("adamw", description="The optimizer.")
    lr: float = Field(0.01, gt=0, le=1000.0, description="Learning rate after the warm-up.")
    recurrent_lr: float | None = Field(
        None, gt=0, le=1000.0, description="For the eigenvalue weights and step sizes; null means lr."
    )
    weight_decay: float = Field(0.01, ge=0, le=10.0, description="Decoupled weight decay of all but the recurrent parameters.")
    recurrent_weight_decay: float = Field(0.0, ge=0, le=10.0, description="For the eigenvalue weights and step sizes.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="After the warm-up; cosine and linear end at 0."
    )
    warmup_steps: int = Field(0, ge=0, le=10_000_000, description="Linear warm-up from 0 over this many steps.")
    grad_clip: float | None = Field(None, gt=0, le=1e9, description="Clip the global gradient norm to this; null never clips.")


class Train(Section):
    steps: int = Field(1000, ge=1, le=10_000_000, description="Training steps, numbered from 1.")
    batch_size: int = Field(128, ge=1, le=65_536, description="Sequences per step.")
    seed: int = Field(0, ge=0, lt=2**31, description="Fixes the initial weights and every batch.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where the worker has it, else CPU.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: autocast; eigenvalues and states stay float32."
    )
    scan_backend: Literal["auto", "torch", "triton", "reference"] = Field(
        "auto", description="auto: triton on CUDA if there is a C compiler, else torch; reference: the slow loop that tests use."
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
    max_rollbacks: int = Field(3, ge=0, le=100, description="Then the run ends as 'diverged'.")
    rollback_lr_factor: float = Field(0.5, gt=0, lt=1, description="Each rollback multiplies the learning rate by this.")


class Telemetry(Section):
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
        }
    )

    name: Name | None = Field(None, description="For people; null lets the server make one.")
    tags: list[Tag] = Field(default_factory=list, max_length=20, description="Labels to filter and group runs by.")
    task: Task = Field(description="What is learned, and from which data.")
    model: Model = Field(default_factory=Model)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    train: Train = Field(default_factory=Train)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    alerts: Alerts = Field(default_factory=Alerts)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        model, hidden = self.model, self.model.d_model * self.model.mlp_expansion
        parameters = model.n_layers * (2 * model.d_model * model.d_state + 3 * model.d_model * hidden)
        if parameters > MAX_PARAMETERS:
            raise _refuse(
                "model.d_model", f"{model.d_model} (about {parameters:,} parameters)", f"at most {MAX_PARAMETERS:,} parameters"
            )
        activations = (
            self.train.batch_size * sequence_length(self.task) * max(model.d_model, model.d_state, hidden) * model.n_layers
        )
        if activations > MAX_ACTIVATIONS:
            raise _refuse(
                "train.batch_size",
                f"{self.train.batch_size} ({activations:,} activations)",
                f"batch_size * length * width * n_layers <= {MAX_ACTIVATIONS:,}",
            )
        return self


def sequence_length(task: PolynomialMemory | Mnist | Digits | AssociativeRecall | CharLm) -> int:
    """Steps of one sequence of the task."""
    if isinstance(task, Mnist):
        return 784
    if isinstance(task, Digits):
        return 64
    if isinstance(task, AssociativeRecall):
        return task.length + 2
    return task.length


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


def describe_items(items: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str | None]]:
    """describe_errors for pydantic's list of error items."""
    problems: list[tuple[str, str, str | None]] = []
    for item in items:
        path = [str(p) for p in item["loc"]]
        if len(path) > 1 and path[0] == "task" and path[1] in TASKS:
            path.pop(1)  # pydantic names the union's branch, the user's JSON does not
        ctx = item.get("ctx", {})
        if "field" in ctx:
            path.append(str(ctx["field"]))
        allowed = ctx.get("allowed") or ctx.get("expected") or ctx.get("expected_tags")
        if item["type"] == "extra_forbidden":
            allowed = _fields_beside(item["loc"])
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


def _fields_beside(loc: Sequence[int | str]) -> str | None:
    """Names of the section in which RunConfig has no field `loc[-1]`; None where the path is not one of RunConfig."""
    section: Any = RunConfig
    for key in loc[:-1]:
        if key == "task":
            continue
        fields = getattr(section, "model_fields", {})
        section = TASKS.get(str(key)) or (fields[key].annotation if key in fields else None)
    return ", ".join(section.model_fields) if hasattr(section, "model_fields") else None


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
            at = at[name]
            if not isinstance(at, dict):
                raise ConfigError([(path, f"{name!r} is a value and has no fields", "a dotted path such as optimizer.lr")])
        at[last] = copy.deepcopy(value)
    return changed
