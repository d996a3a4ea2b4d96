"""The catalogue of series: every name, unit and meaning, once. No other file spells a series name.

A *group* of series is recorded together: its columns share steps and travel in the same blocks. `scalars` holds the width-1
series of every step, `batch` what is known of its batch, `progress` how far training is from where it was, `ssm/{layer}` the
per-eigenvalue ones of a layer, `ssm/{layer}.{record}` those of a further record of it, `eval` and `ssm/{layer}/measured` what
comes at its own pace. `ssm/{layer}/derived` records nothing: its series follow from
those of `ssm/{layer}`, step by step, and only their coarse levels are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stablessm_core.forms import GATES, Form

TRAIN_LOSS = "train/loss"
TRAIN_RATE = "train/tokens_per_second"
STEP_TIME = "train/step_seconds"
BATCH_NONFINITE = "train/batch_nonfinite"
LR = "optim/lr"
GRAD_NORM = "optim/grad_norm"
WEIGHT_NORM = "train/weight_norm"
LOSS_OVER_BEST = "train/loss_over_best"
EVAL_LOSS = "eval/loss"
EVAL_ACCURACY = "eval/accuracy"
GPU_MEMORY = "system/gpu_memory_gib"
HOST_MEMORY = "system/host_memory_gib"

SCALARS, EVAL = "scalars", "eval"
# apart from the scalars, whose columns are fixed in runs that began without them
BATCH, PROGRESS = "batch", "progress"
# the numbers of a run's result
RESULTS = (
    "train_loss", "eval_loss", "eval_accuracy", "seconds", "tokens_per_second", "rollbacks", "telemetry_dropped",
    "telemetry_errors",
)  # fmt: skip
LAYER_GROUPS = "ssm/"  # what the groups of layers begin with
MEASURED_GROUPS = "/measured"  # what the groups end with that a layer computes at evaluations
DERIVED_GROUPS = "/derived"  # what the groups end with whose series follow from those of the layer
RELATIVE_STEP, OVERFLOW_BUDGET = "relative_step", "overflow_budget"
# a run's numbers so far, over all layers and eigenvalues, and which of two is kept
SO_FAR = {"largest_ratio": max, "largest_relative_step": max, "nearest_distance": min, "overflow_budget": max}

WIDE = 4096  # eigenvalues; layers above this are recorded as quantiles and extremes unless the run asks for all
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
EXTREMES = 16


@dataclass(frozen=True)
class SeriesSpec:
    """One recorded series: `width` numbers per step, the next `width` columns of its group's blocks in catalogue order.

    A derived series is not in the raw blocks: it is computed from its layer's weight when read, and only its coarse levels are
    stored, in the columns after the recorded ones. form: how eigenvalues follow from the layer's weights, as `Form.data`; every
    series of a layer has it, no other.
    """

    name: str
    group: str
    width: int
    unit: str
    meaning: str
    derived: bool = False
    form: dict[str, Any] | None = None


MEANINGS: dict[str, tuple[str, str]] = {
    TRAIN_LOSS: ("", "Training loss of the step."),
    TRAIN_RATE: ("1/s", "Sequence steps (tokens) trained per second, over the last flush."),
    STEP_TIME: ("s", "Wall time per training step, over the last flush."),
    BATCH_NONFINITE: ("", "What of the step's batch was not finite: 0 nothing, 1 the input, 2 the target, 3 both."),
    WEIGHT_NORM: ("", "Global L2 norm of all trained weights, before the step's update."),
    LOSS_OVER_BEST: ("", "Training loss over the smallest so far, this step included: 1 at a new best."),
    LR: ("", "Learning rate of the step."),
    GRAD_NORM: ("", "Global L2 norm of the gradient, before clipping."),
    EVAL_LOSS: ("", "Mean loss on the evaluation split."),
    EVAL_ACCURACY: ("", "Share of right answers on the evaluation split, 0 to 1."),
    GPU_MEMORY: ("GiB", "Largest GPU memory allocated so far."),
    HOST_MEMORY: ("GiB", "Resident memory of the training process."),
    "grad_over_weight": ("", "|dL/dw| / |w| of each eigenvalue's weight w."),
    "weight": ("", "Trainable weight w of each eigenvalue."),
    "dt": ("", "Step size of each eigenvalue (continuous time only)."),
    "gradient": ("", "|dL/dw| of each eigenvalue's weight w itself, where weights may be exactly 0."),
    "phase_weight": ("", "Second trainable weight of each complex eigenvalue: of its angle or its imaginary part."),
    "grad_over_phase": ("", "|dL/dv| / |v| of each complex eigenvalue's second weight v."),
    "gate_min": ("", "Smallest gate or step size of the step, over batch and time."),
    "gate_mean": ("", "Mean gate or step size of the step, over batch and time."),
    "gate_max": ("", "Largest gate or step size of the step, over batch and time."),
    "eigenvalue": (
        "",
        "Eigenvalue lambda_bar of the discrete recurrence; of a complex one the absolute value; where it varies with the input "
        "its geometric mean over batch and time.",
    ),
    "phase": ("", "Angle of the complex eigenvalue lambda_bar, in radians, -pi to pi."),
    "rate": ("", "Decay rate of each complex eigenvalue in continuous time, -Re lambda."),
    "boundary_distance_closest": ("", "1 - |lambda_bar| where the gate was smallest in the step: the closest approach."),
    "true_eigenvalue": ("", "|lambda_bar| of the whole transition, at evaluations; its own weights give only part of it."),
    "true_boundary_distance": ("", "1 - |lambda_bar| of the whole transition, at evaluations."),
    "certified_gain": ("", "Largest gain from input to output, in L2, that the layer's parameterisation guarantees."),
    "measured_gain": ("", "Largest gain over frequencies, on a grid, at evaluations."),
    "boundary_distance": (
        "",
        "1 - |lambda_bar|: distance to the boundary; 0, where float32 gives exactly 1, is on it, negative is unstable.",
    ),
    RELATIVE_STEP: (
        "",
        "|change of lambda_bar by the step's update| / (1 - |lambda_bar|): below 1 nothing crosses the boundary. Infinite from "
        "the boundary, NaN from outside. Known once the next step is recorded, and only where every step is.",
    ),
    OVERFLOW_BUDGET: (
        "",
        "length ln|lambda_bar|max / 88.72: at 1 the state overflows float32, at 1/2 the loss behind an unbounded activation; "
        "negative inside the boundary.",
    ),
    "grad_over_weight_quantiles": ("", "Quantiles 0, 1/4, 1/2, 3/4, 1 of |dL/dw| / |w| over the layer; NaN counts as largest."),
    "weight_quantiles": ("", "Quantiles 0, 1/4, 1/2, 3/4, 1 of the weights w of the layer; NaN counts as largest."),
    "boundary_distance_quantiles": ("", "Quantiles 0, 1/4, 1/2, 3/4, 1 of 1 - |lambda_bar| over the layer; NaN is largest."),
    "grad_over_weight_largest": ("", "The 16 largest |dL/dw| / |w| of the layer, largest first, NaN before all."),
    "grad_over_weight_largest_index": ("", "Which eigenvalues the 16 largest |dL/dw| / |w| belong to."),
    "boundary_distance_smallest": ("", "The 16 smallest 1 - |lambda_bar| of the layer, smallest first, NaN before all."),
    "boundary_distance_smallest_index": ("", "Which eigenvalues the 16 smallest 1 - |lambda_bar| belong to."),
}


def layer_group(layer: int | str) -> str:
    return f"ssm/{layer}"


def derived_group(layer: int | str) -> str:
    return layer_group(layer) + DERIVED_GROUPS


def measured_group(layer: int | str) -> str:
    """What a layer computes at evaluations only."""
    return layer_group(layer) + MEASURED_GROUPS


def source_group(group: str) -> str:
    """The group in whose raw blocks the series of `group` lie, or what they are derived from."""
    return group.removesuffix(DERIVED_GROUPS)


def layer_series(layer: int | str, kind: str) -> str:
    """Name of a per-eigenvalue series, e.g. layer_series(0, "grad_over_weight") == "ssm/0/grad_over_weight"; of a further record
    of the layer layer_series("0.dt_bias", "weight") == "ssm/0.dt_bias/weight"."""
    return f"ssm/{layer}/{kind}"


def layer_of(group: str) -> int | None:
    """The layer's number in the name of a layer's group, derived or not: "ssm/3", "ssm/3.dt_bias/derived"; None of any other."""
    number = group.removeprefix(LAYER_GROUPS).partition("/")[0].partition(".")[0]
    return int(number) if group.startswith(LAYER_GROUPS) and number.isdigit() else None


def scalar(name: str, group: str = SCALARS) -> SeriesSpec:
    unit, meaning = MEANINGS[name]
    return SeriesSpec(name, group, 1, unit, meaning)


def layer_catalogue(
    layer: int | str, width: int, form: Form, *, steps: int | None = None, gates: int = 0, gradient: bool = False
) -> list[SeriesSpec]:
    """Series of one layer's record, recorded ones first, in the column order of its blocks.

    steps, gates: how many step sizes and gates `width` eigenvalues share; steps None: each has its own. gradient: |dL/dw| too.
    """
    trained = form.map != "fixed"
    kinds = ["grad_over_weight"] * trained + list(form.recorded)
    kinds += ["grad_over_phase"] * (form.phase is not None) + ["gradient"] * gradient + list(form.derived)
    widths = {"dt": steps or width} | dict.fromkeys(GATES, gates)
    return [
        SeriesSpec(
            layer_series(layer, k),
            layer_group(layer),
            widths.get(k, width),
            *MEANINGS[k],
            derived=k in form.derived,
            form=form.data,
        )
        for k in kinds
    ]


def wide_layer_catalogue(layer: int | str, form: Form, *, gates: int = 0) -> list[SeriesSpec]:
    """Series of a layer with more than WIDE eigenvalues: quantiles over the layer and its most extreme eigenvalues; its gates,
    where there are no more of them than that."""
    widths = {f"{k}_quantiles": len(QUANTILES) for k in ("grad_over_weight", "weight", "boundary_distance")}
    for kind in ("grad_over_weight_largest", "boundary_distance_smallest"):
        widths |= {kind: EXTREMES, f"{kind}_index": EXTREMES}
    if 0 < gates <= WIDE:
        widths |= dict.fromkeys(GATES, gates)
    return [SeriesSpec(layer_series(layer, k), layer_group(layer), n, *MEANINGS[k], form=form.data) for k, n in widths.items()]


def measured_catalogue(group: str, widths: dict[str, int]) -> list[SeriesSpec]:
    """Series of what a layer computes at evaluations only: by name, how many numbers."""
    return [SeriesSpec(name, group, n, *MEANINGS[name.rpartition("/")[2]]) for name, n in widths.items()]


def following_catalogue(
    layer: int | str, width: int, form: Form, *, length: int | None, every_eigenvalue: bool
) -> list[SeriesSpec]:
    """The derived series of one layer that need its sequence length, or the step after; in the order of their columns.

    length: steps of the sequences that the layer runs over, None where that is not known: then there is no budget.
    every_eigenvalue: whether the weights of every eigenvalue are recorded at every step, as the relative step needs.
    """
    if form.map == "none":
        return []
    moves = every_eigenvalue and form.map != "fixed"
    widths = ({RELATIVE_STEP: width} if moves else {}) | ({OVERFLOW_BUDGET: 1} if length else {})
    data = replace(form, length=length).data
    return [
        SeriesSpec(layer_series(layer, kind), derived_group(layer), n, *MEANINGS[kind], derived=True, form=data)
        for kind, n in widths.items()
    ]
