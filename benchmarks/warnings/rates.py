"""Precision, recall, lead time and false alarms of a rule over a set of runs, with Wilson intervals. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.warnings.reading import Record
from stablessm_core.statistics import wilson

Fired = Callable[[Record], list[int]]


@dataclass(frozen=True)
class Rates:
    """Counts of runs. caught: runs that died after a warning. missed: runs that died without a warning. false: runs that
    survived despite a warning. leads: for each caught run, the number of steps from the first warning to the fatal step."""

    caught: int
    missed: int
    false: int
    lived: int
    leads: Sequence[int]
    false_alarms: int
    healthy_steps: int

    @property
    def precision(self) -> str:
        return share(self.caught, self.caught + self.false)

    @property
    def recall(self) -> str:
        return share(self.caught, self.caught + self.missed)

    @property
    def lead(self) -> str:
        if not self.leads:
            return ""
        low, middle, high = np.percentile(np.array(self.leads), [10, 50, 90])
        return f"{middle:g} ({low:.0f} to {high:.0f})"

    @property
    def false_per_1000(self) -> str:
        if not self.healthy_steps:
            return ""
        ends = wilson(self.false_alarms, self.healthy_steps)
        return f"{1e3 * self.false_alarms / self.healthy_steps:.2f} [{1e3 * ends.low:.2f}, {1e3 * ends.high:.2f}]"


def rates(records: Sequence[Record], fired: Fired) -> Rates:
    """The rates of a rule over these runs. fired: returns the steps at which the rule raised an alert in a run. Only alerts
    before the fatal step count as warnings."""
    died, lived = [r for r in records if r.died], [r for r in records if not r.died]
    early = [[step for step in fired(r) if step < r.steps] for r in died]
    leads = [r.steps - min(steps) for r, steps in zip(died, early, strict=True) if steps]
    alarms = [len(fired(r)) for r in lived]
    return Rates(
        caught=len(leads),
        missed=len(died) - len(leads),
        false=sum(n > 0 for n in alarms),
        lived=len(lived),
        leads=leads,
        false_alarms=sum(alarms),
        healthy_steps=sum(r.steps for r in lived),
    )


def curve(records: Sequence[Record], signal: str) -> list[tuple[float, float, float]]:
    """(threshold, recall, precision) of the rule "the signal reached the threshold before the run died", for every threshold,
    starting with the largest."""
    values = sorted(((r.signals.get(signal, 0.0), r.died) for r in records), reverse=True)
    deaths = sum(died for _, died in values)
    points, caught = [], 0
    for n, (value, died) in enumerate(values, 1):
        caught += died
        if deaths and (n == len(values) or values[n][0] != value):
            points.append((value, caught / deaths, caught / n))
    return points


def share(count: int, total: int) -> str:
    if not total:
        return ""
    ends = wilson(count, total)
    return f"{count / total:.2f} [{ends.low:.2f}, {ends.high:.2f}] ({count}/{total})"
