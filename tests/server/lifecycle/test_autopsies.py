"""The autopsy of a run: queued with the run's end, done by one worker at a time, never lost, outdated after a resume."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from server.database.connection import Database
from server.database.models import AutopsyRow, Run
from server.errors import Conflict, Invalid
from server.keep.deletion import purge
from server.keep.trash import move_to_trash
from server.lifecycle import autopsies
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsy_findings import check_findings, read_findings
from server.lifecycle.verdicts import describe_run, judge_ended
from server.live.frames import read_events
from tests.server.autopsies import PLACE, findings
from tests.server.recording import Recording, claim, claimed, nonfinite, run_of
from tests.server.storing import store_flush

pytestmark = pytest.mark.both_engines

DEATH = {"step": 40, "layer": 0, "eigenvalue": 2, "tensor": "w", "value": "NaN"}


def died(database: Database, *, autopsy: bool = True, status: str = "diverged") -> int:
    """A run that recorded 40 steps and ended."""
    recording = Recording(database, claimed(database), weird=False)
    recording.write(40)
    own = recording.claim
    with database.write() as session:
        divergence = DEATH if status == "diverged" else None
        lifecycle.finish(session, own.run_id, own.attempt, status, divergence=divergence, autopsy=autopsy)
    return own.run_id


def row_of(database: Database, run_id: int) -> AutopsyRow | None:
    with database.read() as session:
        return session.get(AutopsyRow, run_id)


def state_of(database: Database, run_id: int, *, on: bool = True) -> dict[str, Any]:
    with database.read() as session:
        return autopsies.autopsy_json(session, session.get_one(Run, run_id), on=on)


def taken(database: Database, run_id: int, owner: str = "here:1:1") -> autopsies.Job:
    with database.write() as session:
        job = autopsies.claim_autopsy(session, run_id, owner)
    assert job is not None
    return job


def ended(database: Database, job: autopsies.Job, found: dict[str, Any] | None, reason: str = "") -> bool:
    with database.write() as session:
        return autopsies.end_autopsy(session, job, findings=found, reason=reason)


def test_only_a_run_that_diverged_gets_an_autopsy_and_only_if_they_are_on(database: Database) -> None:
    assert state_of(database, died(database))["state"] == "queued"
    assert state_of(database, died(database, autopsy=False))["state"] == "none"
    assert state_of(database, died(database, status="finished"))["state"] == "none"


def test_findings_reach_readers_and_the_verdict_with_their_numbers(database: Database) -> None:
    run_id = died(database)
    with database.write() as session:
        session.execute(update(Run).values(cause="explosion", judged_at=1.0))
    assert ended(database, taken(database, run_id), check_findings(findings()))
    answer = state_of(database, run_id)
    assert (answer["state"], answer["step"], answer["batch"]["largest_input"]) == ("done", 3, math.inf)
    assert math.isnan(answer["loss"])
    assert answer["counterfactuals"][0]["loss"] == [1.0, -math.inf]
    assert answer["first_nonfinite"]["value"] == "-Infinity", "this value is a word"
    row = row_of(database, run_id)
    assert row is not None
    assert json.dumps(row.findings, allow_nan=False)
    with database.read() as session:
        described, _ = describe_run(session, session.get_one(Run, run_id))
    assert described.autopsy is not None
    assert described.autopsy["batch"]["largest_input"] == math.inf
    left = run_of(database, run_id)
    assert (left.cause, left.judged_at) == (None, None), "the cause must be computed again, even if this worker dies now"
    judge_ended(database)
    assert run_of(database, run_id).judged_at is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"step": None}, {"bits_equal": False}, {"modules": None}, {"seconds": "soon"}, {"first_nonfinite": {"pass": "sideways"}},
        {"counterfactuals": [findings()["counterfactuals"][0] | {"change": "nothing"}]}, {"trouble": {"step": 1, "kind": "bad"}},
        {"counterfactuals": [findings()["counterfactuals"][0] | {"steps": [1]}]}, {"trouble": {"step": -1, "kind": "fatal"}},
        {"modules": [{"module": "m" * 301, "pass": "loss", "largest": 1.0, "largest_float64": None, "nonfinite": 0}]},
    ],
)  # fmt: skip
def test_incomplete_or_wrong_findings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        check_findings(findings(**changes))


def test_a_refused_autopsy_is_done_and_says_why(database: Database) -> None:
    run_id = died(database)
    refused = check_findings({"step": 40, "bits_equal": False, "refused": "Step 7 has other bits than the recorded ones."})
    assert ended(database, taken(database, run_id), refused)
    answer = state_of(database, run_id)
    assert (answer["state"], answer["refused"], answer["batch"]) == (
        "done",
        "Step 7 has other bits than the recorded ones.",
        None,
    )


def test_one_worker_does_an_autopsy_and_nobody_else_can_write_to_it(database: Database) -> None:
    run_id = died(database)
    job = taken(database, run_id)
    with database.write() as session:
        assert autopsies.claim_autopsy(session, run_id, "there:2:2") is None
        assert autopsies.beat_autopsy(session, job)
        other = replace(job, owner="there:2:2")
        assert not autopsies.beat_autopsy(session, other)
        assert not autopsies.end_autopsy(session, other, findings=None, reason="mine")
    assert ended(database, job, check_findings(findings()))
    assert not ended(database, job, None, "a second answer")
    assert state_of(database, run_id)["state"] == "done"


def test_a_silent_worker_loses_its_autopsy_and_the_second_loss_fails_it(database: Database) -> None:
    run_id, now = died(database), [0.0]
    lost = autopsies.LostAutopsies(6.0, lambda: now[0])

    def look(seconds: float) -> list[tuple[int, str, float]]:
        now[0] += seconds
        with database.read() as session:
            return lost.look(session)

    for state in ("queued", "failed"):
        job = taken(database, run_id)
        assert look(2.0) == []
        for _ in range(4):  # it beats, so it is never lost
            with database.write() as session:
                assert autopsies.beat_autopsy(session, job)
            assert look(2.0) == []
        assert look(2.9) == look(2.9) == []
        found = look(2.9)
        assert found == [(run_id, "here:1:1", job.started_at)]
        with database.write() as session:
            assert autopsies.release_autopsy(session, *found[0], "no heartbeat", lost=True) == state
            assert autopsies.release_autopsy(session, *found[0], "no heartbeat", lost=True) is None
        with database.write() as session:
            assert not autopsies.beat_autopsy(session, job)
        assert look(100.0) == [], "after a gap everyone gets a full lease"
    assert state_of(database, run_id)["reason"] == "no heartbeat (lost 2 times)"


def test_a_resume_makes_the_autopsy_outdated_whoever_resumed_the_run(database: Database) -> None:
    run_id = died(database)
    job = taken(database, run_id)
    with database.write() as session:
        lifecycle.resume_run(session, run_id)
    assert not ended(database, job, check_findings(findings()))
    assert state_of(database, run_id)["state"] == "none"

    other = died(database)
    assert ended(database, taken(database, other), check_findings(findings()))
    with database.write() as session:  # an older server resumes it and does not know the table
        session.execute(update(Run).where(Run.id.in_((run_id, other))).values(status="queued"))
    for _ in range(2):
        own = claim(database)
        assert state_of(database, own.run_id)["state"] == "none"
    assert row_of(database, other) is None


def test_an_older_worker_that_trained_the_run_again_leaves_no_outdated_findings(database: Database) -> None:
    run_id = died(database)
    assert ended(database, taken(database, run_id), check_findings(findings()))
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run_id).values(attempt=2))  # it claimed the run and ended it
    assert state_of(database, run_id)["state"] == "none"
    with database.read() as session:
        assert autopsies.findings_of(session, session.get_one(Run, run_id)) is None
        assert autopsies.candidates(session) == []


def test_a_request_is_refused_with_the_reason(database: Database) -> None:
    def ask(run_id: int, step: int | None = None) -> None:
        with database.write() as session:
            autopsies.request_autopsy(session, session.get_one(Run, run_id), step=step, by="ada")

    open_run = claimed(database).run_id
    with pytest.raises(Conflict, match=f"run {open_run} is running"):
        ask(open_run)
    with database.write() as session:
        lifecycle.finish(session, open_run, 1, "finished")
    with pytest.raises(Invalid, match="no training step of run") as error:
        ask(open_run)
    assert (error.value.field, error.value.allowed) == ("step", "none: the run has trained no step")
    healthy = died(database, status="finished")
    with pytest.raises(Invalid, match="step is 41") as error:
        ask(healthy, 41)
    assert error.value.allowed == "steps 1 to 40, which the run has trained"
    ask(healthy, 40)
    job = taken(database, healthy)
    assert job.step == 40
    with pytest.raises(Conflict, match=f"autopsy of run {healthy} is running"):
        ask(healthy, 3)
    assert ended(database, job, None, "it failed")
    ask(healthy, 3)
    answer = state_of(database, healthy)
    assert (answer["state"], answer["asked_step"], answer["requested_by"], answer["reason"]) == ("queued", 3, "ada", None)


def test_a_request_takes_the_place_of_an_automatic_autopsy_that_runs(database: Database) -> None:
    run_id = died(database)
    automatic = taken(database, run_id)
    assert not automatic.asked
    with database.write() as session:
        autopsies.request_autopsy(session, session.get_one(Run, run_id), step=None, by="ada")
    assert (state_of(database, run_id)["state"], state_of(database, run_id)["requested_by"]) == ("queued", "ada")
    with database.write() as session:
        assert not autopsies.beat_autopsy(session, automatic), "the automatic one must stop"
    assert not ended(database, automatic, check_findings(findings()))
    asked = taken(database, run_id)
    assert asked.asked
    assert ended(database, asked, check_findings(findings()))


def test_findings_from_before_are_read_and_have_no_new_measurements() -> None:
    old = findings()
    for new in ("onset", "form", "hidden_state"):
        del old[new]
    old["batch"] = {name: value for name, value in old["batch"].items() if name != "classes"}
    old["first_nonfinite"] = {name: value for name, value in PLACE.items() if name not in ("dtype", "inputs")}
    old["gradient"] = {"step": 3, "norm": 2.0, "slope": 0.1, "agrees": False}
    old["trouble"] = {"step": 2, "kind": "crossing"}
    old["counterfactuals"] = [
        {name: value for name, value in one.items() if name != "comparable"} for one in old["counterfactuals"]
    ]
    read = read_findings(check_findings(old))
    assert (read["onset"], read["form"], read["hidden_state"], read["batch"]["classes"]) == (None, None, None, None)
    assert (read["gradient"]["agrees"], read["gradient"]["converged"], read["gradient"]["recorded"]) == (False, None, None)
    assert (read["trouble"]["shown"], read["first_nonfinite"]["dtype"]) == (None, None)
    assert {one["comparable"] for one in read["counterfactuals"]} == {None}


def test_a_run_that_went_on_after_nan_has_a_fatal_step(database: Database) -> None:
    own = claimed(database, train__on_nonfinite="continue")
    with database.write() as session:
        store_flush(session, own.run_id, own.attempt, [], [nonfinite(step=7), nonfinite(step=9)], 12)
        lifecycle.finish(session, own.run_id, own.attempt, "finished")
        autopsies.request_autopsy(session, session.get_one(Run, own.run_id), step=None, by="ada")
    assert taken(database, own.run_id).step == 7


def test_every_new_state_is_an_event_of_the_live_stream(database: Database) -> None:
    run_id = died(database)
    seq = run_of(database, run_id).seq
    with database.read() as session:
        events, newest = read_events(session, run_id, seq - 1, 64) or ([], 0)
    assert [frame.kind for event in events for frame in event.frames] == ["status", "autopsy"]
    job = taken(database, run_id)
    assert ended(database, job, check_findings(findings()))
    with database.read() as session:
        events, newest = read_events(session, run_id, seq, 64) or ([], 0)
    assert newest == seq + 2
    assert [(event.seq, json.loads(event.frames[0].data)["state"]) for event in events] == [(seq + 2, "done")]


def test_users_come_first_and_deleted_runs_get_no_autopsy(database: Database) -> None:
    first, second, third = (died(database) for _ in range(3))
    with database.write() as session:
        autopsies.request_autopsy(session, session.get_one(Run, third), step=5, by="ada")
        move_to_trash(session, first, by="ada")
    with database.read() as session:
        assert [one.run_id for one in autopsies.candidates(session)] == [third, second]
        assert [one.run_id for one in autopsies.candidates(session, asked=True)] == [third]
        assert [one.run_id for one in autopsies.candidates(session, asked=False)] == [second]
    with database.write() as session:
        assert autopsies.claim_autopsy(session, first, "here:1:1") is None
    assert purge(database, None, first)
    assert row_of(database, first) is None


def test_an_autopsy_that_nobody_can_do_is_failed_after_a_day(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = died(database)
    with database.write() as session:
        assert not autopsies.give_up(session, run_id)
    monkeypatch.setattr(autopsies, "GIVE_UP_SECONDS", -1.0)
    with database.write() as session:
        assert autopsies.give_up(session, run_id)
    assert state_of(database, run_id)["state"] == "failed"


def test_switched_off_autopsies_still_show_what_was_found_before(database: Database) -> None:
    open_one, done = died(database), died(database)
    assert ended(database, taken(database, done), check_findings(findings()))
    assert state_of(database, open_one, on=False)["state"] == "off"
    assert state_of(database, done, on=False)["state"] == "done"
