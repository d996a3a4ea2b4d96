"""Changes to the configuration that the verdict advises, each with a reason, and the evidence that a fork gives about a
cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.maps import MAPS
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import with_settings
from stablessm_core.verdict.finding import SOON, Finding
from stablessm_core.verdict.formats import number, ordinal
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.measured import Autopsy
from stablessm_core.verdict.words import against_best

STABLE_MAPS = ("best", "exp", "softplus")
USUAL_LR = 0.01
FROZEN = {"optimizer.recurrent_lr": 0}
SKIP = {"train.on_bad_batch": "skip"}
TEST = "a test rather than a cure: "

Change = dict[str, Any]


def advise(run: Run, found: Finding) -> list[dict[str, Any]]:
    """[{change: {dotted path: value}, because}], the most promising change first. Every change gives a valid configuration.

    A change that the autopsy tried comes first if the run lived with it, and is left out if the run died.
    """
    tries = _tries(run, found, float(run.config["optimizer"]["lr"]))
    if found.autopsy is not None:
        tries = _tried(found.autopsy, found.step, tries)
    offered: list[dict[str, Any]] = []
    for change, because in tries:
        if _allowed(run, change) and change not in [one["change"] for one in offered]:
            offered.append({"change": change, "because": because})
    return offered


def _tries(run: Run, found: Finding, lr: float) -> list[tuple[Change, str]]:
    match found.cause:
        case "eigenvalue_overflow":
            return _against_overflow(run, found, lr)
        case "explosion":
            return _against_explosion(run, found, lr)
        case "lr_too_large" if found.decay is not None:
            return _against_decay(run, lr)
        case "lr_too_large":
            usual = min(lr / 100, USUAL_LR)
            why = f"learning rate {number(lr)} was fatal at step {found.step:,}; {number(usual)} is a usual rate"
            return [_lower_lr(usual, why)]
        case "step_size":
            return _against_step_size(run, lr)
        case "precision" if not found.half:
            return [({"train.precision": "float32"}, "float32 reaches 3.4e38, float16 ends at 65,504")]
        case "bad_loss" if found.gradient is not None and not run.config["optimizer"].get("grad_clip"):
            why = f"clipping bounds a gradient like that of step {found.gradient.step:,}, until the backward pass is right"
            return [({"optimizer.grad_clip": 1.0}, why)]
        case "bad_input":
            return _against_bad_batch(run, found)
        case "unknown":
            return _tests(run, found, lr)
    return []


def _tried(autopsy: Autopsy, died_at: int, tries: list[tuple[Change, str]]) -> list[tuple[Change, str]]:
    """The changes that the autopsy tried and the run lived with, then the others, without those with which it died."""
    lived: list[tuple[Change, str]] = []
    tests: list[tuple[Change, str]] = []
    died: list[Change] = []
    for one in autopsy.findings.get("counterfactuals") or ():
        settings = dict(one.get("settings") or {})
        if one["change"] == "unchanged" or not settings or (lives := autopsy.lives(one["change"])) is None:
            continue
        if not lives:
            died.append(settings)
            continue
        because = (
            f"tried: from step {int(one['from_step']):,} the run lives to step {int(one['step']):,} with this change; it died at "
            f"step {died_at:,}"
        )
        frozen = _is_frozen(settings)
        (tests if frozen else lived).append((settings, because.replace("tried:", "tried as a test:") if frozen else because))
    answered = [set(change) for change, _ in lived if len(change) == 1 and "optimizer.lr" in change]  # no second rate
    answered += [set(change) for change, _ in tests]
    return lived + [(change, because) for change, because in tries if change not in died and set(change) not in answered] + tests


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
    reach = max((x for x in (found.reach, None if one is None else one.predicted) if x is not None), default=math.nan)
    if math.isfinite(reach) and reach >= 1 and run.optimizer == "adamw":  # under SGD the gradient grows with the explosion
        own = float(run.config["optimizer"].get("recurrent_lr") or lr)
        slower = _round_down(own / reach)
        why = (
            f"at a recurrent rate of {number(own)} one step could cover up to {number(reach)} x the distance to the boundary; at "
            f"{number(slower)} no eigenvalue could have reached it in one step"
        )
        tries.append(({"optimizer.recurrent_lr": slower}, why))
    if found.thrown_by in ("gradient_spike", "both") and found.spike is not None and found.spike.growth >= 10:
        size = number(found.spike.size)
        tries.append(
            ({"optimizer.grad_clip": 1.0}, f"clipping bounds a spike like the one of {size} at step {found.spike.step:,}")
        )
    if found.thrown_by == "both":
        tries += _against_explosion(run, found, lr)
    tries.append((dict(FROZEN), f"{TEST}if the run lives with frozen eigenvalues, the recurrence was the cause"))
    return tries


def _against_explosion(run: Run, found: Finding, lr: float) -> list[tuple[Change, str]]:
    times = f": its loss reached {against_best(found.growth)}" if found.growth is not None and found.risen else ""
    tries = [_lower_lr(lr / 10 if lr <= 1 else min(lr / 100, USUAL_LR), f"the whole training exploded{times}")]
    if found.autopsy is not None and found.lives("tenth_of_rate") is False:
        tries = [_lower_lr(lr / 100, "a tenth of the rate was tried and died too")]
    if run.optimizer != "adamw":
        if not run.config["optimizer"].get("grad_clip"):
            tries.append(({"optimizer.grad_clip": 1.0}, "clipping bounds what a growing gradient can do in one step"))
        safe = min(0.01, _round_down(lr))
        tries.append(
            (
                {"optimizer.name": "adamw", "optimizer.momentum": 0, "optimizer.lr": safe},
                "AdamW's steps do not grow with the gradient",
            )
        )
    tries.append((dict(FROZEN), f"{TEST}if the run dies with frozen eigenvalues too, the recurrence was not the cause"))
    return tries


def _against_decay(run: Run, lr: float) -> list[tuple[Change, str]]:
    decay = float(run.config["optimizer"]["weight_decay"])
    why = "learning rate x weight decay far below 1 shrinks the weights a little in each step, as it should"
    return [
        ({"optimizer.weight_decay": _round_down(min(0.01, 0.1 / lr))}, why),
        ({"optimizer.lr": _round_down(min(0.1 / decay, lr / 10))}, why),
    ]


def _against_step_size(run: Run, lr: float) -> list[tuple[Change, str]]:
    own = float(run.config["optimizer"].get("recurrent_lr") or lr)
    reason = f"dt learns with the recurrent learning rate, here {number(own)}"
    if run.optimizer == "adamw":
        reason = f"under AdamW one step multiplies or divides dt by about e^{number(own)}, because log dt moves by the rate"
    return [
        ({"optimizer.recurrent_lr": _round_down(min(own / 100, 0.01))}, reason),
        (
            {"model.reparameterization.time": "discrete", "model.eigenvalue_range": None},
            "discrete time has no step size that could run away",
        ),
    ]


def _against_bad_batch(run: Run, found: Finding) -> list[tuple[Change, str]]:
    bad = found.bad
    if bad is not None and not bad.finite:
        return [(dict(SKIP), "the run then leaves out a batch that holds NaN or an infinity; the data should be looked at too")]
    survived = bad is not None and bad.since is None and bad.step < found.step and _finite_at(found, bad.step)
    if run.optimizer != "adamw" and survived and not run.config["optimizer"].get("grad_clip"):
        return [({"optimizer.grad_clip": 1.0}, "clipping bounds what one batch can do; the data should be looked at too")]
    return []


def _finite_at(found: Finding, step: int) -> bool:
    """Whether the loss and the gradient of this step were finite, so that only its update did harm."""
    here = found.scalars.step == step
    numbers = np.concatenate([found.scalars.loss[here], found.scalars.grad_norm[here]])
    return bool(len(numbers)) and bool(np.isfinite(numbers).all())


def _tests(run: Run, found: Finding, lr: float) -> list[tuple[Change, str]]:
    """The two most informative tests of a run without a known cause."""
    tries: list[tuple[Change, str]] = []
    if found.kick is not None and not run.config["optimizer"].get("grad_clip"):
        why = (
            f"clipping bounds a gradient like that of step {found.kick.step:,}, {number(found.kick.times)} x {found.kick.against}"
        )
        tries.append(({"optimizer.grad_clip": 1.0}, why))
    tries += [
        (dict(FROZEN), f"{TEST}if the run lives with frozen eigenvalues, the recurrence has a part in it"),
        ({"optimizer.lr": _round_down(lr / 10)}, f"{TEST}if the run lives at a tenth of the rate, the updates have a part in it"),
    ]
    if run.every > 1:
        why = f"only every {ordinal(run.every)} step was recorded; the steps before the end would tell more"
        tries.append(({"telemetry.every": 1}, why))
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
    verdict: Mapping[str, Any], change: Change, *, run_id: int, status: str, step: int, from_step: int, died_at: int
) -> dict[str, Any]:
    """The evidence that a fork of a diverged run gives about the verdict: {run_id, change, outcome, text}.

    verdict: the verdict on the original. change: the fork's changed settings. status, step: the fork's status, and its last
    step or fatal step. from_step: the step of the checkpoint from which the fork started. died_at: the original's fatal step.
    outcome: "lives", "dies", or "open" while the fork has not passed died_at.

    Only a fork with frozen eigenvalues tests a cause, and only if it could have gone either way: it began before the trouble of
    the original, and it passed the original's fatal step or died about there. Otherwise the text says why it does not answer.
    """
    original = f"the original died at step {died_at:,}"
    if status == "diverged":
        outcome, said = "dies", f"it dies too, at step {step:,} ({original})"
    elif step > died_at:
        until = f"to its end, step {step:,}" if status == "finished" else f"so far, to step {step:,}"
        outcome, said = "lives", f"it lives {until} ({original})"
    else:
        outcome, said = "open", f"it is {status} at step {step:,} ({original})"
    start = f"From step {from_step:,} {_describe(change)}"
    text = f"{start}, {said}."
    if _is_frozen(change) and verdict.get("cause") in ("eigenvalue_overflow", "explosion"):
        word, why = _answer(verdict, outcome, step=step, from_step=from_step, died_at=died_at)
        text = f"{word}: {start[:1].lower()}{start[1:]}, {said}; {why}." if word else f"{text} {why}".strip()
    return {"run_id": run_id, "change": dict(change), "outcome": outcome, "text": text}


def _answer(verdict: Mapping[str, Any], outcome: str, *, step: int, from_step: int, died_at: int) -> tuple[str, str]:
    """("Confirmed" or "Contradicted", why) if the fork with frozen eigenvalues tests the verdict, else ("", why it does not)."""
    trouble = (verdict.get("trouble") or {}).get("step")
    if trouble is None:
        return "", "This does not test the cause: where the trouble began is not known."
    if from_step >= int(trouble):
        began = f"the trouble of the original began at step {int(trouble):,}, and the fork started after step {from_step:,}"
        return "", f"This does not test the cause: {began}. A fork from step {int(trouble) - 1:,} or earlier would."
    if outcome == "open":
        return "", ""
    bystander = verdict.get("cause") != "eigenvalue_overflow" or verdict.get("thrown_by") == "explosion"
    if outcome == "lives":
        return ("Contradicted", "the recurrence had a part in it") if bystander else ("Confirmed", "the recurrence is the cause")
    if step > died_at + SOON:
        return "", "This does not test the cause: the fork died later, so it may have died of something else."
    return (
        ("Confirmed", "the recurrence is not the cause")
        if bystander
        else ("Contradicted", "the recurrence is not the whole cause")
    )


def _is_frozen(change: Change) -> bool:
    return list(change) == list(FROZEN) and not change["optimizer.recurrent_lr"]


def _describe(change: Change) -> str:
    if _is_frozen(change):
        return "with frozen eigenvalues"
    if not change:
        return "unchanged"
    shown = ", ".join(f"{path.removesuffix('.name').rsplit('.', 1)[-1]} {value}" for path, value in change.items())
    return f"with {shown}"
