"""The events of a verdict, in the order of their steps. Events that follow from an explosion are marked as consequences."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.verdict import facts
from stablessm_core.verdict.decide import Finding
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.words import WHICH, eigenvalue_label, number, tensor_label

WARNINGS = (
    "boundary_distance",
    "grad_over_weight",
    "unstable_eigenvalue",
)  # alerts that an explosion can also raise

Event = dict[str, Any]


def event(step: int, kind: str, text: str, layer: int | None = None, eigenvalue: int | None = None) -> Event:
    return {"step": step, "layer": layer, "eigenvalue": eigenvalue, "kind": kind, "text": text}


def events(run: Run, found: Finding) -> list[Event]:
    """[{step, layer, eigenvalue, kind, text}]: crossings, the rise of the loss, a gradient spike, warnings and the end."""
    crossings = list(found.firsts)
    if found.cause == "eigenvalue_overflow" and found.crossing is not None and found.crossing not in crossings:
        crossings.append(found.crossing)
    happened = [crossed(run, crossing) for crossing in crossings]
    growth = found.growth
    exploded = None if growth is None else growth.rose_at
    if growth is not None and exploded is not None:
        happened.append(event(exploded, "loss_rose", f"The loss passed {facts.ROSE:.0f} times its best, {number(growth.best)}."))
    if (spike := spiked(run, found)) is not None:
        happened.append(spike)
    happened += _warnings(run, found, exploded) + rolled_back(run)
    at_state = found.layer if found.state else None
    location = (None, None) if at_state is None else (at_state.index, found.eigenvalue)
    happened.append(event(found.step, "nonfinite", _end(found) + _others(run, found) + ".", *location))
    return sorted(happened, key=lambda item: int(item["step"]))


def crossed(run: Run, one: facts.Crossing) -> Event:
    many = one.outside - 1
    others = f", with {many} other{'s' if many > 1 else ''} of {one.width}" if many else ""
    value = "" if one.value is None else f" at {number(one.value, 4 if one.distance < -1e-3 else 7)}"
    recorded = "recorded " if run.every > 1 else ""
    text = f"{eigenvalue_label(run, one.layer, one.eigenvalue, first=True)} first {recorded}outside the boundary{value}{others}"
    if one.relative_step is not None and math.isfinite(one.relative_step):
        text += f", by a step of {number(one.relative_step)} times its distance"
    return event(one.step, "crossing", text + ".", one.layer, one.eigenvalue)


def spiked(run: Run, found: Finding) -> Event | None:
    """The event of a gradient spike, or None. There is none under AdamW: AdamW's steps do not grow with the gradient, so a
    gradient spike would explain nothing."""
    spike = found.spike
    if spike is None or found.layer is None or spike.growth < facts.SPIKE or run.optimizer == "adamw":
        return None
    grown = "" if math.isinf(spike.growth) else f", {number(spike.growth)} times its median before"
    text = f"{eigenvalue_label(run, found.layer.index, found.eigenvalue, first=True)}: |g| {number(spike.size)}{grown}."
    return event(spike.step, "gradient_spike", text, found.layer.index, found.eigenvalue)


def rolled_back(run: Run) -> list[Event]:
    return [event(alert["step"], "rolled_back", str(alert["message"])) for alert in run.alerts if alert["kind"] == "rolled_back"]


def _warnings(run: Run, found: Finding, exploded: int | None) -> list[Event]:
    of = []
    for alert in run.alerts:
        kind, step, message = alert["kind"], alert["step"], str(alert["message"])
        if kind not in WARNINGS or step > found.step or (kind == "unstable_eigenvalue" and found.firsts):
            continue
        after = exploded is not None and step >= exploded
        said = message[:1].upper() + message[1:] + "." + (" A consequence: the training was exploding already." if after else "")
        of.append(event(step, "consequence" if after else kind, said, alert["layer"], alert["eigenvalue"]))
    return of


def _end(found: Finding) -> str:
    if found.flags:
        return f"{WHICH[found.flags].capitalize()} held a number that is not finite"
    return f"{tensor_label(found)} became {found.value or 'not finite'}"


def _others(run: Run, found: Finding) -> str:
    """A text about the other values that became non-finite at the fatal step, from the alerts of that step."""
    parts = []
    for alert in run.alerts:
        if alert["step"] != found.step or not str(alert["kind"]).startswith("nonfinite_"):
            continue
        more = str(alert["message"]).partition("; ")[2].removesuffix(" too")
        if alert["tensor"].endswith(".grad"):
            more = more.replace("other tensors", "other gradients")
        name = "the loss" if alert["kind"] == "nonfinite_loss" else str(alert["tensor"])
        if alert["tensor"] == found.tensor:
            parts += [more] if more else []
        else:
            parts.append(f"{name} and {more}" if more else name)
    return f"; in the same row not finite: {', '.join(dict.fromkeys(parts))}" if parts else ""
