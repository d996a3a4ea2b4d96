"""Each run has a planted, known cause of failure. The verdict names exactly this cause."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from stablessm_core.verdict import Run, judge
from stablessm_core.verdict.memory_source import MemorySource
from tests.core.verdict.planted import DIGITS, configured, trained

pytestmark = pytest.mark.slow

SGD: dict[str, Any] = {"optimizer__name": "sgd", "optimizer__weight_decay": 0.0}
CALM: dict[str, Any] = {"optimizer__lr": 0.01, "train__steps": 8, "model__reparameterization__name": "best"}


def at_step(step: int, which: str, value: float) -> Any:
    """A change that writes `value` into one sequence of this step's batch, at index 3 of its input or its target."""

    def spoil(s: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if s != step:
            return x, y
        x, y = x.clone(), y.clone()
        (x if which == "x" else y)[0, 3] = value
        return x, y

    return spoil


def at_call(step: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The task's loss, changed in one step."""
    calls = []

    def loss(task: Any, output: Tensor, y: Tensor) -> Tensor:
        calls.append(None)
        found: Tensor = type(task).loss(task, output, y)
        return change(found) if len(calls) == step else found

    return loss


def gradient_times(factor: float) -> Callable[[Tensor], Tensor]:
    """The same loss, whose gradient is multiplied by a factor."""
    return lambda loss: loss + (loss - loss.detach()) * (factor - 1)


def nan_gradient(loss: Tensor) -> Tensor:
    """The same loss, whose gradient is NaN."""
    loss.register_hook(lambda gradient: gradient * math.nan)
    return loss


def larger_targets(step: int, factor: float) -> Any:
    return lambda s, x, y: (x, y * factor) if s == step else (x, y)


def in_half(task: Any, output: Tensor, y: Tensor) -> Tensor:
    """A loss that is summed in float16, as a plug-in might sum it."""
    return (output - y).half().square().sum().float()


def growing(s: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Targets that grow by 10% in each step. They stay far below the limit of float32 but soon exceed that of float16."""
    return x, y * 1.1**s


PLANTED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str | None]] = {
    "AdamW direct lr .2": ({"optimizer__lr": 0.2, "train__steps": 60}, {}, "eigenvalue_overflow", "optimizer_step"),
    "SGD, direct, a spike": (
        {"task": DIGITS["task"], "optimizer__lr": 0.3, "train__steps": 220, **SGD}, {}, "eigenvalue_overflow", "gradient_spike"
    ),
    "SGD with momentum, direct, a spike": (
        {"task": DIGITS["task"], "optimizer__lr": 0.5, "optimizer__momentum": 0.9, "train__steps": 80, **SGD}, {},
        "eigenvalue_overflow", "gradient_spike",
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
    "targets x 1000 in one step, SGD direct": (
        {"optimizer__lr": 0.05, "train__steps": 40, **SGD}, {"spoil": larger_targets(20, 1e3)}, "bad_input", None
    ),
    "targets x 1e4 in one step, SGD best": (
        {"optimizer__lr": 0.05, "train__steps": 40, "model__reparameterization__name": "best", **SGD},
        {"spoil": larger_targets(20, 1e4)}, "bad_input", None,
    ),
    "targets that double in each step": (
        {"optimizer__lr": 0.01, "train__steps": 80, "model__reparameterization__name": "best", **SGD},
        {"spoil": lambda s, x, y: (x, y * 2.0**s)}, "bad_input", None,
    ),
    "a gradient x 1e6 in one step": (
        {"optimizer__lr": 0.01, "train__steps": 40, "model__reparameterization__name": "best", **SGD},
        {"loss": at_call(20, gradient_times(1e6))}, "unknown", None,
    ),
    "NaN in the loss alone": (CALM, {"loss": at_call(5, lambda loss: loss * math.nan)}, "unknown", None),
    "NaN in the loss of the first step": (CALM, {"loss": at_call(1, lambda loss: loss * math.nan)}, "unknown", None),
    "NaN in the backward pass alone": (CALM, {"loss": at_call(5, nan_gradient)}, "unknown", None),
    "a weight decay that multiplies the weights": (
        {"optimizer__lr": 1.0, "optimizer__weight_decay": 3.0, "train__steps": 200, "model__reparameterization__name": "best"},
        {}, "optimizer", None,
    ),
    "a loss in float16": (CALM | {"train__steps": 40}, {"loss": in_half, "spoil": growing}, "precision", None),
}  # fmt: skip


# Not every seed causes a spike or an overflow, and which seeds do depends on the processor's rounding. The first run that dies
# is judged.
SEEDS = dict.fromkeys((name for name, (*_, cause, _by) in PLANTED.items() if cause == "eigenvalue_overflow"), range(16)) | {
    "SGD, direct, a spike": (0, 4, *range(1, 4), *range(5, 12)),
    "SGD with momentum, direct, a spike": (1, 5, 6, *range(7, 16)),
}


@cache
def judged_run(name: str) -> tuple[Run, MemorySource, dict[str, Any]]:
    changes, how, *_ = PLANTED[name]
    for seed in SEEDS.get(name, (0,)):
        run, source = trained(configured(**changes, train__seed=seed), **how)
        if run.fatal is not None:
            break
    return run, source, judge(run, source)


@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_finds_a_planted_cause(name: str) -> None:
    found = judged_run(name)[2]
    print(found["summary"])
    assert (found["cause"], found["thrown_by"]) == PLANTED[name][2:]


@pytest.mark.parametrize("name", [name for name, (*_, cause, _by) in PLANTED.items() if cause == "eigenvalue_overflow"])
def test_the_verdicts_statements_about_an_eigenvalue_match_the_recorded_values(name: str) -> None:
    run, source, found = judged_run(name)
    layer, culprit = found["culprit"]["layer"], found["culprit"]["eigenvalue"]
    sizes = np.abs(recorded_eigenvalues(source, layer))
    assert f"Eigenvalue {culprit} " in found["summary"]
    inside = np.flatnonzero(sizes[:-1, culprit] <= 1)  # with direct, the weights are the eigenvalues
    if (since := re.search(r"boundary at step ([\d,]+)", found["summary"])) is not None:
        assert sizes[int(since[1].replace(",", "")) - 1, culprit] > 1
        assert sizes[int(since[1].replace(",", "")) - 2, culprit] <= 1
    else:
        assert inside[-1] == len(sizes) - 2
    power = re.search(r"\|([\d.]+)\|\^(\d+) = ([\d.e]+\d)", found["summary"])
    assert power is not None
    size, length = float(sizes[-1, culprit]), run.length
    assert length is not None
    assert float(power[1]) == pytest.approx(size, rel=5e-3)
    assert int(power[2]) == length
    exponent = math.log10(float(power[3]))
    assert exponent == pytest.approx(length * math.log10(size), abs=0.03)
    assert exponent == pytest.approx(length * math.log10(float(power[1])), abs=0.03), "the shown numbers agree with each other"
    assert found["evidence"][0]["overflow_budget"] == pytest.approx(length * math.log(sizes[-1].max()) / 88.72, rel=1e-3)
    if found["thrown_by"] == "gradient_spike":
        gradient = np.abs(source.layers[layer].ratio[:, culprit] * source.layers[layer].weight[:, culprit])
        assert np.nanmax(gradient[-20:]) >= 10 * np.median(gradient[:-20])


def test_the_verdict_explains_why_an_unstable_run_finished_and_where_it_would_overflow() -> None:
    run, source = trained(configured(optimizer__lr=0.1, task__length=64, train__steps=40))
    found = judge(run, source)
    sizes = np.abs(recorded_eigenvalues(source, 0))
    worst = int(sizes[-1].argmax())
    assert (run.status, found["cause"]) == ("finished", None)
    assert found["unstable"]["eigenvalues"] == int((sizes[-1] > 1).sum()) > 0
    assert found["unstable"]["overflows_at_length"] == math.ceil(math.log(3.4028235e38) / math.log(sizes[-1].max()))
    for text in (f"in {int((sizes > 1).any(1).sum())} steps, at least one was", f"eigenvalue {worst}, is ", "at length"):
        assert text in found["summary"]
    assert "diverge" not in found["summary"]


def recorded_eigenvalues(source: MemorySource, layer: int) -> np.ndarray:
    """The recorded eigenvalues of a layer, (steps, eigenvalues)."""
    found = source.layers[layer].eigenvalue
    assert found is not None
    return found
