"""One rule for what became of runs, and for what may be said of several runs together.

A run is finite when it finished, and with a finite loss; of these it is stable when no eigenvalue was outside the boundary at
its last step. Every other run that ended is lost: diverged, failed, cancelled, or finished with a loss that is no number. Numbers
over several runs are medians with quartiles over the finite ones and stand beside finite / total and stable / total; lost runs
are counted, and never part of them. Groups are ranked by the share that is finite, then by the share that is stable, then by the
median: what loses its hardest runs cannot come first. A difference is taken run by run, over settings with which both finished.
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
from stablessm_core.nonfinite import NONFINITE

Outcome = Literal["stable", "unstable", "unknown", "lost", "open"]
OUTCOMES: dict[Outcome, str] = {  # what each says of a run
    "stable": "finished with a finite loss, no eigenvalue outside the stability boundary",
    "unstable": "finished with a finite loss, with eigenvalues outside the stability boundary",
    "unknown": "finished with a finite loss; where its eigenvalues ended is not known",
    "lost": "diverged, failed, cancelled, or finished with a loss that is not a number",
    "open": "waits or trains",
}
OPEN = ("queued", "running")
FINISHED_FINITE = ("stable", "unstable", "unknown")

_LOSS = Run.result["train_loss"].as_string()
# The same in SQL; a test compares the two.
FINITE: ColumnElement[bool] = and_(Run.status == "finished", _LOSS.is_not(None), _LOSS.not_in(NONFINITE))
STABLE: ColumnElement[bool] = and_(
    FINITE,
    Run.unstable.is_(None),
    or_(Run.nearest_distance >= 0, and_(Run.nearest_distance.is_not(None), Run.judged_at.is_not(None))),
)
UNSTABLE: ColumnElement[bool] = and_(FINITE, Run.unstable.is_not(None))


@dataclass(frozen=True)
class End:
    """What became of one run, and its final loss (None where there is none)."""

    outcome: Outcome
    loss: float | None

    @property
    def finite(self) -> bool:
        return self.outcome in FINISHED_FINITE


@dataclass(frozen=True)
class Spread:
    """Of the finite runs' values; all None without one. `std` (n - 1) is None for a single one."""

    median: float | None = None
    q25: float | None = None
    q75: float | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Summary:
    """total = finite + lost + open; finite = stable + unstable + unknown. `loss`: over the finite runs."""

    total: int
    finite: int
    stable: int
    unstable: int
    unknown: int
    lost: int
    open: int
    loss: Spread

    @property
    def outcome(self) -> Outcome:
        """The worst that became of one of them, as a colour needs it: lost before open before unstable."""
        order: tuple[tuple[Outcome, int], ...] = (
            ("lost", self.lost), ("open", self.open), ("unstable", self.unstable), ("unknown", self.unknown),
        )  # fmt: skip
        return next((name for name, count in order if count), "stable" if self.total else "open")


@dataclass(frozen=True)
class Paired:
    """The losses of some runs less those of reference runs with the same other settings.

    `of`: settings that both have a run for; `pairs`: of these where both are finite, over which median and quartiles go;
    `lower`, `higher`: how many differences are below and above 0; `only_reference`, `only_this`: where just that one is finite;
    `unmatched`: settings that one of the two has no run for.
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
    """Of a run's row, or of anything with its columns."""
    loss = final_loss(run.result)
    return End(outcome(run.status, loss, run.unstable, run.nearest_distance, run.judged_at), loss)


def outcome(status: str, loss: float | None, unstable: Any, nearest_distance: float | None, judged_at: float | None) -> Outcome:
    """Stability is known where eigenvalues were seen: none was ever outside, or the end was judged."""
    if status in OPEN:
        return "open"
    if status != "finished" or loss is None or not math.isfinite(loss):
        return "lost"
    if unstable is not None:
        return "unstable"
    seen = nearest_distance is not None and (nearest_distance >= 0 or judged_at is not None)
    return "stable" if seen else "unknown"


def final_loss(result: Mapping[str, Any] | None) -> float | None:
    """The result's `train_loss`; "NaN" and the infinities are stored as words."""
    loss = (result or {}).get("train_loss")
    return None if loss is None else float(loss)


def summary(ends: Iterable[End]) -> Summary:
    """What became of these runs, and the spread of their losses."""
    ends = list(ends)
    count = {name: sum(end.outcome == name for end in ends) for name in OUTCOMES}
    return Summary(
        total=len(ends),
        finite=sum(end.finite for end in ends),
        loss=spread([end.loss for end in ends if end.finite and end.loss is not None]),
        **count,
    )


def spread(values: Sequence[float]) -> Spread:
    """Median, quartiles (interpolated between neighbours), ends, mean and standard deviation; of a NaN among them all are NaN."""
    if not values:
        return Spread()
    if not all(map(math.isfinite, values)):
        return Spread(*[math.nan] * 7)
    q25, q75 = np.quantile(values, [0.25, 0.75]).tolist()
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.median(values), q25, q75, min(values), max(values), statistics.fmean(values), deviation)


def standing(of: Summary) -> tuple[float, float, float]:
    """What groups are ranked by, the best first: lost and open runs count against a group, whatever the others' loss."""
    total = max(of.total, 1)
    return (-of.finite / total, -of.stable / total, math.inf if of.loss.median is None else of.loss.median)


def ranks(summaries: Sequence[Summary]) -> list[int]:
    """1 for the best; equal ones share a rank."""
    keys = [standing(one) for one in summaries]
    return [1 + sum(other < key for other in keys) for key in keys]


def paired(reference: Mapping[Hashable, End], these: Mapping[Hashable, End]) -> Paired:
    """`these` against `reference`, each by its other settings, seed included."""
    both = [(reference[key], these[key]) for key in reference if key in these]
    differences = [b.loss - a.loss for a, b in both if a.finite and b.finite and a.loss is not None and b.loss is not None]
    over = spread(differences)
    return Paired(
        of=len(both),
        pairs=len(differences),
        lower=sum(d < 0 for d in differences),
        higher=sum(d > 0 for d in differences),
        only_reference=sum(a.finite and b.outcome == "lost" for a, b in both),
        only_this=sum(b.finite and a.outcome == "lost" for a, b in both),
        unmatched=len(reference.keys() ^ these.keys()),
        median=over.median,
        q25=over.q25,
        q75=over.q75,
    )
