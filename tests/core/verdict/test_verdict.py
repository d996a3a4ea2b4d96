"""Each run here has a cause that is known, because it was planted; the verdict names it, and never another one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from torch import Tensor

from stablessm_core.verdict import Run, judge
from tests.core.verdict.planted import DIGITS, configured, trained

SGD: dict[str, Any] = {"optimizer__name": "sgd", "optimizer__weight_decay": 0.0}
CALM: dict[str, Any] = {"optimizer__lr": 0.01, "train__steps": 8, "model__reparameterization__name": "best"}


def at_step(step: int, which: str, value: float) -> Any:
    """One sequence of the batch of this step holds `value`: in one place of its input, or as its target."""

    def spoil(s: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if s != step:
            return x, y
        x, y = x.clone(), y.clone()
        (x if which == "x" else y)[0, 3] = value
        return x, y

    return spoil


def in_half(task: Any, output: Tensor, y: Tensor) -> Tensor:
    """A loss that is summed in float16, as a plug-in might."""
    return (output - y).half().square().sum().float()


def growing(s: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Targets that grow by a tenth in each step: far from what float32 holds, soon beyond float16."""
    return x, y * 1.1**s


PLANTED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str | None]] = {
    "AdamW direct lr .13": ({"optimizer__lr": 0.13, "train__steps": 120}, {}, "eigenvalue_overflow", "optimizer_step"),
    "SGD with momentum, direct, a spike": (
        {"task": DIGITS["task"], "optimizer__lr": 0.1, "optimizer__momentum": 0.9, "train__seed": 2, "train__steps": 70, **SGD},
        {}, "eigenvalue_overflow", "gradient_spike",
    ),
    "SGD direct lr .25": ({"optimizer__lr": 0.25, "train__steps": 8, **SGD}, {}, "eigenvalue_overflow", "explosion"),
    "SGD best lr .25": (
        {"optimizer__lr": 0.25, "train__steps": 8, "model__reparameterization__name": "best", **SGD}, {}, "explosion", None
    ),
    "SGD with momentum, best": (
        {"task": DIGITS["task"], "optimizer__lr": 1.0, "optimizer__momentum": 0.9, "train__steps": 50,
         "model__reparameterization__name": "best", **SGD}, {}, "explosion", None,
    ),
    "gated MLP, SGD exp lr 5": (
        {"task": DIGITS["task"], "optimizer__lr": 5.0, "train__steps": 20, "model__reparameterization__name": "exp", **SGD},
        {}, "explosion", None,
    ),
    "AdamW exp lr 1000": (
        {"optimizer__lr": 1000.0, "train__steps": 5, "model__reparameterization__name": "exp"}, {}, "lr_too_large", None
    ),
    "AdamW best lr 1000": (
        {"optimizer__lr": 1000.0, "train__steps": 5, "model__reparameterization__name": "best"}, {}, "lr_too_large", None
    ),
    "exp in continuous time, lr 100": (
        {"optimizer__lr": 100.0, "train__steps": 5, "model__reparameterization": {"name": "exp", "time": "continuous"}},
        {}, "step_size", None,
    ),
    "gelu, direct, lr .1": (
        {"optimizer__lr": 0.1, "train__steps": 20, "model__activation": "gelu"}, {}, "eigenvalue_overflow", "optimizer_step"
    ),
    "two layers": (
        {"optimizer__lr": 0.2, "train__steps": 40, "model__n_layers": 2}, {}, "eigenvalue_overflow", "optimizer_step"
    ),
    "NaN in the input": (CALM, {"spoil": at_step(5, "x", float("nan"))}, "bad_input", None),
    "infinity in the target": (CALM, {"spoil": at_step(5, "y", float("inf"))}, "bad_input", None),
    "1e30 in the input": (CALM, {"spoil": at_step(5, "x", 1e30)}, "bad_input", None),
    "1e30 as the target": (CALM, {"spoil": at_step(5, "y", 1e30)}, "bad_input", None),
    "1e30 as the target of the first step": (CALM, {"spoil": at_step(1, "y", 1e30)}, "bad_input", None),
    "1e30 as the target, eigenvalues outside": (
        {"optimizer__lr": 0.01, "train__steps": 8}, {"spoil": at_step(6, "y", 1e30)}, "bad_input", None
    ),
    "1e15 as the target, SGD": (
        {"optimizer__lr": 0.01, "train__steps": 12, "model__reparameterization__name": "best", **SGD},
        {"spoil": at_step(6, "y", 1e15)}, "bad_input", None,
    ),
    "1e30 as the target, in bfloat16": (
        CALM | {"train__precision": "bfloat16"}, {"spoil": at_step(5, "y", 1e30)}, "bad_input", None
    ),
    "a loss in float16": (CALM | {"train__steps": 40}, {"loss": in_half, "spoil": growing}, "precision", None),
}  # fmt: skip


@cache
def of(name: str) -> tuple[Run, dict[str, Any]]:
    changes, how, *_ = PLANTED[name]
    run, source = trained(configured(**changes), **how)
    return run, judge(run, source)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_found(name: str) -> None:
    found = of(name)[1]
    print(found["summary"])
    assert (found["cause"], found["thrown_by"]) == PLANTED[name][2:]
