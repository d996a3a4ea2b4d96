"""Sends one message to one webhook, and says what the receiver answered. HTTP goes through the guard (guarded_post); mail goes to
the mail server of the settings."""

from __future__ import annotations

import json
import re
import smtplib
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import policy
from email.errors import MessageError
from typing import Any
from urllib.parse import urlsplit

from server.database.models import Webhook
from server.settings import Settings
from server.webhooks import registry
from server.webhooks.formats import FORMATS, mail
from server.webhooks.guarded_post import Failed, Refused, post
from server.webhooks.messages import Message, one_line, sample_message
from stablessm_core import __version__

MAIL_SECONDS = 10.0  # maximum wait for each answer of the mail server
ACCEPTED = 250
_LOCAL, _DOMAIN = r"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*", r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
MAILTO = re.compile(rf"mailto:((?=[A-Za-z0-9][^@]{{0,63}}@[A-Za-z0-9][^@]{{0,252}}$){_LOCAL}@{_DOMAIN})")


@dataclass(frozen=True)
class Smtp:
    """The mail server: where it is, how the connection is encrypted (SMTP_TLS), and who sends."""

    host: str
    port: int
    tls: str
    user: str | None
    password: str | None
    sender: str


@dataclass(frozen=True)
class Outcome:
    """Whether the receiver accepted a message, and what it answered, in words."""

    accepted: bool
    answer: str


def smtp_of(settings: Settings) -> Smtp | None:
    """The mail server of the settings; None if there is none. Raises ValueError if the sender is missing or not an address."""
    if settings.smtp_host is None:
        return None
    if not settings.smtp_from or not MAILTO.fullmatch(f"mailto:{settings.smtp_from}"):
        raise ValueError("STABLESSM_SMTP_HOST is set: STABLESSM_SMTP_FROM must be an address such as stablessm@example.org")
    return Smtp(
        settings.smtp_host, settings.smtp_port, settings.smtp_tls, settings.smtp_user, settings.smtp_password, settings.smtp_from
    )


@dataclass(frozen=True)
class Transport:
    """Sends in the format of each webhook. token: the installation's token, from which signing keys are made. allowed: hosts
    that may be private. base_url: the address of this server in links."""

    token: str | None
    allowed: frozenset[str]
    base_url: str
    smtp: Smtp | None = None

    def send_events(self, webhook: Webhook, events: Sequence[Mapping[str, Any]]) -> Outcome:
        """Send events to a program as signed JSON."""
        body = json.dumps({"webhook": webhook.id, "sent_at": time.time(), "events": events}, allow_nan=False).encode()
        key = registry.signing_key(self.token, webhook.id, webhook.created_at)
        headers = {"Content-Type": "application/json", "X-StableSSM-Signature": registry.sign(key, body)}
        return self._post(webhook.url, body, headers)

    def send_message(self, webhook: Webhook, message: Message) -> Outcome:
        """Send a message to people."""
        if webhook.format == "email":
            return self._mail(webhook.url, message)
        body, headers = FORMATS[webhook.format](message)
        return self._post(webhook.url, body, headers)

    def send_test(self, webhook: Webhook) -> Outcome:
        """Send a test message, or a test event to a program."""
        if webhook.format == "json":
            return self.send_events(webhook, [{"event": "test", "url": f"{self.base_url}/webhooks"}])
        return self.send_message(webhook, sample_message(self.base_url))

    def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Outcome:
        try:
            status = post(url, body, {"User-Agent": f"stablessm/{__version__}", **headers}, self.allowed)
        except (Refused, Failed) as error:
            return Outcome(False, str(error))
        return Outcome(200 <= status < 300, f"it answered {status}")

    def _mail(self, url: str, message: Message) -> Outcome:
        address = recipient_of(url)
        if self.smtp is None or address is None:
            return Outcome(
                False, "there is no mail server (STABLESSM_SMTP_HOST)" if address else "the address is not an e-mail address"
            )
        try:
            return Outcome(True, _send_mail(self.smtp, message, address))
        except smtplib.SMTPResponseException as error:
            text = error.smtp_error if isinstance(error.smtp_error, str) else error.smtp_error.decode(errors="replace")
            return Outcome(False, f"the mail server answered {error.smtp_code} {one_line(text)}"[:300])
        except (OSError, smtplib.SMTPException, MessageError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
            return Outcome(False, f"the mail server: {one_line(reason)}"[:300])


def recipient_of(url: str) -> str | None:
    """The e-mail address of a `mailto:` URL; None if the URL is anything else."""
    found = MAILTO.fullmatch(url)
    return found[1] if found else None


def shown_url(url: str) -> str:
    """The URL without the part that may be secret: the path of a webhook's address is often its only secret."""
    if recipient_of(url):
        return url
    parts = urlsplit(url)
    secret = parts.path not in ("", "/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/" + ("..." if secret else "")


def _send_mail(smtp: Smtp, message: Message, recipient: str) -> str:
    """Send one mail and return the mail server's answer. Raises OSError, SMTPException."""
    context = ssl.create_default_context() if smtp.tls != "none" else None
    if smtp.tls == "tls":
        connection: smtplib.SMTP = smtplib.SMTP_SSL(smtp.host, smtp.port, timeout=MAIL_SECONDS, context=context)
    else:
        connection = smtplib.SMTP(smtp.host, smtp.port, timeout=MAIL_SECONDS)
    with connection:
        if smtp.tls == "starttls":
            connection.starttls(context=context)  # raises if the server does not offer it
        if smtp.user:
            connection.login(smtp.user, smtp.password or "")
        connection.ehlo_or_helo_if_needed()
        for code, answer in (connection.mail(smtp.sender), connection.rcpt(recipient)):
            if code not in (ACCEPTED, 251):  # 251: the server forwards the mail
                raise smtplib.SMTPResponseException(code, answer)
        code, answer = connection.data(mail(message, smtp.sender, recipient).as_bytes(policy=policy.SMTP))
        if code != ACCEPTED:
            raise smtplib.SMTPResponseException(code, answer)
        return f"the mail server answered {code} {one_line(answer.decode(errors='replace'))}"[:300]
