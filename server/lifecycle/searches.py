"""Successive halving: decides at each rung which trials of a search continue, and stops trials that became unstable.

A trial is judged once per rung, when its metric at the rung is stored. It continues if it is among the best 1 / factor, rounded
up, of the trials known at this rung; trials that became unstable before count as the worst. No trial waits for another, so lanes
never stand idle. The first trial at a rung always continues.

Every server runs the rounds. A round reads without a lock, then stores its decisions and stops trials in one transaction, which
begins with a conditional update of the search's `round`: if another server has stored a round in the meantime, the update
changes no row and this round has no effect.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, AlertRow, Run, RungRow, SearchRow
from server.database.payloads import DamagedPayload
from server.database.revision import SchemaMismatch
from server.lifecycle.run_fields import STEPS
from server.lifecycle.transitions import STOPPED, NotAllowed, request_cancel
from server.series.block_cache import run_queries
from server.series.plans import PointsPlan, RawPoints, Selection
from server.series.reading import recorded_layouts
from stablessm_core.spec.search import Halving, Search
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.detectors.raised_elsewhere import NONFINITE_EVALUATION
from stablessm_core.telemetry.nonfinite import NONFINITE
from stablessm_core.telemetry.series import TRAIN_LOSS
from stablessm_core.telemetry.statuses import OPEN

LOOK_SECONDS = 1.0
NONFINITE_ALERTS = (*(name for name, kind in KINDS.items() if kind.nonfinite), NONFINITE_EVALUATION.name)
BEHIND, UNSTABLE, CONTINUED = "behind", "unstable", "continued"
FIELDS = ("run_id", "rung", "step", "value", "outcome", "reason", "at")

log = logging.getLogger("stablessm.searches")


@dataclass
class Decision:
    """What is decided on one trial. `stop`: the trial is still open and must be cancelled."""

    run_id: int
    rung: int
    step: int
    value: float | None
    outcome: str
    reason: str
    stop: bool = False


class SearchRounds:
    """A thread of every server that decides on the trials of all searches that have not ended."""

    def __init__(self, database: Database, *, look: float = LOOK_SECONDS) -> None:
        self.database, self._look = database, look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="searches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 3.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        away = False
        while not self._stopping.wait(self._look):
            try:
                decide_all(self.database)
                away = False
            except (SQLAlchemyError, SchemaMismatch) as error:
                if not away:
                    log.warning("searches wait, the database does not answer: %s", str(error).partition("\n")[0])
                away = True


def decide_all(database: Database) -> None:
    """One round of every search that has not ended. A search whose round fails does not hold up the others."""
    with database.read_autocommit() as session:
        searches = session.scalars(select(SearchRow.sweep_id).where(SearchRow.ended_at.is_(None))).all()
    for sweep_id in searches:
        try:
            for made in decide(database, sweep_id):
                log.info("%s: %s", made.outcome, made.reason, extra={"run": made.run_id})
        except (SQLAlchemyError, SchemaMismatch):
            raise
        except (ValueError, LookupError, DamagedPayload):
            log.exception("the trials of sweep %s could not be judged", sweep_id)


def decide(database: Database, sweep_id: int) -> list[Decision]:
    """One round of a search: judge the trials that reached a rung or became unstable. Returns the stored decisions."""
    with database.read() as session:
        row = session.get_one(SearchRow, sweep_id)
        search = Search.model_validate(row.search)
        trials = _trials(session, sweep_id)
        halving = search.halving
        made = [] if halving is None else _round(session, halving, trials, _stored(session, sweep_id))
    over = not any(trial.status in OPEN for trial in trials)
    if not made and not over:
        return []
    with database.write() as session:
        mine = update(SearchRow).where(SearchRow.sweep_id == sweep_id, SearchRow.round == row.round)
        values: dict[str, Any] = {"round": row.round + 1, "ended_at": time.time() if over else None}
        if session.execute(mine.values(values).returning(SearchRow.sweep_id)).one_or_none() is None:
            return []
        for one in made:
            if one.stop and not _stop(session, one):
                one.outcome, one.reason = CONTINUED, f"{one.reason}; it had already ended"
        if made:
            now = {"sweep_id": sweep_id, "at": time.time()}
            rows = [{name: getattr(one, name) for name in FIELDS if name != "at"} | now for one in made]
            session.execute(insert(RungRow), rows)
    return made


def decisions_json(session: Session, sweep_id: int) -> list[dict[str, Any]]:
    """The decisions of a search, by rung and time."""
    columns = [getattr(RungRow, name) for name in FIELDS]
    found = session.execute(
        select(*columns).where(RungRow.sweep_id == sweep_id).order_by(RungRow.rung, RungRow.at, RungRow.run_id)
    )
    return [dict(zip(FIELDS, row, strict=True)) for row in found]


def _round(session: Session, halving: Halving, trials: Sequence[Row[Any]], stored: Sequence[Any]) -> list[Decision]:
    """The new decisions. `stored`: the earlier ones."""
    dropped = {one.run_id for one in stored if one.outcome != CONTINUED}
    decided = {(one.run_id, one.rung) for one in stored}
    warned = _with_nonfinite_numbers(session, [trial.id for trial in trials])
    made: list[Decision] = []
    arrived: list[tuple[int, int, Row[Any]]] = []  # rung, step of the rung, trial
    for trial in trials:
        if trial.id in dropped or trial.status == "queued":
            continue
        why = _instability(trial, halving, warned)
        if why is not None:
            rung = 1 + max((rung for run, rung in decided if run == trial.id), default=0)
            made.append(Decision(trial.id, rung, trial.step, None, UNSTABLE, why, trial.status in OPEN))
            continue
        for rung, step in enumerate(halving.rungs(trial.steps), 1):
            if trial.step >= step and (trial.id, rung) not in decided:
                arrived.append((rung, step, trial))
    values = _values(session, halving, arrived)
    for rung in sorted({rung for rung, _, _ in arrived}):
        here = [(step, trial) for at, step, trial in arrived if at == rung and (trial.id, rung) in values]
        here = [(step, trial) for step, trial in here if trial.id not in dropped]
        pool = [(one.value, one.outcome) for one in (*stored, *made) if one.rung == rung and one.outcome != UNSTABLE]
        pool += [(None, UNSTABLE) for one in (*stored, *made) if one.rung <= rung and one.outcome == UNSTABLE]
        pool += [(values[trial.id, rung], "") for _, trial in here]
        for step, trial in here:
            one = _judge(halving, trial, rung, step, values[trial.id, rung], [value for value, _ in pool])
            made.append(one)
            if one.outcome != CONTINUED:
                dropped.add(trial.id)
    return made


def _judge(
    halving: Halving, trial: Row[Any], rung: int, step: int, value: float | None, pool: Sequence[float | None]
) -> Decision:
    """The decision on one trial. `pool`: the metrics of all trials known at this rung; None counts as the worst."""
    is_open = trial.status in OPEN
    if value is None:
        return Decision(trial.id, rung, step, None, UNSTABLE, f"{halving.metric} is not finite at step {step}", is_open)
    sign = -1.0 if halving.larger_is_better else 1.0
    rank = 1 + sum(other is not None and sign * other < sign * value for other in pool)
    most = math.ceil(len(pool) / halving.factor)
    reason = (
        f"{halving.metric} {value:.4g} is number {rank} of {len(pool)} at step {step}, where the best {most} continue"
        if len(pool) > 1
        else f"{halving.metric} {value:.4g} is the first at step {step}"
    )
    if rank <= most:
        return Decision(trial.id, rung, step, value, CONTINUED, reason)
    if not is_open:
        return Decision(trial.id, rung, step, value, CONTINUED, f"{reason}; it had already ended")
    return Decision(trial.id, rung, step, value, BEHIND, reason, stop=True)


def _instability(trial: Row[Any], halving: Halving, warned: Mapping[int, str]) -> str | None:
    """Why the trial is unstable; None if it is not known to be."""
    limit, budget = halving.max_overflow_budget, trial.overflow_budget
    if trial.status == "diverged":
        return f"it diverged at step {(trial.divergence or {}).get('step', trial.step)}"
    if trial.status == "finished" and trial.eval_loss in NONFINITE:
        return f"its evaluation loss is {trial.eval_loss}"
    if trial.status in OPEN and limit is not None and budget is not None and budget > limit:
        return f"its overflow budget is {budget:.4g}, above the limit of {limit:g}"
    if trial.status in OPEN and trial.id in warned and trial.on_nonfinite != "rollback":  # a rollback repairs the run
        return f"{warned[trial.id]}"
    return None


def _stop(session: Session, one: Decision) -> bool:
    """Cancel the trial; False if it has ended in the meantime."""
    where = f"at rung {one.rung}" if one.outcome == BEHIND else "as unstable"
    try:
        request_cancel(session, one.run_id, f"{STOPPED} {where}: {one.reason}")
    except (NotAllowed, LookupError):
        return False
    return True


def _trials(session: Session, sweep_id: int) -> Sequence[Row[Any]]:
    setting = {"every": ("telemetry", "every"), "eval_every": ("train", "eval_every"), "on_nonfinite": ("train", "on_nonfinite")}
    settings = [Run.config[path].as_string().label(name) for name, path in setting.items()]
    columns = (Run.id, Run.status, Run.step, STEPS.label("steps"), Run.overflow_budget, Run.divergence)
    evaluated = Run.result["eval_loss"].as_string().label("eval_loss")
    return session.execute(
        select(*columns, evaluated, *settings).where(Run.sweep_id == sweep_id, NOT_IN_TRASH).order_by(Run.id)
    ).all()


def _stored(session: Session, sweep_id: int) -> Sequence[RungRow]:
    return session.scalars(select(RungRow).where(RungRow.sweep_id == sweep_id)).all()


def _with_nonfinite_numbers(session: Session, run_ids: Sequence[int]) -> dict[int, str]:
    """The message of the first alert about a NaN or infinity, by run."""
    chosen = select(AlertRow.run_id, AlertRow.message).where(AlertRow.run_id.in_(run_ids), AlertRow.kind.in_(NONFINITE_ALERTS))
    found: dict[int, str] = {}
    for run_id, message in session.execute(chosen.order_by(AlertRow.id)):
        found.setdefault(run_id, message)
    return found


def _values(
    session: Session, halving: Halving, arrived: Sequence[tuple[int, int, Row[Any]]]
) -> dict[tuple[int, int], float | None]:
    """The metric of each trial at each rung that it reached, as {(run, rung): value}; None if it is not finite. A trial whose
    metric is not stored yet is left out."""
    layouts = recorded_layouts(session, sorted({trial.id for _, _, trial in arrived}), name=halving.metric)
    there = [one for one in arrived if halving.metric in layouts[one[2].id].series]
    plans = []
    for _, step, trial in there:
        layout = layouts[trial.id]
        width = max(step // 10, int(trial.every)) if halving.metric == TRAIN_LOSS else max(int(trial.eval_every), 1)
        plans.append(PointsPlan(Selection(layout, layout.find(halving.metric)), [(max(step - width, 0) + 1, step)]))
    points: list[RawPoints] = run_queries(session, plans)
    found: dict[tuple[int, int], float | None] = {}
    for (rung, _, trial), one in zip(there, points, strict=True):
        if one.values.size:
            value = float(np.median(one.values) if halving.metric == TRAIN_LOSS else one.values.ravel()[-1])
            found[trial.id, rung] = value if math.isfinite(value) else None
    return found
