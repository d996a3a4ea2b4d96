"""The optimizer's own arithmetic: a weight decay that multiplies the weights, or a learning rate that jumped.

Both are fitted on recorded rows: the weights of two steps give the factor, and the learning rate of every step is recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm_core.verdict import batches
from stablessm_core.verdict.advice import round_down
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause, Try
from stablessm_core.verdict.formats import number, plural
from stablessm_core.verdict.optimizer_facts import DecayGrowth, RateJump
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.timeline import Event, event
from stablessm_core.verdict.trouble import Trouble
from stablessm_core.verdict.words import ended


def _find(case: Case) -> Answer | None:
    decay = case.decay_growth
    if decay is not None and not case.dies_soon("no_weight_decay"):
        measured = case.lives("no_weight_decay")
        return Answer(confidence="measured" if measured else "inferred", layer=case.layer_of(decay.layer), about=decay)
    product = _product_above_two(case)
    if product is not None and case.lives("no_weight_decay"):
        return Answer(confidence="measured", about=product)
    jump = case.rate_jump
    if jump is None or case.dies_soon("usual_rate"):
        return None
    began_then = case.rise is not None and jump.step <= case.rise <= jump.step + batches.RECENT * case.run.every
    if not (case.lives("usual_rate") or began_then):
        return None
    return Answer(confidence="measured" if case.lives("usual_rate") else "inferred", runner_up="explosion", about=jump)


def _product_above_two(case: Case) -> float | None:
    """The largest configured rate x weight decay of the last recorded step if it is above 2, so that weights grow in each
    step."""
    lr = case.scalars.lr[(case.scalars.step < case.step) & np.isfinite(case.scalars.lr)]
    decays = (case.run.weight_decay or 0.0, (case.run.recurrent_weight_decay or 0.0) * (case.run.recurrent_ratio or 0.0))
    product = float(lr[-1]) * max(decays) if len(lr) else 0.0
    return product if product > 2 else None


@sentence(
    "optim/lr", "autopsy.counterfactuals",
    holds="a configured weight decay times its recorded rate is above 2, and the run lives without weight decay",
)  # fmt: skip
def lives_without_decay(case: Case, product: float) -> str | None:
    if not case.lives("no_weight_decay"):
        return None
    return (
        f"The learning rate times the weight decay is {number(product)}, so the optimizer multiplies weights by "
        f"{number(1 - product)} in each step, and without weight decay the run lives.{ended(case, 0)}"
    )


@sentence(
    "ssm/{layer}/weight", "train/weight_norm", "optim/lr",
    holds="in each of the last 4 steps or more, nine of ten eigenvalue weights of a layer were multiplied by one factor "
    "beyond 1.05, within a twentieth (if the decay is known: by 1 - rate x decay, within a tenth); or AdamW's rate x decay is "
    "above 2 and explains nine of ten recorded steps of the weights, at least 4 of them, up to 1.5 x the rate; or it is above "
    "2, and the norm of all weights grew in at least 4 steps with half to 1.5 x the logarithm of its factor",
)  # fmt: skip
def weights_multiplied(case: Case, decay: DecayGrowth) -> tuple[str, dict[str, Any]]:
    rose = f"from {number(decay.before)} at step {decay.since:,} to {number(decay.after)} at step {decay.step:,}"
    if decay.layer is None and decay.product is not None:
        text = (
            f"The optimizer itself multiplies all weights by {number(1 - decay.product)} in each step, because the learning "
            f"rate times the weight decay is {number(decay.product)}. Their norm rose {rose}, by {number(abs(decay.factor))} x "
            "per step."
        )
    elif decay.product is not None:
        text = (
            f"The optimizer itself multiplies the eigenvalue weights of layer {decay.layer} by {number(1 - decay.product)} "
            "in each "
            f"step, because the recurrent rate times the weight decay is {number(decay.product)}. Their norm went {rose}."
        )
    else:
        text = (
            f"Each step multiplied the eigenvalue weights of layer {decay.layer} by the same factor, {number(decay.factor)}, "
            f"as a weight decay does: their norm rose {rose}."
        )
    return text + ended(case, decay.since), {"basis": "inferred"} if decay.product is None else {}


@sentence(
    "optim/lr", "train/loss",
    holds="the recorded learning rate rose to at least 10 x the largest one before, and the loss rose, or the run ended, at "
    "most 20 recorded steps later, or the run lives with its usual rate",
)  # fmt: skip
def learning_rate_jumped(case: Case, jump: RateJump) -> str:
    kept = "" if jump.rows == 1 else f", for {plural(jump.rows, 'recorded step')}"
    return (
        f"The learning rate jumped at step {jump.step:,}, from at most {number(jump.before)} to {number(jump.after)}{kept}."
        f"{ended(case, jump.step)}"
    )


def _summary(case: Case, answer: Answer) -> list[Said]:
    if isinstance(answer.about, RateJump):
        return said(learning_rate_jumped(case, answer.about))
    if isinstance(answer.about, float):
        return said(lives_without_decay(case, answer.about))
    return said(weights_multiplied(case, answer.about))


def _advice(case: Case, answer: Answer) -> list[Try]:
    if isinstance(answer.about, RateJump | float):
        return []  # the trial that lived is the advice
    lr = case.run.lr if answer.layer is None else case.run.recurrent_lr
    path = "optimizer.weight_decay" if answer.layer is None else "optimizer.recurrent_weight_decay"
    why = "learning rate x weight decay far below 1 shrinks the weights a little in each step, as it should"
    return [({path: round_down(min(0.01, 0.1 / lr))}, why)]


def _events(_case: Case, answer: Answer) -> list[Event]:
    jump = answer.about
    if not isinstance(jump, RateJump):
        return []
    text = f"The learning rate rose from at most {number(jump.before)} to {number(jump.after)}."
    return [event(jump.step, "rate_jumped", text)]


def _begins(_case: Case, answer: Answer) -> list[Trouble]:
    about = answer.about
    if isinstance(about, RateJump):
        return [Trouble(step=about.step, kind="rate", shown=about.step)]
    if isinstance(about, float):
        return []
    began = about.since if about.began is None else about.began
    return [Trouble(step=began, kind="decay", shown=began + 1)]


CAUSE = Cause(
    name="optimizer", label="the optimizer's own arithmetic", find=_find, summary=_summary, advice=_advice, events=_events,
    begins=_begins,
)  # fmt: skip
