"""A search over settings: random trials drawn from a space, and rungs at which trials that fall behind are stopped.

Each value of a trial is drawn with its own generator, which is seeded by (seed, number of the trial, path). The same search
therefore always has the same trials. More trials do not change the first ones, and another setting does not change the values of
the others. The generator is Python's own, because Python promises the same numbers for a seed in every version and NumPy's
Generator does not.
"""

from __future__ import annotations

import math
import random
from typing import Annotated, Any, Literal

from pydantic import Field

from stablessm_core.spec.section import Section
from stablessm_core.telemetry.series import EVAL_ACCURACY, EVAL_LOSS, TRAIN_LOSS

MAX_TRIALS = 2000
MAX_PATHS = 20
METRICS = (TRAIN_LOSS, EVAL_LOSS, EVAL_ACCURACY)


class LogUniform(Section):
    """A number whose logarithm is distributed evenly."""

    distribution: Literal["log_uniform"]
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    def draw(self, share: float) -> float:
        """The value at `share`, 0 to 1, of the distribution."""
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + share * (high - low)), self.low), self.high)


class Uniform(Section):
    """A number that is distributed evenly."""

    distribution: Literal["uniform"]
    low: float
    high: float

    def draw(self, share: float) -> float:
        return min(max((1 - share) * self.low + share * self.high, self.low), self.high)


class Integer(Section):
    """A whole number from low to high, both included."""

    distribution: Literal["integer"]
    low: int = Field(ge=-(2**53), le=2**53)
    high: int = Field(ge=-(2**53), le=2**53)

    def draw(self, share: float) -> int:
        return min(self.low + int(share * (self.high - self.low + 1)), self.high)


class Choice(Section):
    """One of the listed values, each equally often."""

    distribution: Literal["choice"]
    values: list[Any] = Field(min_length=1, max_length=200)

    def draw(self, share: float) -> Any:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Distribution = Annotated[LogUniform | Uniform | Integer | Choice, Field(discriminator="distribution")]

DISTRIBUTIONS = ("log_uniform", "uniform", "integer", "choice")


class Halving(Section):
    """Successive halving: at each rung only the best 1 / factor of the trials that reached it continue."""

    metric: Literal["train/loss", "eval/loss", "eval/accuracy"] = Field(
        "train/loss",
        description="train/loss: the median over the last tenth of the steps before the rung. eval/loss, eval/accuracy (only of "
        "tasks with classes): the newest evaluation.",
    )
    mode: Literal["min", "max"] | None = Field(
        None, description="Whether a small or a large metric is better. null: max for eval/accuracy, otherwise min."
    )
    first_rung: int = Field(100, ge=1, le=10_000_000, description="The step of the first rung.")
    factor: int = Field(3, ge=2, le=100, description="Each rung is this many times as late as the rung before.")
    max_overflow_budget: float | None = Field(
        1.0, gt=0, description="A trial whose overflow budget exceeds this is stopped as unstable, at any step. null: no limit."
    )

    @property
    def larger_is_better(self) -> bool:
        return (self.mode or ("max" if self.metric == EVAL_ACCURACY else "min")) == "max"

    def rungs(self, steps: int) -> list[int]:
        """The steps of the rungs of a run with this many steps. The last step is no rung, because the run ends there."""
        found = [self.first_rung]
        while found[-1] * self.factor < steps:
            found.append(found[-1] * self.factor)
        return [step for step in found if step < steps]


class Search(Section):
    """Random trials, optionally with successive halving."""

    method: Literal["random"] = "random"
    space: dict[str, Distribution] = Field(
        min_length=1, max_length=MAX_PATHS, description="The distribution of each setting, by dotted path."
    )
    trials: int = Field(20, ge=1, le=MAX_TRIALS, description="Number of runs.")
    seed: int = Field(0, ge=0, lt=2**53, description="The same seed gives the same trials.")
    halving: Halving | None = Field(None, description="null: every trial trains to its end.")


def trial_settings(search: Search) -> list[dict[str, Any]]:
    """The settings of each trial, by dotted path."""
    return [
        {path: space.draw(_share(search.seed, trial, path)) for path, space in sorted(search.space.items())}
        for trial in range(search.trials)
    ]


def _share(seed: int, trial: int, path: str) -> float:
    return random.Random(f"{seed}/{trial}/{path}").random()


def search_axes(search: Search) -> dict[str, list[Any]]:
    """The settings that the search varies, with the values of those that are chosen from a list; an empty list for the rest."""
    return {path: list(space.values) if isinstance(space, Choice) else [] for path, space in search.space.items()}
