"""The memory function of a run's network, as its evaluations measured it, with its fitted decay and the kernel of the task."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from server.database.models import Run
from server.errors import Invalid
from server.series.layout import Layout
from server.series.reading import read_series
from stablessm_core.spec.tasks import TASKS
from stablessm_core.telemetry.series import EVAL_LOSS, MEMORY
from stablessm_core.theory.decay import EXPONENTIAL, POLYNOMIAL, DecayFit, fit_decay

MOST_STEPS = 10_000
TOO_EXPENSIVE = "Some evaluations came fewer than 50 steps after another; measuring there would take more than 2 % of the time."


def memory_json(session: Session, run: Run, step: int | None = None) -> dict[str, Any]:
    """The MemoryAnswer: the measurement at `step`, by default the newest. Raises Invalid for a step without one."""
    layout = Layout(session, run.id)
    nothing: dict[str, Any] = {"run_id": run.id, "step": None, "steps": [], "lags": [], "memory": [], "kernel": None, "fit": None}
    if MEMORY not in layout.series:
        return nothing | {"skipped": 0, "reason": _why_not(run)}
    found = read_series(session, run.id, MEMORY, max_points=MOST_STEPS, layout=layout)
    steps = [int(one) for one in found.step]
    evaluated = len(read_series(session, run.id, EVAL_LOSS, max_points=MOST_STEPS, layout=layout).step)
    skipped = max(0, evaluated - len(steps))
    if not steps or found.value is None:
        return nothing | {"skipped": skipped, "reason": TOO_EXPENSIVE if skipped else "No evaluation has ended yet."}
    if step is not None and step not in steps:
        raise Invalid(f"step is {step}", field="step", allowed=f"one of {', '.join(map(str, steps[-20:]))}")
    at = len(steps) - 1 if step is None else steps.index(step)
    memory = np.asarray(found.value[at], np.float64)
    fit = fit_decay(np.abs(memory))
    return nothing | {
        "step": steps[at],
        "steps": steps,
        "lags": list(range(len(memory))),
        "memory": memory.tolist(),
        "kernel": _kernel(run, len(memory)),
        "fit": {
            "decay": fit.kind,
            "words": words_of(fit),
            "exponential": asdict(fit.exponential),
            "polynomial": asdict(fit.polynomial),
            "lags": list(fit.lags),
            "reason": fit.reason,
        },
        "skipped": skipped,
        "reason": TOO_EXPENSIVE if skipped else None,
    }


def words_of(fit: DecayFit) -> str:
    """The fitted decay in one sentence."""
    if fit.kind == EXPONENTIAL:
        return f"The memory of the network decays exponentially: it falls to 1/e within {1 / fit.exponential.decay:.3g} steps."
    if fit.kind == POLYNOMIAL:
        return f"The memory of the network decays slowly, like 1 / (t + 1)^{fit.polynomial.decay:.3g}."
    return "The measured lags cannot tell whether the memory of the network decays exponentially or polynomially."


def _kernel(run: Run, lags: int) -> list[float] | None:
    """|rho(t)| of the task whose answer is a fixed linear functional; None for other tasks."""
    given = run.config.get("task")
    section = TASKS.get(given.get("name", "")) if isinstance(given, dict) else None
    try:
        return None if section is None else section.model_validate(given).memory_kernel(lags)
    except ValueError:
        return None


def _why_not(run: Run) -> str:
    if run.kind != "trained":
        return "Another program trains this run, and it does not measure memory."
    return (
        "Memory is measured only for tasks with real-valued inputs and an output for each step, and only if evaluations are at "
        "least 50 steps apart: a measurement costs about one step, so it takes at most 2 % of the time."
    )
