"""The JSON of comparisons: counts by outcome, groups, differences and curves of several runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.compare.aggregation import OUTCOMES
from server.http.schemas.runs import Answer, RunAnswer
from server.http.schemas.series import EXAMPLE_TYPED
from server.lifecycle.run_fields import EXAMPLE_RUN

EXAMPLE_SPREAD = {"median": 0.2, "q25": 0.15, "q75": 0.25, "min": 0.1, "max": 0.3, "mean": 0.2, "std": 0.14}
EXAMPLE_COUNTS = {"total": 3, "finite": 2, "stable": 1, "unstable": 1, "unknown": 0, "lost": 1, "open": 0}
EXAMPLE_RANGE: dict[str, Any] = {
    "run_id": 1, "reparameterization": "best", "min": 1e-6, "q05": 1e-5, "median": 0.002, "q95": 0.1, "max": 0.8,
    "finite": 64000, "total": 64000, "at_zero": 0,
}  # fmt: skip
EXAMPLE_CURVES: dict[str, Any] = {"1": {"train/loss": {"name": "train/loss", "step": EXAMPLE_TYPED, "value": EXAMPLE_TYPED}}}
EXAMPLE_GROUP: dict[str, Any] = {
    "key": {"model.reparameterization.name": "best"}, "label": "best", "rank": 1, "outcome": "lost", "runs": [1, 2, 3],
    **EXAMPLE_COUNTS, "final_loss": EXAMPLE_SPREAD, "grad_over_weight": {"min": 1e-6, "max": 0.8, "finite": 9, "total": 9},
}  # fmt: skip
EXAMPLE_PAIRED: dict[str, Any] = {
    "against": "best",
    "rows": [
        {"label": "direct", "of": 3, "pairs": 2, "lower": 0, "higher": 2, "only_reference": 1, "only_this": 0, "unmatched": 0,
         "median": 0.01, "q25": 0.005, "q75": 0.015}
    ],
}  # fmt: skip
EXAMPLE_CLAIM: dict[str, Any] = {
    "question": "larger_rate", "asked": "Does best bear a larger learning rate than direct?", "first": "best", "second": "direct",
    "verdict": "cannot tell", "reason": "3 seeds",
    "text": "Cannot tell: 3 seeds. The largest finite rate of best is larger at 3/3 seeds [0.44, 1.00], and that of direct at "
    "0/3 seeds [0.00, 0.56].",
    "seeds": 3, "first_share": {"count": 3, "total": 3, "low": 0.44, "high": 1.0},
    "second_share": {"count": 0, "total": 3, "low": 0.0, "high": 0.56}, "p": 0.25, "family": 1,
    "left_out": {"open": 0, "stopped": 0, "arithmetic": 0, "unmatched": 0},
}  # fmt: skip
EXAMPLE_COMPARE: dict[str, Any] = {
    "total": 1,
    "drawn": [1],
    "runs": [EXAMPLE_RUN],
    "differences": [{"field": "optimizer.lr", "values": [0.01]}],
    "differences_left_out": 0,
    "ends": [{"run_id": 1, "outcome": "stable", "loss": 0.2, "tokens_per_step": 12800, "seconds_per_step": 0.01}],
    "groups": [EXAMPLE_GROUP],
    "paired": EXAMPLE_PAIRED,
    "claims": [EXAMPLE_CLAIM],
    "ranges": [EXAMPLE_RANGE],
    "pooled": [{name: value for name, value in EXAMPLE_RANGE.items() if name != "run_id"} | {"runs": 1}],
    "curves": EXAMPLE_CURVES,
}


class Counted(Answer):
    """How several runs ended: total = finite + lost + open."""

    finite: int = Field(description="How many runs finished with a finite loss.")
    stable: int = Field(description="How many finite runs ended with every eigenvalue inside the stability boundary.")
    unstable: int = Field(
        description="How many finite runs ended with eigenvalues outside the boundary. For the rest this is unknown."
    )
    lost: int = Field(description="How many diverged, failed, were cancelled, or finished with a NaN or infinite loss.")
    open: int = Field(description="How many are queued or running.")
    total: int = Field(description="Number of runs.")


class Difference(Answer):
    field: str
    values: list[Any] = Field(
        description="One value per run, in the order of the runs; null if the configuration does not have the field."
    )


class RunEnd(Answer):
    run_id: int
    outcome: str = Field(description=" ".join(f"`{name}`: {meaning}." for name, meaning in OUTCOMES.items()))
    loss: float | None = Field(description="The final training loss; null if there is none yet.")
    tokens_per_step: int | None = Field(description="Batch size times sequence length; null if unknown.")
    seconds_per_step: float | None = Field(description="Time per training step at the run's mean speed; null if unknown.")


class PooledRange(Answer):
    """The range of grad_over_weight over all layers, eigenvalues and steps of all runs with the same map."""

    reparameterization: str
    min: float | None
    q05: float | None
    median: float | None
    q95: float | None
    max: float | None
    finite: int
    total: int
    at_zero: int = Field(
        description="How many values are not finite because the weight is exactly 0; this is not an instability."
    )
    runs: int


class RatioRange(Answer):
    """The range of grad_over_weight over all layers, eigenvalues and steps of a run."""

    run_id: int
    reparameterization: str
    min: float | None
    q05: float | None
    median: float | None
    q95: float | None
    max: float | None
    finite: int
    total: int
    at_zero: int = Field(
        description="How many values are not finite because the weight is exactly 0; this is not an instability."
    )


class CompareGroup(Counted):
    key: dict[str, Any]
    label: str
    rank: int = Field(description="The rank by finite share, then stable share, then median; 1 is the best.")
    outcome: str = Field(description="The worst outcome of its runs.")
    runs: list[int]
    unknown: int = Field(description="Finite runs whose final eigenvalues are not known.")
    final_loss: dict[str, float | None] = Field(
        description="Median, quartiles, min, max, mean and std over the finite runs. Lost runs do not count."
    )
    grad_over_weight: dict[str, Any]


class PairedRow(Answer):
    """The final losses of a group minus the final losses of the group `against`, for pairs of runs with otherwise the same
    settings and seed."""

    label: str
    of: int = Field(description="Settings for which both groups have a run.")
    pairs: int = Field(description="Settings for which both runs are finite. The differences use only these settings.")
    lower: int = Field(description="How many differences are below 0.")
    higher: int = Field(description="How many differences are above 0.")
    only_reference: int = Field(description="Settings for which this group's run is lost and the other is finite.")
    only_this: int = Field(description="Settings for which this group's run is finite and the other is lost.")
    unmatched: int = Field(description="Settings for which one of the two groups has no run.")
    median: float | None
    q25: float | None
    q75: float | None


class PairedGroups(Answer):
    against: str = Field(description="Label of the group that the others are compared with.")
    rows: list[PairedRow]


class SeedShare(Answer):
    """The seeds at which a group has the outcome, with the 95 % Wilson interval of their share."""

    count: int
    total: int
    low: float
    high: float


class ClaimAnswer(Answer):
    """A claim about two groups of runs, judged by an exact test paired by seed."""

    question: Literal["larger_rate", "finite", "lower_loss"] = Field(
        description="`larger_rate`: the first group's largest finite learning rate is larger. `finite`: it stays finite at more "
        "seeds. `lower_loss`: its final loss is lower where both trained."
    )
    asked: str = Field(description="The question as a sentence.")
    first: str = Field(description="Label of the group `against`, by default the best.")
    second: str
    verdict: Literal["holds", "does not hold", "cannot tell"]
    reason: str = Field(description="Continues the verdict, for example `3 seeds`.")
    text: str = Field(description="The answer as sentences.")
    seeds: int = Field(description="How many seeds the test used. All runs of a seed count as one.")
    first_share: SeedShare = Field(
        description="Seeds at which the first group's rate is larger, all its runs are finite, or its loss is lower."
    )
    second_share: SeedShare
    p: float | None = Field(description="Two-sided, adjusted by Holm's method for `family` comparisons; null without a seed.")
    family: int = Field(description="The number of pairs of groups.")
    left_out: dict[str, int] = Field(
        description="Runs of the two groups that do not count: `open`, `stopped` (failed or cancelled), `arithmetic` (died only "
        "in float32, although float32 can hold every number), `unmatched` (without a run of the other group with equal settings)."
    )


class Claims(Answer):
    """The group that did best, or `against`, compared with each other group."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"claims": [EXAMPLE_CLAIM]}]})
    claims: list[ClaimAnswer]


class CompareAnswer(Answer):
    """The comparison of several runs. Curves are typed arrays, keyed by run and series."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_COMPARE]})
    total: int = Field(description="Number of compared runs.")
    drawn: list[int] = Field(description="The runs with curves and ranges: all, or a sample of 200 runs of a larger sweep.")
    runs: list[RunAnswer]
    differences: list[Difference] = Field(
        description="At most 500 fields. Of a reported run, the first 500 settings are compared."
    )
    differences_left_out: int = Field(description="How many more fields differ.")
    ends: list[RunEnd]
    groups: list[CompareGroup]
    paired: PairedGroups | None = Field(description="Null without at least two groups.")
    claims: list[ClaimAnswer]
    ranges: list[RatioRange]
    pooled: list[PooledRange]
    curves: dict[str, dict[str, dict[str, Any]]]


class CompareCurves(Answer):
    """One curve per run. For `max_grad_over_weight`, there are also the ranges of the ratios, by run and by map."""

    model_config = ConfigDict(
        ser_json_inf_nan="strings",
        json_schema_extra={
            "examples": [{"curves": EXAMPLE_CURVES, "ranges": EXAMPLE_COMPARE["ranges"], "pooled": EXAMPLE_COMPARE["pooled"]}]
        },
    )
    curves: dict[str, dict[str, dict[str, Any]]]
    ranges: list[RatioRange]
    pooled: list[PooledRange]
