"""In which steps a planted fault is active."""

from __future__ import annotations

from dataclasses import dataclass

HOWS = ("once", "from", "every", "grows", "few")
FEW = 3  # steps of a fault that lasts a little


@dataclass(frozen=True)
class Moment:
    """A step in which a fault is active. at: the fault's first step. training: False in an evaluation."""

    step: int
    at: int
    size: float
    training: bool = True

    @property
    def since(self) -> int:
        """The number of steps since the fault began, at least 1."""
        return max(1, self.step - self.at + 1)


def is_active(how: str, step: int, at: int, period: int) -> bool:
    """Whether a fault that is planted in this way has an effect in this step."""
    if how == "once":
        return step == at
    if how == "few":
        return at <= step < at + FEW
    if how == "every":
        return step >= at and (step - at) % period == 0
    return step >= at
