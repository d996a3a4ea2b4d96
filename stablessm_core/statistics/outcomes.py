"""The three outcomes of a run: did it stay finite, did it train, and what was its loss?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stablessm_core.statistics.intervals import Share, share


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    `finite` is None if the run died in float32 and the same run in float64 did not die: then the death is no fact about the map,
    and the run counts neither way. `trained` is None if this is unknown, for example because no chance level is known. `loss`
    is the loss of a run that trained, or that is finite if `trained` is unknown; otherwise None.
    """

    finite: bool | None
    trained: bool | None
    loss: float | None


@dataclass(frozen=True)
class Outcomes:
    """Shares of several runs, each with its Wilson interval, and the losses that belong to them.

    `finite` is a share of the runs whose `finite` is known, and `trained` a share of those whose `trained` is known. `losses`
    are sorted. There is no mean over the finite runs, because a map that loses its hardest runs would look better.
    """

    finite: Share
    trained: Share
    losses: tuple[float, ...]


def outcome(
    loss: float | None,
    *,
    dies_in_float64: bool | None = None,
    score: float | None = None,
    chance: float | None = None,
    margin: float = 0.0,
    larger_is_better: bool = False,
) -> Outcome:
    """The outcome of a run.

    loss: the final loss; None, NaN or infinite if the run died. dies_in_float64: for a run that died, whether the same run dies
    in float64; None if this is unknown, and then the death counts. score and chance: what is compared with chance, by default
    the loss, and its value for a model that has learned nothing. The run trained if its score is better than chance by more than
    `margin`, in the unit of the score. A run that died has not trained. Raises ValueError for a negative margin.
    """
    if not margin >= 0:
        raise ValueError(f"margin is {margin}; allowed: 0 or more")
    if loss is None or not math.isfinite(loss):
        finite = None if dies_in_float64 is False else False
        return Outcome(finite, None if finite is None else False, None)
    reached = loss if score is None else score
    if chance is None:
        return Outcome(True, None, loss)
    trained = (reached - chance if larger_is_better else chance - reached) > margin
    return Outcome(True, trained, loss if trained else None)


def outcomes(runs: Iterable[Outcome]) -> Outcomes:
    """The shares and losses of several runs."""
    runs = list(runs)
    finite = [run.finite for run in runs if run.finite is not None]
    trained = [run.trained for run in runs if run.trained is not None]
    losses = sorted(run.loss for run in runs if run.loss is not None)
    return Outcomes(share(sum(finite), len(finite)), share(sum(trained), len(trained)), tuple(losses))
