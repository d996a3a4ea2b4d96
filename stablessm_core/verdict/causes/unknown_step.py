"""A single step did it, and no record says what happened inside this step. The cause is unknown, and no eigenvalue is blamed."""

from __future__ import annotations

from dataclasses import dataclass

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.advice import CLIP, tests_of_the_cause
from stablessm_core.verdict.batches import FAR
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import MODERATE
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.trouble import Trouble
from stablessm_core.verdict.words import against_best, tensor_label

JUMP = 1e3  # loss divided by the largest loss so far: a small update cannot cause such a jump in one step
LEAP = 3.0  # overflow budget divided by that of the recorded row before: at this ratio an unrecorded step moved the eigenvalue


@dataclass(frozen=True)
class Step:
    """What is known of the step. kind: "kick", "jump" or "gap". update: the size of the update before it."""

    kind: str
    update: float | None = None


def _find(case: Case) -> Answer | None:
    if _lived_with_a_change(case):
        return None
    return _kick(case) or _jump(case) or _gap(case) or _hidden(case)


def _lived_with_a_change(case: Case) -> bool:
    """Whether a trial answers what the step does not: without this update of the eigenvalues, the run lives."""
    return bool(case.lives("recurrence_frozen")) and case.contributes(case.worst)


def _unknown(step: Step, runner_up: str) -> Answer:
    return Answer(confidence="cannot_tell", runner_up=runner_up, about=step)


def _kick(case: Case) -> Answer | None:
    """One gradient, far above usual at a usual loss, threw the weights."""
    kick = case.kick
    if kick is None or case.contributes(case.worst_at(kick.step)) or (case.autopsy is not None and case.autopsy.gradient_agrees):
        return None
    return _unknown(Step("kick"), "wrong_gradient")


def _jump(case: Case) -> Answer | None:
    """The loss jumped in a single step although the update before was small: no update can have done it."""
    grown, rise = case.growth, case.rise
    if case.run.every > 1 or case.contributes(case.worst_at(case.step if rise is None else rise)) or case.largest >= MODERATE:
        return None
    update = case.update
    if case.step == case.run.first_step == 1:
        jumped = True  # before any update, only the initial weights, the batch or the loss function can be the cause
    elif grown is None or (case.step - grown.step > 1 and grown.rose_at is None):
        return None
    elif grown.rose_at is None:
        jumped = grown.times < CALM and case.is_small(update)
    else:
        update = facts.update_size(case.run, case.scalars, grown.rose_at)
        jumped = grown.record >= JUMP and grown.jump >= JUMP and case.is_small(update)
    if not jumped:
        return None
    rose = grown is not None and grown.rose_at is not None
    runner_up = "bad_input" if case.largest_of_batch is None else "bad_loss" if not rose else "explosion"
    return _unknown(Step("jump", update), runner_up)


def _gap(case: Case) -> Answer | None:
    """The loss left its usual level between two recorded rows, or under SGD an eigenvalue crossed and overflowed between them."""
    grown, run = case.growth, case.run
    if run.every == 1 or grown is None or case.largest >= MODERATE or case.rise is None:
        return None
    before = case.scalars.step[case.scalars.step < case.rise]
    thrown = run.optimizer == "sgd" and case.contributes(case.worst)
    earlier = case.worst_at(int(before[-1])) if len(before) else None
    if not len(before) or (case.contributes(earlier) and not (thrown and _leapt(case.worst, earlier))):
        return None
    if not (thrown if grown.rose_at is None else grown.jump >= JUMP and not (case.contributes(case.worst) and not thrown)):
        return None
    return _unknown(Step("gap"), "eigenvalue_overflow" if thrown else "explosion")


def _leapt(now: eigenvalues.Worst | None, before: eigenvalues.Worst | None) -> bool:
    """Whether the overflow budget grew LEAP-fold between two rows."""
    if now is None or before is None or now.budget is None or before.budget is None:
        return False
    return now.budget >= LEAP * before.budget


def _hidden(case: Case) -> Answer | None:
    """Numbers left their usual level between two recorded rows, and no change that the autopsy tried saved the run."""
    grown = case.growth
    at_once = grown is None or grown.rose_at is None or grown.jump >= JUMP
    tried = all(case.dies_soon(change) for change in ("recurrence_frozen", "tenth_of_rate", "batch_left_out"))
    if case.run.every == 1 or not at_once or not tried or not (case.risen or case.contributes(case.worst)):
        return None
    return _unknown(Step("gap"), "explosion")


# ---- sentences ----


@sentence(
    "optim/grad_norm", "train/loss",
    holds="under SGD, with every step recorded, the norm of the step before the loss rose, or of the last step, was at least "
    "1,000 x its median over the 20 rows before, and the loss differed from its median over 50 rows by at most 2 x its size "
    "or spread",
)  # fmt: skip
def gradient_threw_the_weights(case: Case) -> str | None:
    kick = case.kick
    if kick is None or kick.usual_loss is None:
        return None
    return (
        f"{_end(case)}, after one gradient far above usual: its norm at step {kick.step:,} was {number(kick.grad_norm)}, "
        f"{number(kick.times)} x its median before, while the loss was {number(kick.loss)} (median before: "
        f"{number(kick.usual_loss)}). The recorded numbers cannot tell what made this gradient."
    )


@sentence(
    "optim/grad_norm", "train/weight_norm",
    holds="under SGD, with every step recorded, the gradient of the first row had at least 1,000 x the norm of all weights, "
    "and the loss rose, or the run ended, in the next step",
)  # fmt: skip
def first_gradient_threw_the_weights(case: Case) -> str | None:
    kick = case.kick
    if kick is None or kick.usual_loss is not None:
        return None
    return (
        f"{_end(case)}. The gradient of the first recorded step, {kick.step:,}, already had the norm {number(kick.grad_norm)}, "
        f"{number(kick.times)} x the norm of all weights. The recorded numbers cannot tell what made this gradient."
    )


@sentence(
    "train/loss", "optim/lr", "optim/grad_norm",
    holds="every step is recorded, the loss rose in one step to at least 1,000 x every loss before, and the update before it "
    "was at most a tenth of the norm of all weights",
)  # fmt: skip
def loss_jumped(case: Case, update: float | None) -> str | None:
    growth = case.growth
    if growth is None or growth.rose_at is None or growth.before_rise is None or growth.at_rise is None or update is None:
        return None
    return (
        f"The loss jumped in one step, from {number(growth.before_rise)} to {number(growth.at_rise)} at step {growth.rose_at:,}, "
        f"although the update before it was small, about {number(update)} x the norm of all weights. {_end(case)}."
    )


@sentence("train/loss", holds="the first step of the run was the fatal one")
def no_update_before(case: Case) -> str | None:
    if not case.step == case.run.first_step == 1:
        return None
    return f"{_end(case)}{_in_backward(case)}. No update had been made before."


@sentence(
    "train/loss", "optim/lr", "optim/grad_norm",
    holds="the loss of the step before was below 3 x its best, and the update between was at most a tenth of the norm of all "
    "weights",
)  # fmt: skip
def calm_before(case: Case, update: float | None) -> str | None:
    growth = case.growth
    if growth is None or growth.rose_at is not None or case.step == 1 or update is None:
        return None
    return (
        f"{_end(case)}{_in_backward(case)}. One step earlier the loss was {against_best(growth)}, and the update between was "
        f"small, about {number(update)} x the norm of all weights."
    )


@sentence(
    "train/loss", holds="the loss at the last recorded row before the end was below 10 x its best, and not every step is recorded"
)
def ended_between_rows(case: Case) -> str | None:
    growth = case.growth
    if growth is None or growth.rose_at is not None:
        return None
    why = "the steps between were not recorded, so the cause may be a bad batch or an eigenvalue"
    if case.step - growth.step == 1:
        why = "the recorded numbers cannot tell why"
    return f"{_end(case)}. At the recorded step before, {growth.step:,}, the loss was {against_best(growth)}; {why}."


@sentence("train/loss", holds="between two recorded rows the loss rose at least 1,000-fold, to at least 10 x its best")
def rose_between_rows(case: Case) -> str | None:
    growth = case.growth
    if growth is None or growth.rose_at is None or growth.before_rise is None or growth.at_rise is None:
        return None
    return (
        f"{_end(case)}. Between the recorded steps {growth.since:,} and {growth.rose_at:,} the loss rose from "
        f"{number(growth.before_rise)} to {number(growth.at_rise)}; the steps between were not recorded, so the cause may be a "
        "bad batch or an explosion of the whole training."
    )


@sentence(
    "train/largest_input", "train/largest_target", "autopsy.batch",
    holds="the largest number of the fatal batch is known, and below 10 x the median of the batches before where those are known",
)  # fmt: skip
def batch_is_known(case: Case) -> str | None:
    largest, usual = case.largest_of_batch, case.usual_batch
    if largest is None or (usual is not None and largest >= FAR * usual):
        return None
    before = "" if usual is None else f" (median of the batches before: {number(usual)})"
    return (
        f"The largest number of its batch was {number(largest)}{before}. The recorded numbers cannot tell whether the loss "
        "function or the model made it."
    )


@sentence("train/largest_input", "train/largest_target", holds="the largest number of the fatal batch is not known")
def batch_is_unknown(case: Case) -> str | None:
    if case.largest_of_batch is not None:
        return None
    return (
        "How large the numbers of the batch were is not recorded, so the cause may be the batch, the loss function or the model."
    )


def _end(case: Case) -> str:
    return f"{tensor_label(case)} stopped being finite at step {case.step:,}"


def _in_backward(case: Case) -> str:
    if case.fatal_loss is None or not case.tensor.endswith(".grad"):
        return ""
    return f", in the backward pass: the loss of this step, {number(case.fatal_loss)}, is finite"


def _summary(case: Case, answer: Answer) -> list[Said]:
    of_batch = [batch_is_known(case), batch_is_unknown(case)]
    match answer.about.kind:
        case "kick":
            return said(gradient_threw_the_weights(case), first_gradient_threw_the_weights(case))
        case "jump":
            update = answer.about.update
            return said(loss_jumped(case, update) or no_update_before(case) or calm_before(case, update), *of_batch)
    return said(ended_between_rows(case), rose_between_rows(case))


def _advice(case: Case, answer: Answer) -> list[Try]:
    tries: list[Try] = []
    if answer.about.kind == "kick" and case.kick is not None and not case.run.grad_clip:
        why = f"clipping bounds a gradient like that of step {case.kick.step:,}, whose norm was {number(case.kick.grad_norm)}"
        tries.append((dict(CLIP), why))
    return tries + tests_of_the_cause(case)


def _begins(case: Case, answer: Answer) -> list[Trouble]:
    if answer.about.kind != "kick" or case.kick is None:
        return []
    return [Trouble(step=case.kick.step, kind="gradient", shown=case.kick.step)]


CAUSE = Cause(name="unknown", label="cause unknown", find=_find, summary=_summary, advice=_advice, begins=_begins)
