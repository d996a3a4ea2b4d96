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
