"""Which gradient a reported run records. The program states it in the environment of the run, under the name `gradient`."""

from __future__ import annotations

GRADIENTS = {
    "raw": "The gradient before clipping.",
    "clipped": "The gradient after clipping.",
    "unknown": "The gradient that the optimizer received: after clipping if the loop clips.",
}
OF_GRADIENT = ("grad_over_weight", "grad_over_phase", "gradient")


def state_gradient(name: str, meaning: str, gradient: str | None) -> str:
    """The meaning of a series, followed by the gradient from which it is computed, if there is one and it is known.

    name: of the series, such as "ssm/0/gradient". gradient: a key of GRADIENTS.
    """
    if gradient not in GRADIENTS or not is_of_gradient(name):
        return meaning
    return f"{meaning} {GRADIENTS[gradient]} Gradient: {gradient}.".lstrip()


def is_of_gradient(name: str) -> bool:
    """True if the series is computed from gradients."""
    return name.rpartition("/")[2].startswith(OF_GRADIENT)
