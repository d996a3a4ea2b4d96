"""One server process delivers webhooks and holds a lock until its last call has ended. Disabled webhooks are not called."""

from __future__ import annotations

import threading
import time

import pytest

from server.database.connection import Database
from server.database.models import Webhook
from server.lifecycle import transitions as lifecycle
from server.webhooks import delivery, guarded_post, registry
from server.webhooks.delivery import DeliveryLock, WebhookDelivery
from tests.server.receiver import receiving
from tests.server.recording import submitted

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.1)
    # Longer time limits, because calls may be late on a busy machine.
    for place, name in ((delivery, "CLOSE_SECONDS"), (guarded_post, "SECONDS")):
        monkeypatch.setattr(place, name, 100.0)


def hooked(database: Database, port: int) -> int:
    """Create a webhook and end a run, so that a delivery is due; returns the webhook's id."""
    with database.write() as session:
        hook = registry.new_webhook(session, f"http://127.0.0.1:{port}/", ["run"]).id
    run_id = submitted(database)
    with database.write() as session:
        lifecycle.request_cancel(session, run_id)
    return hook


def test_only_one_process_holds_the_delivery_lock(database: Database) -> None:
    other = Database(database.url)
    one, two = DeliveryLock(database), DeliveryLock(other)
    assert one.take()
    assert one.take()
    assert not two.take()
    one.release()
    assert two.take()
    assert not one.take()
    two.release()
    other.close()


def test_the_delivery_lock_is_released_after_the_calls_in_progress(sqlite: Database) -> None:
    with receiving() as receiver:
        receiver.held.clear()
        hook = hooked(sqlite, receiver.port)
        webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset({"127.0.0.1"}), base_url="")
        webhook_delivery.start()
        deadline = time.monotonic() + 60
        while not receiver.calls:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        closing = threading.Thread(target=webhook_delivery.close)
        closing.start()
        closing.join(0.5)
        other = DeliveryLock(sqlite)
        assert not other.take()  # a second process would deliver the same event again
        receiver.held.set()
        closing.join()
        assert other.take()
        other.release()
        with sqlite.read() as session:
            assert session.get_one(Webhook, hook).cursor["ended"]
        assert len(receiver.calls) == 1


def test_a_webhook_that_was_just_disabled_is_not_called(sqlite: Database) -> None:
    with receiving() as receiver:
        hook = hooked(sqlite, receiver.port)
        webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset({"127.0.0.1"}), base_url="")

        def fails(times: int) -> None:
            with sqlite.write() as session:
                session.get_one(Webhook, hook).failures = times

        fails(registry.MAX_FAILURES)
        assert not webhook_delivery._deliver(hook)  # the webhook was still active when the delivery began
        assert receiver.calls == []
        fails(registry.MAX_FAILURES - 1)
        assert webhook_delivery._deliver(hook)
        assert len(receiver.calls) == 1


def test_delivery_ends_with_the_server(sqlite: Database) -> None:
    webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset(), base_url="")
    webhook_delivery.start()
    webhook_delivery.close()
    assert not webhook_delivery._thread.is_alive()


def test_a_fault_during_a_delivery_is_logged_and_the_webhook_pauses(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as receiver:
        hook = hooked(sqlite, receiver.port)
        webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset({"127.0.0.1"}), base_url="")

        def faulty(*_: object) -> None:
            raise KeyError("a fault")

        monkeypatch.setattr(registry, "due", faulty)
        assert not webhook_delivery._deliver(hook)
        assert "a fault" in caplog.text
        assert webhook_delivery._next[hook] > time.monotonic()
        assert receiver.calls == []
