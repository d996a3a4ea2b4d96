"""Which eigenvalue overflowed, and what moved it across the boundary, by the recorded rows."""

from __future__ import annotations

from dataclasses import dataclass

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.inputs import Layer
from stablessm_core.verdict.levels import CALM

OVERFLOWS = 0.95  # share of the budget limit at which a state counts as overflowed; every measured fatal row had at least 0.97
NEAR = 0.8  # the same for a layer with a non-finite state; below this share, the state has another cause
EXPLODED = 10.0  # last finite loss / best loss: at this ratio the whole training exploded; below CALM, only the recurrence did


@dataclass(frozen=True)
class Overflow:
    """The eigenvalue that overflowed. state: whether its own state was not finite. spike: of its gradient."""

    layer: Layer
    eigenvalue: int | None
    worst: eigenvalues.Worst | None
    state: bool
    crossing: eigenvalues.Crossing | None
    spike: eigenvalues.Spike | None

    @property
    def spiked(self) -> bool:
        return self.spike is not None and self.spike.growth >= facts.SPIKE


def overflow(case: Case) -> Overflow | None:
    layers = [layer for layer in case.run.layers if overflows(case, layer)]
    if case.inherited is not None:
        layers = [layer for layer in layers if layer.index < case.inherited]
    if not layers and case.lives("recurrence_frozen") and case.contributes(case.worst) and case.worst is not None:
        layers = [layer for layer in case.run.layers if layer.index == case.worst.layer]  # the trial says that it was this one
    if not layers:
        return None
    usual = case.layer if case.layer in layers else layers[0]
    layer = next((layer for layer in layers if layer.index == case.measured_layer), usual)
    assert layer is not None
    own = eigenvalues.worst_eigenvalue(case.run, case.source, case.step, layer.index)
    state = case.state and layer is case.layer
    eigenvalue = case.eigenvalue
    if own is not None and (not state or eigenvalue is None or not _is_outside(case, layer, eigenvalue)):
        eigenvalue = own.eigenvalue
    largest = None if case.autopsy is None else case.autopsy.largest_state(layer.index)
    if largest is not None and not state and _is_outside(case, layer, largest):
        eigenvalue = largest
    spike = None
    if eigenvalue is not None and not layer.wide:
        spike = eigenvalues.gradient_spike(case.source, layer, eigenvalue, case.step)
    crossing = eigenvalues.first_crossing(case.run, case.source, layer, eigenvalue)
    return Overflow(layer, eigenvalue, own or case.worst, state, crossing, spike)


def overflows(case: Case, layer: Layer) -> bool:
    here = eigenvalues.worst_eigenvalue(case.run, case.source, case.step, layer.index)
    if here is None or here.distance >= 0:
        return False
    suspected = (case.state and case.layer is layer) or case.inherited is not None or case.measured_layer == layer.index
    if here.budget is None:
        return suspected
    return here.budget >= (NEAR if suspected else OVERFLOWS) * case.run.limit_of(layer.index)


def _is_outside(case: Case, layer: Layer, eigenvalue: int) -> bool:
    rows = case.source.layer(layer.index, case.step, case.step)
    return bool(len(rows)) and bool((rows.distance_of(eigenvalue) < 0).any())


def thrown_by(case: Case, one: Overflow) -> str:
    """What moved the eigenvalue across the boundary, by the records."""
    times = 1.0 if case.growth is None else max(case.growth.times, rise_in_fatal_step(case))
    if times >= EXPLODED and not case.risen and rise_in_fatal_step(case) < EXPLODED:
        times = CALM  # ten times a single low loss, but not far above usual
    if case.run.bounded_steps:
        first_updates = case.step - case.run.first_step < facts.EARLY and case.update is not None and case.updated_much
        exploded = times >= EXPLODED and ((case.dies_soon("recurrence_frozen") and began_before(case, one)) or first_updates)
        return "explosion" if exploded else "optimizer_step"
    if times >= EXPLODED:
        return "explosion"
    if times >= CALM:
        return "both"
    return "gradient_spike" if one.spiked else "optimizer_step"


def rise_in_fatal_step(case: Case) -> float:
    """The loss of the fatal step divided by the best loss; 1 if it is not finite."""
    best = 0.0 if case.growth is None else case.growth.best
    return case.fatal_loss / best if case.fatal_loss is not None and best > 0 else 1.0


def began_before(case: Case, one: Overflow) -> bool:
    """Whether the trial with a frozen recurrence began before the update that moved the eigenvalue across the boundary. A trial
    that begins later keeps the eigenvalue outside, and says nothing."""
    trial = None if case.autopsy is None else case.autopsy.counterfactual("recurrence_frozen")
    if trial is None or one.crossing is None:
        return trial is not None
    return int(trial["from_step"]) + 1 < one.crossing.step
