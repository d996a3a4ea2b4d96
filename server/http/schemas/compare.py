"""What the API answers about several runs together: counted by the one rule, side by side, as curves."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from server.http.schemas.runs import EXAMPLE_RUN, Answer, RunAnswer
from server.http.schemas.series import EXAMPLE_TYPED
from server.runs.aggregation import OUTCOMES

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
EXAMPLE_COMPARE: dict[str, Any] = {
    "runs": [EXAMPLE_RUN],
    "differences": [{"field": "optimizer.lr", "values": [0.01]}],
    "ends": [{"run_id": 1, "outcome": "stable", "loss": 0.2, "tokens_per_step": 12800, "seconds_per_step": 0.01}],
    "groups": [EXAMPLE_GROUP],
    "paired": EXAMPLE_PAIRED,
    "ranges": [EXAMPLE_RANGE],
    "pooled": [{name: value for name, value in EXAMPLE_RANGE.items() if name != "run_id"} | {"runs": 1}],
    "curves": EXAMPLE_CURVES,
}


class Counted(Answer):
    """What became of several runs, by the one rule: total = finite + lost + open."""

    finite: int = Field(description="How many runs finished, and with a finite loss.")
    stable: int = Field(description="How many of these ended with every eigenvalue inside the stability boundary.")
    unstable: int = Field(description="How many of these ended with eigenvalues outside; of the rest it is not known.")
    lost: int = Field(description="How many diverged, failed, were cancelled, or finished with a loss that is not a number.")
    open: int = Field(description="How many wait or train.")
    total: int = Field(description="How many runs there are.")


class Difference(Answer):
    field: str
    values: list[Any] = Field(description="In the order of the runs; null where a configuration does not have the field.")


class RunEnd(Answer):
    run_id: int
    outcome: str = Field(description=" ".join(f"`{name}`: {meaning}." for name, meaning in OUTCOMES.items()))
    loss: float | None = Field(description="The final training loss; null where there is none yet.")
    tokens_per_step: int | None = Field(description="Batch size times sequence length; null where it is not known.")
    seconds_per_step: float | None = Field(description="At the run's mean speed; null where it is not known.")


class PooledRange(Answer):
    """Range of grad_over_weight over all layers, eigenvalues and steps of the runs of a map."""

    reparameterization: str
    min: float | None
    q05: float | None
    median: float | None
    q95: float | None
    max: float | None
    finite: int
    total: int
    at_zero: int = Field(description="Of those not finite, how many are so because the weight is exactly 0: no instability.")
    runs: int


class RatioRange(Answer):
    """Range of grad_over_weight over all layers, eigenvalues and steps of a run."""

    run_id: int
    reparameterization: str
    min: float | None
    q05: float | None
    median: float | None
    q95: float | None
    max: float | None
    finite: int
    total: int
    at_zero: int = Field(description="Of those not finite, how many are so because the weight is exactly 0: no instability.")


class CompareGroup(Counted):
    key: dict[str, Any]
    label: str
    rank: int = Field(description="By the share that is finite, then the share that is stable, then the median; 1 is the best.")
    outcome: str = Field(description="The worst of its runs.")
    runs: list[int]
    unknown: int = Field(description="Finite runs of which it is not known where their eigenvalues ended.")
    final_loss: dict[str, float | None] = Field(
        description="Of its finite runs: median, quartiles, min, max, mean, std; lost runs have no part in it."
    )
    grad_over_weight: dict[str, Any]


class PairedRow(Answer):
    """The final losses of a group less those of the group `against`, run by run with the same other settings, seed included."""

    label: str
    of: int = Field(description="Settings that both groups have a run for.")
    pairs: int = Field(description="Of these, where both runs are finite: the differences are over these.")
    lower: int = Field(description="How many differences are below 0.")
    higher: int = Field(description="How many are above 0.")
    only_reference: int = Field(description="Settings with which this group's run is lost and the other's is finite.")
    only_this: int = Field(description="Settings with which this group's run is finite and the other's is lost.")
    unmatched: int = Field(description="Settings that one of the two groups has no run for.")
    median: float | None
    q25: float | None
    q75: float | None


class PairedGroups(Answer):
    against: str = Field(description="Label of the group that the others are compared with.")
    rows: list[PairedRow]


class CompareAnswer(Answer):
    """Several runs side by side; curves are typed arrays by run and series."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_COMPARE]})
    runs: list[RunAnswer]
    differences: list[Difference]
    ends: list[RunEnd]
    groups: list[CompareGroup]
    paired: PairedGroups | None = Field(description="Null without at least two groups.")
    ranges: list[RatioRange]
    pooled: list[PooledRange]
    curves: dict[str, dict[str, dict[str, Any]]]


class CompareCurves(Answer):
    """One curve of each of several runs; with `max_grad_over_weight` the ranges of the ratios, by run and by map."""

    model_config = ConfigDict(
        ser_json_inf_nan="strings",
        json_schema_extra={
            "examples": [{"curves": EXAMPLE_CURVES, "ranges": EXAMPLE_COMPARE["ranges"], "pooled": EXAMPLE_COMPARE["pooled"]}]
        },
    )
    curves: dict[str, dict[str, dict[str, Any]]]
    ranges: list[RatioRange]
    pooled: list[PooledRange]
