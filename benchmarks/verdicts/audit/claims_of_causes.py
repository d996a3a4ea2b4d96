"""Claims about what happened that follow from how the fault was planted, and sentences that hold for every run."""

from __future__ import annotations

import re

import numpy as np

from benchmarks.verdicts.audit import Context, claim
from benchmarks.verdicts.audit.numbers import N, S, says, step

LOSS = {"bad_loss", "changed_loss", "precision", "arithmetic"}
BACKWARD = {"bad_loss", "wrong_gradient"}
DATA = {"bad_input", "changed_data"}


def _one_of(context: Context, causes: set[str]) -> bool:
    return bool(causes & set(context.truth.causes))


@claim(r"^The data: ")
def the_data(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return _one_of(context, DATA)


@claim(rf"The backward pass gave a wrong gradient(?: at step {S})?|the backward pass (?:is|was) wrong")
def a_wrong_gradient(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return _one_of(context, {"wrong_gradient", "bad_loss"})


@claim(r"The loss function made the first number that is not finite")
def the_loss_function_made_it(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return _one_of(context, LOSS)


@claim(r"The backward pass made the first number that is not finite")
def the_backward_pass_made_it(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return _one_of(context, BACKWARD)


@claim(
    r"(?:float16 numbers end at 65,504)?(?:, and float32 numbers at 3\.4e38)|float16 numbers end at 65,504|The loss "
    r"function should compute in float32, which ends at 3\.4e38"
)
def a_constant_of_formats(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(r"every recorded loss is a float16 number, and these end at 65,504")
def every_loss_is_half(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    losses = [v for v in context.facts.loss.values() if np.isfinite(v)]
    with np.errstate(over="ignore"):
        return all(float(np.float16(v)) == v for v in losses)


@claim(r"^(?:Arithmetic|Half precision): ")
def the_arithmetic(context: Context, match: re.Match[str]) -> bool:
    return _one_of(context, {"arithmetic", "precision"} if match[0].startswith("A") else {"precision"})


@claim(r"One (?:AdamW|SGD) step pushed it across|(?:AdamW|SGD)'s steps pushed it across")
def a_step_pushed_it(context: Context, match: re.Match[str]) -> bool:
    own = context.facts.config["optimizer"]["name"]
    return (own == "adamw") == ("AdamW" in match[0]) and "optimizer_step" not in context.truth.not_thrown_by


@claim(r"The weight decay made the weights grow")
def the_decay_made_them_grow(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return bool(context.facts.config["optimizer"]["weight_decay"]) and "decay" in context.truth.mentions


@claim(
    r"(?:The|the) (?:recorded )?numbers cannot tell (?:why|where it began|what made this gradient|whether the loss "
    r"function or the "
    r"model made it|whether the recurrence or the training as a whole began it)|recorded numbers cannot tell "
    r"whether the recurrence "
    r"or the training as a whole began it"
)
def the_numbers_cannot_tell(context: Context, match: re.Match[str]) -> bool:
    if "whether the loss function or the model" in match[0]:
        return _one_of(context, LOSS | {"model_forward", "not_its_form", "precision", "explosion"})
    return True


@claim(
    r"The recorded numbers cannot tell whether the learning rate was too large, the gradient was wrong or the loss function "
    r"changed"
)
def the_rows_fit_three_causes(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return _one_of(context, LOSS | {"explosion", "lr_too_large", "wrong_gradient", "changed_loss", "eigenvalue_overflow"})


@claim(r"How large the numbers of the batch were is not recorded, so the cause may be the batch, the loss function or the model")
def sizes_not_recorded(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(
    r"bfloat16 numbers end at 3\.39e38, almost where float32 ends: rounding to them makes no infinity of a number "
    r"below|Within a step, "
    r"tensors are recorded in a fixed order: the first one on record need not be the first that failed|"
    r"bfloat16 has the range of float32: rounding to it makes no infinity|States and eigenvalues are float32|A "
    r"right gradient has "
    r"equal numbers|Whether the batch was finite was not recorded|above 2 they grow|This norm squares its input|It is where the "
    r"overflow shows, and not why the numbers were so large|whatever the optimizer does|this map keeps every "
    r"eigenvalue inside the "
    r"boundary|AdamW's steps do not grow with the gradient|clipping bounds what a growing gradient can do in one "
    r"step|a test rather "
    r"than a cure|This is a consequence: the training was already exploding|the data should be looked at too"
    r"|clipping bounds what "
    r"one batch can do|discrete time has no step size that could run away|if the run (?:lives|dies) with frozen eigenvalues(?: "
    r"too)?, the recurrence (?:was the cause|was not the cause|has a part in it)|if the run lives at a tenth of the rate, the "
    r"updates have a part in it|Nothing is recorded yet|^Finished:|This verdict rests on the recorded numbers|the "
    r"run then leaves "
    r"out a batch that holds NaN or an infinity|the whole training exploded|the steps before the end would tell more"
)
def a_constant(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(rf"^(Cancelled|Failed) at step {S}|So far, at step {S}:")
def it_ended(context: Context, match: re.Match[str]) -> bool:
    return step(match[2] or match[3]) == context.facts.last  # type: ignore[no-any-return]


@claim(rf"Only every {S}(?:st|nd|rd|th) step was recorded|only every {S}(?:st|nd|rd|th) step was recorded")
def only_every(context: Context, match: re.Match[str]) -> bool:
    return step(match[1] or match[2]) == int(context.facts.config["telemetry"]["every"])


@claim(
    r"relative steps and the exact step of a crossing are not known|the steps between were not recorded, so the "
    r"cause may be a bad batch or an (?:eigenvalue|explosion of the whole training)"
)
def between_rows(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return int(context.facts.config["telemetry"]["every"]) > 1


@claim(r"(?:it )?(?:was|were) first recorded")
def first_recorded(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(r"It survived because sequences are short")
def sequences_are_short(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return context.facts.died_at is None


@claim(r"(?:the normalisation that follows |the loss )?can square numbers up to 1\.8e19")
def what_can_be_squared(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True


@claim(
    r"No setting changes this: the loss function itself converts to float16, and should compute in float32, which "
    r"ends at 3\.4e38"
)
@claim(r"Half precision: float16 numbers end at 65,504, and every recorded loss is a float16 number")
@claim(rf"All of the {S} different recorded losses are float16 numbers; of float32 numbers, one in 8,192 is")
def losses_are_half(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    losses = [v for v in context.facts.loss.values() if np.isfinite(v)]
    with np.errstate(over="ignore"):
        half = all(float(np.float16(v)) == v for v in losses)
    return half and _one_of(context, {"precision"})


@claim(rf"[Tt]he loss became (?:Infinity|-Infinity|NaN|infinite|nan|inf|-inf) at step {S}(?: after {N} at step {S})?")
def the_loss_became(context: Context, match: re.Match[str]) -> bool:
    loss = context.facts.loss
    return not np.isfinite(loss[step(match[1])]) and (not match[2] or says(match[2], loss[step(match[3])]))


@claim(rf"The batch of step {S} held (?:NaN|-?Infinity) before anything was computed")
def the_batch_held_it(context: Context, match: re.Match[str]) -> bool:
    return any(np.isinf(one) for one in context.facts.sizes[step(match[1])])


@claim(
    rf"The numbers of the model exploded: at step {S} they reached {N}(?: in float64, and float32, which ends at "
    rf"3\.4e38, cannot hold or square them)?"
)
def the_numbers_exploded(context: Context, match: re.Match[str]) -> bool:
    modules = context.facts.findings["modules"]
    largest = [float(one.get(kind) or 0) for one in modules for kind in ("largest_float64", "largest")]
    return step(match[1]) == context.facts.died_at and any(says(match[2], one) for one in largest)


@claim(
    r"Every state of layer \d+ is NaN,? and none is infinite(?:, so NaN came into its recurrence from elsewhere)?"
    r"|An overflow begins with single "
    r"infinite states, so NaN came into this recurrence from elsewhere"
)
def nan_from_elsewhere(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return any(alert.kind == "nonfinite_state" and alert.step == context.facts.died_at for alert in context.facts.alerts)


@claim(
    r"Of wide layers only the 16 most extreme eigenvalues of each step are recorded; their sign, gradient and "
    r"weight step are not|Eigenvalues "
    r"outside the stability boundary are meant in this model, and cannot make a state overflow|Whether its "
    r"eigenvalues are inside the stability "
    r"boundary is not recorded|above 2, weights grow in each step|the run computes in float16, whose numbers end at "
    r"65,504|with random inputs its "
    r"state would overflow|float32, which ends at 3\.4e38, cannot (?:hold|square) them|: float32 cannot square such "
    r"a number and add it up"
)
def what_holds_for_every_run(context: Context, match: re.Match[str]) -> bool:  # noqa: ARG001
    return True
