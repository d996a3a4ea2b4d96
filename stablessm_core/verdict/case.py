"""Everything that is known about a diverged run: facts, each computed once from the run's records and its autopsy.

A case holds no conclusion. The causes (`stablessm_core.verdict.causes`) read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stablessm_core.verdict import eigenvalues, facts, optimizer_facts
from stablessm_core.verdict.batches import BadBatch, bad_batch
from stablessm_core.verdict.inputs import Layer, Run, Scalars, Source
from stablessm_core.verdict.measured import Autopsy, autopsy_of, number_of

SOON = 5  # a changed run that dies at most so many steps later "dies too"
CONTRIBUTES = 0.3  # share of the budget limit from which an eigenvalue outside the boundary may have a part in a death


@dataclass(frozen=True, eq=False)
class Case:
    """A diverged run. Raises ValueError if the run's numbers are finite.

    step: the fatal step. tensor, value: the first number that was not finite, in the recorder's order of tensors.
    """

    run: Run
    source: Source

    def __post_init__(self) -> None:
        if self.run.fatal is None:
            raise ValueError("there is nothing to decide: the run's numbers are finite")

    @cached_property
    def fatal(self) -> Mapping[str, Any]:
        return self.run.fatal or {}

    @cached_property
    def step(self) -> int:
        return int(self.fatal["step"])

    @cached_property
    def tensor(self) -> str:
        return str(self.fatal.get("tensor") or "")

    @cached_property
    def value(self) -> str | None:
        return self.fatal.get("value")

    @cached_property
    def scalars(self) -> Scalars:
        """The recorded rows before the end, the fatal one included."""
        return self.source.scalars(self.step - facts.LOSS_TAIL * self.run.every, self.step)

    @cached_property
    def autopsy(self) -> Autopsy | None:
        return autopsy_of(self.run.autopsy, self.step)

    # ---- the batch ----

    @cached_property
    def bad(self) -> BadBatch | None:
        """The bad batch, by the records, or by the autopsy where the records do not say what is usual."""
        recorded = bad_batch(self.run, self.scalars, self.step)
        measured = None if self.autopsy is None else self.autopsy.bad_batch
        if measured is not None and (recorded is None or recorded.usual is None):
            recorded = measured
        if self.flags and recorded is None:
            return BadBatch(step=self.step, which=self.flags, finite=False)
        return recorded

    @cached_property
    def flags(self) -> int | None:
        """Which part of the fatal step's batch was not finite, as in `Scalars.batch`; None if this was not recorded."""
        measured = None if self.autopsy is None else self.autopsy.bad_batch
        if measured is not None and not measured.finite:
            return measured.which
        if self.tensor.startswith("batch."):
            return 2 if self.tensor.endswith("y") else 1
        if self.scalars.batch is None or not len(self.scalars) or self.scalars.step[-1] != self.step:
            return 0 if self.autopsy is not None and self.autopsy.findings.get("batch") else None
        flag = self.scalars.batch[-1]
        return None if np.isnan(flag) else int(flag)

    @cached_property
    def largest_of_batch(self) -> float | None:
        """The largest number of the fatal step's batch; None if unknown, as for tokens and classes."""
        if self.autopsy is not None:
            batch = self.autopsy.findings.get("batch") or {}
            sizes = [number_of(batch.get(f"largest_{part}")) for part in ("input", "target")]
        elif len(self.scalars) and self.scalars.step[-1] == self.step:
            columns = (self.scalars.largest_input, self.scalars.largest_target)
            sizes = [float(column[-1]) for column in columns if column is not None]
        else:
            return None
        known = [size for size in sizes if np.isfinite(size)]
        return max(known) if known else None

    @cached_property
    def usual_batch(self) -> float | None:
        """The median of the largest numbers of the recorded batches before the fatal step; None if none is known."""
        before = self.scalars.step < self.step
        columns = [column for column in (self.scalars.largest_input, self.scalars.largest_target) if column is not None]
        known = [np.abs(column[before]) for column in columns]
        sizes = np.fmax.reduce(known) if known else np.empty(0)
        sizes = sizes[np.isfinite(sizes)]
        return float(np.median(sizes)) if len(sizes) else None

    # ---- states and eigenvalues ----

    @cached_property
    def _state_alert(self) -> Mapping[str, Any] | None:
        alerts = (one for one in self.run.alerts if one["step"] == self.step and one["kind"] == "nonfinite_state")
        return next(alerts, None)

    @cached_property
    def inherited(self) -> int | None:
        """The layer of which every state was NaN: it got NaN as its input. None if there is none."""
        alert = self._state_alert
        return int(alert["layer"]) if alert is not None and _every_state_is_nan(self.run, alert) else None

    @cached_property
    def state(self) -> bool:
        """Whether a layer's state was not finite, and the layer did not get NaN from below."""
        return (self.tensor.endswith(".state") or self._state_alert is not None) and self.inherited is None

    @cached_property
    def worst(self) -> eigenvalues.Worst | None:
        """The worst eigenvalue of the fatal row, or of the recorded row before."""
        here = eigenvalues.worst_eigenvalue(self.run, self.source, self.step)
        return here or eigenvalues.worst_eigenvalue(self.run, self.source, self.step - self.run.every)

    @cached_property
    def layer(self) -> Layer | None:
        """The layer whose state was not finite, else the layer of the worst eigenvalue."""
        named = None
        if self.inherited is None and self.tensor.endswith(".state"):
            named = self.fatal.get("layer")
        elif self.inherited is None and self._state_alert is not None:
            named = self._state_alert["layer"]
        if named is None and self.worst is not None:
            named = self.worst.layer
        return self.layer_of(named)

    @cached_property
    def eigenvalue(self) -> int | None:
        """The eigenvalue whose state was not finite, else the worst one of `layer`."""
        alert = self._state_alert
        if self.state and self.tensor.endswith(".state") and self.fatal.get("eigenvalue") is not None:
            return int(self.fatal["eigenvalue"])
        if self.state and alert is not None and alert["eigenvalue"] is not None:
            return int(alert["eigenvalue"])
        if self.worst is not None and self.layer is not None and self.worst.layer == self.layer.index:
            return self.worst.eigenvalue
        return None

    def layer_of(self, index: int | None) -> Layer | None:
        return next((layer for layer in self.run.layers if layer.index == index), None)

    def worst_at(self, step: int) -> eigenvalues.Worst | None:
        return eigenvalues.worst_eigenvalue(self.run, self.source, step)

    def contributes(self, worst: eigenvalues.Worst | None) -> bool:
        """Whether this eigenvalue is outside the boundary and may have a part in the death."""
        if worst is None or worst.budget is None:
            return False
        return worst.budget >= CONTRIBUTES * self.run.limit_of(worst.layer)

    @cached_property
    def firsts(self) -> list[eigenvalues.Crossing]:
        """The first crossing of each layer, by step."""
        of_layers = (eigenvalues.first_crossing(self.run, self.source, layer) for layer in self.run.layers)
        return sorted((one for one in of_layers if one is not None), key=lambda one: one.step)

    @cached_property
    def decay_change(self) -> eigenvalues.DecayChange | None:
        return None if self.worst is None else eigenvalues.decay_change(self.run, self.source, self.worst)

    # ---- the whole training ----

    @cached_property
    def growth(self) -> facts.Growth | None:
        return facts.loss_growth(self.source, self.scalars, self.step)

    @property
    def risen(self) -> bool:
        """Whether the last finite loss was at least ROSE times the best one, and twice its usual level before."""
        return self.growth is not None and self.growth.rose_at is not None

    @cached_property
    def rise(self) -> int | None:
        """The step at which the loss had risen; the fatal step if it only rose there; None if no row before is recorded."""
        if self.growth is None:
            return None
        return self.step if self.growth.rose_at is None else self.growth.rose_at

    @cached_property
    def fatal_loss(self) -> float | None:
        """The loss of the fatal step if it is finite."""
        here = self.scalars.loss[self.scalars.step == self.step]
        return float(here[0]) if len(here) and np.isfinite(here[0]) else None

    @cached_property
    def update(self) -> float | None:
        return facts.update_size(self.run, self.scalars, self.step)

    def is_small(self, update: float | None) -> bool:
        """Whether an update was small, also that of eigenvalue weights with a larger rate of their own."""
        return update is not None and update * max(1.0, self.run.recurrent_ratio or 1.0) <= facts.SMALL_UPDATE

    @property
    def updated_little(self) -> bool:
        """Whether the update before the fatal step was small; False if its size is unknown."""
        return self.is_small(self.update)

    @cached_property
    def lr(self) -> float:
        """The learning rate of the first recorded row; NaN if unknown."""
        return float(self.scalars.lr[0]) if len(self.scalars) else self.run.lr

    @cached_property
    def half_losses(self) -> bool:
        return facts.losses_are_float16(self.scalars, self.step)

    @property
    def computes_in_half(self) -> bool:
        return self.run.how.precision in ("float16", "half")

    @cached_property
    def evaluated(self) -> tuple[int, float] | None:
        return facts.bad_evaluation(self.source, self.step)

    @cached_property
    def kick(self) -> facts.Kick | None:
        return facts.gradient_kick(self.run, self.scalars, self.growth)

    @cached_property
    def rate_jump(self) -> optimizer_facts.RateJump | None:
        return optimizer_facts.rate_jump(self.scalars, self.step)

    @cached_property
    def decay_growth(self) -> optimizer_facts.DecayGrowth | None:
        return optimizer_facts.decay_growth(self.run, self.source, self.scalars, self.step)

    @cached_property
    def descent(self) -> facts.Descent | None:
        return facts.loss_descent(self.scalars, self.step)

    # ---- the autopsy's trials ----

    def lives(self, change: str) -> bool | None:
        """Whether the trial with this change lived; None without a result that can be compared with the run."""
        return None if self.autopsy is None else self.autopsy.lives(change)

    def dies_soon(self, change: str) -> bool:
        """Whether the trial with this change died, at most SOON steps after the run."""
        one = None if self.autopsy is None else self.autopsy.counterfactual(change)
        return one is not None and self.lives(change) is False and int(one["step"]) <= self.step + SOON

    @property
    def is_tested(self) -> bool:
        """Whether the autopsy measured what tells a too large rate, a wrong gradient and a changed loss apart: a slope confirmed
        the gradient, or the run was trained again with a tenth of the rate."""
        return self.autopsy is not None and (self.autopsy.gradient_agrees or self.lives("tenth_of_rate") is not None)

    @cached_property
    def measured_layer(self) -> int | None:
        """The layer in whose forward pass the first number that is not finite appeared."""
        if self.autopsy is None or self.autopsy.first is None or self.autopsy.place != "forward":
            return None
        layer = self.autopsy.first.get("layer")
        return None if layer is None else int(layer)

    @property
    def largest(self) -> float:
        """The largest true magnitude of the fatal step; NaN without an autopsy."""
        return float("nan") if self.autopsy is None else self.autopsy.largest


def _every_state_is_nan(run: Run, alert: Mapping[str, Any]) -> bool:
    """Whether the state alert says that every state of the layer is NaN. An overflow makes single states infinite; a NaN in the
    layer's input makes all of them NaN."""
    layer = next((layer for layer in run.layers if layer.index == alert["layer"]), None)
    others = re.search(r"and (\d+) other", str(alert["message"]))
    if layer is None or layer.wide or layer.width < 2 or others is None:
        return False
    return bool(np.isnan(number_of(alert["value"]))) and int(others[1]) + 1 == layer.width
