"""The program of an autopsy, in a process of its own: reads the run from the database, trains its step again with instruments
(stablessm_core.autopsy), and sends the findings to the worker, which stores them."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.checkpoint_store import CheckpointStore, StoreError
from server.database.connection import Database
from server.database.models import AlertRow, CheckpointRow, Run
from server.database.payloads import DamagedPayload
from server.lifecycle.verdicts import describe_run
from stablessm_core.autopsy.request import AutopsyRequest, RecordedRow, SavedState, Trouble, refused
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.telemetry.detectors.raised_elsewhere import LR_LOWERED, ROLLED_BACK
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.verdict.beginning import trouble_start
from stablessm_core.verdict.inputs import Run as VerdictRun
from stablessm_core.verdict.inputs import Source
from worker.attempt import damage_of
from worker.failures import describe_error
from worker.pipe import Message, Pipe

OOM_SCORE = 1000  # when memory runs out, the kernel kills an autopsy before anything else
REPLAY_SECONDS = 600.0  # a replay that would take longer is not tried
MORE_SECONDS = 10.0  # time for the autopsy itself, beside the replay
MOST_ROWS = 500_000  # maximum number of recorded rows that are compared; the newest are kept
FAILED = 1

log = logging.getLogger("worker.autopsy")


def do_autopsy(pipe: Pipe, assignment: Message) -> int:
    """Do one autopsy, send the findings, and return the exit code. assignment: see worker.autopsies."""
    _limit_memory(int(assignment["memory"]))
    threading.Thread(target=_end_with_worker, args=(pipe,), name="worker-pipe", daemon=True).start()
    from stablessm_core.autopsy.perform import perform  # the worker's modules must not import torch

    try:
        found = _request(assignment)
        findings = perform(found) if isinstance(found, AutopsyRequest) else found
    except Exception as error:
        log.exception("the autopsy failed")
        pipe.send({"event": "failed", "reason": describe_error(error)})
        return FAILED
    pipe.send({"event": "findings", "findings": json_safe(findings)})
    return 0


def _request(assignment: Message) -> AutopsyRequest | dict[str, Any]:
    """The autopsy to do, or findings that say why it is not possible."""
    run_id, step, scratch = int(assignment["run_id"]), int(assignment["step"]), Path(assignment["scratch"])
    database = Database(assignment["database_url"])
    try:
        with database.read() as session:
            run = session.get(Run, run_id)
            if run is None:
                return refused(step, "the run was deleted")
            return _request_for(session, run, step, scratch, assignment)
    except ConfigError as error:
        return refused(step, f"this worker cannot train the run: {error}")
    except DamagedPayload as error:
        return refused(step, f"the recorded numbers cannot be read: {error}")
    finally:
        database.close()


def _request_for(
    session: Session, run: Run, step: int, scratch: Path, assignment: Message
) -> AutopsyRequest | dict[str, Any]:  # fmt: skip
    config = parse_config(run.config)
    begin = run.forked_at_step or 0
    saved, lost = _states(session, run.id, step, scratch, assignment)
    origin = None
    if begin:
        parents, why = _states(session, run.forked_from or 0, begin + 1, scratch, assignment, only=begin)
        if not parents and not saved:
            reason = why[0] if why else f"run {run.forked_from} is not here, or has been trained again from an earlier step"
            return refused(step, f"the checkpoint of step {begin} from which this fork began is missing: {reason}")
        origin = parents[0] if parents else None
    start = saved[0].step if saved else begin
    since = (step - start) / run.steps_per_second if run.steps_per_second else 0.0
    if since > REPLAY_SECONDS:
        reason = f"training the {step - start:,} steps before it again takes about {since / 60:.0f} minutes"
        return refused(step, f"{reason}, because checkpoints are missing: {lost[0]}" if lost else reason)
    described, source = describe_run(session, run)
    trouble = _trouble(described, source)
    first = min([one.step for one in saved], default=begin)
    if trouble is not None and trouble.step <= first:
        first = begin
    return AutopsyRequest(
        config=config,
        data_root=Path(assignment["data_root"]),
        step=step,
        rows=_rows(source, max(first + 1, step - MOST_ROWS), step),
        checkpoints=tuple(saved),
        origin=origin,
        trouble=trouble,
        lowered=_lowered(session, run, config.train.rollback_lr_factor),
        environment=run.environment or {},
        seconds=since + MORE_SECONDS,
        memory=int(assignment["memory"]) // 2,
        scratch=scratch,
        plan=partial(_plan, run.id, assignment["database_url"]),
    )


def _trouble(run: VerdictRun, source: Source) -> Trouble | None:
    found = trouble_start(run, source)
    return None if found is None else Trouble(found.step, found.kind, found.shown)


def _plan(run_id: int, database_url: str, findings: dict[str, Any]) -> Trouble | None:
    """Where the trouble began, judged with what the autopsy has measured."""
    database = Database(database_url)
    try:
        with database.read() as session:
            run = session.get(Run, run_id)
            if run is None:
                return None
            described, source = describe_run(session, run)
            return _trouble(replace(described, autopsy=findings), source)
    finally:
        database.close()


def _states(
    session: Session, run_id: int, before: int, scratch: Path, assignment: Message, only: int | None = None
) -> tuple[list[SavedState], list[str]]:
    """The intact checkpoints of steps before `before`, newest first, copied from the checkpoint store if this machine lacks them;
    and why others cannot be used. only: the only step that is wanted."""
    chosen = select(CheckpointRow).where(CheckpointRow.run_id == run_id, CheckpointRow.step < before)
    saved, lost = [], []
    for row in session.scalars(chosen.order_by(CheckpointRow.step.desc())):
        if only is not None and row.step != only:
            continue
        file = Path(assignment["data_dir"]) / row.path
        problem = damage_of(file, row.sha256)
        if problem and assignment.get("checkpoint_store"):
            file = scratch / f"run-{run_id}-step-{row.step}.safetensors"
            problem = _fetch(assignment["checkpoint_store"], row, file)
        if problem:
            log.warning("the checkpoint of step %d is not used: %s", row.step, problem)
            lost.append(f"that of step {row.step}: {problem}")
        else:
            saved.append(SavedState(row.step, file, row.sha256))
    return saved, lost


def _fetch(store: str, row: CheckpointRow, file: Path) -> str | None:
    try:
        CheckpointStore(store).fetch(row.path, file, row.sha256)
    except (StoreError, OSError) as error:
        return str(error)
    return None


def _lowered(session: Session, run: Run, factor: float) -> tuple[int, ...]:
    """The steps at which `train.on_warning` lowered the rates since the last rollback, each as often as it did.

    Repeated reductions at one step share one alert, whose value is the product of all reductions so far. A rollback is one more
    reduction; the checkpoint to which it returned holds the reductions before.
    """
    chosen = select(AlertRow).where(AlertRow.run_id == run.id, AlertRow.kind.in_((LR_LOWERED.name, ROLLED_BACK.name)))
    steps: list[int] = []
    total = 0
    for alert in session.scalars(chosen.order_by(AlertRow.id)):
        if alert.kind == ROLLED_BACK.name:
            steps, total = [], total + 1
            continue
        before, total = total, round(math.log(float(alert.value or factor)) / math.log(factor))
        first_of_fork = before == 0 and run.forked_from is not None  # the value includes reductions of the other run
        steps += [alert.step] * (1 if first_of_fork else max(1, total - before))
    return tuple(steps)


def _rows(source: Source, low: int, high: int) -> dict[int, RecordedRow]:
    found = source.scalars(low, high)
    values = zip(found.step.tolist(), found.loss.tolist(), found.grad_norm.tolist(), strict=True)
    return {step: RecordedRow(loss, norm) for step, loss, norm in values}


def _limit_memory(allowed: int) -> None:
    """Let this process allocate at most `allowed` bytes more than it has. The limit does not count a GPU's memory, of which the
    process gets at most half of what is free, because a run may train beside it."""
    if sys.platform != "linux":
        return
    import resource

    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError as error:
        log.warning("the kernel will not prefer this process when memory runs out: %s", error)
    status = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, resource.RLIM_INFINITY))
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(0.5 * free / total)


def _end_with_worker(pipe: Pipe) -> None:
    try:
        while True:
            pipe.receive()
    except (EOFError, OSError):
        os._exit(FAILED)
