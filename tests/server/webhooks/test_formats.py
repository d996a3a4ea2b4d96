"""The exact body and headers in each format. Names of runs become neither markup nor mentions nor headers."""

from __future__ import annotations

import json
from email import message_from_string, policy

import pytest

from server.database.models import NotificationRow, Run
from server.webhooks.formats import FORMATS, header, mail
from server.webhooks.messages import CHANGES, MAX_LINE, message_of
from stablessm_core.telemetry.statuses import FINAL
from stablessm_core.verdict import CAUSES, LABELS

BASE = "https://monitor.example.org"
EVIL = "<!channel> @everyone *b* [x](http://evil) \r\nX-Evil: 1 🔥"


def run(number: int = 7, **fields: object) -> Run:
    values = {"id": number, "name": "best-0.01", "project": "hybrid", "status": "diverged", "step": 58, "cause": None}
    return Run(**values | fields)


def row(run_id: int = 7, kind: str = "nonfinite_loss", **fields: object) -> NotificationRow:
    values = {
        "id": 1, "run_id": run_id, "kind": kind, "severity": "critical", "count": 1, "first_at": 1763712003.0,
        "last_at": 1763712031.0, "step": 58, "message": "the training loss is NaN", "repeated": 0,
    }  # fmt: skip
    return NotificationRow(**values | fields)


MESSAGE = message_of([row(count=1000), row(id=2, kind="run.diverged", message="the loss became NaN")],
                     [run(cause="eigenvalue_overflow")], BASE)  # fmt: skip
TITLE = "Run diverged: best-0.01 (hybrid)"
LINES = [
    "The run diverged after step 58: the loss became NaN. Cause: an unstable eigenvalue overflowed",
    "nonfinite loss (critical), 1,000 alerts between 2025-11-21 08:00:03 UTC and 2025-11-21 08:00:31 UTC, the newest at step 58: "
    "the training loss is NaN",
]
FACTS = [("Run", "best-0.01 (#7)"), ("Project", "hybrid"), ("Status", "diverged, 58 steps done")]
URL = f"{BASE}/runs/7"


def test_a_message_names_the_run_the_project_the_cause_and_the_page() -> None:
    assert (MESSAGE.title, MESSAGE.severity, list(MESSAGE.lines), list(MESSAGE.facts)) == (TITLE, "critical", LINES, FACTS)
    assert (MESSAGE.url, MESSAGE.link) == (URL, "Open the run")


def test_the_body_for_slack() -> None:
    body, headers = FORMATS["slack"](MESSAGE)
    assert headers == {"Content-Type": "application/json; charset=utf-8"}
    assert json.loads(body) == {
        "text": f"🔴 {TITLE}",
        "mrkdwn": False,
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": f"🔴 {TITLE}"}},
            {"type": "section", "text": {"type": "plain_text", "text": "\n".join(f"• {line}" for line in LINES)}},
            {"type": "section", "fields": [{"type": "plain_text", "text": f"{name}\n{value}"} for name, value in FACTS]},
            {"type": "actions",
             "elements": [{"type": "button", "text": {"type": "plain_text", "text": "Open the run"}, "url": URL}]},
        ],
    }  # fmt: skip


def test_the_body_for_discord() -> None:
    body, headers = FORMATS["discord"](MESSAGE)
    assert headers == {"Content-Type": "application/json; charset=utf-8"}
    assert json.loads(body) == {
        "content": "",
        "embeds": [{
            "title": TITLE, "description": "\n".join(f"• {line}" for line in LINES), "url": URL, "color": 0xC62828,
            "fields": [{"name": "Run", "value": r"best-0.01 (\#7)", "inline": True},
                       {"name": "Project", "value": "hybrid", "inline": True},
                       {"name": "Status", "value": "diverged, 58 steps done", "inline": True}],
        }],
        "allowed_mentions": {"parse": []},
    }  # fmt: skip


def test_the_body_for_teams() -> None:
    body, headers = FORMATS["teams"](MESSAGE)
    assert headers == {"Content-Type": "application/json; charset=utf-8"}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": TITLE, "weight": "bolder", "size": "medium", "wrap": True, "color": "attention"},
            *({"type": "TextBlock", "text": line, "wrap": True} for line in LINES),
            {"type": "FactSet", "facts": [{"title": "Run", "value": r"best-0.01 (\#7)"}, {"title": "Project", "value": "hybrid"},
                                          {"title": "Status", "value": "diverged, 58 steps done"}]},
        ],
        "actions": [{"type": "Action.OpenUrl", "title": "Open the run", "url": URL}],
    }  # fmt: skip
    kind = "application/vnd.microsoft.card.adaptive"
    assert json.loads(body) == {
        "type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}],
    }  # fmt: skip


def test_the_body_and_headers_for_ntfy() -> None:
    body, headers = FORMATS["ntfy"](MESSAGE)
    assert body.decode() == "\n".join([*LINES, *(f"{name}: {value}" for name, value in FACTS)])
    assert headers == {
        "Content-Type": "text/plain; charset=utf-8", "Title": TITLE, "Priority": "5", "Tags": "rotating_light", "Click": URL,
    }  # fmt: skip


def test_the_text_of_a_mail() -> None:
    sent = mail(MESSAGE, "stablessm@example.org", "alice@example.org")
    assert sent["Subject"] == f"[StableSSM] {TITLE}"
    assert (str(sent["From"]), str(sent["To"])) == ("StableSSM <stablessm@example.org>", "alice@example.org")
    assert sent["Auto-Submitted"] == "auto-generated"
    facts = [f"{name}: {value}" for name, value in FACTS]
    assert sent.get_content().splitlines() == [*LINES, "", *facts, "", f"Open the run: {URL}"]


def test_a_hostile_name_is_neither_a_mention_nor_a_link_nor_a_header() -> None:
    message = message_of([row(message=EVIL)], [run(name=EVIL, project=EVIL)], BASE)
    slack, discord, teams = (json.loads(FORMATS[name](message)[0]) for name in ("slack", "discord", "teams"))
    assert '"mrkdwn"' not in json.dumps(slack["blocks"])
    assert (slack["mrkdwn"], "<" in slack["text"]) == (False, False)
    assert discord["allowed_mentions"] == {"parse": []}
    assert r"\[x\](http" in discord["embeds"][0]["description"]
    assert r"\[x\](http" in teams["attachments"][0]["content"]["body"][1]["text"]
    headers = FORMATS["ntfy"](message)[1]
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    sent = mail(message, "stablessm@example.org", "alice@example.org").as_bytes(policy=policy.SMTP).decode()
    read = message_from_string(sent, policy=policy.default)
    assert "X-Evil" not in read
    assert "🔥" in read["Subject"]


@pytest.mark.parametrize("format", [*FORMATS, "email"])
def test_the_largest_message_keeps_within_the_limits_of_each_service(format: str) -> None:
    runs = [run(number, name="n" * 200, project="p" * 200) for number in range(1, 301)]
    message = message_of([row(number, id=number, message="m" * 2000) for number in range(1, 301)], runs, BASE)
    assert len(message.lines) == 21
    assert message.lines[-1] == "and 280 more, see the page"
    assert message.title == "300 events of 300 runs"
    assert max(map(len, message.lines)) <= MAX_LINE
    if format == "email":
        assert len(mail(message, "a@example.org", "b@example.org").as_bytes(policy=policy.SMTP)) < 50_000
        return
    body = FORMATS[format](message)[0]
    if format == "slack":
        assert len(json.loads(body)["blocks"][1]["text"]["text"]) <= 3000
    elif format == "discord":
        assert len(json.loads(body)["embeds"][0]["description"]) <= 4096
    else:
        assert len(body) < {"teams": 28_000, "ntfy": 4096}[format]


def test_a_message_about_one_run_says_how_many_lines_it_leaves_out() -> None:
    message = message_of([row(id=number, kind=f"kind {number}") for number in range(25)], [run()], BASE)
    assert (len(message.lines), message.lines[-1]) == (21, "and 5 more, see the page")


def test_an_unknown_cause_is_not_given_as_a_cause() -> None:
    (line,) = message_of([row(kind="run.diverged", message="the loss became NaN")], [run(cause="unknown")], BASE).lines
    assert line == "The run diverged after step 58: the loss became NaN"


def test_a_long_text_for_ntfy_ends_with_a_whole_character() -> None:
    message = message_of([row(id=number, message="中" * 400) for number in range(15)], [run(name="x")], BASE)
    body = FORMATS["ntfy"](message)[0]
    assert 3990 < len(body) <= 4000
    assert body.decode()[-1] in "中…"


def test_a_text_beyond_ascii_is_encoded_in_a_header() -> None:
    assert header("a\r\nb") == "a b"
    assert header("é") == "=?UTF-8?B?w6k=?="


def test_every_cause_and_every_end_of_a_run_has_words() -> None:
    assert set(LABELS) == set(CAUSES)
    assert {f"run.{status}" for status in FINAL} | {"run.lost", "run.found"} == set(CHANGES)
