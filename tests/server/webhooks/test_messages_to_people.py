"""Alerts become messages to people: counted, delayed, repeated, inhibited and silenced. The clock is the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from server.database.connection import Database
from server.database.models import AlertRow, NotificationRow, Run, SilenceRow, Webhook
from server.lifecycle import transitions as lifecycle
from server.lifecycle.reported import found, mark_lost
from server.webhooks import guarded_post, registry
from server.webhooks.delivery import WebhookDelivery
from server.webhooks.groups import end_silence, notifications_json, send_again
from server.webhooks.silences import add_silence
from tests.server.receiver import Receiver, answer, receiving
from tests.server.recording import claimed, submitted

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]

BASE = "https://monitor.example.org"
HOUR = 3600.0


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(guarded_post, "SECONDS", 100.0)  # a call that is late on a busy machine must not count as failed
    with receiving() as receiver:
        yield receiver


class Told:
    """A webhook in the format of Slack, the delivery that serves it, and the time that the delivery believes."""

    def __init__(self, database: Database, receiver: Receiver, events: list[str], format: str = "slack") -> None:
        self.database, self.receiver, self.now = database, receiver, 1_900_000_000.0
        with database.write() as session:
            url = f"http://127.0.0.1:{receiver.port}/hook"
            self.hook = registry.new_webhook(session, url, events, format).id
        allowed = frozenset({"127.0.0.1"})
        self.delivery = WebhookDelivery(database, token=None, allowed=allowed, base_url=BASE, clock=lambda: self.now)

    def after(self, seconds: float) -> list[dict[str, Any]]:
        """The bodies that were received since the last call, once this many seconds have passed."""
        before = len(self.receiver.calls)
        self.now += seconds
        while self.delivery._deliver(self.hook):
            pass
        return [json.loads(body) for _, body in self.receiver.calls[before:]]

    def raised(self, run_id: int, count: int = 1, kind: str = "boundary_distance", severity: str = "warning") -> None:
        """Store alerts of a run that are raised now."""
        with self.database.write() as session:
            values = {"run_id": run_id, "seq": 1, "attempt": 1, "kind": kind, "severity": severity, "created_at": self.now}
            first = (session.scalar(select(func.max(AlertRow.step))) or 0) + 1
            rows = [{**values, "step": first + i, "message": f"it happened {i}"} for i in range(count)]
            session.execute(insert(AlertRow), rows)

    def shown(self, run_id: int) -> list[tuple[str, str, int]]:
        """(kind, state, count) of each message in the run's history."""
        with self.database.read() as session:
            return [(one["kind"], one["state"], one["count"]) for one in notifications_json(session, run_id)]


def title(body: dict[str, Any]) -> str:
    return str(body["text"])


def text(body: dict[str, Any]) -> str:
    return str(body["blocks"][1]["text"]["text"])


def running(database: Database, name: str = "best", project: str = "hybrid") -> int:
    run_id = claimed(database, name=name).run_id
    with database.write() as session:
        session.get_one(Run, run_id).project = project
    return run_id


@pytest.mark.parametrize(("severity", "wait"), [("critical", 5.0), ("warning", 30.0)])
def test_a_message_waits_5_s_if_it_is_critical_else_30_s(
    database: Database, receiver: Receiver, severity: str, wait: float
) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    told.raised(run_id, severity=severity)
    assert told.after(0) == []
    assert told.after(wait - 0.1) == []
    (body,) = told.after(0.2)
    assert title(body).endswith(f"{severity.capitalize()}: boundary distance: best (hybrid)")
    assert body["blocks"][-1]["elements"][0]["url"] == f"{BASE}/runs/{run_id}"
    assert told.after(HOUR) == []


@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_a_thousand_alerts_in_30_s_become_one_message_with_the_count(
    database: Database, receiver: Receiver, severity: str
) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    bodies = []
    for _ in range(10):  # a hundred every three seconds
        told.raised(run_id, 100, severity=severity)
        bodies += told.after(3)
    bodies += told.after(10)
    assert len(bodies) == 1
    assert "1,000 alerts" in title(bodies[0])
    assert "1,000 alerts between" in text(bodies[0])
    assert told.shown(run_id) == [("boundary_distance", "sent", 1000)]
    assert told.after(HOUR) == []


def test_a_burst_of_alerts_of_many_runs_becomes_one_message(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"])
    runs = [running(sqlite, f"run-{number}", "p") for number in range(10)]
    for run_id in runs:
        told.raised(run_id, 100)
    told.after(0)
    (body,) = told.after(30)
    assert title(body) == "🟠 1,000 events of 10 runs"
    assert body["blocks"][-1]["elements"][0]["url"] == f"{BASE}/alerts?group=run"
    assert "run-9 (p): boundary distance (warning), 100 alerts" in text(body)


def test_an_alert_that_lasts_is_repeated_after_4_h_while_the_run_trains(database: Database, receiver: Receiver) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    told.raised(run_id)
    told.after(0)
    assert len(told.after(30)) == 1
    told.raised(run_id)
    assert told.after(HOUR) == []
    with database.write() as session:  # a detector extends the first alert
        session.scalars(select(AlertRow).order_by(AlertRow.id).limit(1)).one().created_at = told.now
    assert told.after(3 * HOUR - 60) == []
    (body,) = told.after(61)
    assert "It lasts (message 2): boundary distance (warning), 2 alerts" in text(body)
    told.raised(run_id)
    assert "It lasts (message 3)" in text(told.after(4 * HOUR)[0])
    with database.write() as session:
        lifecycle.finish(session, run_id, 1, "finished")
        session.add(AlertRow(run_id=run_id, seq=9, attempt=1, kind="boundary_distance", severity="warning", step=99, series="x",
                             message="late", created_at=told.now + HOUR))  # fmt: skip
    assert told.after(5 * HOUR) == []


def test_an_alert_after_4_quiet_hours_is_a_new_message(database: Database, receiver: Receiver) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    told.raised(run_id)
    told.after(0)
    assert len(told.after(30)) == 1
    assert told.after(4 * HOUR + 60) == []
    with database.read() as session:
        assert session.scalars(select(NotificationRow.repeat_at)).all() == [None]
    told.raised(run_id)
    assert told.after(0) == []
    (body,) = told.after(30)
    assert text(body).startswith("• boundary distance (warning), at step 2")


def test_alerts_of_severities_that_nobody_asked_for_are_not_repeated(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert.critical"])
    run_id = running(sqlite)
    told.raised(run_id, severity="critical")
    told.after(0)
    assert len(told.after(5)) == 1
    told.raised(run_id, 3, severity="warning")
    assert told.after(4 * HOUR) == []
    told.raised(run_id, severity="critical")
    told.after(0)
    (body,) = told.after(5)
    assert text(body).startswith("• boundary distance (critical), at step 5")


def test_a_message_about_an_alert_that_lasts_has_the_severity_of_the_newest(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"])
    run_id = running(sqlite)
    told.raised(run_id, severity="critical")
    told.after(0)
    assert len(told.after(5)) == 1
    told.now += 1
    told.raised(run_id, severity="warning")
    (body,) = told.after(4 * HOUR)
    assert title(body).startswith("🟠 Warning: boundary distance")


@pytest.mark.parametrize("kind", ["rule", "reported"])
def test_an_alert_of_another_rule_is_no_repetition(sqlite: Database, receiver: Receiver, kind: str) -> None:
    told = Told(sqlite, receiver, ["alert"])
    run_id = running(sqlite)
    for _ in range(2):
        told.raised(run_id, kind=kind)
        told.after(0)
        (body,) = told.after(30)
        assert "It lasts" not in text(body)


def test_a_warning_that_becomes_critical_is_sent_at_once(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"])
    run_id = running(sqlite)
    told.raised(run_id)
    told.after(0)
    assert len(told.after(30)) == 1
    told.raised(run_id, severity="critical")
    told.after(60)
    assert "Critical: boundary distance" in title(told.after(5)[0])


def test_a_run_that_diverged_inhibits_the_warnings_about_it(database: Database, receiver: Receiver) -> None:
    told = Told(database, receiver, ["alert", "run"])
    run_id = running(database)
    told.raised(run_id, 3)
    told.after(0)
    told.raised(run_id, kind="nonfinite_loss", severity="critical")
    with database.write() as session:
        lifecycle.finish(session, run_id, 1, "diverged", "the loss became NaN", judged={"cause": "lr_too_large"})
    told.after(0)
    (body,) = told.after(5)
    assert title(body) == "🔴 Run diverged: best (hybrid)"
    assert "The run diverged after step 0: the loss became NaN. Cause: a learning rate far too large" in text(body)
    assert "nonfinite loss (critical)" in text(body)
    assert "boundary distance" not in text(body)
    assert told.after(60) == []
    assert told.shown(run_id) == [
        ("boundary_distance", "inhibited", 3),
        ("nonfinite_loss", "sent", 1),
        ("run.diverged", "sent", 1),
    ]


@pytest.mark.parametrize("by", ["run_id", "project", "kind"])
def test_a_silence_keeps_messages_back_until_it_ends(database: Database, receiver: Receiver, by: str) -> None:
    told = Told(database, receiver, ["alert"])
    run_id, other = running(database), running(database, "other", "another")
    chosen = {"run_id": run_id, "project": "hybrid", "kind": "boundary_distance"}[by]
    with database.write() as session:
        silence = {"run_id": None, "project": None, "kind": None, by: chosen}
        add_silence(session, **silence, until=told.now + HOUR, created_by="alice")
    told.raised(run_id, 2)
    told.raised(other, kind="nonfinite_loss", severity="critical")
    told.after(0)
    assert [title(body) for body in told.after(30)] == ["🔴 Critical: nonfinite loss: other (another)"]
    assert told.shown(run_id) == [("boundary_distance", "silenced", 2)]
    with database.read() as session:
        assert notifications_json(session, run_id)[0]["answer"].endswith("by alice")
    told.raised(run_id)  # it lasts
    assert told.after(HOUR - 31) == []
    (body,) = told.after(2)
    assert "boundary distance (warning)" in text(body)


@pytest.mark.parametrize("by", ["run_id", "project", "kind"])
def test_an_alert_that_lasts_is_sent_when_its_silence_is_ended_early(database: Database, receiver: Receiver, by: str) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    chosen = {"run_id": run_id, "project": "hybrid", "kind": "boundary_distance"}[by]
    silence = {"run_id": None, "project": None, "kind": None, by: chosen}
    with database.write() as session:
        add_silence(session, **silence, until=told.now + 24 * HOUR, created_by="alice")
    told.raised(run_id)
    told.after(0)
    assert told.after(30) == []
    told.raised(run_id)
    assert told.after(60) == []
    with database.write() as session:
        ended = session.scalars(select(SilenceRow)).one()
        end_silence(session, ended, told.now)
        session.delete(ended)
    assert [title(body) for body in told.after(0)] == ["🟠 Warning: boundary distance: best (hybrid)"]


def test_a_silence_also_keeps_events_from_programs(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"], "json")
    run_id, other = running(sqlite), running(sqlite, "other")
    with sqlite.write() as session:
        add_silence(session, run_id=run_id, project=None, kind=None, until=told.now + HOUR, created_by="")
    told.raised(run_id, 3)
    told.raised(other, 2)
    (body,) = told.after(0)
    assert [event["alert"]["run_id"] for event in body["events"]] == [other, other]
    assert told.shown(run_id) == [("boundary_distance", "silenced", 3)]
    assert told.shown(other) == [("boundary_distance", "sent", 2)]


def test_each_event_that_was_kept_back_names_its_own_silence(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"], "json")
    runs = {running(sqlite, name): name for name in ("alice", "bob")}
    with sqlite.write() as session:
        for run_id, name in runs.items():
            add_silence(session, run_id=run_id, project=None, kind=None, until=told.now + HOUR, created_by=name)
    for run_id in runs:
        told.raised(run_id)
    assert told.after(0) == []
    with sqlite.read() as session:
        for run_id, name in runs.items():
            assert notifications_json(session, run_id)[0]["answer"].endswith(f"by {name}")


def test_events_for_a_program_are_neither_delayed_nor_counted(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["alert"], "json")
    told.raised(running(sqlite), 120)
    bodies = told.after(0)
    assert [len(body["events"]) for body in bodies] == [50, 50, 20]
    assert set(bodies[0]) == {"webhook", "sent_at", "events"}


def test_a_reported_run_that_falls_silent_and_reports_again_is_told(database: Database, receiver: Receiver) -> None:
    told = Told(database, receiver, ["run.lost", "run.found", "run.finished"])
    run_id = running(database)
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.kind = "reported"
        session.flush()
        assert mark_lost(session, run_id, 1, run.beat, "no news for 60 s")
    told.after(0)
    (body,) = told.after(5)
    assert title(body) == "🔴 Run fell silent: best (hybrid)"
    assert "no news for 60 s" in text(body)
    with database.write() as session:
        found(session, session.get_one(Run, run_id))
    told.after(0)
    (body,) = told.after(30)
    assert title(body) == "🔵 Run reports again: best (hybrid)"
    with database.write() as session:
        lifecycle.finish(session, run_id, 1, "finished")
    told.after(0)
    (body,) = told.after(30)
    assert title(body) == "🔵 Run finished: best (hybrid)"
    assert told.after(HOUR) == []


def test_failed_tries_are_counted_and_what_was_given_up_is_sent_when_the_webhook_is_enabled_again(
    sqlite: Database, receiver: Receiver
) -> None:
    told = Told(sqlite, receiver, ["alert"])
    receiver.answers = [answer(500)]
    run_id = running(sqlite)
    told.raised(run_id)
    told.after(0)
    for _ in range(registry.MAX_FAILURES):
        told.after(30)
    with sqlite.read() as session:
        (shown,) = notifications_json(session, run_id)
        hook = session.get_one(Webhook, told.hook)
        assert (shown["state"], shown["tries"], shown["answer"]) == ("failed", registry.MAX_FAILURES, "it answered 500")
        assert (hook.failures, hook.last_answer) == (registry.MAX_FAILURES, "it answered 500")
    assert len(receiver.calls) == registry.MAX_FAILURES
    receiver.answers = [answer(200)]
    with sqlite.write() as session:
        session.get_one(Webhook, told.hook).failures = 0
        send_again(session, told.hook, told.now)
    assert len(told.after(0)) == 1
    with sqlite.read() as session:
        (shown,) = notifications_json(session, run_id)
        assert (shown["state"], shown["tries"]) == ("sent", registry.MAX_FAILURES + 1)


def test_events_are_counted_once_if_the_server_stops_before_the_message_is_sent(database: Database, receiver: Receiver) -> None:
    told = Told(database, receiver, ["alert"])
    run_id = running(database)
    told.raised(run_id, 7)
    told.after(0)
    other = Told.__new__(Told)  # another server of the same database, with the same webhook
    other.database, other.receiver, other.now, other.hook = database, receiver, told.now, told.hook
    allowed = frozenset({"127.0.0.1"})
    other.delivery = WebhookDelivery(database, token=None, allowed=allowed, base_url=BASE, clock=lambda: other.now)
    (body,) = other.after(30)
    assert "7 alerts" in title(body)
    assert told.after(30) == []
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(NotificationRow)) == 1


def test_a_run_in_the_trash_causes_no_message(sqlite: Database, receiver: Receiver) -> None:
    told = Told(sqlite, receiver, ["run"])
    run_id = submitted(sqlite)
    with sqlite.write() as session:
        lifecycle.request_cancel(session, run_id)
    told.after(0)
    with sqlite.write() as session:
        session.get_one(Run, run_id).deleted_at = told.now
    assert told.after(30) == []
    assert told.shown(run_id) == [("run.cancelled", "inhibited", 1)]
