"""Changes to the configuration that the verdict advises, each with a reason, and the evidence that a fork gives about a
cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.maps import MAPS
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import with_settings
from stablessm_core.verdict.decide import Finding
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.trouble import Trouble
from stablessm_core.verdict.words import number

STABLE_MAPS = ("best", "exp", "softplus")
FROZEN = {"optimizer.recurrent_lr": 0}
SOON = 5  # maximum number of steps by which a fork may diverge later than the original and still have the same cause
LOWER_STILL = "or lower still: the recorded numbers do not say how much is enough"

Change = dict[str, Any]


def advise(run: Run, found: Finding) -> list[dict[str, Any]]:
    """[{change: {dotted path: value}, because}], the most promising change first. Every change gives a valid configuration."""
    lr = float(run.config["optimizer"]["lr"])
    tries: list[tuple[Change, str]] = []
    if found.cause == "eigenvalue_overflow":
        tries = _against_overflow(run, found, lr)
    elif found.cause == "explosion":
        tries = _against_explosion(run, found, lr)
    elif found.cause == "lr_too_large":
        tries = [
            _lower_lr(lr / 100, f"learning rate {number(lr)} was fatal at step {found.step}"),
            _lower_lr(lr / 1000, LOWER_STILL),
        ]
    elif found.cause == "step_size":
        own = float(run.config["optimizer"].get("recurrent_lr") or lr)
        reason = (
            f"under AdamW log dt moves by about its learning rate in each step, here {number(own)}: dt by a factor of e to that"
        )
        if run.optimizer != "adamw":
            reason = f"dt learns with the recurrent learning rate, here {number(own)}"
        tries = [({"optimizer.recurrent_lr": _round_down(min(own / 100, 0.01))}, reason)]
        tries.append(
            (
                {"model.reparameterization.time": "discrete", "model.eigenvalue_range": None},
                "discrete time has no step size that could run away",
            )
        )
    elif found.cause == "precision":
        tries = [({"train.precision": "float32"}, "float32 reaches 10^38, float16 ends at 65,504")]
    elif found.cause == "bad_input" and not found.flags and found.step > 1 and run.optimizer != "adamw":
        tries = [
            ({"optimizer.grad_clip": 1.0}, "clipping bounds what one batch can do; the data should be looked at all the same")
        ]
    elif found.cause == "unknown" and run.every > 1:
        tries = [
            ({"telemetry.every": 1}, f"only every {run.every}th step was recorded; the steps before the end would tell more")
        ]
    return [{"change": change, "because": because} for change, because in tries if _allowed(run, change)]


def _against_overflow(run: Run, found: Finding, lr: float) -> list[tuple[Change, str]]:
    if found.thrown_by == "explosion":
        return _against_explosion(run, found, lr)
    tries: list[tuple[Change, str]] = []
    assert found.layer is not None
    form = found.layer.form
    if form is not None:
        others = [name for name in STABLE_MAPS if name != form.map and form.time in MAPS[name].forms]
        why = "this map keeps every eigenvalue inside the boundary, whatever the optimizer does"
        tries += [({"model.reparameterization.name": name}, why) for name in others[:2]]
    one = found.crossing
    if one is not None and one.predicted is not None and one.predicted >= 1 and math.isfinite(one.predicted):
        own = one.lr or lr
        if run.optimizer == "adamw":
            why = f"where it crossed, one step could reach {number(one.predicted)} times the distance; with this rate less than 1"
            tries.append(({"optimizer.recurrent_lr": _round_down(own / one.predicted)}, why))
        elif found.thrown_by != "gradient_spike":
            why = f"the step that crossed was to be {number(one.predicted)} times the distance to the boundary"
            tries.append(({"optimizer.recurrent_lr": _round_down(own / one.predicted)}, why))
    if found.thrown_by in ("gradient_spike", "both") and found.spike is not None and found.spike.growth >= 10:
        size = number(found.spike.size)
        tries.append(
            ({"optimizer.grad_clip": 1.0}, f"clipping bounds a spike like the one of {size} at step {found.spike.step:,}")
        )
    if found.thrown_by == "gradient_spike":
        tries.append(({"optimizer.name": "adamw"}, "AdamW's steps do not follow the size of the gradient"))
    if found.thrown_by == "both":
        tries += _against_explosion(run, found, lr)
    tries.append((dict(FROZEN), "a test rather than a cure: if it lives with frozen eigenvalues, the recurrence was the cause"))
    return tries


def _against_explosion(run: Run, found: Finding, lr: float) -> list[tuple[Change, str]]:
    times = "" if found.growth is None else f": its loss reached {number(found.growth.times)} times its best"
    tries = [_lower_lr(lr / 10, f"the whole training exploded{times}")]
    if not run.config["optimizer"].get("grad_clip"):
        tries.append(({"optimizer.grad_clip": 1.0}, "clipping bounds what a growing gradient can do in one step"))
    if run.optimizer != "adamw":
        tries.append(({"optimizer.name": "adamw", "optimizer.momentum": 0}, "AdamW's steps do not grow with the gradient"))
    tries.append((dict(FROZEN), "a test rather than a cure: if it dies with frozen eigenvalues too, they were bystanders"))
    return tries


def _lower_lr(lr: float, because: str) -> tuple[Change, str]:
    return {"optimizer.lr": _round_down(lr)}, because


def _round_down(x: float) -> float:
    """x rounded down to one significant digit, for example 0.0077 to 0.007."""
    if x <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(x))
    return float(f"{math.floor(x / unit + 1e-9) * unit:.6g}")


def _allowed(run: Run, change: Change) -> bool:
    try:
        parse_config(with_settings(run.config, change))
    except ConfigError:
        return False
    return True


def confirmation(
    verdict: Mapping[str, Any], change: Change, *, run_id: int, status: str, step: int, from_step: int, died_at: int,
    trouble: Trouble | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The evidence that a fork of a diverged run gives about the verdict: {run_id, change, outcome, text}.

    verdict: the verdict on the original. change: the fork's changed settings. status, step: the fork's status, and its last
    step or fatal step. from_step: the step of the checkpoint from which the fork started. died_at: the original's fatal step.
    trouble: the trouble of the original. A fork that starts inside it and dies proves nothing. outcome: "lives", "dies", or
    "open" while the fork has not reached died_at.
    """
    what, frozen = _describe(change), _is_frozen(change)
    bystander = verdict.get("cause") != "eigenvalue_overflow" or verdict.get("thrown_by") == "explosion"
    if status == "diverged":
        outcome, said = "dies", f"it diverges too, at step {step:,} (the original at {died_at:,})"
        judged = "Confirmed" if bystander else "Contradicted" if step <= died_at + SOON else ""
        reason = "the recurrence is not the cause" if bystander else "the recurrence is not the whole cause"
    elif status == "finished" or step > died_at:
        until = "to its end" if status == "finished" else "so far"
        outcome, said = "lives", f"it lives {until}, step {step:,} (the original diverged at {died_at:,})"
        judged = "Contradicted" if bystander else "Confirmed"
        reason = "the recurrence had a part in it" if bystander else "the recurrence is the cause"
    else:
        outcome, said, judged, reason = "open", f"{status} at step {step:,} (the original diverged at {died_at:,})", "", ""
    text = f"From step {from_step:,} {what}: {said}."
    if outcome == "dies" and trouble is not None and from_step >= trouble.step:
        judged = ""
        text += f" This test cannot answer: the trouble began at step {trouble.step:,}, before the fork started."
    if frozen and judged and verdict.get("cause") in ("eigenvalue_overflow", "explosion"):
        text = f"{judged}: from step {from_step:,} {what} {said}; {reason}."
    return {"run_id": run_id, "change": dict(change), "outcome": outcome, "text": text}


def _is_frozen(change: Change) -> bool:
    return list(change) == list(FROZEN) and not change["optimizer.recurrent_lr"]


def _describe(change: Change) -> str:
    if _is_frozen(change):
        return "with frozen eigenvalues"
    if not change:
        return "unchanged"
    shown = ", ".join(f"{path.removesuffix('.name').rsplit('.', 1)[-1]} {value}" for path, value in change.items())
    return f"with {shown}"
