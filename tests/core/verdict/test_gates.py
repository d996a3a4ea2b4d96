"""If a gate multiplies a layer's rates, the verdict states whether the gate or the weight moved the eigenvalue."""

from __future__ import annotations

import numpy as np
import pytest

from stablessm_core import verdict
from stablessm_core.telemetry.forms import GATES, Form
from stablessm_core.verdict.memory_source import MemorySource

pytestmark = pytest.mark.slow

FORM = Form("exp", "continuous", "zoh", gate=True)
STEPS = np.arange(1, 11)


def judge_diverged_run(rate: np.ndarray, gate: np.ndarray) -> dict[str, object]:
    """The verdict on a run that loses its loss at step 10. rate, gate (10,): of the eigenvalue nearest to the boundary."""
    recorded = {"weight": np.log(np.stack([rate, np.full(10, 5.0)], 1))}
    recorded |= {kind: np.stack([gate, np.ones(10)], 1) for kind in GATES}
    rows = verdict.Rows.derived(FORM, STEPS, recorded | {"grad_over_weight": np.ones((10, 2))})
    loss = np.where(STEPS < 10, 1.0, np.nan)
    scalars = verdict.Scalars(step=STEPS, loss=loss, grad_norm=np.ones(10), lr=np.full(10, 0.01), batch=np.zeros(10))
    run = verdict.Run(
        status="diverged",
        step=10,
        config={"task": {"length": 100}, "model": {"layer": {"name": "mamba"}}, "optimizer": {"lr": 0.01}},
        divergence={"step": 10, "layer": None, "eigenvalue": None, "tensor": "loss", "value": "NaN"},
        layers=(verdict.Layer(0, 2, FORM),),
    )
    return verdict.judge(run, MemorySource(scalars, {0: rows}))


@pytest.mark.parametrize(
    ("rate", "gate", "blamed"),
    [
        (np.geomspace(1, 1e-3, 10), np.full(10, 0.5), "weight"),
        (np.full(10, 1.0), np.geomspace(0.5, 5e-4, 10), "gate"),
        (np.geomspace(1, 0.5, 10), np.geomspace(0.5, 0.05, 10), "gate"),
    ],
)
def test_the_verdict_names_the_factor_that_moved_the_eigenvalue(rate: np.ndarray, gate: np.ndarray, blamed: str) -> None:
    found = judge_diverged_run(rate, gate)
    (said,) = [one for one in found["evidence"] if "by_gate" in one]  # type: ignore[attr-defined]
    assert f"The {blamed} moved it more" in said["text"]
    assert said["by_weight"] == pytest.approx(rate[-1] / rate[0], rel=1e-6)
    assert said["by_gate"] == pytest.approx(gate[-1] / gate[0], rel=1e-6)
    assert said["decay"] == pytest.approx(said["by_weight"] * said["by_gate"], rel=1e-6)


def test_an_eigenvalue_without_a_gate_or_step_size_is_not_split_into_factors() -> None:
    form = Form.of_map("best", "discrete")
    rows = verdict.Rows.derived(form, STEPS, {"weight": np.full((10, 2), 3.0), "grad_over_weight": np.ones((10, 2))})
    scalars = verdict.Scalars(step=STEPS, loss=np.where(STEPS < 10, 1.0, np.nan), grad_norm=np.ones(10), lr=np.full(10, 0.01))
    run = verdict.Run(
        status="diverged",
        step=10,
        config={"task": {"length": 100}, "model": {}, "optimizer": {"lr": 0.01}},
        divergence={"step": 10, "tensor": "loss", "value": "NaN"},
        layers=(verdict.Layer(0, 2, form),),
    )
    assert not [one for one in verdict.judge(run, MemorySource(scalars, {0: rows}))["evidence"] if "by_weight" in one]
