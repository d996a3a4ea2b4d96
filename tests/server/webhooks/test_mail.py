"""Mail goes through a real SMTP server: encrypted and signed in as the settings say, and refusals are told in its words."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from email import message_from_string, policy
from pathlib import Path

import pytest

from server.database.connection import Database
from server.database.models import Webhook
from server.http.app import create_app
from server.webhooks import delivery
from server.webhooks.messages import Message
from server.webhooks.transport import Smtp, Transport, recipient_of
from tests.server.http_service import BODY, application, client_of, error_of, settings
from tests.server.mail_server import MailServer, mail_server
from tests.server.receiver import certificate

pytestmark = [pytest.mark.slow]

MESSAGE = Message(
    "Run failed: best\r\nBcc: x@example.org", "critical", ("no memory é",), (("Run", "best"),), "https://m/1", "Open"
)
ALICE = Webhook(id=1, url="mailto:alice@example.org", format="email", created_at=1.0)


def smtp(mail: MailServer, tls: str = "none", user: str | None = None, password: str | None = None) -> Smtp:
    return Smtp("localhost", mail.port, tls, user, password, "stablessm@example.org")


def transport(mail: Smtp | None) -> Transport:
    return Transport(None, frozenset(), "https://m", mail)


def test_a_message_is_sent_as_mail_and_the_answer_is_told() -> None:
    with mail_server() as mail:
        outcome = transport(smtp(mail)).send_message(ALICE, MESSAGE)
    assert (outcome.accepted, outcome.answer) == (True, "the mail server answered 250 queued as 17")
    ((sender, recipient, text),) = mail.mails
    assert (sender, recipient) == ("stablessm@example.org", "alice@example.org")
    read = message_from_string(text, policy=policy.default)
    assert read["Subject"] == "[StableSSM] Run failed: best Bcc: x@example.org"
    assert read["Bcc"] is None
    assert "no memory é" in read.get_content()
    assert text.isascii()


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_mail_is_encrypted_and_signed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: str) -> None:
    file, context = certificate(tmp_path, "localhost")
    with mail_server(context=context, from_the_start=tls == "tls", login=("me", "secret")) as mail:
        untrusted = transport(smtp(mail, tls, "me", "secret")).send_message(ALICE, MESSAGE)
        assert "certificate" in untrusted.answer.lower()
        assert mail.mails == []
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert transport(smtp(mail, tls, "me", "secret")).send_message(ALICE, MESSAGE).accepted
        assert (mail.encrypted, mail.signed_in) == (True, True)
        wrong = transport(smtp(mail, tls, "me", "wrong-password")).send_message(ALICE, MESSAGE)
    assert (wrong.accepted, wrong.answer) == (False, "the mail server answered 535 wrong password")
    assert len(mail.mails) == 1


def test_mail_is_not_sent_in_the_clear_if_the_server_offers_no_encryption() -> None:
    with mail_server() as mail:
        outcome = transport(smtp(mail, "starttls")).send_message(ALICE, MESSAGE)
    assert not outcome.accepted
    assert "STARTTLS" in outcome.answer
    assert mail.mails == []


def test_a_refused_recipient_and_an_absent_server_are_failures_with_a_reason() -> None:
    with mail_server(refused={"alice@example.org"}) as mail:
        outcome = transport(smtp(mail)).send_message(ALICE, MESSAGE)
    assert (outcome.accepted, outcome.answer) == (False, "the mail server answered 550 no such user")
    outcome = transport(replace(smtp(mail), host="127.0.0.1")).send_message(ALICE, MESSAGE)
    assert (outcome.accepted, outcome.answer) == (False, "the mail server: Connection refused")
    assert transport(None).send_message(ALICE, MESSAGE).answer == "there is no mail server (STABLESSM_SMTP_HOST)"


@pytest.mark.parametrize(
    "url",
    ["mailto:", "mailto:alice", "mailto:a@b.org,c@d.org", "mailto:a@b.org?bcc=c@d.org", "mailto:a@b.org\r\nX: y",
     "mailto:<a@b.org>", "mailto:a b@c.org", "mailto:@b.org", "https://a@b.org/", 'mailto:"a"@b.org',
     "mailto:a@b.", "mailto:a@b..org", "mailto:a..b@c.org", "mailto:a.@b.org", f"mailto:{'a' * 65}@b.org"],
)  # fmt: skip
def test_only_one_plain_address_is_an_address(sqlite_url: str, tmp_path: Path, url: str) -> None:
    assert recipient_of(url) is None
    with client_of(application(sqlite_url, tmp_path, smtp_host="localhost", smtp_from="a@example.org")) as client:
        assert error_of(client.post("/api/webhooks", json={"url": url, "events": ["run"]}), 422)["field"] == "url"


def test_a_mail_server_without_a_sender_is_refused_at_the_start(sqlite_url: str, tmp_path: Path) -> None:
    for sender in (None, "nobody", "a@b.org\r\nBcc: x"):
        with pytest.raises(ValueError, match="STABLESSM_SMTP_FROM must be an address"):
            create_app(settings(sqlite_url, tmp_path, smtp_host="localhost", smtp_from=sender))


def test_without_a_mail_server_no_mail_address_is_accepted(sqlite_url: str, tmp_path: Path) -> None:
    with client_of(application(sqlite_url, tmp_path)) as client:
        error = error_of(client.post("/api/webhooks", json={"url": "mailto:a@b.org", "events": ["run"]}), 422)
        assert "STABLESSM_SMTP_HOST" in error["allowed"]


def test_the_end_of_a_run_arrives_as_mail_and_in_the_history_of_the_run(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.1)
    with mail_server() as mail:
        more = {"smtp_host": "localhost", "smtp_port": mail.port, "smtp_tls": "none", "smtp_from": "stablessm@example.org"}
        app = application(sqlite.url, tmp_path, public_url="https://monitor.example.org/", notify_seconds=0.1, **more)
        with client_of(app) as client:
            made = client.post("/api/webhooks", json={"url": "mailto:alice@example.org", "events": ["run"]}).json()
            assert (made["format"], made["url"]) == ("email", "mailto:alice@example.org")
            assert client.post("/api/webhooks/1/test").json()["answer"] == "the mail server answered 250 queued as 17"
            run = client.post("/api/runs", json={**BODY, "name": "best"}).json()["id"]
            client.post(f"/api/runs/{run}/cancel")
            wait(lambda: len(mail.mails) == 2)
            text = message_from_string(mail.mails[1][2], policy=policy.default).get_content()
            assert "The run was cancelled after step 0: cancelled while queued" in text
            assert "Open the run: https://monitor.example.org/runs/1" in text
            wait(lambda: client.get(f"/api/runs/{run}/history").json()["notifications"][0]["state"] == "sent")
            assert "mailto:alice@example.org" in client.get(f"/runs/{run}").text


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
