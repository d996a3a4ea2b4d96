"""A run's log, checkpoints and history on the command line, with a running server."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import update

from server.cli.main import main
from server.database.connection import Database
from server.database.models import Run, Transition
from server.lifecycle import transitions as lifecycle
from server.lifecycle.logs import append_log, store_traceback
from server.series.recording import store_checkpoint
from tests.server.recording import Recording, claimed

pytestmark = pytest.mark.slow  # uses a real server


def run(served_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"STABLESSM_DATA_DIR": str(served_dir)}, catch_exceptions=False)


def test_the_logs_command_follows_a_log_to_its_end_and_prints_the_traceback(served_dir: Path, sqlite: Database) -> None:
    claim = claimed(sqlite)
    assert "has printed nothing yet" in run(served_dir, "logs", "1").output
    with sqlite.write() as session:
        append_log(session, 1, claim.attempt, 0, "one\x1b[2J\n")
    assert run(served_dir, "logs", "1").output == "--- attempt 1 ---\none\N{REPLACEMENT CHARACTER}[2J\n"

    def go_on() -> None:
        with sqlite.write() as session:
            append_log(session, 1, claim.attempt, 8, "two\n")
            store_traceback(session, 1, claim.attempt, "Traceback\n  there")
            lifecycle.finish(session, 1, claim.attempt, "failed", "ValueError: no")
        with sqlite.write() as session:
            append_log(session, 1, claim.attempt, 12, "last words\n")

    later = threading.Timer(0.8, go_on)
    later.start()
    followed = run(served_dir, "logs", "1", "--follow")
    later.join()
    assert followed.output == (
        "--- attempt 1 ---\none\N{REPLACEMENT CHARACTER}[2J\ntwo\nlast words\n"
        "--- traceback of attempt 1 ---\nTraceback\n  there\n"
    )


def test_checkpoints_are_listed_and_only_an_intact_checkpoint_is_downloaded(
    served_dir: Path, sqlite: Database, tmp_path: Path
) -> None:
    claim, content = claimed(sqlite), b"weights" * 1000
    assert run(served_dir, "checkpoints", "1").output == "No checkpoints.\n"
    Recording(sqlite, claim).write(40)
    path = f"runs/1/checkpoints/attempt-{claim.attempt}/step-0000000020.safetensors"
    (served_dir / path).parent.mkdir(parents=True)
    (served_dir / path).write_bytes(content)
    with sqlite.write() as session:
        store_checkpoint(session, 1, claim.attempt, 20, path, hashlib.sha256(content).hexdigest())
        store_checkpoint(session, 1, claim.attempt, 40, path.replace("20", "40"), "0" * 64)
    title, newest, older = run(served_dir, "checkpoints", "1").output.splitlines()
    assert title.split() == ["step", "attempt", "bytes", "written", "file", "sha256"]
    assert "on tester" in newest
    assert older.split()[:3] == ["20", "1", "7,000"]
    assert hashlib.sha256(content).hexdigest() in older
    target = tmp_path / "mine.safetensors"
    done = run(served_dir, "checkpoints", "1", "--download", "20", "-o", str(target))
    assert (done.exit_code, target.read_bytes()) == (0, content), done.output
    (served_dir / path).write_bytes(b"damaged")
    for step, said in (("20", "damaged"), ("40", "host tester"), ("30", "no checkpoint of step 30")):
        done = run(served_dir, "checkpoints", "1", "--download", step, "-o", str(tmp_path / "other"))
        assert (done.exit_code, said in done.output, "Traceback" in done.output) == (1, True, False), done.output
    assert not list(tmp_path.glob("*other*"))


def test_show_and_watch_print_the_history_of_a_run_and_always_a_reason(served_dir: Path, sqlite: Database) -> None:
    claim = claimed(sqlite)
    with sqlite.write() as session:
        lifecycle.finish(session, 1, claim.attempt, "finished")
    shown = run(served_dir, "show", "1").output
    assert "started at step 0: attempt 1 on tester" in shown
    assert "ended at step 0: every training step is done" in shown
    assert "every training step is done" in run(served_dir, "watch", "1").output
    with sqlite.write() as session:  # as older releases stored it
        session.execute(update(Run).values(status_reason=""))
        session.execute(update(Transition).values(reason=""))
    for command in ("show", "watch"):
        said = run(served_dir, command, "1").output
        assert "finished" in said
        assert "no reason" not in said.lower()
