"""Each log record is one line, whatever its text, and a repeated cause is counted instead of repeated."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from server.logs import REPEAT_SECONDS, CountingHandler, LineFormatter

BREAKS = "a\nb\r\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logger(form: str = "json") -> tuple[logging.Logger, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    handler = CountingHandler(out, clock)
    handler.setFormatter(LineFormatter({}, form))
    log = logging.Logger("x")
    log.addHandler(handler)
    return log, out, clock


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_record_is_one_line_even_with_line_breaks_and_a_traceback(form: str) -> None:
    log, out, _ = logger(form)
    try:
        raise ValueError(BREAKS)
    except ValueError:
        log.exception("it says %s", BREAKS, extra={"name_of_run": BREAKS})
    text = out.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1, text
    assert "Traceback (most recent call last)" in text
    if form == "json":
        record = json.loads(text)
        assert record["msg"] == f"it says {BREAKS}"
        assert record["name_of_run"] == BREAKS
        assert "\nValueError: a\nb" in record["trace"]


def test_a_repeated_warning_is_written_once_and_then_with_its_count() -> None:
    log, out, clock = logger()
    for _ in range(100):
        log.warning("no heartbeat, database away: %s", "refused")
        clock.now += 0.1
    log.warning("no heartbeat, database away: %s", "timeout")
    log.info("training")
    log.info("training")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["msg"].rpartition(" ")[2] for line in lines] == ["refused", "timeout", "training", "training"]
    clock.now += REPEAT_SECONDS
    log.info("claimed")
    counted = [json.loads(line) for line in out.getvalue().splitlines()][len(lines) :]
    assert [(line["msg"].rpartition(" ")[2], line.get("repeated")) for line in counted] == [("refused", 99), ("claimed", None)]


def test_the_same_text_about_another_run_or_error_is_another_cause() -> None:
    log, out, _ = logger()
    for run in (1, 2, 1):
        log.warning("lease lost", extra={"run": run})
    for error in (KeyError("a"), KeyError("b"), KeyError("a")):
        try:
            raise error
        except KeyError:
            log.exception("failed")
    assert len(out.getvalue().splitlines()) == 4


def test_open_counts_are_written_when_the_process_ends() -> None:
    program = """
import logging, threading
from server.logs import start_logging
start_logging()
for _ in range(5):
    logging.getLogger("x").error("away")
threading.Thread(target=lambda: 1 / 0).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["msg"], line.get("repeated")) for line in lines] == [
        ("away", None), ("uncaught exception: ZeroDivisionError", None), ("away", 4),
    ]  # fmt: skip
