"""Rules for alerts that people write themselves: a scalar, a condition, and for how many steps the condition must hold.

A rule raises one alert when its condition has held at every recorded point over at least `steps` training steps. It can raise
the next alert after the condition has failed and more than REARM_STEPS steps have passed since it last held, as for every other
alert.
A rule may name a scalar that is recorded later or never.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert
from stablessm_core.telemetry.detectors.episodes import REARM_STEPS
from stablessm_core.telemetry.detectors.raised_elsewhere import RULE

NONFINITE = "nonfinite"
CONDITIONS = "a comparison with a number, such as '> 5' or '<= 0.1', with > >= < <=; or 'nonfinite'"
MAX_RULES = 50  # of one run
_COMPARISON = re.compile(r"(>=|<=|>|<)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
Holds = Callable[[np.ndarray], np.ndarray]


def parse_condition(text: str) -> Holds:
    """The function that is True for each value that meets the condition. NaN meets no comparison. Raises ValueError."""
    text = text.strip()
    if text == NONFINITE:
        return lambda values: ~np.isfinite(values)
    found = _COMPARISON.fullmatch(text)
    if found is None or not np.isfinite(threshold := float(found[2])):
        raise ValueError(f"condition is {text[:60]!r}; allowed: {CONDITIONS}")
    compare = _OPERATORS[found[1]]

    def holds(values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            met: np.ndarray = compare(values.astype(np.float64), threshold)
        return met

    return holds


@dataclass(frozen=True)
class RuleState:
    """How far a rule has come. since: the first step of the points at which the condition has held without a break; -1 if it did
    not hold at the newest point. held: the last step at which it held, or -1. fired: True while no further alert may be raised.
    newest: the newest step that was judged, or -1."""

    since: int = -1
    held: int = -1
    fired: bool = False
    newest: int = -1

    def before(self, step: int) -> RuleState:
        """The state if the points from `step` on are deleted."""
        if self.newest < step:
            return self
        since = self.since if self.since < step else -1
        return replace(self, since=since, held=min(self.held, step - 1), newest=step - 1)


@dataclass(frozen=True)
class Rule:
    """A rule. name: the scalar. condition: see `parse_condition`. steps: for how many training steps it must hold."""

    name: str
    condition: str
    steps: int = 1

    @property
    def text(self) -> str:
        """The rule in words, such as "> 5 for 100 steps"."""
        return self.condition.strip() + (f" for {self.steps:,} steps" if self.steps > 1 else "")

    def judge(
        self, state: RuleState, steps: np.ndarray, values: np.ndarray, most: int | None = None
    ) -> tuple[RuleState, list[Alert]]:
        """The state after these points, in ascending steps, and the alerts that they raise, at most the first `most`. Points that
        are not after the newest point are left out."""
        new = steps > state.newest
        steps, values = steps[new], values[new]
        if not len(steps):
            return state, []
        holds = parse_condition(self.condition)(values)
        state = replace(state, newest=int(steps[-1]))
        alerts: list[Alert] = []
        if not holds.any() and state.since < 0:
            return state, alerts
        if not holds.any():
            return replace(state, since=-1), alerts
        edges = np.diff(holds.astype(np.int8), prepend=0, append=0)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1  # first and last point of each stretch
        since, held = steps[starts], steps[ends]
        rearms = since - np.concatenate([[state.held], held[:-1]]) > REARM_STEPS
        if state.since >= 0 and starts[0] == 0:  # the first stretch began before these points
            since[0], rearms[0] = state.since, False
        episode = np.cumsum(rearms)  # of each stretch; 0 is the episode of `state`. An episode raises one alert
        long_enough = (held - since + 1 >= self.steps) & ~(state.fired & (episode == 0))
        stretches = np.flatnonzero(long_enough)
        stretches = stretches[np.unique(episode[stretches], return_index=True)[1]]
        for i in stretches[:most]:
            at = int(starts[i] + np.searchsorted(steps[starts[i] : ends[i] + 1], since[i] + self.steps - 1))
            alerts.append(self._alert(int(since[i]), int(steps[at]), float(values[at])))
        fired = bool((long_enough & (episode == episode[-1])).any() or (state.fired and episode[-1] == 0))
        return replace(state, since=int(since[-1]) if holds[-1] else -1, held=int(held[-1]), fired=fired), alerts

    def _alert(self, since: int, step: int, value: float) -> Alert:
        held = f" at every recorded step from {since:,} on" if self.steps > 1 else ""
        message = f"{self.name} is {value:.6g} at step {step:,}: your rule {self.text!r} holds{held}"
        return RULE.alert(step=step, message=message, series=self.name, tensor=self.text, value=value)


class Rules:
    """The rules of a run in training, from its first row to its last."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._states = dict.fromkeys(rules, RuleState())
        self.names = frozenset(rule.name for rule in rules)

    def read(self, steps: np.ndarray, values: Mapping[str, np.ndarray]) -> list[Alert]:
        """The alerts of these steps (n,) with the values (n,) of each scalar, by step."""
        found: list[Alert] = []
        for rule, state in self._states.items():
            if rule.name in values:
                self._states[rule], alerts = rule.judge(state, steps, values[rule.name])
                found += alerts
        return sorted(found, key=lambda alert: alert.step)

    def state(self) -> dict[str, np.ndarray]:
        """The state of each rule, for a checkpoint."""
        return {_key(rule): np.array(astuple(state), np.int64) for rule, state in self._states.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`. A rule without a stored state starts anew."""
        for rule in self._states:
            since, held, fired, newest = arrays.get(_key(rule), np.array(astuple(RuleState()))).tolist()
            self._states[rule] = RuleState(since, held, bool(fired), newest)


def _key(rule: Rule) -> str:
    return f"{rule.name} {rule.text}"
