"""What is known about a diverged run, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.batches import BadBatch
from stablessm_core.verdict.inputs import Layer, Run, Scalars
from stablessm_core.verdict.measured import Autopsy, WrongGradient

SOON = 5  # maximum number of steps by which a changed replay may diverge later and still have the same cause


@dataclass(kw_only=True)
class Finding:
    """What is known about a diverged run, and what follows from it. layer, eigenvalue: the eigenvalue that caused the divergence
    and its layer, or None. confidence: "measured", "inferred" or "cannot_tell". runner_up: the second cause that the data allow.
    """

    step: int
    tensor: str
    value: str | None
    cause: str = "unknown"
    thrown_by: str | None = None
    confidence: str = "cannot_tell"
    runner_up: str | None = None
    layer: Layer | None = None
    eigenvalue: int | None = None
    scalars: Scalars
    autopsy: Autopsy | None = None
    flags: int | None = None  # which part of the batch was not finite, as in `Scalars.batch`; None if this was not recorded
    sized: float | None = None  # the largest number of the fatal step's batch; None if unknown
    bad: BadBatch | None = None
    state: bool = False  # True if a layer's state was not finite, and the layer did not get NaN from a lower layer
    inherited: int | None = None  # the layer in which every state was NaN: it got NaN as its input
    moved: eigenvalues.DecayChange | None = None  # how the decay of the worst eigenvalue changed
    worst: eigenvalues.Worst | None = None  # worst eigenvalue at the fatal step, or at the recorded step before the fatal step
    crossing: eigenvalues.Crossing | None = None  # the culprit's first crossing of the boundary; None without a culprit
    firsts: list[eigenvalues.Crossing] = field(default_factory=list)  # the first crossing of each layer, by step
    growth: facts.Growth | None = None
    spike: eigenvalues.Spike | None = None
    kick: facts.Kick | None = None
    gradient: WrongGradient | None = None  # a gradient that disagrees with its loss; the cause
    decay: tuple[float, float, float] | None = None  # see `facts.decay_growth`
    reach: float | None = None  # see `eigenvalues.largest_reach`
    gap: bool = False  # True if the loss rose far above usual between two recorded rows
    jumped: bool = False  # True if the loss jumped in one step although the update before was small
    update: float | None = None
    dt: tuple[float, float, int] | None = None
    half: bool = False
    evaluated: tuple[int, float] | None = None  # the first evaluation whose loss was not finite

    @property
    def risen(self) -> bool:
        return self.growth is not None and self.growth.times >= facts.ROSE

    def lives(self, change: str) -> bool | None:
        """Whether the autopsy's replay with this change lived; None without a result."""
        return None if self.autopsy is None else self.autopsy.lives(change)

    def dies_soon(self, change: str) -> bool:
        """Whether the replay with this change died, at most SOON steps after the run."""
        one = None if self.autopsy is None else self.autopsy.counterfactual(change)
        return one is not None and self.lives(change) is False and int(one["step"]) <= self.step + SOON

    @property
    def thrown_by_step(self) -> str:
        """What pushed the eigenvalue out if the whole training did not explode."""
        spiked = self.spike is not None and self.spike.growth >= facts.SPIKE
        return "gradient_spike" if spiked else "optimizer_step"

    @property
    def measured_layer(self) -> int | None:
        """The layer in whose forward pass the first number that is not finite appeared."""
        if self.autopsy is None or self.autopsy.first is None or self.autopsy.place != "forward":
            return None
        layer = self.autopsy.first.get("layer")
        return None if layer is None else int(layer)


def contributes(run: Run, worst: eigenvalues.Worst | None) -> bool:
    """True if this eigenvalue is outside the boundary and may have contributed to the divergence."""
    return worst is not None and worst.budget is not None and worst.budget >= 0.3 * run.limit_of(worst.layer)
