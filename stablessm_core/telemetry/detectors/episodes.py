"""Runs every detector over a run's rows and raises one alert per episode.

Rows arrive in order, one for every training step, so the step that an alert names is exact. A condition that continues to hold
is one episode and raises one alert, at its first step. The condition can begin the next episode after REARM_STEPS steps in
which it did not hold. If a later episode has the same kind, layer and eigenvalue, it extends the stored alert, unless the alert
is critical: every critical episode may need a reaction (`train.on_warning`).

An extended alert is sent again, with the same step and a message that says how long the condition lasted. It is sent when its
number of steps doubles, when an episode extends it, and at the end of recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from stablessm_core.telemetry.detectors import batch_skipped
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Watch
from stablessm_core.telemetry.detectors.nonfinite import NONFINITE_BATCH
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.detectors.rows import Rows
from stablessm_core.telemetry.detectors.steps import Steps

REARM_STEPS = 100
FIRST_UPDATE = 16  # number of steps after which the alert of an episode is first extended


@dataclass
class Episode:
    """An alert and its duration. held: the number of steps on which the condition held; last: the last of them. sent: `held` when
    the alert was last sent. alert: None if an older version stored the episode."""

    alert: Alert | None
    last: int
    held: int = 0
    sent: int = 1

    def extended(self, held: int, last: int) -> Alert | None:
        """The alert with its duration after `held` steps up to the step `last`."""
        self.sent = held
        if self.alert is None or held <= 1:
            return self.alert
        first = self.alert.step
        steps = "this lasted from" if held == last - first + 1 else f"this was so on {held:,} of the steps from"
        return replace(self.alert, message=f"{self.alert.message}; {steps} step {first:,} to step {last:,}", lasted=held)


class Detectors:
    """Watches a run from its first row to its last.

    parameters: names of the model's parameters, in the order of the rows' norms. setup: how the run trains. steps: whether the
    optimizer's steps grow with the gradient, if the setup does not say it. thresholds: the alerts' settings; None switches
    an alert off.
    """

    def __init__(
        self,
        parameters: list[str],
        setup: Setup | None = None,
        *,
        steps: Steps = "unknown",
        **thresholds: float | None,
    ) -> None:
        allowed = {kind.setting for kind in KINDS.values()} - {None}
        if unknown := thresholds.keys() - allowed:
            raise ValueError(f"alert settings are {sorted(unknown)}; allowed: {sorted(map(str, allowed))}")
        self._watches: dict[str, Watch] = {}
        steps = steps if setup is None or steps != "unknown" else setup.steps
        skips = setup is not None and setup.skips_bad_batches
        unused = NONFINITE_BATCH if skips else batch_skipped.KIND.name  # a bad batch raises one of the two
        for kind in KINDS.values():
            threshold = 0.0 if kind.setting is None else thresholds.get(kind.setting)
            if kind.detect is not None and threshold is not None and kind.name != unused:
                self._watches[kind.name] = Watch(parameters=parameters, setup=setup, steps=steps, threshold=threshold)
        # the episodes by kind of alert and layer; the last episode of a list is the newest
        self._episodes: dict[tuple[str, str], list[Episode]] = {}

    def steps_are(self, steps: Steps) -> None:
        """From the next rows on, the optimizer's steps are of this kind."""
        self._watches = {name: replace(watch, steps=steps) for name, watch in self._watches.items()}

    def reset(self) -> None:
        """Forget every episode."""
        self._episodes.clear()
        for watch in self._watches.values():
            watch.memory.clear()

    def state(self) -> dict[str, np.ndarray]:
        """The episodes, for a checkpoint, so that a resumed run raises the same alerts as an uninterrupted run."""
        arrays = {f"episodes/{kind}/{layer}": _packed(found) for (kind, layer), found in self._episodes.items()}
        for name, watch in self._watches.items():
            arrays |= {f"memory/{name}/{layer}": array.copy() for layer, array in watch.memory.items()}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`; earlier episodes are discarded."""
        self.reset()
        for key, array in arrays.items():
            what, *kind, layer = key.split("/")
            if what == "episodes":
                self._episodes[kind[0], layer] = _unpacked(array)
                continue
            if what == "last":  # the spelling of older checkpoints, which store only the last step of an episode
                self._episodes[kind[0], layer] = [Episode(None, int(array[0]))]
                continue
            name = "dead_eigenvalues" if what == "zeros" else kind[0]  # older checkpoints call this kind "zeros"
            if name in self._watches:
                self._watches[name].memory[layer] = np.array(array)

    @np.errstate(all="ignore")
    def first_nonfinite(self, rows: Rows) -> int | None:
        """The first row with a non-finite batch, loss, weight, state or gradient; None if there is no such row."""
        found = [int(np.argmax(condition.holds)) for kind, condition in self._conditions(rows, (True,)) if condition.holds.any()]
        return min(found) if found else None

    @np.errstate(all="ignore")  # detectors compare infinities and NaN as such
    def scan(self, rows: Rows, *, finite: bool = False) -> list[Alert]:
        """The alerts of the rows, sorted by row. Within a row, alerts about the whole model come before alerts about layers,
        and alerts about more likely causes come first.

        finite: True if `first_nonfinite` has found no non-finite number in the rows.
        """
        found: list[tuple[int, int, Alert]] = []
        for kind, condition in self._conditions(rows, (False,) if finite else (False, True)):
            layer = -1 if condition.layer is None else int(condition.layer.partition(".")[0])
            found += [(row, layer, alert) for row, alert in self._alerts(kind, rows, condition)]
        return [alert for _, _, alert in sorted(found, key=lambda each: each[:2])]  # a stable sort keeps the order of the kinds

    def durations(self) -> list[Alert]:
        """The alerts whose conditions have held since they were last sent, with their durations."""
        grown = [episode for found in self._episodes.values() for episode in found if episode.held > episode.sent]
        return [alert for episode in grown if (alert := episode.extended(episode.held, episode.last)) is not None]

    def _conditions(self, rows: Rows, nonfinite: Sequence[bool]) -> Iterator[tuple[AlertKind, Condition]]:
        for name, watch in self._watches.items():
            kind = KINDS[name]
            if kind.detect is not None and kind.nonfinite in nonfinite:
                for condition in kind.detect(rows, watch):
                    yield kind, condition

    def _alerts(self, kind: AlertKind, rows: Rows, condition: Condition) -> list[tuple[int, Alert]]:
        """The rows in which an alert is new or extended, and the alert."""
        if not condition.holds.any():
            return []
        held = np.flatnonzero(condition.holds)
        at = rows.first_step + rows.stride * held
        episodes = self._episodes.setdefault((kind.name, condition.layer or "0"), [])
        before = episodes[-1].last if episodes else -REARM_STEPS - 1
        begins = np.flatnonzero(np.diff(at, prepend=before) > REARM_STEPS)
        if condition.critical is not None:
            begins = _with_escalations(begins, condition.critical[held], episodes[-1] if episodes else None)
        found: list[tuple[int, Alert | None]] = []
        for start, end in pairwise(sorted({0, *begins.tolist(), len(held)})):
            steps = at[start:end]
            if start in begins:
                found.append((int(held[start]), _begin(episodes, condition.alert(int(held[start])), int(steps[0]))))
            episode = episodes[-1]
            update = FIRST_UPDATE
            while update <= episode.held + len(steps):
                if update > episode.held:
                    place = update - episode.held - 1
                    found.append((int(held[start + place]), episode.extended(update, int(steps[place]))))
                update *= 2
            episode.held, episode.last = episode.held + len(steps), int(steps[-1])
        return [(row, alert) for row, alert in found if alert is not None]


def without_alerts(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The `state()` of a run for a fork of the run. Ongoing episodes raise no new alert, but the alerts stay with the run."""
    last = {
        key.replace("episodes/", "last/", 1): np.array([_unpacked(array)[-1].last])
        for key, array in state.items()
        if key.startswith("episodes/")
    }
    return last | {key: array for key, array in state.items() if not key.startswith("episodes/")}


def _with_escalations(begins: np.ndarray, critical: np.ndarray, last: Episode | None) -> np.ndarray:
    """The beginnings of episodes, with the rows in which an episode that began with a warning becomes critical.

    begins: positions in `critical`, which tells for each row whether its alert is critical. last: the episode before these rows.
    """
    found = set(begins.tolist())
    is_critical = last is not None and (last.alert is None or last.alert.severity == "critical")
    for i in np.flatnonzero(critical | np.isin(np.arange(len(critical)), begins)).tolist():
        if i in found:
            is_critical = bool(critical[i])
        elif not is_critical:
            found.add(i)
            is_critical = True
    return np.array(sorted(found), np.int64)


def _begin(episodes: list[Episode], alert: Alert, step: int) -> Alert | None:
    """Begin an episode and return its alert: the new alert, or an earlier alert that the episode extends."""
    for episode in episodes:
        if episode.alert and alert.severity != "critical" and episode.alert.eigenvalue == alert.eigenvalue:
            episodes.remove(episode)
            episodes.append(episode)
            return episode.extended(episode.held + 1, step)
    episodes.append(Episode(alert, step))
    return alert


def _packed(episodes: list[Episode]) -> np.ndarray:
    # JSON as bytes, because checkpoints store only arrays; Python's json module supports NaN and infinities
    return np.frombuffer(json.dumps([asdict(episode) for episode in episodes]).encode(), np.uint8).copy()


def _unpacked(array: np.ndarray) -> list[Episode]:
    stored: list[dict[str, Any]] = json.loads(array.tobytes())
    return [Episode(**one | {"alert": None if one["alert"] is None else Alert(**one["alert"])}) for one in stored]
