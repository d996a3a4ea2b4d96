"""Runs made of recorded numbers, for sentences that depend on these numbers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stablessm_core import verdict
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.forms import Form
from stablessm_core.verdict.memory_source import MemorySource

CALM = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
NAN = float("nan")
FORM = Form.of_map("direct", "discrete")


def run_of(
    loss: Any, *, every: int = 1, eigenvalue: Any = None, grad_norm: Any = None, largest: Any = None, name: str = "adamw",
    evaluated: Any = ((), ()), form: Form = FORM, columns: Any = None, ratio: Any = None, other: Any = None, dt: Any = None,
    **of_run: Any,
) -> tuple[verdict.Run, MemorySource]:  # fmt: skip
    """A run with these recorded losses. It diverged at its last row if the last loss is not finite.

    eigenvalue: the values of eigenvalue 0 of two; for a map other than `direct`, its weights. other: those of eigenvalue 1, which
    stay near 0.5 by default. largest: the largest target of each batch. columns: more columns of the scalars. ratio, dt: |grad| /
    |w| and the step sizes of eigenvalue 0; those of eigenvalue 1 are 1. ratio may also be that of both, (rows, 2). of_run: fields
    of the Run.
    """
    loss = np.asarray(loss, float)
    step = 1 + every * np.arange(len(loss))
    moved = 1e-3 * (1 - np.arange(len(loss)) / max(1, len(loss) - 1))  # every weight moves a little
    first = 0.9 - moved if eigenvalue is None else np.asarray(eigenvalue, float)
    weight = np.stack([first, 0.5 - moved if other is None else np.asarray(other, float)], 1)
    ones = np.ones(len(loss))
    ratio = ones if ratio is None else np.asarray(ratio, float)
    recorded = {"weight": weight, "grad_over_weight": ratio if ratio.ndim == 2 else np.stack([ratio, ones], 1)}
    if form.dt == "dt":
        recorded["dt"] = np.stack([ones if dt is None else np.asarray(dt, float), ones], 1)
    rows = verdict.Rows.derived(form, step, recorded)
    scalars = verdict.Scalars(
        step=step, loss=loss, grad_norm=np.ones(len(loss)) if grad_norm is None else np.asarray(grad_norm, float),
        lr=np.full(len(loss), 0.1), batch=np.zeros(len(loss)),
        largest_target=None if largest is None else np.asarray(largest, float),
    )  # fmt: skip
    scalars = replace(scalars, **{column: np.asarray(values, float) for column, values in (columns or {}).items()})
    dead = not np.isfinite(loss[-1])
    end = {"step": int(step[-1]), "layer": None, "eigenvalue": None, "tensor": "loss", "value": "NaN"}
    about: dict[str, Any] = {
        "status": "diverged" if dead else "finished",
        "step": int(step[-1]),
        "config": configured(every, name),
        "divergence": end if dead else None,
        "layers": (verdict.Layer(0, 2, form),),
    }
    return verdict.Run(**(about | of_run)), MemorySource(scalars, {0: rows}, evaluated)


def configured(every: int, name: str) -> dict[str, Any]:
    given = {
        "task": {"name": "polynomial_memory", "length": 100},
        "model": {"d_model": 8, "d_state": 2, "reparameterization": {"name": "direct"}},
        "optimizer": {"name": name, "lr": 0.1},
        "telemetry": {"every": every},
    }
    return parse_config(given).model_dump(mode="json")
