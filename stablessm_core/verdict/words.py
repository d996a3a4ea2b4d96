"""The summary of a diverged run, and the format of numbers in a verdict. Every sentence follows from recorded values."""

from __future__ import annotations

import math

from stablessm_core.verdict import facts
from stablessm_core.verdict.decide import Finding
from stablessm_core.verdict.inputs import Run

WHICH = {1: "the input", 2: "the target", 3: "input and target"}


def number(x: float, digits: int = 3) -> str:
    """The number x as text for users: in decimal notation from 0.001 to 100,000, otherwise with a power of ten."""
    if not math.isfinite(x):
        return "not a number" if math.isnan(x) else "infinite"
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        text = f"{x:.{digits}g}"
        return f"{float(text):,.0f}" if "e" in text or abs(x) >= 1000 else text
    mantissa, exponent = f"{x:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def power(size: float, length: int) -> str:
    """The power of an absolute value as text, such as "|2.42|^100 = 10^38"."""
    return f"|{number(size)}|^{length} = 10^{length * math.log10(size):.0f}"


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


def summary(run: Run, found: Finding) -> str:
    """One to three sentences: what happened, and what caused it."""
    match found.cause:
        case "eigenvalue_overflow":
            return f"{_overflow(run, found)} {_thrown(found)}"
        case "explosion":
            return _explosion(found)
        case "step_size":
            return _step_size(run, found)
        case "bad_input":
            return _bad_input(run, found)
        case "precision":
            return _precision(found)
        case "lr_too_large":
            return _lr_too_large(run, found)
    outside = " Eigenvalues had been outside the boundary, but not far enough to overflow a state." if found.firsts else ""
    return f"{tensor_label(found)} stopped being finite at step {found.step:,}; the recorded data cannot tell why.{outside}"


def _overflow(run: Run, found: Finding) -> str:
    assert found.layer is not None
    where, since = eigenvalue_label(run, found.layer.index, found.eigenvalue, first=True), found.crossing
    if since is None or found.eigenvalue != since.eigenvalue:
        outside = "was outside the stability boundary"
    elif since.step < found.step:
        outside = f"had been outside the stability boundary since step {since.step:,}"
    else:
        outside = "was thrown over the stability boundary by the step before"
    end = "its state overflowed" if found.state else f"{tensor_label(found, first=False)} stopped being finite"
    size, grown = None if found.worst is None else 1 - found.worst.distance, ""
    if size and run.length and size > 1:
        squared = "" if run.limit_of(found.layer.index) == 1 or found.state else ", squared by the normalisation that follows,"
        grown = f": {power(size, run.length)}{squared} no longer fits into float32"
    return f"{where} {outside}, and at step {found.step:,} {end}{grown}."


def _thrown(found: Finding) -> str:
    growth, spike, one = found.growth, found.spike, found.crossing
    times = "" if growth is None else number(growth.times)
    calm = growth is not None and growth.times < facts.CALM
    if found.thrown_by == "explosion":
        since = f" from step {growth.rose_at:,} on" if growth and growth.rose_at else ""
        return (
            f"The whole training had exploded{since}, to a loss of {times} times its best; the eigenvalue was thrown out by it "
            "and overflowed first."
        )
    if found.thrown_by == "both":
        return (
            f"By then the loss was {times} times its best: recorded numbers do not tell whether the recurrence or the training "
            "as a whole began it."
        )
    if found.thrown_by == "gradient_spike" and spike is not None:
        grown = "from exactly 0" if math.isinf(spike.growth) else f"to {number(spike.growth)} times its size before"
        sign = f" The loss of the step before gave no sign: {times} times its best." if calm else ""
        return f"A spike of its gradient threw it: |g| rose {grown}, {number(spike.size)}, at step {spike.step:,}.{sign}"
    by = ""
    if one is not None and one.relative_step is not None and math.isfinite(one.relative_step):
        by = f", by {number(one.relative_step)} times its distance to the boundary in the step that crossed"
    return f"The optimizer's steps threw it{by}." + (
        f" The loss of the step before gave no sign: {times} times its best." if calm else ""
    )


def _explosion(found: Finding) -> str:
    growth = found.growth
    assert growth is not None
    since = f" from step {growth.rose_at:,} on" if growth.rose_at else ""
    inside = "No eigenvalue was ever outside the stability boundary: the recurrence is not the cause."
    if found.firsts:
        inside = "Eigenvalues were outside, but not far enough to overflow a state."
    return (
        f"The whole training exploded{since}: at step {growth.step:,} the loss was {number(growth.times)} times its best, and "
        f"step {found.step:,} was no longer finite. {inside}"
    )


def _step_size(run: Run, found: Finding) -> str:
    assert found.dt is not None
    began, now, which = found.dt
    where = "" if found.layer is None else f" ({eigenvalue_label(run, found.layer.index, which)})"
    return (
        f"The step size dt ran away, from at most {number(began)} to {number(now)}{where}, and the state overflowed at step "
        f"{found.step:,} with every eigenvalue inside the boundary."
    )


def _bad_input(run: Run, found: Finding) -> str:
    if found.flags:
        return f"The data: {WHICH[found.flags]} of step {found.step:,} held NaN or an infinity before anything was computed."
    finite = "finite but far too large" if found.flags == 0 else "far too large"
    if found.step == run.first_step == 1:
        return (
            f"The data: before any update only initial weights and the first batch made these numbers, so its own are {finite}."
        )
    growth = found.growth
    step = growth.rose_at if growth is not None and growth.rose_at else found.step
    return (
        f"The data: the batch of step {step:,} holds numbers that are {finite}. Up to the step before nothing was out of the "
        "ordinary, and the model had hardly changed since: only the batch was another one."
    )


def _precision(found: Finding) -> str:
    last = "" if found.growth is None else f" after {number(found.growth.loss, 5)} at step {found.growth.step:,}"
    return (
        f"Half precision: every recorded loss is a float16 number, and these end at 65,504. {tensor_label(found)} became "
        f"{found.value or 'not finite'} at step {found.step:,}{last}, where float32 still has room."
    )


def _lr_too_large(run: Run, found: Finding) -> str:
    lr = float(found.scalars.lr[0]) if len(found.scalars) else float(run.config["optimizer"]["lr"])
    trained = found.step - run.first_step + 1
    return (
        f"A learning rate far too large: {number(lr)}, and step {trained} was not finite any more. So early, no more can be said."
    )
