"""The words for what an autopsy finds. This module does not import torch: the command line, the pages and the verdict use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

# what the first recorded row of a trouble shows, by the kind of trouble
SHOWS: dict[str, str] = {
    "crossing": "an eigenvalue leaves the stability boundary",
    "loss": "the loss rises far above its level",
    "gradient": "the gradient rises far above its level",
    "batch": "the batch has unusual numbers",
    "rate": "the learning rate jumps",
    "decay": "the weight decay makes weights grow",
    "fatal": "a number becomes NaN or infinite",
}
# what the step does in which the trouble begins: it is one step earlier, because a row shows the weights before its update
BEGINS: dict[str, str] = {
    "crossing": "its update moves an eigenvalue across the stability boundary",
    "loss": "after its update, the loss is far above its level",
    "gradient": "after its update, the gradient is far above its level",
    "batch": "its batch has unusual numbers",
    "rate": "its learning rate is far above every rate before",
    "decay": "its weight decay makes weights grow",
    "fatal": "there was no earlier sign",
}
KINDS = tuple(SHOWS)

Number = Callable[[Any], str]  # how the caller writes numbers


def describe_measurements(found: Mapping[str, Any], number: Number) -> list[str]:
    """Sentences about the onset, the gradient, the forms and the state of the findings; those without a result are left out."""
    parts = [
        *([] if found.get("onset") is None else [describe_onset(found["onset"], number)]),
        *([] if found.get("gradient") is None else [describe_gradient(found["gradient"], number)]),
        *describe_forms(found.get("form") or ()),
    ]
    return parts if found.get("hidden_state") is None else [*parts, found["hidden_state"]]


def describe_onset(onset: Mapping[str, Any], number: Number) -> str:
    """The step that first shows the trouble, compared with the step before it."""

    def compare(name: str) -> str:
        before = onset[f"{name}_before"]
        return number(onset[name]) + ("" if before is None else f" ({number(before)} one step earlier)")

    text = f"In step {onset['step']:,} the loss is {compare('loss')}, and the largest output of the network {compare('output')}."
    if onset["yardstick"] is not None:
        text += f" The usual error of the same outputs, computed in float64, is {compare('yardstick')}."
    return text


def describe_gradient(gradient: Mapping[str, Any], number: Number) -> str:
    """Whether the gradient of a step is the slope of the loss, and whether the run recorded this gradient."""
    step, agrees = f"step {gradient['step']:,}", gradient["agrees"]
    norm, slope = number(gradient["norm"]), number(gradient["slope"])
    numbers = f"its norm is {norm}, and along it the loss changes by {slope} per unit of distance"
    if agrees:
        text = f"The gradient of {step} is right: {numbers}."
    elif agrees is False:
        text = f"The gradient of {step} is not the slope of the loss: {numbers}."
    elif gradient["slope"] is None:
        text = f"It is not known whether the gradient of {step} is right: the slope of the loss depends on the distance."
    else:
        text = f"It is not known whether the gradient of {step} is right: {numbers}."
    return " ".join([text, *_where_it_differs(gradient, number)])


def _where_it_differs(gradient: Mapping[str, Any], number: Number) -> Iterator[str]:
    differs = gradient.get("differs")
    if differs == "training_mode":
        yield "In evaluation mode both agree."
    if differs == "kernels":
        recorded, repeated = number(gradient["recorded"]), number(gradient["repeated"])
        yield f"The run recorded a norm of {recorded}; the same step without fused kernels gives {repeated}."
    if differs == "precision":
        repeated, norm = number(gradient["repeated"]), number(gradient["norm"])
        yield f"Rounding decides this gradient: in the precision of the run its norm is {repeated}, in float64 {norm}."


def describe_forms(forms: Any) -> Iterator[str]:
    """One sentence for each layer that departs from its recorded form."""
    for one in forms:
        if one["agrees"] is False:
            yield (
                f"Layer {one['layer']} no longer computes its recorded form: with these weights, an eigenvalue differs from the "
                f"recorded one by {100 * one['error']:.3g} %."
            )


def describe_classes(classes: Mapping[str, Any]) -> str:
    """The classes in the target of a batch."""
    if classes["smallest"] is None:
        return f"All {classes['count']:,} targets are ignored, so nothing is scored"
    ignored = f"; {classes['ignored']:,} of {classes['count']:,} targets are ignored" if classes["ignored"] else ""
    found = f"The targets are classes {classes['smallest']:,} to {classes['largest']:,}"
    return f"{found}, and the model knows 0 to {classes['of'] - 1:,}{ignored}"
