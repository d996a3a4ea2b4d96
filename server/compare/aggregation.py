"""The single definition of how a run ended, and of the statistics over several runs.

A run is finite if it finished with a finite training loss and, if it was evaluated, a finite evaluation loss. A finite run is
stable if no eigenvalue was outside the stability boundary at the run's last step. An ended run that is not finite is lost: it
diverged, failed, was cancelled, or finished with a training or evaluation loss that is not finite. Statistics over several runs
are medians and quartiles over the finite runs, always shown with finite / total and stable / total. Lost runs are counted but
never enter a median. Groups are ranked by their finite share, then by their stable share, then by the median, so that a group
cannot rank first by losing its hardest runs. Paired differences compare two runs with the same settings, if both runs are finite.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sqlalchemy import ColumnElement, and_, or_

from server.database.models import Run
from server.lifecycle.run_fields import FINITE
from stablessm_core.statistics import discordant
from stablessm_core.telemetry.statuses import OPEN

Outcome = Literal["stable", "unstable", "unknown", "lost", "open"]
OUTCOMES: dict[Outcome, str] = {  # what each outcome means
    "stable": "finished with a finite loss, no eigenvalue outside the stability boundary",
    "unstable": "finished with a finite loss, with eigenvalues outside the stability boundary",
    "unknown": "finished with a finite loss; the final eigenvalues are not known",
    "lost": "diverged, failed, cancelled, or finished with a NaN or infinite training or evaluation loss",
    "open": "waits or trains",
}
FINISHED_FINITE = ("stable", "unstable", "unknown")

# These SQL conditions, and FINITE, have the same definitions as the function `outcome`; a test compares them.
STABLE: ColumnElement[bool] = and_(
    FINITE,
    Run.unstable.is_(None),
    or_(Run.nearest_distance >= 0, and_(Run.nearest_distance.is_not(None), Run.judged_at.is_not(None))),
)
UNSTABLE: ColumnElement[bool] = and_(FINITE, Run.unstable.is_not(None))


@dataclass(frozen=True)
class End:
    """How one run ended, and its final loss (None if the run has no final loss)."""

    outcome: Outcome
    loss: float | None

    @property
    def finite(self) -> bool:
        return self.outcome in FINISHED_FINITE


@dataclass(frozen=True)
class Spread:
    """Statistics of the values of the finite runs; all are None if there is no value. `std` (divisor n - 1) is None for a
    single value."""

    median: float | None = None
    q25: float | None = None
    q75: float | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Summary:
    """How many runs ended in which way: total = finite + lost + open, finite = stable + unstable + unknown. `loss` contains
    the statistics of the final losses of the finite runs."""

    total: int
    finite: int
    stable: int
    unstable: int
    unknown: int
    lost: int
    open: int
    loss: Spread

    @property
    def ended(self) -> int:
        """How many runs have ended. A share of finite runs is a share of these, never of runs that still wait or train."""
        return self.total - self.open

    @property
    def outcome(self) -> Outcome:
        """The worst outcome among the runs, which determines their colour on the pages. From worst to best, the order is lost,
        open, unstable, unknown, stable."""
        order: tuple[tuple[Outcome, int], ...] = (
            ("lost", self.lost), ("open", self.open), ("unstable", self.unstable), ("unknown", self.unknown),
        )  # fmt: skip
        return next((name for name, count in order if count), "stable" if self.total else "open")


@dataclass(frozen=True)
class Paired:
    """Statistics of paired differences: the loss of a run of the group minus the loss of the reference run with otherwise equal
    settings.

    `of` counts the settings for which both groups have a run, and `pairs` counts the settings for which both runs are finite.
    Median and quartiles are over the pairs of finite runs; `lower` and `higher` count the differences below and above 0.
    `only_reference` counts the settings for which only the reference run is finite, `only_this` counts those for which only
    this group's run is finite, and `unmatched` counts the settings for which one of the two groups has no run.
    """

    of: int
    pairs: int
    lower: int
    higher: int
    only_reference: int
    only_this: int
    unmatched: int
    median: float | None
    q25: float | None
    q75: float | None


def end_of(run: Any) -> End:
    """How a run ended; `run` is a row of the table, or an object with the same attributes."""
    loss, evaluated = final_loss(run.result), final_loss(run.result, "eval_loss")
    known = loss is not None and math.isfinite(loss) and (evaluated is None or math.isfinite(evaluated))
    return End(outcome(run.status, known, run.unstable, run.nearest_distance, run.judged_at), loss)


def outcome(status: str, finite: bool, unstable: Any, nearest_distance: float | None, judged_at: float | None) -> Outcome:
    """How a run ended. finite: whether its final losses are finite. Stability is known if no recorded eigenvalue was ever outside
    the stability boundary, or if a verdict on the ended run exists."""
    if status in OPEN:
        return "open"
    if status != "finished" or not finite:
        return "lost"
    if unstable is not None:
        return "unstable"
    seen = nearest_distance is not None and (nearest_distance >= 0 or judged_at is not None)
    return "stable" if seen else "unknown"


def final_loss(result: Mapping[str, Any] | None, name: str = "train_loss") -> float | None:
    """The result's training or evaluation loss as a float. NaN and the infinities are stored as strings."""
    loss = (result or {}).get(name)
    return None if loss is None else float(loss)


def summary(ends: Iterable[End]) -> Summary:
    """Counts of how these runs ended, and statistics of their losses."""
    ends = list(ends)
    count = {name: sum(end.outcome == name for end in ends) for name in OUTCOMES}
    return Summary(
        total=len(ends),
        finite=sum(end.finite for end in ends),
        loss=spread([end.loss for end in ends if end.finite and end.loss is not None]),
        **count,
    )


def spread(values: Sequence[float]) -> Spread:
    """Median, interpolated quartiles, minimum, maximum, mean and standard deviation; all NaN if any value is not finite."""
    if not values:
        return Spread()
    if not all(map(math.isfinite, values)):
        return Spread(*[math.nan] * 7)
    q25, q75 = np.quantile(values, [0.25, 0.75]).tolist()
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.median(values), q25, q75, min(values), max(values), statistics.fmean(values), deviation)


def standing(of: Summary) -> tuple[float, float, float]:
    """The key that sorts groups by rank, the best group first. Lost and open runs count against a group."""
    total = max(of.total, 1)
    return (-of.finite / total, -of.stable / total, math.inf if of.loss.median is None else of.loss.median)


def ranks(summaries: Sequence[Summary]) -> list[int]:
    """The rank of each summary: 1 for the best; equal summaries share a rank."""
    keys = [standing(one) for one in summaries]
    return [1 + sum(other < key for other in keys) for key in keys]


def paired(reference: Mapping[Hashable, End], these: Mapping[Hashable, End]) -> Paired:
    """Compare `these` with `reference`. Both map the settings that do not define a run's group, including the seed, to how the
    run ended."""
    both = [(reference[key], these[key]) for key in reference if key in these]
    differences = [b.loss - a.loss for a, b in both if a.finite and b.finite and a.loss is not None and b.loss is not None]
    over = spread(differences)
    ended = [(a, b) for a, b in both if "open" not in (a.outcome, b.outcome)]
    only_reference, only_this = discordant([a.finite for a, _ in ended], [b.finite for _, b in ended])
    return Paired(
        of=len(both),
        pairs=len(differences),
        lower=sum(d < 0 for d in differences),
        higher=sum(d > 0 for d in differences),
        only_reference=only_reference,
        only_this=only_this,
        unmatched=len(reference.keys() ^ these.keys()),
        median=over.median,
        q25=over.q25,
        q75=over.q75,
    )
