"""Whether an optimizer's steps grow with the gradient. A loss that has become high is dangerous only if they do.

Programs that train their model themselves may use any optimizer; its class names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Steps = Literal["bounded", "growing", "unknown"]

# parts of the names of optimizers that divide a gradient by its own size, and of those that do not
BOUNDED = (
    "adam", "lion", "adafactor", "adagrad", "adadelta", "rmsprop", "rprop", "lamb", "lars", "muon", "adan", "sophia", "soap",
    "shampoo", "signsgd", "signum", "novograd", "adabelief", "prodigy",
)  # fmt: skip
GROWING = ("sgd", "lbfgs")
INNER = ("optimizer", "base_optimizer", "optim")  # what wrappers call the optimizer inside them


def names_of(optimizer: object, depth: int = 4) -> list[str]:
    """The names of an optimizer's class, of the classes from which it inherits, and of those of an optimizer inside it.

    A class of a program's own that inherits from AdamW, or that wraps it, makes steps as AdamW does.
    """
    classes = [kind.__name__ for kind in type(optimizer).__mro__ if kind.__name__ not in ("Optimizer", "object")]
    inner = next((found for name in INNER if (found := vars(optimizer).get(name)) is not None), None)
    return classes + (names_of(inner, depth - 1) if depth and hasattr(inner, "param_groups") else [])


def steps_of(optimizers: Iterable[str], *, clips: bool = False) -> Steps:
    """How the steps of the weights depend on the gradient, if the optimizers with these names share the weights. clips: True if
    gradients are clipped to a norm, which bounds the steps of every optimizer."""
    each = [_of_one(name.lower()) for name in optimizers]
    if clips or (each and set(each) == {"bounded"}):
        return "bounded"
    return "growing" if "growing" in each else "unknown"


def _of_one(name: str) -> Steps:
    if any(part in name for part in BOUNDED):
        return "bounded"
    return "growing" if any(part in name for part in GROWING) else "unknown"
