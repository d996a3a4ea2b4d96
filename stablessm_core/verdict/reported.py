"""The verdict on a run that another program trains and reports.

How such a run trains is not known well enough to name the cause of its end. So this verdict states only what the recorded numbers
show: where a number first became NaN or infinite, and which eigenvalues were outside the stability boundary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.evidence import Evidence, item
from stablessm_core.verdict.formats import near_one, number, value_of
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.outside import unstable
from stablessm_core.verdict.timeline import Event, evaluated, event

SHOWN = 20  # maximum number of alerts about numbers that are not finite


def judge_reported(run: Run, source: Source) -> dict[str, Any]:
    """The verdict in the form of `stablessm_core.verdict.judge`, without advice. The cause is "unknown" if a number became NaN or
    infinite, else None."""
    last = _last_step(run, source)
    fatal = run.divergence or _first_nonfinite(run)
    cause = "unknown" if fatal is not None or run.status == "diverged" else None
    worst = None if last is None else _worst(run, source, last)
    bad = facts.bad_evaluation(source, run.step)
    sentences = [_begin(run, fatal, worst is not None), _fatal(run, fatal), *_loss(source, last), *_boundary(run, worst)]
    layer, index = (_number(fatal.get(name)) if fatal is not None else None for name in ("layer", "eigenvalue"))
    return {
        "cause": cause,
        "thrown_by": None,
        "confidence": None if cause is None else "cannot_tell",
        "runner_up": None,
        "summary": " ".join(sentence for sentence in sentences if sentence),
        "culprit": None if layer is None or index is None else {"layer": layer, "eigenvalue": index},
        "trouble": None,
        "events": sorted([*_nonfinite(run), *_crossings(run, source), *evaluated(bad)], key=lambda one: int(one["step"])),
        "evidence": _evidence(run, worst),
        "try": [],
        "unstable": None if last is None else unstable(run, source, last),
        "confirmed": [],
    }


def place_of(run: Run, where: Mapping[str, Any]) -> str:
    """The place that an alert or a divergence names: "eigenvalue 3 of layer 1 (backbone.layers.1.mixer)". Empty without a
    layer."""
    layer, index = _number(where.get("layer")), _number(where.get("eigenvalue"))
    if layer is None:
        return ""
    path = f" ({run.paths[layer]})" if layer < len(run.paths) else ""
    return (f"layer {layer}" if index is None else f"eigenvalue {index} of layer {layer}") + path


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _begin(run: Run, fatal: Mapping[str, Any] | None, known: bool) -> str:
    """How the run ended, unless a later sentence says it. known: whether something is said about its eigenvalues."""
    match run.status:
        case "finished" | "cancelled" | "failed" if run.reason:
            reason = run.reason.rstrip(".")
            described = reason.startswith(run.status)  # no program gave a reason
            return (f"{reason[:1].upper()}{reason[1:]}" if described else f"{run.status.capitalize()}: {reason}") + "."
        case "finished" | "cancelled" | "failed":
            return f"{run.status.capitalize()} at step {run.step:,}."
        case "diverged":
            return "" if fatal is not None else f"Diverged at step {run.step:,}."
        case "lost":
            heard = f"Its program fell silent: {run.reason.rstrip('.')}." if run.reason else "Its program fell silent."
            return f"{heard} The run goes on if the program reports again; `stablessm sync` sends what its file still holds."
    if not run.step:
        return "Nothing is recorded yet."
    return "" if known else f"So far, {run.step:,} steps are recorded."


def _fatal(run: Run, fatal: Mapping[str, Any] | None) -> str:
    if fatal is None or fatal.get("step") is None:
        return ""
    tensor, place = str(fatal.get("tensor") or ""), place_of(run, fatal)
    what = {"": "a number", "loss": "the loss"}.get(tensor, tensor)
    value = str(fatal.get("value") or "")
    became = {"NaN": "NaN", "Infinity": "infinite", "-Infinity": "infinite"}.get(value, "not finite")
    at = f" at {place}" if place else ""
    return f"The first number that is not finite: at step {int(fatal['step']):,}, {what}{at} is {became}."


def _loss(source: Source, last: int | None) -> list[str]:
    scalars = source.scalars(max(1, (last or 0) - 1), last or 0) if last else None
    if scalars is None or not len(scalars) or math.isfinite(scalars.loss[-1]):
        return []
    return [f"The loss of step {int(scalars.step[-1]):,}, the last recorded one, is {value_of(float(scalars.loss[-1]))}."]


def _boundary(run: Run, worst: eigenvalues.Worst | None) -> list[str]:
    if worst is None:
        return []
    where = place_of(run, {"layer": worst.layer, "eigenvalue": worst.eigenvalue})
    if not worst.outside:
        return [f"At step {worst.step:,}, all {worst.known:,} recorded eigenvalues are inside the stability boundary."]
    count = f"{worst.outside:,} of {worst.known:,} recorded eigenvalues {'is' if worst.outside == 1 else 'are'}"
    furthest = f"the furthest, {where}, is {near_one(1 - worst.distance)}"
    return [f"At step {worst.step:,}, {count} outside the stability boundary; {furthest}."]


def _evidence(run: Run, worst: eigenvalues.Worst | None) -> list[Evidence]:
    if worst is None:
        return []
    where = place_of(run, {"layer": worst.layer, "eigenvalue": worst.eigenvalue})
    text = f"Nearest to the boundary at step {worst.step:,}: {where}, at distance {number(worst.distance)}."
    if worst.distance < 0:
        text = f"Furthest outside the boundary at step {worst.step:,}: {where}, at distance {number(-worst.distance)} from it."
    return [item(text, layer=worst.layer, eigenvalue=worst.eigenvalue, distance=worst.distance)]


def _worst(run: Run, source: Source, last: int) -> eigenvalues.Worst | None:
    """The worst eigenvalue at the last step, or at the last step at which a distance is known."""
    worst = eigenvalues.worst_eigenvalue(run, source, last)
    return worst or (eigenvalues.worst_eigenvalue(run, source, last - run.every) if last > run.every else None)


def _last_step(run: Run, source: Source) -> int | None:
    scalars = source.scalars(max(1, run.step - run.every), run.step) if run.step else None
    return run.step or None if scalars is None or not len(scalars) else int(scalars.step[-1])


def _first_nonfinite(run: Run) -> Mapping[str, Any] | None:
    return min((alert for alert in run.alerts if _is_nonfinite(alert)), key=lambda alert: int(alert["step"]), default=None)


def _is_nonfinite(alert: Mapping[str, Any]) -> bool:
    kind = KINDS.get(alert["kind"])
    return kind is not None and kind.nonfinite


def _nonfinite(run: Run) -> list[Event]:
    found = [alert for alert in run.alerts if _is_nonfinite(alert)][:SHOWN]
    return [event(one["step"], "nonfinite", _fatal(run, one), one["layer"], one["eigenvalue"]) for one in found]


def _crossings(run: Run, source: Source) -> list[Event]:
    found = []
    for layer in run.layers:
        step = source.first_outside(layer.index) if layer.can_cross else None
        if step is not None:
            rows = source.layer(layer.index, step, step)
            worst = rows.worst(0) if len(rows) else None
            index = None if worst is None else worst[0]
            where = place_of(run, {"layer": layer.index, "eigenvalue": index})
            text = f"{where[:1].upper()}{where[1:]} was first recorded outside the stability boundary."
            found.append(event(step, "crossing", text, layer.index, index))
    return found
