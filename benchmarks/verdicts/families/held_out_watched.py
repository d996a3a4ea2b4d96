"""Held-out families of watched loops, and their faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.families.drawing import FamilyPlant
from benchmarks.verdicts.families.moments import Moment
from benchmarks.verdicts.watched.loop import Loop, LoopFault

NOTHING = (
    r"learn\w* (almost |next to |hardly )?(nothing|anything)|(not|hardly|barely|never) (really )?(learn|improv"
    r"|f[ae]ll|below|better|mov|chang)"
    r"|no better than|constant prediction|skipped|unchanged|\bstep 0\b"
)


def _ramp(loop: Loop, moment: Moment) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = loop.options["lr"] * moment.size**moment.since


def _head_gradient(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    gradient = loop.model.head.weight.grad
    assert gradient is not None
    gradient[0, 2] = math.nan


def _infinite_input(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    loop.x[0, 3] = math.inf


def _strong_decay(loop: Loop, moment: Moment) -> None:
    with torch.no_grad():
        for p in loop.model.parameters():
            p.mul_(1 - moment.size)


def _ascends(loop: Loop, output: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return -moment.size * usual


def _half(loop: Loop, output: Tensor, usual: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return (moment.size * (output - loop.y)).half().square().mean().float() / moment.size**2


def _nothing(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    for p in loop.model.parameters():
        p.grad = torch.zeros_like(p)


def _skip(loop: Loop, moment: Moment) -> None:  # noqa: ARG001
    loop.skip = True


def _gradient_times(loop: Loop, moment: Moment) -> None:
    for p in loop.model.parameters():
        if p.grad is not None:
            p.grad *= moment.size


def _absurd_start(loop: Loop, moment: Moment) -> None:
    with torch.no_grad():
        loop.model.head.weight.mul_(moment.size)


LOOP_FAULTS = {
    "ramp": LoopFault(step=_ramp),
    "head_gradient": LoopFault(gradient=_head_gradient),
    "infinite_input": LoopFault(batch=_infinite_input),
    "strong_decay": LoopFault(after=_strong_decay),
    "ascends": LoopFault(loss=_ascends),
    "half": LoopFault(loss=_half),
    "nothing": LoopFault(gradient=_nothing),
    "skip": LoopFault(step=_skip),
    "gradient_times": LoopFault(gradient=_gradient_times),
    "absurd_start": LoopFault(after=_absurd_start),
}


def _loop(
    name: str, fault: str, numbers: tuple[float, ...], causes: set[str], hows: tuple[str, ...], *,
    models: tuple[str, ...] = ("LRU", "S4DKernel", "Mamba", "RGLRULike"), optimizers: tuple[str, ...] = ("adamw", "sgd", "adam"),
    lrs: tuple[float, ...] = (), must_die: bool = True, alive: str = "", at_once: bool = False, **options: Any,
) -> Callable[[Random], FamilyPlant]:  # fmt: skip
    def draw(random: Random) -> FamilyPlant:
        optimizer, steps = random.choice(optimizers), random.randint(40, 60)
        lr = random.choice(lrs) if lrs else {"adamw": 0.01, "adam": 0.01, "rmsprop": 0.003}.get(optimizer, 0.05)
        at, how = random.randint(3, 25), random.choice(hows)
        made = {
            "model": random.choice(models), "layers": random.choice((1, 1, 2)), "optimizer": optimizer, "lr": lr, "steps": steps,
            "batch": 4, "length": random.choice((16, 24)), "seed": random.randrange(1000), "fault": fault, "at": at, "how": how,
            "period": 3, "size": random.choice(numbers), "status": random.choice(("diverged", "failed")), **options,
        }  # fmt: skip
        if how == "start":
            made |= {"at": 1, "how": "from"}
        step = at if at_once else None
        return FamilyPlant(name, fault, {}, None, frozenset(causes), step, alive=alive, must_die=must_die, watched=made)

    return draw


def _named(name: str, share: int, *given: Any, **options: Any) -> tuple[str, int, Callable[[Random], FamilyPlant]]:
    return name, share, _loop(name, *given, **options)


RATE = {"lr_too_large", "explosion", "optimizer"}
WATCHED = (
    _named("Watched: a rate that climbs", 8, "ramp", (1.5, 2.0, 3.0), RATE, ("from",), optimizers=("sgd",)),
    _named(
        "Watched: NaN in a gradient that is not watched",
        8,
        "head_gradient",
        (1,),
        {"wrong_gradient", "bad_loss"},
        ("once", "from"),
        at_once=True,
    ),
    _named(
        "Watched: infinity in the input",
        8,
        "infinite_input",
        (1,),
        {"bad_input", "changed_data"},
        ("once", "every"),
        at_once=True,
    ),
    _named("Watched: weights multiplied", 6, "strong_decay", (3.0, 5.0), {"optimizer", "explosion"}, ("from",)),
    _named(
        "Watched: ascent",
        6,
        "ascends",
        (1.0, 10.0),
        {"changed_loss", "bad_loss"},
        ("from",),
        optimizers=("sgd",),
        lrs=(0.1,),
        momentum=0.9,
    ),
    _named(
        "Watched: half precision in the loss", 6, "half", (1e6, 1e7), {"precision", "bad_loss"}, ("from", "once"), at_once=True
    ),
    _named(
        "Watched: nothing moves", 8, "nothing", (1,), set(), ("start",), must_die=False, alive=NOTHING, optimizers=("sgd", "adam")
    ),
    _named("Watched: every step skipped", 6, "skip", (1,), set(), ("start",), must_die=False, alive=NOTHING, optimizers=("sgd",)),
    _named(
        "Watched: gradients times a factor",
        6,
        "gradient_times",
        (1e4, 1e6),
        {"wrong_gradient"},
        ("from", "few"),
        optimizers=("sgd",),
    ),
    _named(
        "Watched: ends far above its start",
        6,
        "absurd_start",
        (1e3, 1e4),
        set(),
        ("once",),
        optimizers=("sgd",),
        lrs=(1e-10,),
        must_die=False,
        alive="loss",
        stops=False,
    ),
    _named(
        "Watched: eigenvalues without a map",
        8,
        "none",
        (1,),
        {"eigenvalue_overflow", "lr_too_large", "explosion"},
        ("once",),
        models=("PlainSSM",),
        optimizers=("adamw",),
        lrs=(0.3, 0.5),
        must_die=False,
    ),
    _named("Watched: healthy", 10, "none", (1,), set(), ("once",), must_die=False),
    _named(
        "Watched: goes on after NaN",
        6,
        "head_gradient",
        (1,),
        {"wrong_gradient", "bad_loss"},
        ("once",),
        stops=False,
        at_once=True,
    ),
)
