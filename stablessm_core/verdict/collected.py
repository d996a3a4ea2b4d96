"""Collects the facts about a diverged run: from its recorded rows, its alerts and its autopsy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.verdict import eigenvalues, facts
from stablessm_core.verdict.batches import BadBatch, bad_batch
from stablessm_core.verdict.finding import Finding
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.measured import autopsy_of, number_of


def collect(run: Run, source: Source) -> Finding:
    """The facts, without a cause. Raises ValueError if the run's numbers are finite."""
    fatal = run.fatal
    if fatal is None:
        raise ValueError("there is nothing to decide: the run's numbers are finite")
    step = int(fatal["step"])
    scalars = source.scalars(step - facts.LOSS_TAIL * run.every, step)
    found = Finding(
        step=step, tensor=str(fatal.get("tensor") or ""), value=fatal.get("value"), scalars=scalars,
        autopsy=autopsy_of(run.autopsy, step),
    )  # fmt: skip
    _add_facts(run, source, found, fatal)
    return found


def _add_facts(run: Run, source: Source, found: Finding, fatal: dict[str, Any]) -> None:
    found.bad = bad_batch(run, found.scalars, found.step)
    measured = None if found.autopsy is None else found.autopsy.bad_batch
    if measured is not None and (found.bad is None or found.bad.usual is None):
        found.bad = measured
    found.flags, found.sized = _flags(found), _sized(found)
    if found.flags and found.bad is None:
        found.bad = BadBatch(step=found.step, which=found.flags, finite=False)
    kinds = [alert for alert in run.alerts if alert["step"] == found.step and alert["kind"] == "nonfinite_state"]
    found.state = found.tensor.endswith(".state") or bool(kinds)
    named = fatal.get("layer") if found.tensor.endswith(".state") else next((alert["layer"] for alert in kinds), None)
    found.worst = _worst_at_the_end(run, source, found.step)
    if kinds and _inherited(run, kinds[0]):
        found.inherited, found.state, named = int(kinds[0]["layer"]), False, None
    own = found.state
    if named is None and found.worst is not None:
        named = found.worst.layer
    found.layer = next((layer for layer in run.layers if layer.index == named), None)
    if own and found.tensor.endswith(".state") and fatal.get("eigenvalue") is not None:
        found.eigenvalue = int(fatal["eigenvalue"])
    elif own and kinds and kinds[0]["eigenvalue"] is not None:
        found.eigenvalue = int(kinds[0]["eigenvalue"])
    elif found.worst is not None and found.worst.layer == named:
        found.eigenvalue = found.worst.eigenvalue
    firsts = [one for layer in run.layers if (one := eigenvalues.first_crossing(run, source, layer)) is not None]
    found.firsts = sorted(firsts, key=lambda one: one.step)
    found.moved = None if found.worst is None else eigenvalues.decay_change(run, source, found.worst)
    found.growth = facts.loss_growth(source, found.scalars, found.step)
    found.update = facts.update_size(run, found.scalars, found.step)
    found.half = facts.losses_are_float16(found.scalars, found.step)
    found.evaluated = facts.bad_evaluation(source, found.step)


def _flags(found: Finding) -> int | None:
    measured = None if found.autopsy is None else found.autopsy.bad_batch
    if measured is not None and not measured.finite:
        return measured.which
    if found.tensor.startswith("batch."):
        return 2 if found.tensor.endswith("y") else 1
    if found.scalars.batch is None or not len(found.scalars) or found.scalars.step[-1] != found.step:
        return 0 if found.autopsy is not None else None
    flag = found.scalars.batch[-1]
    return None if np.isnan(flag) else int(flag)


def _sized(found: Finding) -> float | None:
    if found.autopsy is not None:
        sizes = [number_of((found.autopsy.findings.get("batch") or {}).get(f"largest_{part}")) for part in ("input", "target")]
    elif len(found.scalars) and found.scalars.step[-1] == found.step:
        columns = (found.scalars.largest_input, found.scalars.largest_target)
        sizes = [float(column[-1]) for column in columns if column is not None]
    else:
        return None
    known = [size for size in sizes if np.isfinite(size)]
    return max(known) if known else None


def _inherited(run: Run, alert: Mapping[str, Any]) -> bool:
    """True if the state alert says that every state of the layer is NaN. An overflow makes single states infinite; a NaN in the
    layer's input makes all of them NaN."""
    layer = next((layer for layer in run.layers if layer.index == alert["layer"]), None)
    others = re.search(r"and (\d+) other", str(alert["message"]))
    if layer is None or layer.wide or layer.width < 2 or others is None:
        return False
    return bool(np.isnan(number_of(alert["value"]))) and int(others[1]) + 1 == layer.width


def _worst_at_the_end(run: Run, source: Source, step: int) -> eigenvalues.Worst | None:
    here = eigenvalues.worst_eigenvalue(run, source, step)
    return here if here is not None else eigenvalues.worst_eigenvalue(run, source, step - run.every)
