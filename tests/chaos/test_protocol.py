"""The job protocol as a state machine: workers, zombies, a reaper and people act in any order without breaking its rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import select

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import AlertRow, BlockRow, CheckpointRow, Run, Transition
from server.lifecycle import transitions as lifecycle
from server.lifecycle.lost_runs import LostRunReaper
from server.series.recording import store_checkpoint
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block, decode
from stablessm_core.telemetry.detectors import KINDS, AlertKind
from stablessm_core.telemetry.detectors.raised_elsewhere import TRAINER_CRASHED, WORKER_LOST
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar
from stablessm_core.telemetry.statuses import FINAL
from tests.server.storing import store_catalogue, store_flush, truncate

pytestmark = [pytest.mark.both_engines, pytest.mark.long]

LEASE = 10.0
MACHINE = {"devices": ["cpu"], "data": {}}


@dataclass
class Actor:
    """A process that believes it trains the run. `step`: the last step that it believes it has written."""

    attempt: int
    step: int


class Protocol(RuleBasedStateMachine):
    """The job protocol with one run at a time. The recorded value of step s is s, whichever actor computes it."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database, self.now = database, 0.0
        self.actors: list[Actor] = []
        self.seq, self.attempt = 0, 0

    @initialize()
    def submit(self) -> None:
        with self.database.write() as session:
            self.run_id = lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}})).id
        self.reaper = LostRunReaper(self.database, LEASE, clock=lambda: self.now)

    def teardown(self) -> None:
        if hasattr(self, "run_id"):
            with contextlib.suppress(lifecycle.NotAllowed, LeaseLost), self.database.write() as session:
                run = lifecycle.request_cancel(session, self.run_id)
                if run.status == "running":
                    lifecycle.finish(session, self.run_id, run.attempt, "cancelled", "the example is over")

    def run(self) -> Run:
        with self.database.read() as session:
            return session.get_one(Run, self.run_id)

    def owns(self, actor: Actor) -> bool:
        run = self.run()
        return run.status == "running" and run.attempt == actor.attempt

    def act(self, actor: Actor, what: Any) -> bool:
        """Let the actor write. The write is refused, and changes nothing, exactly when another actor owns the run."""
        owns, before = self.owns(actor), self.everything()
        try:
            with self.database.write() as session:
                what(session)
        except LeaseLost:
            assert not owns, "the owner of the run was refused"
            assert self.everything() == before
            return False
        assert owns, "a write of a process without the lease was stored"
        return True

    def everything(self) -> tuple[Any, ...]:
        with self.database.read() as session:
            run = session.get_one(Run, self.run_id)
            tables: list[Any] = []
            for table in (BlockRow, Transition, AlertRow, CheckpointRow):
                columns = list(table.__table__.columns)
                key = list(table.__table__.primary_key)
                tables.append(session.execute(select(*columns).where(columns_run(table) == self.run_id).order_by(*key)).all())
            return (run.status, run.attempt, run.seq, run.step, run.workers_lost, *map(tuple, tables))

    @rule()
    def claim(self) -> None:
        queued = self.run().status == "queued"
        with self.database.write() as session:
            claim = lifecycle.claim(session, f"worker {len(self.actors)}", MACHINE)
        assert (claim is not None) == queued
        if claim is not None:
            assert claim.attempt == self.attempt + 1
            self.attempt = claim.attempt
            self.actors.append(Actor(claim.attempt, claim.checkpoint.step if claim.checkpoint else 0))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), count=st.integers(1, 5), twice=st.booleans())
    def write(self, data: st.DataObject, count: int, twice: bool) -> None:
        actor = self.someone(data)
        first = actor.step + 1
        values = np.arange(first, first + count, dtype=np.float32)[None]
        alert = KINDS["nonfinite_loss"].alert(step=first, series=TRAIN_LOSS, value=float("nan"), message="NaN")

        def store(session: Any) -> None:
            store_catalogue(session, self.run_id, actor.attempt, [scalar(TRAIN_LOSS)])
            store_flush(session, self.run_id, actor.attempt, [Block(SCALARS, 0, first, 1, values)], [alert], first + count - 1)

        if self.act(actor, store):
            actor.step += count
            after = self.everything()
            if twice:  # the response was lost, so the actor repeats the write
                assert self.act(actor, store)
                assert self.everything() == after

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        actor = self.someone(data)
        if actor.step:
            path, digest = f"{actor.attempt}-{actor.step}", "0" * 64
            self.act(actor, lambda s: store_checkpoint(s, self.run_id, actor.attempt, actor.step, path, digest))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), back=st.integers(0, 8))
    def roll_back(self, data: st.DataObject, back: int) -> None:
        actor = self.someone(data)
        to = max(0, actor.step - back)
        reason = f"occasion {self.run().seq}"
        if self.act(actor, lambda s: truncate(s, self.run_id, actor.attempt, to + 1, reason)):
            actor.step = to

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        actor = self.someone(data)
        owns = self.owns(actor)
        with self.database.write() as session:
            assert lifecycle.heartbeat(session, self.run_id, actor.attempt) == owns

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), status=st.sampled_from(FINAL))
    def finish(self, data: st.DataObject, status: str) -> None:
        actor, run = self.someone(data), self.run()
        if (run.attempt, run.status) == (actor.attempt, status):
            with self.database.write() as session:
                # The response was lost: repeating the call is harmless.
                lifecycle.finish(session, self.run_id, actor.attempt, status, "again")
        else:
            self.act(actor, lambda s: lifecycle.finish(s, self.run_id, actor.attempt, status, "done"))

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), loss=st.sampled_from([None, WORKER_LOST, TRAINER_CRASHED]))
    def release(self, data: st.DataObject, loss: AlertKind | None) -> None:
        actor = self.someone(data)
        self.act(actor, lambda s: lifecycle.release(s, self.run_id, actor.attempt, "given up", loss=loss))

    @rule(seconds=st.sampled_from([1.0, 4.0, 4.9, 1000.0]))
    def look_for_lost_workers(self, seconds: float) -> None:
        self.now += seconds
        before = self.run()
        lost = self.reaper.reap()
        assert len(lost) <= (before.status == "running")
        if seconds > LEASE / 2:
            assert lost == [], "after a gap in its own observation, the reaper must grant every run a full lease"

    @rule()
    def cancel(self) -> None:
        with contextlib.suppress(lifecycle.NotAllowed), self.database.write() as session:
            lifecycle.request_cancel(session, self.run_id)

    @rule()
    def resume(self) -> None:
        allowed = self.run().status in ("failed", "diverged", "cancelled")
        with contextlib.suppress(lifecycle.NotAllowed), self.database.write() as session:
            lifecycle.resume_run(session, self.run_id)
        assert not allowed or self.run().status == "queued"

    def someone(self, data: st.DataObject) -> Actor:
        """Usually the newest actor, sometimes an outdated one."""
        return self.actors[-1] if data.draw(st.integers(0, 2)) else data.draw(st.sampled_from(self.actors))

    @invariant()
    def every_step_is_there_once_and_right(self) -> None:
        if not hasattr(self, "run_id"):
            return
        with self.database.read() as session:
            run = session.get_one(Run, self.run_id)
            stored = session.scalars(select(BlockRow).where(BlockRow.run_id == self.run_id).order_by(BlockRow.first_step)).all()
            checkpoints = session.scalars(select(CheckpointRow.step).where(CheckpointRow.run_id == self.run_id)).all()
        values = [float(v) for block in stored for v in decode(block.payload, (block.column_count, block.point_count))[0]]
        assert values == [float(step) for step in range(1, run.step + 1)]
        assert all(step <= run.step for step in checkpoints), "a resume from this checkpoint would leave a gap"

    @invariant()
    def the_history_only_goes_forward(self) -> None:
        if not hasattr(self, "run_id"):
            return
        with self.database.read() as session:
            run = session.get_one(Run, self.run_id)
            history = session.scalars(select(Transition).where(Transition.run_id == self.run_id).order_by(Transition.seq)).all()
            alerts = session.scalars(select(AlertRow).where(AlertRow.run_id == self.run_id)).all()
        assert (run.seq, run.attempt) >= (self.seq, self.attempt)
        self.seq = run.seq
        claims = [t.attempt for t in history if t.status == "running" and t.reason.startswith("attempt ")]
        assert claims == list(range(1, run.attempt + 1))
        assert [t.attempt for t in history] == sorted(t.attempt for t in history)
        assert (history[-1].status, history[-1].attempt) == (run.status, run.attempt)
        assert (run.owner is None) == (run.status != "running")
        assert max(t.seq for t in history) <= run.seq
        learned = [(a.kind, a.step) for a in alerts if a.kind == "nonfinite_loss"]
        assert len(learned) == len(set(learned)), "an alert is stored twice"


def columns_run(table: Any) -> Any:
    return table.__table__.c.run_id


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def test_no_order_of_protocol_events_loses_or_duplicates_a_step(database: Database) -> None:
    examples = settings(
        max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    run_state_machine_as_test(lambda: Protocol(database), settings=examples)
