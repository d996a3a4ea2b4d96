"""What is known about a run whose training values are all finite: facts, each computed once. An ending holds no conclusion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.inputs import Run, Scalars, Source

LAST_ROWS = 10  # the loss at the start and at the end is the median of this many rows, at most
JUDGED_FROM = 20  # minimum number of steps of a run that can have learned nothing
JUDGED_ROWS = 8  # minimum number of recorded rows of such a run
SEARCHED = 4 * facts.LOSS_TAIL  # number of last rows that are searched for a change of the data

Boundary = eigenvalues.Worst | None


@dataclass(frozen=True, eq=False)
class Ending:
    """What is known about a run whose numbers are finite. last: its last recorded step."""

    run: Run
    source: Source
    last: int

    @cached_property
    def ends(self) -> tuple[Scalars, Scalars] | None:
        """The first and the last rows, LAST_ROWS or a quarter of a shorter run; None if there are too few."""
        recorded = (self.last - self.run.first_step) // self.run.every + 1
        rows = min(LAST_ROWS, max(1, recorded // 4))
        if recorded < 2:
            return None
        begun = self.source.scalars(self.run.first_step, self.run.first_step + (rows - 1) * self.run.every)
        ended = self.source.scalars(self.last - (rows - 1) * self.run.every, self.last)
        return begun, ended

    @cached_property
    def losses(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The finite losses of the first and of the last rows; None if one of them has none."""
        if self.ends is None:
            return None
        begun, ended = (one.loss[np.isfinite(one.loss)] for one in self.ends)
        return (begun, ended) if len(begun) and len(ended) else None

    @cached_property
    def rows(self) -> int:
        return (self.last - self.run.first_step) // self.run.every + 1

    @property
    def is_long(self) -> bool:
        """Whether the run had time to learn something, and enough rows show it."""
        return self.last - self.run.first_step + 1 >= JUDGED_FROM and self.rows >= JUDGED_ROWS

    @cached_property
    def tail(self) -> Scalars:
        return self.source.scalars(max(self.run.first_step, self.last - SEARCHED * self.run.every), self.last)

    @cached_property
    def growth(self) -> facts.Growth | None:
        scalars = self.source.scalars(self.last - facts.LOSS_TAIL * self.run.every, self.last)
        return facts.loss_growth(self.source, scalars, self.last + 1)

    @cached_property
    def worst(self) -> Boundary:
        here = eigenvalues.worst_eigenvalue(self.run, self.source, self.last)
        if here is None and self.last > self.run.every:
            return eigenvalues.worst_eigenvalue(self.run, self.source, self.last - self.run.every)
        return here

    @cached_property
    def firsts(self) -> list[eigenvalues.Crossing]:
        of_layers = (eigenvalues.first_crossing(self.run, self.source, layer) for layer in self.run.layers)
        return sorted((one for one in of_layers if one is not None), key=lambda one: one.step)

    @cached_property
    def evaluated(self) -> tuple[int, float] | None:
        return facts.bad_evaluation(self.source)

    @property
    def still_with_gradient(self) -> tuple[int, int]:
        """How many recorded weights never moved although they have a gradient, and of how many."""
        return self._still[0], self._still[2]

    @property
    def still_without_gradient(self) -> tuple[int, int]:
        """How many recorded weights never moved and have a gradient of exactly 0, and of how many."""
        return self._still[1], self._still[2]

    @cached_property
    def _still(self) -> tuple[int, int, int]:
        run, pushed, without, of = self.run, 0, 0, 0
        frozen = run.reported is None and run.config["optimizer"].get("recurrent_lr") == 0
        if frozen or run.status not in FINAL or not self.is_long:
            return 0, 0, 0
        for layer in run.layers:
            first, last = (self.source.layer(layer.index, step, step) for step in (run.first_step, self.last))
            if not len(first) or not len(last) or first.weight is None or last.weight is None or last.ratio is None:
                continue
            still, ratio = first.weight[0] == last.weight[0], last.ratio[0]
            pushed += int((still & np.isfinite(ratio) & (ratio > 0)).sum())
            without += int((still & (ratio == 0)).sum())
            of += last.weight.shape[1]
        return pushed, without, of

    @property
    def constant_loss(self) -> float | None:
        """The loss of the best constant prediction, measured before the training; None if it is unknown."""
        known = ((self.run.environment or {}).get("data") or {}).get("constant_loss")
        return float(known) if isinstance(known, int | float) and math.isfinite(known) and known > 0 else None
