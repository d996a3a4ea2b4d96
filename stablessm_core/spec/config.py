"""The run configuration: one schema for the REST body, the CLI file, the stored run and the trainer.

Every field except `task.name` has a default. Unknown fields are refused. Limits are part of the schema, so the OpenAPI document,
the submission form and the error messages state the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

from pydantic import ConfigDict, Field, ValidationError, create_model, model_validator

from stablessm_core.spec.alert_rules import RuleList
from stablessm_core.spec.errors import ConfigError, describe_errors
from stablessm_core.spec.model import Model
from stablessm_core.spec.section import Section, Text, not_allowed
from stablessm_core.spec.task import TaskSection
from stablessm_core.spec.tasks import TASKS
from stablessm_core.telemetry.detectors.alert import Threshold
from stablessm_core.telemetry.detectors.registry import THRESHOLDS
from stablessm_core.telemetry.limits import MAX_RUN_NAME, MAX_TAG, MAX_TAGS

MAX_PARAMETERS = 2**31
# maximum number of values kept for the backward pass: batch_size * length * (sum of the widths of the layers' widest tensors)
MAX_ACTIVATIONS = 2**33

Name = Annotated[Text, Field(min_length=1, max_length=MAX_RUN_NAME)]
Tag = Annotated[Text, Field(min_length=1, max_length=MAX_TAG)]

if TYPE_CHECKING:
    AnyTask = TaskSection
else:
    AnyTask = Annotated[Union[tuple(TASKS.values())], Field(discriminator="name")]  # noqa: UP007 - made from a tuple


# with defer_build, pydantic builds each section only once, as part of RunConfig
class Optimizer(Section, defer_build=True):
    name: Literal["adamw", "sgd"] = Field(
        "adamw",
        description="adamw: each weight moves by about lr, whatever its gradient is. sgd: it moves by lr times the gradient.",
    )
    lr: float = Field(0.01, gt=0, le=1000.0, description="Learning rate after the warm-up.")
    recurrent_lr: float | None = Field(
        None, ge=0, le=1000.0, description="Learning rate of the eigenvalue weights and step sizes. null: lr. 0: frozen."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Used by sgd only: velocity = momentum * velocity + gradient.")
    nesterov: bool = Field(False, description="Used by sgd only: Nesterov momentum. Needs momentum > 0.")
    weight_decay: float = Field(
        0.01,
        ge=0,
        le=10.0,
        description="Weight decay of the parameters that `decay` names. Decoupled from the gradient in both adamw and sgd.",
    )
    decay: Literal["matrices", "all"] = Field(
        "matrices",
        description="matrices: parameters of two or more dimensions decay by weight_decay, except eigenvalue weights and step "
        "sizes. all: every parameter decays by weight_decay, as in the StableSSM authors' image experiments.",
    )
    recurrent_weight_decay: float = Field(
        0.0, ge=0, le=10.0, description="Weight decay of the eigenvalue weights and step sizes. Must be 0 if `decay` is all."
    )
    schedule: Literal["constant", "cosine", "linear", "cosine_per_epoch"] = Field(
        "constant",
        description="Learning rate after the warm-up. cosine and linear decay to 0. cosine_per_epoch: a cosine over the epochs, "
        "constant within each epoch, without warm-up; only for tasks with a fixed training set.",
    )
    warmup_steps: int = Field(
        0, ge=0, le=10_000_000, description="Number of steps in which the learning rate rises linearly from 0."
    )
    grad_clip: float | None = Field(
        None, gt=0, le=1e9, description="Gradients with a larger global norm are clipped to this norm. null: no clipping."
    )

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise not_allowed("nesterov", "true with momentum 0", "momentum > 0 with nesterov")
        return self

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.decay == "all" and self.recurrent_weight_decay:
            allowed = "0 with decay 'all', because weight_decay then applies to every parameter"
            raise not_allowed("recurrent_weight_decay", self.recurrent_weight_decay, allowed)
        if self.schedule == "cosine_per_epoch" and self.warmup_steps:
            raise not_allowed("warmup_steps", self.warmup_steps, "0 with schedule 'cosine_per_epoch'")
        return self


class Train(Section, defer_build=True):
    steps: int = Field(1000, ge=1, le=10_000_000, description="Number of training steps. The first is step 1.")
    batch_size: int = Field(128, ge=1, le=65_536, description="Sequences per step.")
    seed: int = Field(0, ge=0, lt=2**31, description="Determines the initial weights and every batch.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA if the worker has it, otherwise the CPU.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: autocast. Eigenvalues and states stay float32."
    )
    scan_backend: Literal["auto", "cpu", "torch", "triton", "reference"] = Field(
        "auto",
        description="auto: triton on CUDA if there is a C compiler, cpu (compiled kernels) on a CPU if they were built, "
        "otherwise torch. reference: the slow loop that tests use.",
    )
    fused: Literal["auto", "on", "off"] = Field(
        "auto",
        description="on: layers recompute their states in the backward pass instead of keeping them, which saves memory. auto: "
        "if it was faster in measurements on this device. The run's environment records the choice and the reason.",
    )
    execution: Literal["auto", "eager", "compile", "graph"] = Field(
        "auto",
        description="How steps are launched. auto: one CUDA graph on CUDA, compiled first for long runs; eager on a CPU. If a "
        "mode is not available, the run falls back to a simpler one, and its environment records why.",
    )
    eval_every: int = Field(200, ge=0, le=10_000_000, description="Evaluate after every N-th step. 0: at the end only.")
    checkpoint_every: int = Field(
        500, ge=0, le=10_000_000, description="Save a checkpoint after every N-th step. 0: at the end only."
    )
    on_nonfinite: Literal["stop", "continue", "rollback"] = Field(
        "stop",
        description="What to do when a number becomes NaN or infinite. stop: end as 'diverged'. continue: keep training. "
        "rollback: return to the last checkpoint with a lower learning rate.",
    )
    on_bad_batch: Literal["stop", "skip"] = Field(
        "stop",
        description="What to do when a batch holds NaN or an infinity. stop: end as 'diverged', unless on_nonfinite is continue. "
        "skip: record the step, but change no weight, and go on.",
    )
    on_warning: Literal["continue", "stop", "rollback", "lower_lr"] = Field(
        "continue",
        description="What to do before numbers overflow, at the critical alerts overflow_near and (with sgd) training_explodes. "
        "stop: end as 'cancelled'. rollback: as in on_nonfinite. lower_lr: keep training with a lower learning rate.",
    )
    max_rollbacks: int = Field(
        3,
        ge=0,
        le=100,
        description="Maximum number of rollbacks and learning-rate reductions in one run. After that a NaN ends the run, and "
        "warnings have no effect.",
    )
    rollback_lr_factor: float = Field(
        0.5, gt=0, lt=1, description="Each rollback or reduction multiplies the learning rate by this factor."
    )


class Telemetry(Section, defer_build=True):
    every: int = Field(1, ge=1, le=1_000_000, description="Record every N-th step.")
    all_eigenvalues: bool = Field(False, description="Record every eigenvalue even in layers with more than 4,096.")


def _threshold_field(threshold: Threshold) -> tuple[Any, Any]:
    limits = {sign: limit for sign in ("ge", "gt", "le", "lt") if (limit := getattr(threshold, sign)) is not None}
    return float | None, Field(threshold.default, description=threshold.description, **limits)


if TYPE_CHECKING:

    class Alerts(Section):
        rules: RuleList = Field(default_factory=list)

        def __getattr__(self, name: str) -> float | None: ...
else:
    # one field for each threshold that a detector's file declares
    Alerts = create_model(
        "Alerts",
        __base__=Section,
        __doc__="Thresholds of the alerts. null switches an alert off. Non-finite values always raise an alert.",
        **{threshold.name: _threshold_field(threshold) for threshold in THRESHOLDS},
        rules=(RuleList, Field(default_factory=list, description="Your own alerts: a scalar, a condition, for how many steps.")),
    )


class RunConfig(Section):
    """One training run."""

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

    name: Name | None = Field(None, description="A name for users. null: the server generates a name.")
    tags: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS, description="Labels to filter and group runs by.")
    task: AnyTask = Field(description="What the model learns, and from which data.")
    model: Model = Field(default_factory=Model)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    train: Train = Field(default_factory=Train)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    alerts: Alerts = Field(default_factory=Alerts)

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        model, hidden = self.model, self.model.d_model * self.model.mlp_expansion
        sections = model.sections()
        parameters = sum(section.parameters(model.d_model) + 3 * model.d_model * hidden for section in sections)
        if parameters > MAX_PARAMETERS:
            raise not_allowed(
                "model.d_model", f"{model.d_model} (about {parameters:,} parameters)", f"at most {MAX_PARAMETERS:,} parameters"
            )
        if self.optimizer.schedule == "cosine_per_epoch" and not self.task.has_epochs:
            allowed = f"constant, cosine or linear: task {self.task.name!r} has no epochs, because every batch is drawn anew"
            raise not_allowed("optimizer.schedule", "'cosine_per_epoch'", allowed)
        thresholds = [self.alerts.max_overflow_budget] + [self.alerts.max_loss_over_best] * (self.optimizer.name == "sgd")
        if self.train.on_warning != "continue" and thresholds == [None] * len(thresholds):
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


def parse_config(data: Any) -> RunConfig:
    """The RunConfig from decoded JSON. Raises ConfigError, which names the field, the given value and the allowed values."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe_errors(error, RunConfig)) from None
