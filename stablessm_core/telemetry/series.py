"""The catalogue of series, with the name, unit and meaning of each series.

The code that records series takes their names from this file.

A *group* of series is recorded together: its columns share steps and blocks. These groups have a row per recorded step:
`scalars`: series with one number per step. `batch`: whether the step's batch is finite. `magnitudes`: the largest numbers of
the step's batch. `progress`: comparison with earlier steps.
`ssm/{layer}`: the per-eigenvalue series of a layer. `ssm/{layer}.{record}`: the same series for another record of the layer.
The groups `eval`, `test`, `memory` and `ssm/{layer}/measured` have their own steps. The group `ssm/{layer}/derived` is not
recorded: its series are computed from the series of `ssm/{layer}`, and only their coarse levels are stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from stablessm_core.telemetry.forms import GATES, Form

TRAIN_LOSS = "train/loss"
TRAIN_RATE = "train/tokens_per_second"
STEP_TIME = "train/step_seconds"
BATCH_NONFINITE = "train/batch_nonfinite"
SKIPPED, SCALE = "train/skipped", "train/scale"
LARGEST_INPUT, LARGEST_TARGET = "train/largest_input", "train/largest_target"
LR = "optim/lr"
GRAD_NORM = "optim/grad_norm"
WEIGHT_NORM = "train/weight_norm"
LOSS_OVER_BEST = "train/loss_over_best"
EVAL_LOSS = "eval/loss"
EVALUATIONS = frozenset(("eval", "evaluation", "val", "valid", "validation", "dev", "test"))  # what people call an evaluation
EVAL_ACCURACY = "eval/accuracy"
TESTED_LOSS, TESTED_ACCURACY = "test/loss", "test/accuracy"
MEMORY = "memory/function"
GPU_MEMORY = "system/gpu_memory_gib"
HOST_MEMORY = "system/host_memory_gib"

SCALARS, EVAL, TEST, MEMORIES = "scalars", "eval", "test", "memory"
# These groups are separate, so that the columns of every group are the same as in older runs, which lack some of these groups.
BATCH, PROGRESS, MAGNITUDES = "batch", "progress", "magnitudes"
# the names of the values in a run's result
_LARGER = re.compile(r"(acc|accuracy|auc|auroc|f1|rewards?)(?![a-z])", re.IGNORECASE)  # how the name of such a metric begins
BEST_RESULTS = ("best_eval_step", "test_loss_at_best", "test_accuracy_at_best")  # only of tasks with a separate test set
RESULTS = (
    "train_loss", "eval_loss", "eval_accuracy", "seconds", "tokens_per_second", "rollbacks", "telemetry_dropped",
    "telemetry_errors", *BEST_RESULTS,
)  # fmt: skip
LAYER_GROUPS = "ssm/"  # prefix of the groups of layers
MEASURED_GROUPS = "/measured"  # suffix of the groups with series that layers compute during evaluations
DERIVED_GROUPS = "/derived"  # suffix of the groups whose series are computed from the layer's recorded series
RELATIVE_STEP, OVERFLOW_BUDGET = "relative_step", "overflow_budget"
NORMS = "norms"  # name of columns that only the detectors read: the norms of all weights, then of all gradients
# a run's extremes over all layers and eigenvalues, each with the function that picks the more extreme of two numbers
SO_FAR = {"largest_ratio": max, "largest_relative_step": max, "nearest_distance": min, "overflow_budget": max}

WIDE = 4096  # in layers with more eigenvalues, only quantiles and extremes are recorded, unless the run requests all
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
EXTREMES = 16


@dataclass(frozen=True)
class SeriesSpec:
    """One series with `width` values per step. The columns of a group's blocks are the group's series in catalogue order.

    A derived series is not in the raw blocks: it is computed from the layer's recorded series when it is read. Only its coarse
    levels are stored, in the columns after the recorded series. form: how the eigenvalues follow from the layer's weights, as
    `Form.data`. Only the series of layers have a form.
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
    BATCH_NONFINITE: ("", "Which part of the step's batch was not finite: 0 none, 1 the input, 2 the target, 3 both."),
    LARGEST_INPUT: ("", "Largest |x| in the real-valued input of the step's batch. NaN if the input contains NaN."),
    LARGEST_TARGET: ("", "Largest |y| in the real-valued target of the step's batch. NaN if the target contains NaN."),
    SKIPPED: ("", "1 if a gradient scaler skipped the update of the step, because a gradient was not finite; else 0."),
    SCALE: ("", "Factor by which the gradient scaler multiplied the loss of the step."),
    WEIGHT_NORM: ("", "Global L2 norm of all trained weights, before the step's update."),
    LOSS_OVER_BEST: ("", "Training loss divided by the smallest training loss so far, this step included. 1: a new best."),
    LR: ("", "Learning rate of the step."),
    GRAD_NORM: ("", "Global L2 norm of the gradient, before clipping."),
    EVAL_LOSS: ("", "Mean loss on the evaluation split."),
    EVAL_ACCURACY: ("", "Share of correct answers on the evaluation split, 0 to 1."),
    TESTED_LOSS: ("", "Mean loss on the test split, at each evaluation that was the best so far."),
    TESTED_ACCURACY: ("", "Share of correct answers on the test split, 0 to 1, at each evaluation that was the best so far."),
    MEMORY: (
        "",
        "Memory function M(t) of the network at lags t = 0, 1, ...: the size of its answer to a unit input t steps ago.",
    ),
    GPU_MEMORY: ("GiB", "Largest GPU memory allocated so far."),
    HOST_MEMORY: ("GiB", "Resident memory of the training process."),
    "grad_over_weight": ("", "|dL/dw| / |w| of each eigenvalue's weight w."),
    "weight": ("", "Trainable weight w of each eigenvalue."),
    "dt": ("", "Step size of each eigenvalue (continuous time only)."),
    "gradient": ("", "|dL/dw| of each eigenvalue's weight w, recorded if weights may be exactly 0."),
    "phase_weight": ("", "Second trainable weight of each complex eigenvalue, for its angle or its imaginary part."),
    "grad_over_phase": ("", "|dL/dv| / |v| of each complex eigenvalue's second weight v."),
    "gate_min": ("", "Smallest gate or step size of the step, over batch and time."),
    "gate_mean": ("", "Mean gate or step size of the step, over batch and time."),
    "gate_max": ("", "Largest gate or step size of the step, over batch and time."),
    "eigenvalue": (
        "",
        "Eigenvalue lambda_bar of the discrete recurrence; its absolute value if it is complex; its geometric mean over batch "
        "and time if it varies with the input.",
    ),
    "phase": ("", "Angle of the complex eigenvalue lambda_bar, in radians, -pi to pi."),
    "rate": ("", "Decay rate of each complex eigenvalue in continuous time, -Re lambda."),
    "boundary_distance_closest": (
        "",
        "Smallest 1 - |lambda_bar| of the step, over batch and time: at the smallest gate if the eigenvalue is inside the "
        "boundary, at the largest gate if it is outside.",
    ),
    "true_eigenvalue": ("", "|lambda_bar| of the whole transition, at evaluations. It also depends on other weights."),
    "true_boundary_distance": ("", "1 - |lambda_bar| of the whole transition, at evaluations."),
    "certified_gain": ("", "Largest gain from input to output, in L2, that the layer's parameterisation guarantees."),
    "measured_gain": ("", "Largest gain over frequencies, on a grid, at evaluations."),
    "boundary_distance": (
        "",
        "1 - |lambda_bar|: distance to the boundary. 0: on the boundary, where float32 gives exactly 1. Negative: unstable. With "
        "a gate, or a step size for each channel: at its mean.",
    ),
    RELATIVE_STEP: (
        "",
        "|change of lambda_bar by the step's update| / (1 - |lambda_bar|). Below 1, the eigenvalue cannot cross the boundary. "
        "Infinite if it starts on the boundary, NaN if outside. Known one step later, if every step is recorded. If lambda_bar "
        "varies with the input, its change by the change of the weights alone, at the mean gate of the step.",
    ),
    OVERFLOW_BUDGET: (
        "",
        "length x ln|lambda_bar| / 88.72 of the largest |lambda_bar|. At 1, the state overflows float32; with an unbounded "
        "activation, the loss overflows at 1/2. Negative inside the boundary. If every channel has its own step size, the "
        "largest |lambda_bar| of any channel counts; if lambda_bar varies with the input, its geometric mean.",
    ),
    "grad_over_weight_quantiles": ("", "Quantiles 0, 1/4, 1/2, 3/4, 1 of |dL/dw| / |w| over the layer; NaN counts as largest."),
    "weight_quantiles": ("", "Quantiles 0, 1/4, 1/2, 3/4, 1 of the weights w of the layer; NaN counts as largest."),
    "boundary_distance_quantiles": (
        "",
        "Quantiles 0, 1/4, 1/2, 3/4, 1 of 1 - |lambda_bar| over the layer; NaN counts as largest.",
    ),
    "grad_over_weight_largest": ("", "The 16 largest |dL/dw| / |w| of the layer, NaN first, then the largest."),
    "grad_over_weight_largest_index": ("", "The indices of the eigenvalues with the 16 largest |dL/dw| / |w|."),
    "boundary_distance_smallest": ("", "The 16 smallest 1 - |lambda_bar| of the layer, NaN first, then the smallest."),
    "boundary_distance_smallest_index": ("", "The indices of the eigenvalues with the 16 smallest 1 - |lambda_bar|."),
}


def is_evaluation_loss(name: str) -> bool:
    """Whether a series is the loss of an evaluation: its name says "loss" and one of EVALUATIONS, as in "val/loss", "eval_loss",
    "validation.nll_loss" and "test/loss_epoch"."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return "loss" in words and not EVALUATIONS.isdisjoint(words)


def layer_group(layer: int | str) -> str:
    return f"ssm/{layer}"


def derived_group(layer: int | str) -> str:
    return layer_group(layer) + DERIVED_GROUPS


def measured_group(layer: int | str) -> str:
    """The group of the series that a layer computes only during evaluations."""
    return layer_group(layer) + MEASURED_GROUPS


def source_group(group: str) -> str:
    """The group whose raw blocks hold the series of `group`, or the recorded series from which these series are derived."""
    return group.removesuffix(DERIVED_GROUPS)


def layer_series(layer: int | str, kind: str) -> str:
    """Name of a per-eigenvalue series, e.g. layer_series(0, "grad_over_weight") == "ssm/0/grad_over_weight". For a further
    record of the layer: layer_series("0.dt_bias", "weight") == "ssm/0.dt_bias/weight"."""
    return f"ssm/{layer}/{kind}"


def layer_of(group: str) -> int | None:
    """The layer's number in a group name such as "ssm/3" or "ssm/3.dt_bias/derived"; None for any other group."""
    number = group.removeprefix(LAYER_GROUPS).partition("/")[0].partition(".")[0]
    return int(number) if group.startswith(LAYER_GROUPS) and number.isdigit() else None


def has_every_eigenvalue(name: str) -> bool:
    """True if the series of a layer has one value per eigenvalue: all of them do except step sizes, gates, summaries and the
    overflow budget."""
    kind = name.rpartition("/")[2]
    return kind not in ("dt", OVERFLOW_BUDGET, *GATES) and not kind.endswith(("_quantiles", "_largest", "_smallest", "_index"))


def larger_is_better(name: str) -> bool:
    """True if the larger of two values of this series is the better one; for every other series it is the smaller one. A metric
    that a program chose itself is judged by its name: accuracies, areas under curves, F1 scores and rewards."""
    last = name.rpartition("/")[2]
    return (
        name in (EVAL_ACCURACY, TESTED_ACCURACY, TRAIN_RATE)
        or last.startswith(("boundary_distance", "true_boundary_distance"))
        or _LARGER.match(last) is not None
    )


def state_column(layer: int | str) -> str:
    """Name of columns that only the detectors read: the largest |h| of each eigenvalue, or of a whole wide layer."""
    return f"state/{layer}"


def step_gradient_column(layer: int | str) -> str:
    """Name of columns that only the detectors read: |dL/dv| of each step size e^v."""
    return f"step_gradient/{layer}"


def state_at_column(layer: int | str) -> str:
    """Name of the column with the index of the eigenvalue that has the |h| in `state_column`, for a wide layer."""
    return f"state_at/{layer}"


def weight_at_column(layer: int | str) -> str:
    """Name of the columns with the weights of the eigenvalues in "boundary_distance_smallest", for a wide layer."""
    return f"weight_at/{layer}"


def scalar(name: str, group: str = SCALARS) -> SeriesSpec:
    unit, meaning = MEANINGS[name]
    return SeriesSpec(name, group, 1, unit, meaning)


def layer_catalogue(
    layer: int | str, width: int, form: Form, *, steps: int | None = None, gates: int = 0, gradient: bool = False
) -> list[SeriesSpec]:
    """The series of one record of a layer, in the column order of the record's blocks: recorded, then derived series.

    steps, gates: the number of step sizes and gates that the eigenvalues share. steps is None if each eigenvalue has its own
    step size. gradient: True to also record |dL/dw|.
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
    """Series of a layer with more than WIDE eigenvalues: quantiles over the layer, its most extreme eigenvalues, and its gates if
    it has at most WIDE gates. The weights of the form "none" have no distance to the boundary."""
    distance = form.map != "none"
    quantiles = ["grad_over_weight", "weight"] + ["boundary_distance"] * distance
    widths = {f"{k}_quantiles": len(QUANTILES) for k in quantiles}
    for kind in ["grad_over_weight_largest"] + ["boundary_distance_smallest"] * distance:
        widths |= {kind: EXTREMES, f"{kind}_index": EXTREMES}
    if 0 < gates <= WIDE:
        widths |= dict.fromkeys(GATES, gates)
    return [SeriesSpec(layer_series(layer, k), layer_group(layer), n, *MEANINGS[k], form=form.data) for k, n in widths.items()]


def measured_catalogue(group: str, widths: dict[str, int]) -> list[SeriesSpec]:
    """Series that a layer computes only during evaluations. widths: the number of values, by series name."""
    return [SeriesSpec(name, group, n, *MEANINGS[name.rpartition("/")[2]]) for name, n in widths.items()]


def following_catalogue(
    layer: int | str, width: int, form: Form, *, length: int | None, every_eigenvalue: bool, constant_gate: bool = False
) -> list[SeriesSpec]:
    """The derived series of one layer that need its sequence length or the next step, in the order of their columns.

    length: the length of the sequences that the layer runs over. If the length is None (unknown), the overflow budget has no
    series.
    every_eigenvalue: True if the weights of every eigenvalue are recorded at every step. The relative step needs this.
    constant_gate: as in `Record`. If the layer reports its decay itself and the decay depends on the input, the effect of the
    update on the eigenvalue is unknown, and the relative step has no series.
    """
    if form.map == "none":
        return []
    moves = every_eigenvalue and form.map != "fixed" and (form.map != "gate" or constant_gate)
    widths = ({RELATIVE_STEP: width} if moves else {}) | ({OVERFLOW_BUDGET: 1} if length else {})
    data = replace(form, length=length).data
    return [
        SeriesSpec(layer_series(layer, kind), derived_group(layer), n, *MEANINGS[kind], derived=True, form=data)
        for kind, n in widths.items()
    ]
