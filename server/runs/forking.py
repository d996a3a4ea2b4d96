"""Forks: a new run that goes on from a checkpoint of another with something changed, so that a supposed cause is tested.

Everything that can be known before it is trained is refused here; what only the checkpoint shows ends the run with a sentence
(worker/attempt.py). A fork keeps neither its parent nor the parent's checkpoint alive: once it has begun it has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, AlertRow, Run
from server.errors import Invalid
from server.runs.checkpoints import run_checkpoints
from server.runs.lifecycle import Fork
from server.runs.submission import submit_run
from server.series.forms import readable_form
from server.series.reading import catalogue, read_series
from server.settings import Settings
from stablessm_core.config import LayerMap, Model
from stablessm_core.forking import Unreachable, carried_weights, forked_config, said
from stablessm_core.forms import NO_MAP
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.series import LAYER_GROUPS, TRAIN_LOSS, layer_of
from stablessm_core.verdict import confirmation

MAX_FORKS = 50  # shown of a run, the newest
NONFINITE = [kind for kind, known in KINDS.items() if known.nonfinite]


def fork_run(
    database: Database, settings: Settings, run_id: int, *, from_step: int | None, changes: Mapping[str, Any],
    submitted_by: int | None = None, user_id: int | None = None, place: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Queue a fork; gives its number. The run must be there. Raises Invalid and ConfigError for what is not possible."""
    with database.read() as session:
        run = session.get_one(Run, run_id)
        config, differs = forked_config(run.config, changes)
        step = _begin(session, run, config.train.steps, config.model if _changes_map(differs) else None, from_step, settings)
        if "name" not in changes:
            # that it was forked is shown beside the name, and names of forks of forks must not grow
            config = config.model_copy(update={"name": f"{_original_name(run)} | {_short(differs)}"[:200]})
        waits = {"queue": run.queue, "priority": run.priority, "needs_gpu": run.needs_gpu} | dict(place or {})
    made, _ = submit_run(
        database, settings, config, fork=Fork(run_id, step, differs), submitted_by=submitted_by, user_id=user_id, place=waits
    )
    return made.id


def died_at(session: Session, run: Run) -> int | None:
    """The step at which a run became non-finite: the fatal one, or the first such alert of a run that went on; None if none."""
    if run.divergence is not None and run.divergence.get("step") is not None:
        return int(run.divergence["step"])
    if run.status != "finished" or run.config["train"].get("on_nonfinite") != "continue":
        return None
    first = select(AlertRow.step).where(AlertRow.run_id == run.id, AlertRow.kind.in_(NONFINITE)).order_by(AlertRow.step)
    return session.scalar(first.limit(1))


def forks_of(session: Session, run: Run) -> list[dict[str, Any]]:
    """ForkAnswer of each fork of this run, the newest first."""
    forks = session.scalars(
        select(Run).where(Run.forked_from == run.id, NOT_IN_TRASH).order_by(Run.id.desc()).limit(MAX_FORKS)
    ).all()
    died = died_at(session, run)
    return [_described(session, fork, run.id, died) for fork in forks]


def _described(session: Session, fork: Run, original: int, died: int | None) -> dict[str, Any]:
    """ForkAnswer. What the fork says is said without a cause here: the verdict of the original says whether it is confirmed."""
    begun, step = fork.forked_at_step or 0, int((fork.divergence or {}).get("step") or fork.step)
    changes = fork.fork_changes or {}
    told: dict[str, Any] = {"outcome": None, "text": None}
    if died is not None:
        told = confirmation({}, changes, run_id=fork.id, status=fork.status, step=step, from_step=begun, died_at=died)
    return {
        "id": fork.id,
        "url": f"/runs/{fork.id}",
        "name": fork.name,
        "status": fork.status,
        "from_step": begun,
        "changes": changes,
        "said": said(changes),
        "step": step,
        "steps": fork.config["train"]["steps"],
        "loss": _last_loss(session, fork),
        "unstable": fork.unstable,
        "outcome": told["outcome"],
        "text": told["text"],
        "compare_url": compare_url(original, fork.id),
    }


def compare_url(*runs: int) -> str:
    """The page that shows the runs side by side."""
    return f"/compare?runs={','.join(map(str, runs))}"


def begins_at(session: Session, run: Run, settings: Settings) -> int:
    """The step after which a fork with the run's own map begins, if no step is asked for."""
    return _begin(session, run, int(run.config["train"]["steps"]), None, None, settings)


def _changes_map(differs: Mapping[str, Any]) -> bool:
    return any(path.startswith("model.reparameterization.") for path in differs)


def _begin(
    session: Session, run: Run, steps: int, model: Model | None, wanted: int | None, settings: Settings
) -> int:  # fmt: skip
    """The step after which the fork begins: `wanted`, else that of the last good checkpoint that it can go on from, else 0.

    `model`: the fork's, where its map is another one.
    """
    found = {one["step"]: one for one in run_checkpoints(session, run.id, settings)}
    # of a SQLite database every worker is on this machine: a file that is not here is nowhere
    on_this_machine = session.get_bind().dialect.name == "sqlite"
    there = {step for step, one in found.items() if one["available"] or not on_this_machine}
    died = died_at(session, run)
    if wanted is None:
        good = (step for step in sorted(there, reverse=True) if step < steps and (died is None or step < died))
        return next((step for step in good if _unreachable(session, run, model, step) is None), 0)
    allowed = ", ".join(map(str, sorted({0, *there})))
    if wanted in found and wanted not in there:
        message = (
            f"the checkpoint of step {wanted} is recorded, but its file is neither on this machine nor in a checkpoint store"
        )
        raise Invalid(message, field="from_step", allowed=allowed)
    if wanted and wanted not in there:
        raise Invalid(f"run {run.id} has no checkpoint of step {wanted}", field="from_step", allowed=allowed)
    if wanted >= steps:
        raise Invalid(
            f"the fork would begin after step {wanted} and has only {steps} steps", field="changes.train.steps",
            allowed=f"more than {wanted}",
        )  # fmt: skip
    if (problem := _unreachable(session, run, model, wanted)) is not None:
        raise Invalid(
            f"{problem} (after step {wanted})", field="changes.model.reparameterization.name",
            allowed=f"a map that reaches {problem.value:.9g}, or an earlier from_step",
        )  # fmt: skip
    return wanted


def _unreachable(session: Session, run: Run, model: Model | None, step: int) -> Unreachable | None:
    """An eigenvalue that the new map cannot have, where the recorded weights show one.

    The row of step s is taken before its update: the weights after `step` are those of the next row, if it was recorded.
    """
    if model is None or step == 0:
        return None
    sections = model.sections()
    for series in catalogue(session, run.id):
        if not (series.name.startswith(LAYER_GROUPS) and series.name.endswith("/weight")):
            continue
        form, layer = readable_form(series.form), layer_of(series.group)
        map_ = None if layer is None or layer >= len(sections) else model.map_of(sections[layer])
        if form is None or map_ is None or form.map in NO_MAP:
            continue
        row = read_series(session, run.id, series.name, from_step=step + 1, to_step=step + 1)
        if row.value is None or not len(row.step):
            continue
        known = LayerMap(form.map, form.time, form.a, form.b)
        try:
            carried_weights(np.asarray(row.value[0]), known, map_, layer=layer or 0)
        except Unreachable as problem:
            return problem
    return None


def _last_loss(session: Session, run: Run) -> Any:
    if run.result is not None:
        return run.result.get("train_loss")
    try:
        last = read_series(session, run.id, TRAIN_LOSS, from_step=run.step, to_step=run.step)
    except LookupError:
        return None  # it has recorded nothing yet
    return float(last.value[-1, 0]) if last.value is not None and len(last.step) else None


def _original_name(run: Run) -> str:
    return (run.name or f"run {run.id}").split(" | ")[0]


def _short(differs: Mapping[str, Any]) -> str:
    return said(differs) if differs else "replay"
