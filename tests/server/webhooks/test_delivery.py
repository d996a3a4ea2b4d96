"""Who tells the webhooks: one holder of a lock that outlives its last call, and what is switched off is not called."""

from __future__ import annotations

import threading
import time

import pytest

from server.database.connection import Database
from server.database.models import Webhook
from server.runs import lifecycle
from server.webhooks import delivery, guarded_post, registry
from server.webhooks.delivery import DeliveryLock, WebhookDelivery
from tests.server.receiver import receiving
from tests.server.recording import submitted


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.1)
    for place, name in ((delivery, "CLOSE_SECONDS"), (guarded_post, "SECONDS")):  # a busy machine may make a call late
        monkeypatch.setattr(place, name, 100.0)


def hooked(database: Database, port: int) -> int:
    """A webhook to which the end of a run is due."""
    with database.write() as session:
        hook = registry.new_webhook(session, f"http://127.0.0.1:{port}/", ["run"]).id
    run_id = submitted(database)
    with database.write() as session:
        lifecycle.request_cancel(session, run_id)
    return hook


def test_the_lock_has_one_holder(database: Database) -> None:
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


def test_the_lock_is_given_up_after_the_calls_in_progress(sqlite: Database) -> None:
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
        assert not other.take()  # it would tell the same once more
        receiver.held.set()
        closing.join()
        assert other.take()
        other.release()
        with sqlite.read() as session:
            assert session.get_one(Webhook, hook).cursor["ended"]
        assert len(receiver.calls) == 1


def test_a_webhook_that_was_just_switched_off_is_not_called(sqlite: Database) -> None:
    with receiving() as receiver:
        hook = hooked(sqlite, receiver.port)
        webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset({"127.0.0.1"}), base_url="")

        def fails(times: int) -> None:
            with sqlite.write() as session:
                session.get_one(Webhook, hook).failures = times

        fails(registry.MAX_FAILURES)
        assert not webhook_delivery._deliver(hook)  # it was found active a moment ago
        assert receiver.calls == []
        fails(registry.MAX_FAILURES - 1)
        assert webhook_delivery._deliver(hook)
        assert len(receiver.calls) == 1


def test_delivery_ends_with_the_server(sqlite: Database) -> None:
    webhook_delivery = WebhookDelivery(sqlite, token=None, allowed=frozenset(), base_url="")
    webhook_delivery.start()
    webhook_delivery.close()
    assert not webhook_delivery._thread.is_alive()
