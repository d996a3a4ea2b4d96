"""A run's output reaches the database while it trains and after a crash: in order, bounded, without secrets and paths."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import LogRow
from server.lifecycle import transitions as lifecycle
from server.lifecycle.logs import KEPT_FIRST, KEPT_LAST, PIECE, append_log, read_log
from tests.server.recording import CPU, claimed
from worker.redaction import Redactor
from worker.run_log import LogShipper

pytestmark = pytest.mark.both_engines

SECRET = "s3cret-s3cret-s3cret"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "log.txt"


def shipper(database: Database, claim: lifecycle.Claim, log_file: Path) -> LogShipper:
    log_file.parent.mkdir(exist_ok=True)
    shown = Redactor(log_file.parent, log_file.parent / "data")
    return LogShipper(database, claim.run_id, claim.attempt, log_file, shown)


def stored(database: Database, run_id: int, after: int = 0) -> str:
    with database.read() as session:
        return "".join(f"[{piece.cut}]" * (piece.cut > 0) + piece.text for piece in read_log(session, run_id, after))


def test_log_lines_are_stored_whole_in_order_and_once(database: Database, log_file: Path) -> None:
    claim = claimed(database)
    ship = shipper(database, claim, log_file)
    ship.ship()  # there is no log yet
    for text, expected in (("one\ntw", "one\n"), ("o\n", "one\ntwo\n"), ("three", "one\ntwo\n")):
        with log_file.open("a") as file:
            file.write(text)
        ship.ship()
        assert stored(database, claim.run_id) == expected
    ship.ship(to_the_end=True)
    ship.ship(to_the_end=True)
    assert stored(database, claim.run_id) == "one\ntwo\nthree\n"
    assert stored(database, claim.run_id, after=6) == "o\nthree\n"


def test_storing_the_same_log_text_twice_changes_nothing(database: Database) -> None:
    claim = claimed(database)
    for _ in range(2):
        with database.write() as session:
            assert append_log(session, claim.run_id, claim.attempt, 0, "one\n") == 4
    assert stored(database, claim.run_id) == "one\n"


def test_a_later_attempt_has_its_own_log_and_the_earlier_attempt_can_no_longer_write(database: Database, log_file: Path) -> None:
    first = claimed(database)
    log_file.parent.mkdir()
    log_file.write_text("of the first\n")
    shipper_of_first = LogShipper(database, first.run_id, 1, Path("/nowhere"), Redactor(log_file.parent, log_file.parent))
    shipper_of_first._path, shipper_of_first._read_to = log_file, 0
    shipper_of_first.ship()
    with database.write() as session:
        lifecycle.release(session, first.run_id, 1, "drained")
    with log_file.open("a") as file:
        file.write("the last words of the first\n")
    shipper_of_first.ship()  # no other worker has the run yet
    with database.write() as session:
        second = lifecycle.claim(session, "other", CPU)
    assert second is not None
    ship = shipper(database, second, log_file)
    with log_file.open("a") as file:
        file.write("of the second\n")
    with pytest.raises(LeaseLost):
        shipper_of_first.ship()
    ship.ship()
    with database.read() as session:
        pieces = read_log(session, first.run_id)
    assert [(piece.attempt, piece.text) for piece in pieces] == [
        (1, "of the first\nthe last words of the first\n"),
        (2, "of the second\n"),
    ]


@pytest.mark.slow
def test_a_long_log_keeps_its_beginning_and_end_and_counts_the_missing_characters(database: Database, log_file: Path) -> None:
    claim = claimed(database)
    ship = shipper(database, claim, log_file)
    with log_file.open("w") as file:  # in bursts, so that stored pieces are deleted again
        for number in range(100_000):
            file.write(f"line {number}\n")
            if number % 9_000 == 0:
                file.flush()
                ship.ship()
    ship.ship(to_the_end=True)
    text = stored(database, claim.run_id)
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 99998\nline 99999\n")
    assert KEPT_FIRST + KEPT_LAST <= len(text) <= KEPT_FIRST + KEPT_LAST + 4 * PIECE
    assert text.count("[") == 1, "the missing characters must be counted in one place"
    before, _, rest = text.partition("[")
    assert before.endswith("\n") or before[-20:].rsplit("\n", 1)[-1].startswith("line ")
    missing = int(rest.partition("]")[0])
    assert missing + len(text) - len(f"[{missing}]") == log_file.stat().st_size
    with database.read() as session:
        assert session.query(LogRow).count() <= (KEPT_FIRST + KEPT_LAST) // PIECE + 6


def test_a_very_long_line_is_shortened_and_counts_the_missing_characters(database: Database, log_file: Path) -> None:
    claim = claimed(database)
    ship = shipper(database, claim, log_file)
    log_file.write_bytes(b"x" * 500_000 + b"\nand then\n\xff\x00\x1b[31mred\x1b[0m\rdone\n")
    ship.ship()
    text = stored(database, claim.run_id)
    assert "characters more" in text
    assert text.endswith("and then\n\ufffd\ufffdred\ndone\n")
    assert len(text) < 2 * PIECE


def test_no_log_text_is_lost_while_the_database_is_unreachable(sqlite_url: str, log_file: Path) -> None:
    from tests.worker.station import away

    database = Database(sqlite_url)
    claim = claimed(database)
    ship = shipper(database, claim, log_file)
    ship.start()
    log_file.write_text("before\n")
    with away(database), log_file.open("a") as file:
        file.write("meanwhile\n")
    ship.finish(wait=120)
    assert stored(database, claim.run_id) == "before\nmeanwhile\n"
    database.close()


def test_the_stored_log_contains_no_secret_and_no_absolute_path(tmp_path: Path) -> None:
    state = tmp_path / "state"
    shown = Redactor(state, state / "data")
    packages, home = sysconfig.get_path("purelib"), os.path.expanduser("~")
    planted = {
        f"cannot read {state}/runs/3/log.txt": "cannot read runs/3/log.txt",
        f"'{state}' is full": "'state' is full",
        f"{state}/data/mnist/train is damaged": "STABLESSM_DATA/mnist/train is damaged",
        f'  File "{packages}/torch/nn/modules/linear.py", line 3': '  File "torch/nn/modules/linear.py", line 3',
        f"-L{packages}/lib {home}/x.py": "-Llib ~/x.py",
        "open('/srv/secret place/x/y.bin')": "open('…/secret place/x/y.bin')",
        "at /srv/team/alice/y.bin, /srv/x/: no": "at …/y.bin, …/: no",
        f"sqlite:///{state}/stablessm.db": "sqlite:///stablessm.db",
        "file:///srv/team/x.py and sqlite:////srv/team/y.db": "file://…/x.py and sqlite://…/y.db",
        f"postgresql+psycopg://me:{SECRET}@db:5432/stablessm": "postgresql+psycopg://me:...@db:5432/stablessm",
        f"Authorization: Bearer {SECRET}": "Authorization: Bearer ...",
        "//srv//team/x.py": "…/x.py",
    }
    for stays in ("http://host:8000/api/runs/3", "and/or 1/2/3", "runs/3/log.txt ./a/b ../c/d", "4 / 2 / 1"):
        planted[stays] = stays
    for given, expected in planted.items():
        assert shown.redact(given) == expected
        assert shown.redact(expected) == expected
    line = json.dumps(
        {
            "time": "T",
            "level": "error",
            "logger": "a.b",
            "run": 1,
            "attempt": 2,
            "step": 7,
            "msg": f"{state}/x",
            "trace": f"T\n {state}/y",
        }
    )
    assert shown.redact_log_line(line) == "T error a.b: x step=7\nT\n y"
    assert shown.redact_values({"a": [f"{state}/x", 1, None]}) == {"a": ["x", 1, None]}
