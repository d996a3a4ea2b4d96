"""The events of a verdict, in the order of their steps. Events that follow from an explosion are marked as consequences."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.batches import BadBatch
from stablessm_core.verdict.finding import Finding
from stablessm_core.verdict.formats import near_one, number, value_of
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.words import WHICH, eigenvalue_label, tensor_label

WARNINGS = (
    "boundary_distance",
    "grad_over_weight",
    "unstable_eigenvalue",
)  # alerts that an explosion can also raise

Event = dict[str, Any]


def event(
    step: int, kind: str, text: str, layer: int | None = None, eigenvalue: int | None = None, *, basis: str = "measured"
) -> Event:
    """basis: "measured" if the text states recorded or measured values, "inferred" if it concludes from them."""
    return {"step": step, "layer": layer, "eigenvalue": eigenvalue, "kind": kind, "text": text, "basis": basis}


def events(run: Run, found: Finding) -> list[Event]:
    """[{step, layer, eigenvalue, kind, text, basis}]: crossings, the rise of the loss, a gradient spike, warnings and the end."""
    crossings = list(found.firsts)
    if found.cause == "eigenvalue_overflow" and found.crossing is not None and found.crossing not in crossings:
        crossings.append(found.crossing)
    happened = [crossed(run, crossing) for crossing in crossings]
    growth = found.growth
    exploded = None if growth is None else growth.rose_at
    if growth is not None and exploded is not None:
        happened.append(event(exploded, "loss_rose", rose(growth)))
    if found.bad is not None and found.bad.step < found.step:
        happened.append(event(found.bad.step, "bad_batch", _batch(found.bad)))
    if found.kick is not None:
        kick = found.kick
        text = f"The norm of the whole gradient was {number(kick.grad_norm)}, {number(kick.times)} x {kick.against}."
        happened.append(event(kick.step, "gradient_spike", text))
    if (spike := spiked(run, found)) is not None:
        happened.append(spike)
    happened += _warnings(run, found, exploded) + reactions(run) + evaluated(found.evaluated)
    at_state = found.layer if found.state else None
    location = (None, None) if at_state is None else (at_state.index, found.eigenvalue)
    happened.append(event(found.step, "nonfinite", _end(found) + _others(run, found) + ".", *location))
    return sorted(happened, key=lambda item: int(item["step"]))


def rose(growth: facts.Growth) -> str:
    """When the loss rose: a text for an event."""
    if growth.best > 0:
        return f"The loss passed {facts.ROSE:.0f} x its best ({number(growth.best)})."
    reached = growth.loss if growth.at_rise is None else growth.at_rise
    return f"The loss rose to {number(reached)}; its best was {number(growth.best)}."


def evaluated(bad: tuple[int, float] | None) -> list[Event]:
    """The event of an evaluation whose loss was not finite."""
    return [] if bad is None else [event(bad[0], "nonfinite_evaluation", f"The loss of the evaluation was {value_of(bad[1])}.")]


def _batch(bad: BadBatch) -> str:
    if not bad.finite or bad.largest is None:
        return f"{WHICH[bad.which].capitalize()} held a number that is not finite."
    usual = "" if not bad.usual else f", {number(bad.largest / bad.usual)} x the usual {number(bad.usual)}"
    if bad.since is not None:
        return f"From here on, {WHICH[bad.which]} grew from batch to batch, up to {number(bad.largest)}."
    return f"The largest number of {WHICH[bad.which]} was {number(bad.largest)}{usual}."


def crossed(run: Run, one: eigenvalues.Crossing) -> Event:
    many = one.outside - 1
    at_least = "at least " if one.wide else ""
    verb = "did" if one.exact and not (one.before is None and one.step <= run.first_step) else "were"
    others = f", as {verb} {at_least}{many:,} of the other {one.width - 1:,}" if many else ""
    value = "" if one.value is None else f" (now {near_one(one.value)})"
    label = eigenvalue_label(run, one.layer, one.eigenvalue, first=True)
    if one.before is None and one.step <= run.first_step:
        text = f"{label} was outside the boundary from the start{value}{others}."
    elif not one.exact:
        text = f"{label} was first recorded outside the boundary{value}{others}."
    else:
        text = f"{label} left the boundary{value}{others}."
    if one.relative_step is not None and math.isfinite(one.relative_step):
        text += f" Its step was {number(one.relative_step)} x the distance it had."
    return event(one.step, "crossing", text, one.layer, one.eigenvalue)


def spiked(run: Run, found: Finding) -> Event | None:
    """The event of a gradient spike, or None. There is none under AdamW: AdamW's steps do not grow with the gradient, so a
    gradient spike would explain nothing."""
    spike = found.spike
    if spike is None or found.layer is None or spike.growth < facts.SPIKE or run.optimizer == "adamw":
        return None
    grown = "" if math.isinf(spike.growth) else f", {number(spike.growth)} x its median before"
    text = f"{eigenvalue_label(run, found.layer.index, found.eigenvalue, first=True)}: |g| {number(spike.size)}{grown}."
    return event(spike.step, "gradient_spike", text, found.layer.index, found.eigenvalue)


REACTIONS = ("rolled_back", "lr_lowered", "stopped_early")  # alerts about what the trainer did


def reactions(run: Run) -> list[Event]:
    """The events of what the trainer did about a warning or a number that was not finite."""
    return [event(alert["step"], alert["kind"], str(alert["message"])) for alert in run.alerts if alert["kind"] in REACTIONS]


def _warnings(run: Run, found: Finding, exploded: int | None) -> list[Event]:
    of = []
    for alert in run.alerts:
        kind, step, message = alert["kind"], alert["step"], str(alert["message"])
        if kind not in WARNINGS or step > found.step or (kind == "unstable_eigenvalue" and found.firsts):
            continue
        after = exploded is not None and step >= exploded
        said = (
            message[:1].upper()
            + message[1:]
            + "."
            + (" This is a consequence: the training was already exploding." if after else "")
        )
        basis = "inferred" if after else "measured"
        of.append(event(step, "consequence" if after else kind, said, alert["layer"], alert["eigenvalue"], basis=basis))
    return of


def _end(found: Finding) -> str:
    if found.flags:
        return f"{WHICH[found.flags].capitalize()} held a number that is not finite"
    if found.tensor.startswith("batch."):
        return "The batch held a number that is not finite"
    return f"{tensor_label(found)} became {found.value or 'not finite'}"


def _others(run: Run, found: Finding) -> str:
    """A text about the other values that became non-finite at the fatal step, from the alerts of that step."""
    parts = []
    for alert in run.alerts:
        if alert["step"] != found.step or not str(alert["kind"]).startswith("nonfinite_"):
            continue
        at_once = str(alert["message"]).partition("; this ")[0]  # without how long the alert lasted
        more = at_once.partition("; ")[2].removesuffix(" too")
        if alert["tensor"].endswith(".grad"):
            more = more.replace("other tensors", "other gradients").replace("1 other gradients", "1 other gradient")
            more = "1 other gradient" if more == "1 other gradient" else more
        more = more.replace("the same holds for ", "")
        name = "the loss" if alert["kind"] == "nonfinite_loss" else str(alert["tensor"])
        if alert["tensor"] == found.tensor:
            parts += [more] if more else []
        else:
            parts.append(f"{name} ({more})" if more else name)
    return f". Also not finite at this step: {', '.join(dict.fromkeys(parts))}" if parts else ""
