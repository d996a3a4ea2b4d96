"""Forks: a new run continues from a checkpoint of another run with changed settings, to test a suspected cause.

This module refuses a fork that is known to be impossible. If the contents of the checkpoint make the fork impossible, the
worker ends the fork with a reason (worker/attempt.py). A fork does not prevent the deletion of its parent or of the parent's
checkpoint, because the fork soon writes its own checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, AlertRow, Run
from server.database.payloads import DamagedPayload
from server.errors import Invalid
from server.lifecycle.checkpoints import checkpoints_json, precedes
from server.lifecycle.reported import REPORTED, check_trained
from server.lifecycle.submission import submit_run
from server.lifecycle.transitions import Fork
from server.lifecycle.verdicts import describe_run
from server.series.catalogue import read_catalogue
from server.series.forms import readable_form
from server.series.reading import read_series
from server.settings import Settings
from stablessm_core.spec.forking import Unreachable, carried_weights, forked_config, summarize_changes
from stablessm_core.spec.model import LayerMap, Model
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import NO_MAP
from stablessm_core.telemetry.how import how_of
from stablessm_core.telemetry.series import LAYER_GROUPS, TRAIN_LOSS, layer_of
from stablessm_core.verdict import confirmation
from stablessm_core.verdict.beginning import trouble_start
from stablessm_core.verdict.trouble import Trouble

log = logging.getLogger("stablessm.forking")

MAX_FORKS = 50  # maximum number of forks that are shown for a run, newest first
NONFINITE = [kind for kind, known in KINDS.items() if known.nonfinite]


def fork_run(
    database: Database, settings: Settings, run_id: int, *, from_step: int | None, changes: Mapping[str, Any],
    submitted_by: int | None = None, user_id: int | None = None, queue_columns: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Queue a fork of an existing run and return its number. Raises Invalid or ConfigError if the fork is impossible."""
    with database.read() as session:
        run = session.get_one(Run, run_id)
        check_trained(run)
        config, differs = forked_config(run.config, changes)
        step = _begin(session, run, config.train.steps, config.model if _changes_map(differs) else None, from_step, settings)
        if "name" not in changes:
            # start from the original run's name, so that names do not grow from fork to fork; pages mark forks anyway
            config = config.model_copy(update={"name": f"{_original_name(run)} | {_short(differs)}"[:200]})
        project = run.project
        waits = {"queue": run.queue, "priority": run.priority, "needs_gpu": run.needs_gpu} | dict(queue_columns or {})
    made, _ = submit_run(
        database,
        settings,
        config,
        fork=Fork(run_id, step, differs),
        submitted_by=submitted_by,
        user_id=user_id,
        queue_columns=waits,
        project=project,
    )
    return made.id


def trouble_of(session: Session, run: Run) -> Trouble | None:
    """Where the run's trouble began. None if the run has no trouble, if its recorded numbers cannot be read, or for a reported
    run."""
    if run.kind == REPORTED:
        return None
    try:
        return trouble_start(*describe_run(session, run))
    except (DamagedPayload, LookupError, ValueError) as error:
        log.warning("the beginning of the trouble is unknown: %s", error, extra={"run": run.id})
        return None


def died_at(session: Session, run: Run) -> int | None:
    """The step at which a value became NaN or infinite: the step of the run's divergence or, if the run continued, of the first
    alert about a non-finite number. None for other runs."""
    if run.divergence is not None and run.divergence.get("step") is not None:
        return int(run.divergence["step"])
    if run.kind == REPORTED or run.status != "finished" or run.config["train"].get("on_nonfinite") != "continue":
        return None
    first = select(AlertRow.step).where(AlertRow.run_id == run.id, AlertRow.kind.in_(NONFINITE)).order_by(AlertRow.step)
    return session.scalar(first.limit(1))


def forks_json(session: Session, run: Run, trouble: Trouble | None) -> list[dict[str, Any]]:
    """The ForkAnswer of each fork of this run, newest first. trouble: `trouble_of` the run; the texts mention it."""
    forks = session.scalars(
        select(Run).where(Run.forked_from == run.id, NOT_IN_TRASH).order_by(Run.id.desc()).limit(MAX_FORKS)
    ).all()
    died = died_at(session, run)
    return [_fork_json(session, fork, run.id, died, trouble) for fork in forks]


def _fork_json(session: Session, fork: Run, original: int, died: int | None, trouble: Trouble | None) -> dict[str, Any]:
    """The ForkAnswer of a fork. Its `text` names no cause; the verdict of the original run states whether the fork confirms the
    suspected cause."""
    begun, step = fork.forked_at_step or 0, int((fork.divergence or {}).get("step") or fork.step)
    changes = fork.fork_changes or {}
    result: dict[str, Any] = {"outcome": None, "text": None}
    if died is not None:
        result = confirmation({}, changes, run_id=fork.id, status=fork.status, step=step, from_step=begun, died_at=died)
        if result["outcome"] == "dies" and trouble is not None and not precedes(begun, trouble):
            result["text"] += (
                f" The trouble of the original began at step {trouble.step:,}, before the fork started, so this does not show "
                "whether the change would have helped."
            )
    return {
        "id": fork.id,
        "url": f"/runs/{fork.id}",
        "name": fork.name,
        "status": fork.status,
        "from_step": begun,
        "changes": changes,
        "said": summarize_changes(changes),
        "step": step,
        "steps": how_of(fork).total_steps,
        "loss": _last_loss(session, fork),
        "unstable": fork.unstable,
        "outcome": result["outcome"],
        "text": result["text"],
        "compare_url": compare_url(original, fork.id),
    }


def compare_url(*runs: int) -> str:
    """The address of the page that compares these runs."""
    return f"/compare?runs={','.join(map(str, runs))}"


def begins_at(session: Session, run: Run, settings: Settings, trouble: Trouble | None) -> int:
    """The step after which a fork that keeps the map starts by default. trouble: `trouble_of` the run."""
    steps = how_of(run).total_steps
    if steps is None:
        return 0
    return _default_begin(session, run, steps, None, _checkpoint_steps(session, run, settings)[1], trouble)


def _changes_map(differs: Mapping[str, Any]) -> bool:
    return any(path.startswith("model.reparameterization.") for path in differs)


def _begin(
    session: Session, run: Run, steps: int, model: Model | None, wanted: int | None, settings: Settings
) -> int:  # fmt: skip
    """The step after which the fork starts: `wanted`, or else the result of `_default_begin`.

    `model`: the fork's model if its map changes, else None.
    """
    found, there = _checkpoint_steps(session, run, settings)
    if wanted is None:
        return _default_begin(session, run, steps, model, there, trouble_of(session, run))
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
            f"the fork would start after step {wanted} but has only {steps} steps", field="changes.train.steps",
            allowed=f"more than {wanted}",
        )  # fmt: skip
    if (problem := _unreachable(session, run, model, wanted)) is not None:
        raise Invalid(
            f"{problem} (after step {wanted})", field="changes.model.reparameterization.name",
            allowed=f"a map that reaches {problem.value:.9g}, or an earlier from_step",
        )  # fmt: skip
    return wanted


def _checkpoint_steps(session: Session, run: Run, settings: Settings) -> tuple[set[int], set[int]]:
    """The steps of the recorded checkpoints, and of those from which a fork can start."""
    found = checkpoints_json(session, run.id, settings)
    # with SQLite every worker runs on this machine, so a file that is missing here does not exist
    on_this_machine = session.get_bind().dialect.name == "sqlite"
    return {one["step"] for one in found}, {one["step"] for one in found if one["available"] or not on_this_machine}


def _default_begin(
    session: Session, run: Run, steps: int, model: Model | None, there: set[int], trouble: Trouble | None
) -> int:  # fmt: skip
    """The newest step before the trouble (if there is no trouble, the newest step) from which the fork can start: one of `there`,
    at which the fork's map reaches every eigenvalue. 0, the initial weights, if there is no such step.

    If nothing is known about the trouble of a run that diverged, the fork starts before the fatal step.
    """
    died = died_at(session, run)
    good = (
        step for step in sorted(there, reverse=True)
        if step < steps and (died is None or step < died) and (trouble is None or precedes(step, trouble))
    )  # fmt: skip
    return next((step for step in good if _unreachable(session, run, model, step) is None), 0)


def _unreachable(session: Session, run: Run, model: Model | None, step: int) -> Unreachable | None:
    """A recorded eigenvalue that the new map cannot reach; None if the new map can reach all of them.

    A row holds the weights before the update of its step, so the weights after `step` are in the next row, if that row was
    recorded.
    """
    if model is None or step == 0:
        return None
    sections = model.sections()
    for series in read_catalogue(session, run.id):
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
        return None  # the run has not recorded anything yet
    return float(last.value[-1, 0]) if last.value is not None and len(last.step) else None


def _original_name(run: Run) -> str:
    return (run.name or f"run {run.id}").split(" | ")[0]


def _short(differs: Mapping[str, Any]) -> str:
    return summarize_changes(differs) if differs else "replay"
