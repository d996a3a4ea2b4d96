"""The findings of an autopsy, as workers store them, archives hold them, the API returns them and the verdict reads them.

In the database and in JSON, numbers that are not finite are strings (stablessm_core.telemetry.nonfinite). These schemas read both
forms, so the verdict computes with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from stablessm_core.autopsy.changes import CHANGES
from stablessm_core.autopsy.words import KINDS
from stablessm_core.telemetry.nonfinite import NONFINITE, Spelling, json_safe

MOST_STEP = 10_000_000  # the largest step that a configuration allows
MOST_MODULES = 20_000
MOST_POINTS = 10_000  # steps of a counterfactual
MOST_ROWS = 256
MOST_WIDTH = 8192


def _read_spelling(value: object) -> object:
    return float(value) if isinstance(value, str) and value in NONFINITE else value


Number = Annotated[
    float,
    BeforeValidator(_read_spelling),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NONFINITE), "type": "string"}]}),
]
Step = Annotated[int, Field(ge=0, le=MOST_STEP)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(max_length=300)]
Sentence = Annotated[str, Field(max_length=2000)]
Setting = bool | int | float | Name | None
Pass = Literal["forward", "loss", "backward", "update"]


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    """A check that refuses other names."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"it is {name!r}; allowed: {', '.join(names)}")
        return name

    return check


Change = Annotated[str, AfterValidator(_one_of(CHANGES)), WithJsonSchema({"enum": list(CHANGES), "type": "string"})]
TroubleKind = Annotated[str, AfterValidator(_one_of(KINDS)), WithJsonSchema({"enum": list(KINDS), "type": "string"})]


class Part(BaseModel):
    """Base class of these schemas. Fields of newer versions are dropped."""

    model_config = ConfigDict(strict=True, ser_json_inf_nan="strings")


class Classes(Part):
    """The classes in the target of a batch. smallest, largest: null if every target is ignored."""

    smallest: int | None
    largest: int | None
    ignored: Count = Field(description="How many targets are not scored.")
    count: Count = Field(description="How many targets there are.")
    of: Count = Field(description="How many classes the model knows: 0 to `of` - 1.")


class Batch(Part):
    """The batch of the step. The largest magnitudes are null if the batch has no such numbers, as with tokens."""

    largest_input: Number | None
    largest_target: Number | None
    usual_input: Number | None = Field(description="Median of `largest_input` over steps of this run.")
    usual_target: Number | None
    nonfinite_input: Count
    nonfinite_target: Count
    nonfinite: Count
    classes: Classes | None = Field(None, description="null if the target is no class.")


Numbers = Annotated[list[Number], Field(max_length=MOST_ROWS)]


class ReplayedLayer(Part):
    """The recorded values of one layer: for each kind of value, one list per step with one number per eigenvalue."""

    layer: Index
    recorded: dict[Name, Annotated[list[Annotated[list[Number], Field(max_length=MOST_WIDTH)]], Field(max_length=MOST_ROWS)]]


class Replayed(Part):
    """The rows of the replayed steps, as the recorder would have written them. If a layer has fewer rows than there are steps,
    they belong to the last steps."""

    steps: Annotated[list[Step], Field(max_length=MOST_ROWS)]
    scalars: dict[Name, Numbers]
    layers: Annotated[list[ReplayedLayer], Field(max_length=1000)]


class Gradient(Part):
    """The gradient of a step of the trouble, compared with the loss itself in float64, and with the recorded gradient."""

    step: Step
    norm: Number = Field(description="Norm of the gradient that the backward pass gave in float64.")
    recorded: Number | None = Field(None, description="Norm that the run recorded.")
    repeated: Number | None = Field(None, description="Norm in the run's precision, operation by operation.")
    slope: Number | None = Field(
        description="Change of the loss per distance along this gradient. A right gradient has this norm. null: not converged."
    )
    converged: bool | None = Field(None, description="Whether the slopes over three neighbouring distances agree.")
    agrees: bool | None = Field(description="Whether norm and slope are equal. null: not known.")
    differs: Literal["kernels", "precision", "training_mode"] | None = Field(
        None, description="Where the recorded norm and the norm in float64 part."
    )


class Onset(Part):
    """The step that first shows the trouble, compared with the step before it."""

    step: Step
    loss: Number
    loss_before: Number | None
    loss_again: Number = Field(description="The loss of the same outputs, asked a second time.")
    output: Number = Field(description="Largest magnitude of the output of the network.")
    output_before: Number | None
    yardstick: Number | None = Field(description="Squared error or cross-entropy of the same outputs, computed in float64.")
    yardstick_before: Number | None
    batch: Batch


class LayerForm(Part):
    """Whether a layer computes its recorded form with the weights of the step."""

    layer: Index
    agrees: bool | None
    error: Number | None = Field(description="Largest error of an eigenvalue, as a share of it, or of 1 if it is smaller.")
    reason: Sentence | None = Field(description="Why the layer could not be probed.")


class State(Part):
    """The eigenvalue of a layer with the largest state of the step, over batch and time."""

    layer: Index
    eigenvalue: Index
    largest: Number


class FirstNonfinite(Part):
    """The first operation, in the order of computation, whose result is not finite although its inputs are finite."""

    step: Step | None = Field(None, description="The step before, if its update already made the weights not finite.")
    pass_: Pass = Field(alias="pass")
    operation: Name
    module: Name
    tensor: Name
    index: Annotated[list[Index], Field(max_length=20)] = Field(description="Position of its first number that is not finite.")
    count: Count = Field(description="How many numbers of the result are not finite.")
    value: Spelling
    dtype: Name | None = Field(None, description='Type of the result, such as "float32".')
    inputs: Annotated[list[Name], Field(max_length=20)] | None = Field(None, description="Types of the inputs.")
    largest_input: Number | None = Field(description="Largest magnitude of the inputs of the operation.")
    largest_before: Number | None = Field(description="Largest finite magnitude that was computed before.")
    layer: Index | None
    eigenvalue: Index | None


class Instruments(Part):
    """The step with instruments, operation by operation. It agrees with the replayed step up to rounding."""

    loss: Number | None
    agrees: bool = Field(description="Whether its loss agrees with the replayed loss.")
    finite: bool
    operations: Count = Field(description="Number of operations that were watched.")


class Module(Part):
    """The output of one module, in order of computation."""

    module: Name
    pass_: Pass = Field(alias="pass")
    largest: Number | None
    largest_float64: Number | None
    nonfinite: Count


class Float64(Part):
    """The same step in float64."""

    finite: bool
    loss: Number | None
    largest: Number | None
    narrow: Annotated[list[Name], Field(max_length=1000)] = Field(description="Operations that did not compute in float64.")
    states: Annotated[list[State], Field(max_length=1000)] | None = None
    first_nonfinite: FirstNonfinite | None


class Trouble(Part):
    """The step in which the trouble begins. Counterfactuals start before it."""

    step: Step
    kind: TroubleKind
    shown: Step | None = Field(None, description="The first recorded step that shows it. null: `step`.")


class Counterfactual(Part):
    """The run from its last state before the trouble, with one change."""

    change: Change
    settings: Annotated[dict[Name, Setting], Field(max_length=50)]
    from_step: Step
    lives: bool | None = Field(description="null: not tried; `reason` says why.")
    step: Step | None = Field(description="The step at which it died, or the last step that it trained.")
    until: Step | None = Field(description="The step up to which it was meant to train.")
    reason: Sentence | None
    comparable: bool | None = Field(
        None, description="False if the trials did not repeat this run, so that nothing follows from them."
    )
    steps: Annotated[list[Step], Field(max_length=MOST_POINTS)]
    loss: Annotated[list[Number], Field(max_length=MOST_POINTS)]

    @model_validator(mode="after")
    def _check_curve(self) -> Counterfactual:
        if len(self.steps) != len(self.loss):
            raise ValueError(f"loss has {len(self.loss)} values; allowed: {len(self.steps)}, one for each of `steps`")
        return self


class Findings(Part):
    """What an autopsy found. If `refused` is not null, all fields after it are null."""

    step: Step | None = Field(None, description="The step that was repeated with instruments.")
    from_step: Step | None = Field(None, description="The step after which the replay began; 0: the initial weights.")
    bits_equal: bool | None = Field(None, description="True if the replayed losses and gradients equal the recorded ones.")
    refused: Sentence | None = Field(None, description="Why the autopsy gives no result.")
    seconds: Number | None = Field(None, description="How long it took.")
    fatal: bool | None = Field(None, description="True if this step made a number that is not finite.")
    loss: Number | None = Field(None, description="The loss of this step.")
    batch: Batch | None = None
    replayed: Replayed | None = Field(None, description="null if every step was recorded.")
    onset: Onset | None = None
    gradient: Gradient | None = None
    form: Annotated[list[LayerForm], Field(max_length=1000)] | None = None
    hidden_state: Sentence | None = Field(None, description="The task keeps a hidden state, so trials may not repeat the run.")
    first_nonfinite: FirstNonfinite | None = None
    instruments: Instruments | None = None
    modules: Annotated[list[Module], Field(max_length=MOST_MODULES)] | None = None
    float64: Float64 | None = None
    trouble: Trouble | None = None
    counterfactuals: Annotated[list[Counterfactual], Field(max_length=50)] | None = None
    evidence_changed: bool | None = None
    notes: Annotated[list[Sentence], Field(max_length=100)] | None = Field(
        None, description="Sentences about parts of the autopsy that were not possible."
    )


class StoredFindings(Findings):
    """Findings that are complete: an autopsy was refused, or it repeated a step bit for bit."""

    @model_validator(mode="after")
    def _check_complete(self) -> StoredFindings:
        if self.refused is None and (self.step is None or not self.bits_equal or self.batch is None or self.modules is None):
            raise ValueError("findings without `refused` need step, bits_equal true, batch and modules")
        return self


def check_findings(found: Mapping[str, Any]) -> dict[str, Any]:
    """The findings as they are stored. Raises pydantic's ValidationError."""
    return json_safe(StoredFindings.model_validate(dict(found)).model_dump(by_alias=True))  # type: ignore[no-any-return]


def read_findings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored findings with numbers for the strings of numbers that are not finite, as the verdict reads them."""
    return StoredFindings.model_validate(dict(stored)).model_dump(by_alias=True)
