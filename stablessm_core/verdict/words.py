"""The summary of a diverged run, and the format of numbers in a verdict. Every sentence follows from recorded or measured
values."""

from __future__ import annotations

import math

from stablessm_core.verdict import facts
from stablessm_core.verdict.decide import Finding
from stablessm_core.verdict.inputs import Run
from stablessm_core.verdict.levels import CALM
from stablessm_core.verdict.measured import FLOAT32_LARGEST, number_of

WHICH = {1: "the input", 2: "the target", 3: "input and target"}
PASSES = {"forward": "forward pass", "loss": "loss function", "backward": "backward pass", "update": "optimizer's update"}


def number(x: float, digits: int = 3) -> str:
    """The number x as text for users: in decimal notation from 0.001 to 100,000, otherwise with a power of ten."""
    if not math.isfinite(x):
        return "not a number" if math.isnan(x) else "infinite"
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e5:
        text = f"{x:.{digits}g}"
        return f"{float(text):,.0f}" if "e" in text or abs(x) >= 1000 else text
    mantissa, exponent = f"{x:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def near_one(x: float) -> str:
    """A number with enough digits to tell it from 1."""
    away = abs(abs(x) - 1)
    return number(x) if away == 0 or away >= 0.01 else f"{x:.{min(9, 2 - math.floor(math.log10(away)))}g}"


def power(size: float, length: int) -> str:
    """The power of an absolute value as text, such as "|2.4203|^100 = 2.4e38". The size has enough digits to check the power."""
    exponent = length * math.log10(size)
    mantissa = 10 ** (exponent - math.floor(exponent))
    digits = max(3, 3 + math.floor(math.log10(length)))
    shown = number(size**length) if exponent < 300 else f"{mantissa:.1f}e{math.floor(exponent)}"
    text = f"{size:.{digits}g}"
    return f"|{near_one(size) if float(text) == 1 else text}|^{length} = {shown}"


def plural(count: int, what: str) -> str:
    """ "1 step" or "3 steps"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def eigenvalue_label(run: Run, layer: int, eigenvalue: int | None = None, *, first: bool = False) -> str:
    """ "eigenvalue 9", or "eigenvalue 9 of layer 1" if the run has several layers."""
    if eigenvalue is None:
        text = f"layer {layer}"
    else:
        text = f"eigenvalue {eigenvalue}" + (f" of layer {layer}" if len(run.layers) > 1 else "")
    return text[0].upper() + text[1:] if first else text


def tensor_label(found: Finding, *, first: bool = True) -> str:
    """The name of the tensor that became NaN or infinite. first: the name begins a sentence."""
    return ("The loss" if first else "the loss") if found.tensor in ("", "loss") else found.tensor


def against_best(growth: facts.Growth) -> str:
    """The last loss compared with the best one: "1.3 x its best (0.7)"."""
    if growth.times == 1:
        return "its best so far"
    if growth.best > 0:
        return f"{number(growth.times)} x its best ({number(growth.best)})"
    return f"{number(growth.loss)} (its best was {number(growth.best)})"


def summary(run: Run, found: Finding) -> str:
    """One to four sentences: what happened, and what caused it."""
    match found.cause:
        case "eigenvalue_overflow":
            text = f"{_overflow(run, found)} {_thrown(run, found)}"
        case "explosion":
            text = _explosion(run, found)
        case "step_size":
            text = _step_size(run, found)
        case "bad_input":
            text = _bad_input(found)
        case "bad_loss":
            text = _bad_loss(found)
        case "arithmetic":
            text = _arithmetic(found)
        case "precision":
            text = _precision(found)
        case "lr_too_large":
            text = _lr_too_large(run, found)
        case _:
            text = _unknown(found)
    return f"{text} {_test(found)}".strip()


def _test(found: Finding) -> str:
    """What the autopsy's replay with a frozen recurrence showed."""
    one = None if found.autopsy is None else found.autopsy.counterfactual("recurrence_frozen")
    lives = found.lives("recurrence_frozen")
    if one is None or lives is None or found.cause not in ("eigenvalue_overflow", "explosion", "lr_too_large", "step_size"):
        return ""
    start = f"Trained again from step {int(one['from_step']):,} with the recurrence frozen,"
    if lives:
        return f"{start} the run lives to step {int(one['step']):,}."
    return f"{start} the run dies too, at step {int(one['step']):,}."


def _overflow(run: Run, found: Finding) -> str:
    assert found.layer is not None
    where, since = eigenvalue_label(run, found.layer.index, found.eigenvalue, first=True), found.crossing
    if since is None or found.eigenvalue != since.eigenvalue:
        outside = "was outside the stability boundary"
    elif run.every > 1:
        outside = f"was first recorded outside the stability boundary at step {since.step:,}"
    elif since.step < found.step:
        outside = f"first left the stability boundary at step {since.step:,}"
    else:
        outside = "left the stability boundary in the update of the step before"
    size = None if found.worst is None else 1 - found.worst.distance
    limit = run.limit_of(found.layer.index)
    squared = not found.state and limit < 1
    end = "its state overflowed" if found.state else f"{tensor_label(found, first=False)} stopped being finite"
    grown = ""
    if size and run.length and size > 1:
        grown = f": {power(size, run.length)}"
        largest = math.sqrt(FLOAT32_LARGEST) if squared else FLOAT32_LARGEST
        over = run.length * math.log(size) > math.log(largest)
        if squared and over:
            grown += f", and {run.squares} squares its input, which float32 can do up to {number(largest)}"
        elif squared:
            grown += (
                f", and with the inputs of {run.length} steps added up, {run.squares} squares more than the "
                f"{number(largest)} that float32 can square"
            )
        elif over:
            grown += f", and float32 ends at {number(FLOAT32_LARGEST)}"
        else:
            grown += (
                f", and with the inputs of {run.length} steps added up, the state exceeds the limit of float32, "
                f"{number(FLOAT32_LARGEST)}"
            )
    return f"{where} {outside}, and at step {found.step:,} {end}{grown}."


def _warning(run: Run, found: Finding) -> str:
    """What the loss showed before the end."""
    growth = found.growth
    if growth is None:
        return ""
    if run.every > 1:
        return f" At step {growth.step:,}, the last recorded one before, the loss was {against_best(growth)}."
    if growth.times >= CALM or found.step - growth.step != 1:
        return ""
    only = "" if growth.times == 1 else "only "
    return f" The loss gave no warning: one step earlier it was {only}{against_best(growth)}."


def _thrown(run: Run, found: Finding) -> str:
    growth, spike, one = found.growth, found.spike, found.crossing
    times = "" if growth is None else against_best(growth)
    if found.thrown_by == "explosion":
        since = f" from step {growth.rose_at:,} on" if growth and growth.rose_at else ""
        return f"The whole training was exploding{since}: at step {growth.step if growth else found.step:,} the loss was {times}."
    if found.thrown_by == "both":
        return (
            f"By then the loss was {times}: recorded numbers cannot tell whether the recurrence or the training as a whole "
            "began it."
        )
    if found.thrown_by == "gradient_spike" and spike is not None:
        grown = "from exactly 0" if math.isinf(spike.growth) else f"to {number(spike.growth)} x its median before"
        return f"A spike of its gradient pushed it out: |g| rose {grown}, {number(spike.size)}, at step {spike.step:,}." + (
            _warning(run, found)
        )
    name = run.optimizer_label
    pushed = f"{name}'s steps pushed it across."
    if one is not None and one.relative_step is not None and math.isfinite(one.relative_step):
        pushed = (
            f"One {name} step pushed it across: the step was {number(one.relative_step)} times as long as the remaining distance."
        )
    return pushed + _warning(run, found)


def _explosion(run: Run, found: Finding) -> str:
    growth = found.growth
    if growth is None or not found.risen:
        largest = math.nan if found.autopsy is None else found.autopsy.largest
        began = (
            f"The numbers of the model exploded: at step {found.step:,} they reached {number(largest)} in float64, and float32, "
            f"which ends at {number(FLOAT32_LARGEST)}, cannot hold or square them."
        )
    else:
        since = f" from step {growth.rose_at:,} on" if growth.rose_at else ""
        began = (
            f"The whole training exploded{since}: at step {growth.step:,} the loss was {against_best(growth)}, and at step "
            f"{found.step:,} {tensor_label(found, first=False)} was no longer finite."
        )
    if found.firsts:
        return f"{began} Eigenvalues were outside the stability boundary, but not far enough to overflow a state."
    if not any(layer.can_cross for layer in run.layers):
        return f"{began} No eigenvalue can leave the stability boundary in this model."
    return f"{began} No recorded eigenvalue was ever outside the stability boundary."


def _step_size(run: Run, found: Finding) -> str:
    assert found.dt is not None
    began, now, which = found.dt
    where = "" if found.layer is None else f" ({eigenvalue_label(run, found.layer.index, which)})"
    return (
        f"The step size dt ran away, from at most {number(began)} at the start to {number(now)}{where}, and the state overflowed "
        f"at step {found.step:,} with every eigenvalue inside the boundary."
    )


def _bad_input(found: Finding) -> str:
    bad = found.bad
    assert bad is not None
    end = "" if bad.step == found.step else f" At step {found.step:,}, {tensor_label(found, first=False)} was no longer finite."
    if not bad.finite:
        return f"The data: {WHICH[bad.which]} of step {bad.step:,} held NaN or an infinity before anything was computed.{end}"
    assert bad.largest is not None
    part = WHICH[bad.which].removeprefix("the ")
    if bad.since is not None:
        began = number(bad.usual or 0.0)
        return (
            f"The data: the largest {part} grew from batch to batch, from {began} at step {bad.since:,} to {number(bad.largest)} "
            f"at the end.{end}"
        )
    usual = "and float32 cannot square it"
    if bad.usual is not None and bad.usual > 0:
        usual = f"{number(bad.largest / bad.usual)} x the usual {number(bad.usual)}"
    return (
        f"The data: the batch of step {bad.step:,} is far above usual. Its largest {part} is {number(bad.largest)}, {usual}.{end}"
    )


def _bad_loss(found: Finding) -> str:
    first = (found.autopsy.first if found.autopsy else None) or {}
    where = "backward pass" if first.get("pass") == "backward" else "loss function"
    return (
        f"The {where} made the first number that is not finite, at step {found.step:,}: {first.get('value', 'NaN')} in "
        f"{first.get('operation', where)}. The batch and the outputs of the model were finite and ordinary"
        + (", and so was the loss." if where == "backward pass" else ".")
    )


def _arithmetic(found: Finding) -> str:
    assert found.autopsy is not None
    first, repeat = found.autopsy.first or {}, found.autopsy.float64 or {}
    where = f" of {first['module']}" if first.get("module") else ""
    loss = number(number_of(repeat.get("loss")))
    return (
        f"Arithmetic: at step {found.step:,}, {first.get('operation')}{where} ({PASSES[str(first.get('pass'))]}) gave "
        f"{first.get('value')}, but in float64 the same step is finite, with loss {loss}. No result of a module "
        f"exceeds {number(found.autopsy.largest)} there, so float32 could hold every true result."
    )


def _precision(found: Finding) -> str:
    last = "" if found.growth is None else f" after {number(found.growth.loss, 5)} at step {found.growth.step:,}"
    return (
        f"Half precision: float16 numbers end at 65,504, and every recorded loss is one. {tensor_label(found)} became "
        f"{found.value or 'not finite'} at step {found.step:,}{last}, where float32 still has room."
        if found.half
        else f"Half precision: the run computes in float16, whose numbers end at 65,504. {tensor_label(found)} became "
        f"{found.value or 'not finite'} at step {found.step:,}{last}."
    )


def _lr_too_large(run: Run, found: Finding) -> str:
    lr = float(found.scalars.lr[0]) if len(found.scalars) else float(run.config["optimizer"]["lr"])
    if found.decay is not None:
        factor, before, after = found.decay
        return (
            f"The weight decay made the weights grow: learning rate x weight decay is {number(1 - factor)}, so each step "
            f"multiplied the weights by {number(factor)}; above 2 they grow. Their norm rose from {number(before)} to "
            f"{number(after)}, and at step {found.step:,} {tensor_label(found, first=False)} was no longer finite."
        )
    trained = found.step - run.first_step + 1
    size = "" if found.update is None else f" One update could change the weights by {number(found.update)} x their norm."
    return (
        f"The learning rate {number(lr)} is far too large: {tensor_label(found, first=False)} was no longer finite in step "
        f"{trained} of the training.{size}"
    )


def _unknown(found: Finding) -> str:
    end = f"{tensor_label(found)} stopped being finite at step {found.step:,}"
    if found.kick is not None:
        kick = found.kick
        return (
            f"{end}, after one gradient far above usual: its norm at step {kick.step:,} was {number(kick.grad_norm)}, "
            f"{number(kick.times)} x {kick.against}, at a usual loss of {number(kick.loss)}. The recorded numbers cannot tell "
            "what made this gradient."
        )
    growth = found.growth
    if found.jumped and growth is not None and growth.rose_at is not None and growth.before_rise is not None:
        return (
            f"The loss jumped in one step, from {number(growth.before_rise)} to {number(growth.at_rise or math.nan)} at step "
            f"{growth.rose_at:,}, although the update before it was small. {end}. {_cannot_tell(found)}"
        )
    here = found.scalars.loss[found.scalars.step == found.step]
    if len(here) and math.isfinite(here[0]) and found.tensor.endswith(".grad"):
        end += f", in the backward pass: the loss of this step, {number(float(here[0]))}, is finite"
    if found.jumped and growth is not None:
        return f"{end}. Until then the loss was usual and the updates were small. {_cannot_tell(found)}"
    if found.jumped:
        return f"{end}, before any update. {_cannot_tell(found)}"
    if found.gap and growth is not None and growth.rose_at is None:
        return (
            f"{end}. At the recorded step before, {growth.step:,}, the loss was {against_best(growth)} and no eigenvalue was "
            "far outside the stability boundary; the steps between were not recorded, so the cause may be a bad batch or an "
            "eigenvalue."
        )
    if found.gap and growth is not None:
        return (
            f"{end}. Between the recorded steps {growth.since:,} and {growth.rose_at:,} the loss rose from "
            f"{number(growth.before_rise or 0.0)} to {number(growth.at_rise or 0.0)}; the steps between were not recorded, so "
            "the cause may be a bad batch or an explosion of the whole training."
        )
    if found.inherited is not None:
        return (
            f"{end}. Every state of layer {found.inherited} is NaN, so NaN reached it from below. The recorded numbers cannot "
            "tell where it began."
        )
    outside = " Eigenvalues had been outside the boundary, but not far enough to overflow a state." if found.firsts else ""
    return f"{end}. The recorded numbers cannot tell why.{outside}"


def _cannot_tell(found: Finding) -> str:
    if found.sized is not None:
        usual = ", usual in this run" if found.step > 1 else ""
        return (
            f"The largest number of its batch was {number(found.sized)}{usual}. The recorded numbers cannot tell whether the "
            "loss function or the model made it."
        )
    return (
        "How large the numbers of the batch were is not recorded, so the cause may be the batch, the loss function or the model."
    )
