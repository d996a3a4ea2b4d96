"""The findings of an autopsy, as workers store them, archives hold them, the API returns them and the verdict reads them.

In the database and in JSON, numbers that are not finite are strings (stablessm_core.telemetry.nonfinite). These schemas read both
forms, so the verdict computes with numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

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
Change = Literal[
    "unchanged", "recurrence_frozen", "batch_left_out", "tenth_of_rate", "other_map", "scaled_norm", "batches_scaled"
]


class Part(BaseModel):
    """Base class of these schemas. Fields of newer versions are dropped."""

    model_config = ConfigDict(strict=True, ser_json_inf_nan="strings")


class Batch(Part):
    """The batch of the step. The largest magnitudes are null if the batch has no such numbers, as with tokens."""

    largest_input: Number | None
    largest_target: Number | None
    usual_input: Number | None = Field(description="Median of `largest_input` over steps of this run.")
    usual_target: Number | None
    nonfinite_input: Count
    nonfinite_target: Count
    nonfinite: Count


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
    """The gradient of the step at which the trouble began, compared with the loss itself, in float64."""

    step: Step
    norm: Number = Field(description="Norm of the gradient that the backward pass gave.")
    slope: Number = Field(description="Change of the loss per distance along this gradient. A right gradient has this norm.")
    agrees: bool | None = Field(description="False if the norm is at least 10 times the slope.")


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
    """The first step that shows the trouble. Counterfactuals start before it."""

    step: Step
    kind: Literal["crossing", "loss", "gradient", "batch", "fatal"]


class Counterfactual(Part):
    """The run from its last state before the trouble, with one change."""

    change: Change
    settings: Annotated[dict[Name, Setting], Field(max_length=50)]
    from_step: Step
    lives: bool | None = Field(description="null: not tried; `reason` says why.")
    step: Step | None = Field(description="The step at which it died, or the last step that it trained.")
    until: Step | None = Field(description="The step up to which it was meant to train.")
    reason: Sentence | None
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
    gradient: Gradient | None = Field(None, description="null if no gradient was far above usual.")
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
