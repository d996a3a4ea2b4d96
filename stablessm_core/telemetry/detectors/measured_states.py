"""How near the recorded states are to an overflow, and how near they will be if they grow as they did in the last step.

A recorded state contains what an eigenvalue alone does not tell: the gain of the input, and a growth that differs from token to
token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablessm_core.telemetry.detectors.alert import Watch
from stablessm_core.telemetry.detectors.rows import LayerRows
from stablessm_core.telemetry.stability import LN_LARGEST

FROM = 0.6  # share of the limit from which on a growth is continued


@dataclass(frozen=True)
class States:
    """The state budget ln|h| / 88.72 of a layer's largest state: 1 if it is the largest float32. Both fields are (rows,).

    now: in each row. then: in the next step, if the logarithm grows as much as in the last step.
    """

    now: np.ndarray
    then: np.ndarray

    def near(self, limit: float, share: float) -> np.ndarray:
        """True for each row in which the budget has reached this share of the limit, or reaches it in the next step, (rows,)."""
        near: np.ndarray = (self.now >= share * limit) | ((self.now >= FROM * limit) & (self.then >= share * limit))
        return near


def measured_states(layer: LayerRows, watch: Watch) -> States | None:
    """The budgets of the layer's recorded states, None if it has none. The detector's memory keeps the budget of the last row."""
    states = layer.state.values
    if not states.shape[1] or not len(states):
        return None
    with np.errstate(divide="ignore"):  # a state may be exactly 0
        now = np.log(states.max(axis=1).astype(np.float64)) / LN_LARGEST
    key = f"{layer.id}:state"
    before = np.concatenate([watch.memory.get(key, now[:1]), now[:-1]])
    watch.memory[key] = now[-1:].copy()
    with np.errstate(invalid="ignore"):  # both may be infinite
        return States(now, now + np.fmax(now - before, 0))
