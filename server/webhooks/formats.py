"""Turns a message into the body and headers that a service expects: Slack, Discord, Teams, ntfy, or mail.

Names of runs and texts of alerts come from users. They must not become markup, mentions, links or headers, so every format
escapes or encodes them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any

from server.webhooks.messages import Message, one_line

COLORS = {"critical": 0xC62828, "warning": 0xB26A00, "info": 0x1565C0}
SIGNS = {"critical": "🔴", "warning": "🟠", "info": "🔵"}
NTFY_PRIORITIES = {"critical": "5", "warning": "4", "info": "3"}
NTFY_TAGS = {"critical": "rotating_light", "warning": "warning", "info": "information_source"}
# Discord and Teams read these characters as markup; a backslash before them makes them plain
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~])")

Sent = tuple[bytes, dict[str, str]]  # a body and its headers


def slack(message: Message) -> Sent:
    """The body of a Slack incoming webhook, with blocks and the same text for notifications."""
    section = "\n".join(f"• {one_line(line)}" for line in message.lines)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(f"{SIGNS[message.severity]} {message.title}", 150)}},
        {"type": "section", "text": {"type": "plain_text", "text": _cut(section, 3000)}},
    ]
    if message.facts:
        fields = [{"type": "plain_text", "text": _cut(f"{name}\n{one_line(value)}", 2000)} for name, value in message.facts]
        blocks.append({"type": "section", "fields": fields})
    button = {"type": "button", "text": {"type": "plain_text", "text": message.link}, "url": message.url}
    blocks.append({"type": "actions", "elements": [button]})
    text = _cut(f"{SIGNS[message.severity]} {_slack(message.title)}", 3000)
    return _json({"text": text, "mrkdwn": False, "blocks": blocks})


def discord(message: Message) -> Sent:
    """The body of a Discord webhook: one embed, which mentions nobody."""
    embed = {
        "title": _cut(one_line(message.title), 256),
        "description": _cut("\n".join(f"• {_plain(line)}" for line in message.lines), 4096),
        "url": message.url,
        "color": COLORS[message.severity],
        "fields": [{"name": name, "value": _cut(_plain(value), 1024), "inline": True} for name, value in message.facts],
    }
    return _json({"content": "", "embeds": [embed], "allowed_mentions": {"parse": []}})


def teams(message: Message) -> Sent:
    """The body of a Teams workflow: an adaptive card."""
    style = {"critical": "attention", "warning": "warning", "info": "accent"}[message.severity]
    blocks: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": _plain(message.title), "weight": "bolder", "size": "medium", "wrap": True, "color": style},
        *({"type": "TextBlock", "text": _plain(line), "wrap": True} for line in message.lines),
    ]
    if message.facts:
        blocks.append({"type": "FactSet", "facts": [{"title": name, "value": _plain(value)} for name, value in message.facts]})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
        "actions": [{"type": "Action.OpenUrl", "title": message.link, "url": message.url}],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return _json({"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]})


def ntfy(message: Message) -> Sent:
    """The text of an ntfy message. Its title, priority and link are headers."""
    facts = [f"{name}: {value}" for name, value in message.facts]
    body = _cut("\n".join([*message.lines, *facts]), 3500)  # ntfy turns more than 4,096 bytes into an attachment
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Title": header(_cut(message.title, 200)),
        "Priority": NTFY_PRIORITIES[message.severity],
        "Tags": NTFY_TAGS[message.severity],
        "Click": message.url,
    }
    return body.encode()[:4000].decode(errors="ignore").encode(), headers  # no part of a character at the end


def mail(message: Message, sender: str, recipient: str) -> EmailMessage:
    """The mail, in plain text. The mail says that a program sent it, so that no program answers it."""
    sent = EmailMessage()
    sent["Subject"] = f"[StableSSM] {one_line(message.title)}"
    sent["From"] = Address("StableSSM", addr_spec=sender)
    sent["To"] = Address(addr_spec=recipient)
    sent["Date"] = formatdate()
    sent["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    sent["Auto-Submitted"] = "auto-generated"
    facts = [f"{name}: {value}" for name, value in message.facts]
    text = "\n".join([*message.lines, "", *facts, "", f"{message.link}: {message.url}", ""])
    sent.set_content(text, cte="quoted-printable")  # for mail servers that take ASCII only
    return sent


FORMATS: dict[str, Callable[[Message], Sent]] = {"slack": slack, "discord": discord, "teams": teams, "ntfy": ntfy}


def header(text: str) -> str:
    """The text as the value of an HTTP header: unchanged if it is ASCII, else encoded as RFC 2047 states."""
    text = one_line(text)
    return text if text.isascii() else f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _json(body: dict[str, Any]) -> Sent:
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), {"Content-Type": "application/json; charset=utf-8"}


def _slack(text: str) -> str:
    """The text without meaning for Slack: neither mentions nor links."""
    return one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    """The text without meaning in Markdown."""
    return _MARKUP.sub(r"\\\1", one_line(text))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
