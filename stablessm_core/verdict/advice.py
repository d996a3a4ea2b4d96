"""Changes to the configuration that the verdict advises, each with a reason, and the evidence that a fork gives about a cause.

Each cause has its own advice in its own file. Here stands what several causes advise, and how the autopsy's trials sort it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import with_settings
from stablessm_core.verdict.case import SOON, Case
from stablessm_core.verdict.formats import ordinal
from stablessm_core.verdict.measured import Autopsy
from stablessm_core.verdict.words import against_best

STABLE_MAPS = ("best", "exp", "softplus")
FROZEN = {"optimizer.recurrent_lr": 0}
SKIP = {"train.on_bad_batch": "skip"}
CLIP = {"optimizer.grad_clip": 1.0}
TEST = "a test rather than a cure: "

Change = dict[str, Any]
Try = tuple[Change, str]


def offered(case: Case, tries: list[Try]) -> list[dict[str, Any]]:
    """[{change: {dotted path: value}, because}], the most promising change first. Every change gives a valid configuration.

    A change that the autopsy tried comes first if the run lived with it. It is left out if the run died, and so is every change
    of the same setting to another value of the same kind: a second map after a map that died, a rate above one that died.
    """
    if case.run.reported is not None:
        return []  # its configuration is another program's
    if case.autopsy is not None:
        tries = _sorted_by_trials(case.autopsy, case.step, tries)
    kept: list[dict[str, Any]] = []
    for change, because in tries:
        if _allowed(case, change) and change not in [one["change"] for one in kept]:
            kept.append({"change": change, "because": because})
    return kept


def _sorted_by_trials(autopsy: Autopsy, died_at: int, tries: list[Try]) -> list[Try]:
    """The changes that the autopsy tried and the run lived with, then the others, without those that a trial refuted."""
    lived: list[Try] = []
    tests: list[Try] = []
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
        frozen = is_frozen(settings)
        (tests if frozen else lived).append((settings, because.replace("tried:", "tried as a test:") if frozen else because))
    answered = [set(change) for change, _ in lived]  # one rate, one map that lived is enough
    answered += [set(change) for change, _ in tests]
    others = [(change, why) for change, why in tries if not _refuted(change, died) and set(change) not in answered]
    return lived + others + tests


def _refuted(change: Change, died: list[Change]) -> bool:
    """Whether a trial speaks against this change: the same one died, another map died, or a lower rate died."""
    for tried in died:
        if change == tried:
            return True
        if set(change) == {"model.reparameterization.name"} == set(tried):
            return True
        rates = {"optimizer.lr", "optimizer.recurrent_lr"}
        if set(change) <= rates and set(tried) >= set(change) and all(change[path] >= tried[path] for path in change):
            return True
    return False


def freeze(why: str) -> Try:
    return dict(FROZEN), f"{TEST}{why}"


def lower_lr(lr: float, because: str) -> Try:
    return {"optimizer.lr": round_down(lr)}, because


def against_explosion(case: Case) -> list[Try]:
    run, lr = case.run, case.run.lr
    times = f": its loss reached {against_best(case.growth)}" if case.growth is not None and case.risen else ""
    why = f"the whole training exploded{times}" if times else "a lower rate makes every step shorter"
    tries = [lower_lr(lr / 10 if lr <= 1 else min(lr / 100, 0.01), why)]
    if case.lives("tenth_of_rate") is False:
        tries = [lower_lr(lr / 100, "a tenth of the rate was tried and died too")]
    if run.optimizer != "adamw":
        if not run.grad_clip:
            tries.append((dict(CLIP), "clipping bounds what a growing gradient can do in one step"))
        change = {"optimizer.name": "adamw", "optimizer.momentum": 0, "optimizer.lr": min(0.01, round_down(lr))}
        tries.append((change, "AdamW's steps do not grow with the gradient"))
    return [*tries, freeze("if the run dies with frozen eigenvalues too, the recurrence was not the cause")]


def tests_of_the_cause(case: Case) -> list[Try]:
    """The two most informative tests of a run without a known cause."""
    lr = case.run.lr
    tries = [
        freeze("if the run lives with frozen eigenvalues, the recurrence has a part in it"),
        ({"optimizer.lr": round_down(lr / 10)}, f"{TEST}if the run lives at a tenth of the rate, the updates have a part in it"),
    ]
    if case.run.every > 1:
        why = f"only every {ordinal(case.run.every)} step was recorded; the steps before the end would tell more"
        tries.append(({"telemetry.every": 1}, why))
    return tries


def round_down(x: float) -> float:
    """x rounded down to one significant digit, for example 0.0077 to 0.007."""
    if not x > 0 or not math.isfinite(x):
        return 0.0
    unit = 10.0 ** math.floor(math.log10(x))
    return float(f"{math.floor(x / unit + 1e-9) * unit:.6g}")


def _allowed(case: Case, change: Change) -> bool:
    try:
        parse_config(with_settings(case.run.config, change))
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
    if is_frozen(change) and verdict.get("cause") in ("eigenvalue_overflow", "explosion"):
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


def is_frozen(change: Change) -> bool:
    return list(change) == list(FROZEN) and not change["optimizer.recurrent_lr"]


def _describe(change: Change) -> str:
    if is_frozen(change):
        return "with frozen eigenvalues"
    if not change:
        return "unchanged"
    shown = ", ".join(f"{path.removesuffix('.name').rsplit('.', 1)[-1]} {value}" for path, value in change.items())
    return f"with {shown}"
