"""The events of a verdict, in the order of their steps. Events that follow from an explosion are marked as consequences."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.batches import BadBatch
from stablessm_core.verdict.case import Case
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


def events(case: Case, own: list[Event]) -> list[Event]:
    """[{step, layer, eigenvalue, kind, text, basis}]: crossings, the rise of the loss, bad batches, warnings, the events of the
    cause (`own`), and the end."""
    run = case.run
    happened = [crossed(run, crossing) for crossing in case.firsts] + own
    growth = case.growth
    exploded = None if growth is None else growth.rose_at
    if growth is not None and exploded is not None:
        happened.append(event(exploded, "loss_rose", rose(growth)))
    if case.bad is not None and case.bad.step < case.step:
        happened.append(event(case.bad.step, "bad_batch", _batch(case.bad)))
    if case.kick is not None:
        kick = case.kick
        against = "its median before" if kick.usual_loss is not None else "the norm of all weights"
        text = f"The norm of the whole gradient was {number(kick.grad_norm)}, {number(kick.times)} x {against}."
        happened.append(event(kick.step, "gradient_spike", text))
    happened += _warnings(case, exploded) + reactions(run) + evaluated(case.evaluated)
    location = (None, None) if not case.state or case.layer is None else (case.layer.index, case.eigenvalue)
    happened.append(event(case.step, "nonfinite", _end(case) + _others(case) + ".", *location))
    return sorted(happened, key=lambda item: int(item["step"]))


def rose(growth: facts.Growth) -> str:
    """The text of the event at which the loss rose."""
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
    usual = "" if not bad.usual else f", {number(bad.largest / bad.usual)} x {bad.against}"
    if bad.since is not None:
        return f"From here on, {WHICH[bad.which]} grew {bad.growth}, up to {number(bad.largest)}."
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


REACTIONS = ("rolled_back", "lr_lowered", "stopped_early")  # alerts about what the trainer did


def reactions(run: Run) -> list[Event]:
    """The events of what the trainer did about a warning or a number that was not finite."""
    return [event(alert["step"], alert["kind"], str(alert["message"])) for alert in run.alerts if alert["kind"] in REACTIONS]


def _warnings(case: Case, exploded: int | None) -> list[Event]:
    warned = []
    for alert in case.run.alerts:
        kind, step, message = alert["kind"], alert["step"], str(alert["message"])
        if kind not in WARNINGS or step > case.step or (kind == "unstable_eigenvalue" and case.firsts):
            continue
        after = exploded is not None and step >= exploded
        text = message[:1].upper() + message[1:] + "." + (" The training was already exploding then." if after else "")
        basis = "inferred" if after else "measured"
        warned.append(event(step, "consequence" if after else kind, text, alert["layer"], alert["eigenvalue"], basis=basis))
    return warned


def _end(case: Case) -> str:
    if case.flags:
        return f"{WHICH[case.flags].capitalize()} held a number that is not finite"
    if case.tensor.startswith("batch."):
        return "The batch held a number that is not finite"
    return f"{tensor_label(case)} became {case.value or 'not finite'}"


def _others(case: Case) -> str:
    """A text about the other values that became non-finite at the fatal step, from the alerts of that step."""
    parts = []
    for alert in case.run.alerts:
        if alert["step"] != case.step or not str(alert["kind"]).startswith("nonfinite_"):
            continue
        at_once = str(alert["message"]).partition("; this ")[0]  # without how long the alert lasted
        more = at_once.partition("; ")[2].removesuffix(" too")
        if str(alert["tensor"]).endswith(".grad"):
            more = more.replace("other tensors", "other gradients").replace("1 other gradients", "1 other gradient")
        more = more.replace("the same holds for ", "")
        name = "the loss" if alert["kind"] == "nonfinite_loss" else str(alert["tensor"])
        if alert["tensor"] == case.tensor:
            parts += [more] if more else []
        else:
            parts.append(f"{name} ({more})" if more else name)
    return f". Also not finite at this step: {', '.join(dict.fromkeys(parts))}" if parts else ""
