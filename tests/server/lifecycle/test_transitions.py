"""The life of a run: submit, claim, heartbeat, end, loss, cancel, resume."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import AlertRow, Run, Transition, Worker
from server.lifecycle import queues
from server.lifecycle import transitions as lifecycle
from server.series.recording import store_checkpoint
from stablessm_core.telemetry.detectors import AlertKind
from stablessm_core.telemetry.detectors.raised_elsewhere import TRAINER_CRASHED, WORKER_LOST
from tests.server.recording import CPU, Recording, claim, claimed, config, run_of, submitted

pytestmark = pytest.mark.both_engines


def history(database: Database, run_id: int) -> list[tuple[str, str, int | None]]:
    with database.read() as session:
        found = session.scalars(select(Transition).where(Transition.run_id == run_id).order_by(Transition.seq))
        return [(t.status, t.reason, t.truncated_from) for t in found]


def test_a_submitted_run_is_stored_completely(database: Database) -> None:
    run = run_of(database, submitted(database, name="first", tags=["a", "b"], train__device="cuda", task__name="mnist"))
    assert (run.status, run.name, run.tags, run.seq) == ("queued", "first", ["a", "b"], 1)
    assert (run.needs_cuda, run.needs_data) == (True, "mnist")
    assert run.config["optimizer"]["lr"] == 0.01
    assert history(database, run.id) == [("queued", "submitted", None)]


def test_simultaneous_submissions_with_one_idempotency_key_create_one_run(database: Database) -> None:
    def submit(_: int) -> int:
        with database.write() as session:
            return lifecycle.submit(session, config(), idempotency_key="k").id

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(submit, range(8)))) == 1
    with pytest.raises(lifecycle.NotAllowed, match="configured differently"), database.write() as session:
        lifecycle.submit(session, config(train__seed=1), idempotency_key="k")


def test_a_submission_repeated_after_an_upgrade_finds_the_run_stored_before_it(database: Database) -> None:
    with database.write() as session:
        run = lifecycle.submit(session, config(), idempotency_key="k")
        older = {key: dict(value) if isinstance(value, dict) else value for key, value in run.config.items()}
        del older["optimizer"]["momentum"], older["train"]["on_warning"]
        run.config = older
    with database.write() as session:
        assert lifecycle.submit(session, config(), idempotency_key="k").id == run.id


def test_runs_are_claimed_by_priority_then_age_and_only_by_workers_that_can_train_them(database: Database) -> None:
    first, gpu, mnist = submitted(database), submitted(database, train__device="cuda"), submitted(database, task__name="mnist")
    text = submitted(database, task__name="char_lm", task__file="books/a.txt")
    with database.write() as session:
        session.execute(update(Run).where(Run.id.in_([mnist, text])).values(priority=5))
    small = {"devices": ["cpu"], "data": {"mnist": "train-images: truncated", "books/a.txt": "ok"}}
    assert claim(database, "small", small).run_id == text
    assert claim(database, "small", small).run_id == first
    with database.write() as session:
        assert lifecycle.claim(session, "small", small) is None
    large = {"devices": ["cpu", "cuda:0"], "data": {"mnist": "ok"}}
    assert [claim(database, "large", large).run_id for _ in range(2)] == [mnist, gpu]


@pytest.mark.parametrize(
    ("capabilities", "needs", "reason"),
    [
        (CPU, {"needs_cuda": False, "needs_data": ""}, None),
        (CPU, {"needs_cuda": True, "needs_data": ""}, "no CUDA device"),
        ({"data": {"mnist": "damaged"}}, {"needs_cuda": False, "needs_data": "mnist"}, "damaged"),
        ({}, {"needs_cuda": False, "needs_data": "mnist"}, "does not have it"),
        ({"devices": ["cuda"], "data": {"mnist": "ok"}}, {"needs_cuda": True, "needs_data": "mnist"}, None),
    ],
)
def test_the_reason_names_the_device_or_data_that_a_worker_lacks(capabilities: dict, needs: dict, reason: str | None) -> None:
    given = queues.why_not(capabilities, queues.Needs(queue="default", **needs))
    assert given is None if reason is None else reason in str(given)


@pytest.mark.slow
def test_simultaneous_claims_never_take_a_run_twice(database: Database) -> None:
    with database.write() as session:
        for _ in range(40):
            lifecycle.submit(session, config())
    start = threading.Barrier(6)

    def work(owner: int) -> list[int]:
        start.wait()
        mine = []
        while True:
            with database.write() as session:
                found = lifecycle.claim(session, f"worker {owner}", CPU)
            if found is None:
                return mine
            mine.append(found.run_id)

    with ThreadPoolExecutor(6) as threads:
        taken = [run for mine in threads.map(work, range(6)) for run in mine]
    assert Counter(taken) == Counter(range(1, 41))
    with database.read() as session:
        assert set(session.scalars(select(Run.attempt))) == {1}


def test_a_new_attempt_continues_after_the_newest_checkpoint(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(30)
    run_id = recording.claim.run_id
    with database.write() as session:
        store_checkpoint(session, run_id, 1, 10, "ten", "a" * 64)
        store_checkpoint(session, run_id, 1, 20, "twenty", "b" * 64)
    with database.write() as session:
        assert lifecycle.release(session, run_id, 1, "drained") == "queued"
    again = claim(database, "other")
    assert (again.attempt, again.checkpoint) == (2, lifecycle.StoredCheckpoint(20, "twenty", "b" * 64))
    assert [c.step for c in again.checkpoints] == [20, 10]
    assert run_of(database, run_id).step == 20
    assert history(database, run_id)[-2:] == [
        ("queued", "drained", None),
        ("running", "attempt 2 on other, resumed after step 20", 21),
    ]


def test_a_new_attempt_without_a_checkpoint_starts_at_step_0(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(30)
    with database.write() as session:
        lifecycle.release(session, recording.claim.run_id, 1, "lost", loss=WORKER_LOST)
    assert claim(database).checkpoint is None
    assert run_of(database, recording.claim.run_id).step == 0
    assert history(database, recording.claim.run_id)[-1][2] == 1


def test_a_heartbeat_advances_the_counter_and_fails_after_the_lease_has_ended(database: Database) -> None:
    own = claimed(database)
    with database.write() as session:
        assert lifecycle.heartbeat(session, own.run_id, own.attempt)
    assert run_of(database, own.run_id).beat == 1
    with database.write() as session:
        lifecycle.request_cancel(session, own.run_id)
        lifecycle.request_cancel(session, own.run_id)
    assert run_of(database, own.run_id).cancel_requested
    with database.write() as session:
        assert lifecycle.heartbeat(session, own.run_id, own.attempt), (
            "a run with a cancel request must keep its lease until it stops"
        )
        assert not lifecycle.heartbeat(session, own.run_id, own.attempt + 1)
        lifecycle.finish(session, own.run_id, own.attempt, "cancelled", "asked to")
        assert not lifecycle.heartbeat(session, own.run_id, own.attempt)
    assert [reason for _, reason, _ in history(database, own.run_id)].count("cancel requested") == 1


def test_an_end_is_recorded_once_with_its_result(database: Database) -> None:
    own = claimed(database)
    where = {"step": 5, "layer": 0, "eigenvalue": 3, "tensor": "w.grad", "value": "NaN"}
    for _ in range(2):
        with database.write() as session:
            lifecycle.finish(session, own.run_id, own.attempt, "diverged", "loss is NaN", {"train_loss": float("nan")}, where)
    run = run_of(database, own.run_id)
    assert (run.status, run.status_reason, run.owner) == ("diverged", "loss is NaN", None)
    assert run.result == {"train_loss": "NaN"}
    assert run.divergence == where
    assert run.finished_at is not None
    assert [s for s, _, _ in history(database, own.run_id)] == ["queued", "running", "diverged"]
    with pytest.raises(LeaseLost), database.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, "finished")
    with pytest.raises(ValueError, match="allowed: finished, failed"), database.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, "queued")


def test_cancel_and_resume_are_refused_in_the_wrong_status(database: Database) -> None:
    run_id = submitted(database)
    with database.write() as session:
        assert lifecycle.request_cancel(session, run_id).status == "cancelled"
    with pytest.raises(lifecycle.NotAllowed, match="is cancelled; only queued and running"), database.write() as session:
        lifecycle.request_cancel(session, run_id)
    with database.write() as session:
        assert lifecycle.resume_run(session, run_id).status == "queued"
    with pytest.raises(lifecycle.NotAllowed, match="is queued; only failed, diverged and cancelled"), database.write() as session:
        lifecycle.resume_run(session, run_id)
    with pytest.raises(LookupError, match="no run 99"), database.write() as session:
        lifecycle.resume_run(session, 99)
    own = claim(database)
    assert (own.run_id, own.attempt) == (run_id, 1)


def test_a_run_that_loses_three_workers_without_a_new_checkpoint_fails(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(5)
    run_id = recording.claim.run_id

    def lose(attempt: int) -> str:
        with database.write() as session:
            return lifecycle.release(session, run_id, attempt, "killed by signal 9", loss=WORKER_LOST)

    assert lose(1) == "queued"
    claim(database)
    assert lose(2) == "queued"
    third = claim(database)
    recording.claim = third
    recording.cut(1)
    recording.write(5)
    with database.write() as session:
        store_checkpoint(session, run_id, third.attempt, 5, "x", "0" * 64)
    assert [lose(3), claim(database).attempt, lose(4), claim(database).attempt, lose(5)] == ["queued", 4, "queued", 5, "failed"]
    run = run_of(database, run_id)
    assert run.status_reason == "killed by signal 9 (3 attempts lost without a new checkpoint)"
    with database.write() as session:
        lifecycle.resume_run(session, run_id)
    claim(database)
    assert lose(6) == "queued"


@pytest.mark.parametrize("loss", [WORKER_LOST, TRAINER_CRASHED], ids=lambda kind: kind.name)
def test_a_lost_attempt_raises_an_alert_of_its_kind_with_the_cause(database: Database, loss: AlertKind) -> None:
    own = claimed(database)
    cause = "training process ended by SIGSEGV (segmentation fault)"
    with database.write() as session:
        assert lifecycle.release(session, own.run_id, own.attempt, cause, loss=loss) == "queued"
    with database.read() as session:
        alert = session.scalars(select(AlertRow)).one()
    assert (alert.kind, alert.severity, alert.message, alert.attempt) == (loss.name, "warning", cause, 1)
    assert run_of(database, own.run_id).workers_lost == 1


def test_a_lost_run_with_a_cancel_request_is_cancelled(database: Database) -> None:
    own = claimed(database)
    with database.write() as session:
        lifecycle.request_cancel(session, own.run_id)
        assert lifecycle.release(session, own.run_id, own.attempt, "killed", loss=WORKER_LOST) == "cancelled"


def test_workers_can_register_send_heartbeats_and_unregister(database: Database) -> None:
    with database.write() as session:
        assert not lifecycle.beat_worker(session, "w")
        lifecycle.register_worker(session, "w", "host", 2, CPU)
        assert lifecycle.beat_worker(session, "w")
        lifecycle.register_worker(session, "w", "host", 2, CPU | {"devices": ["cpu", "cuda"]})
    with database.read() as session:
        worker = session.scalars(select(Worker)).one()
    assert (worker.slots, worker.capabilities["devices"]) == (2, ["cpu", "cuda"])
    with database.write() as session:
        session.execute(update(Worker).values(seen_at=0.0))
        lifecycle.register_worker(session, "v", "host", 1, CPU)
        assert list(session.scalars(select(Worker.id))) == ["v"]
        lifecycle.forget_worker(session, "v")
        assert list(session.scalars(select(Worker.id))) == []
