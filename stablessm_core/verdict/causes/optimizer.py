"""The optimizer's own arithmetic: a weight decay that multiplies the weights, or a learning rate that jumped.

Both are fitted on recorded rows: the weights of two steps give the factor, and the learning rate of every step is recorded.
"""

from __future__ import annotations

from typing import Any

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
    jump = case.rate_jump
    if jump is None or case.dies_soon("usual_rate"):
        return None
    began_then = case.rise is not None and jump.step <= case.rise <= jump.step + batches.RECENT
    if not (case.lives("usual_rate") or began_then):
        return None
    return Answer(confidence="measured" if case.lives("usual_rate") else "inferred", runner_up="explosion", about=jump)


@sentence(
    "ssm/{layer}/weight", "train/weight_norm", "optim/lr",
    holds="in each of the last 4 steps or more, nine of ten eigenvalue weights of a layer were multiplied by one factor "
    "beyond 1.05, within a twentieth (if the decay is known: by 1 - rate x decay, within a tenth); or AdamW's rate x decay is "
    "above 2 and explains 2 steps of nine of ten weights up to 1.5 x the rate; or it is above 2, and the norm of all weights "
    "grew in at least 4 steps with half to 1.5 x the logarithm of its factor",
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
            f"The optimizer itself multiplied the eigenvalue weights of layer {decay.layer} by {number(decay.factor)} in each "
            f"step: their norm rose {rose}. The recurrent rate times the weight decay is {number(decay.product)}; above 2, "
            "weights grow in each step."
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
    "most 20 steps later, or the run lives with its usual rate",
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
    return said(weights_multiplied(case, answer.about))


def _advice(case: Case, answer: Answer) -> list[Try]:
    if isinstance(answer.about, RateJump):
        return []
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
    began = about.since if about.began is None else about.began
    return [Trouble(step=began, kind="decay", shown=began + 1)]


CAUSE = Cause(
    name="optimizer", label="the optimizer's own arithmetic", find=_find, summary=_summary, advice=_advice, events=_events,
    begins=_begins,
)  # fmt: skip
