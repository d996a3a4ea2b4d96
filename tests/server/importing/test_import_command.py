"""`stablessm import` against a running server: what it stores, that repeating it adds nothing, and what it says."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from server.cli import imports
from server.cli.main import main
from tests.server.http_service import TOKEN
from tests.server.importing.command import run, stored
from tests.server.importing.reading import ACCURACIES, LOSSES, UNSIGNED, spelled
from tests.server.importing.samples.write import CONFIG, UNICODE

pytestmark = [pytest.mark.slow]


def test_every_sample_becomes_a_reported_run_and_repeating_adds_nothing(server: httpx.Client, samples: Path) -> None:
    done = run(server, samples, "--project", "old runs", "--tag", "imported")
    assert done.exit_code == 0, done.output
    first = stored(server)
    assert len(first) == done.output.count("points in") == 15
    assert {one["kind"] for one in first} == {"reported"}
    assert {one["project"] for one in first} == {"old runs"}
    assert all("imported" in one["tags"] for one in first)
    for one in first:
        if not one["name"].startswith("torch"):
            assert one["numbers"]["train/loss"][:6] in (LOSSES, UNSIGNED), one["name"]
    again = run(server, samples, "--project", "old runs", "--tag", "imported")
    assert again.exit_code == 0, again.output
    assert again.output.count("(known; only new numbers are added)") == 15
    assert stored(server) == first


def test_a_run_has_what_the_tool_knew_of_it(server: httpx.Client, samples: Path) -> None:
    done = run(server, samples / "wandb", "--project", "p")
    assert done.exit_code == 0, done.output
    assert "loss is stored as train/loss" in done.output
    assert "left out: values of the kind histogram (1)" in done.output
    (one,) = stored(server)
    assert (one["name"], one["status"], one["tags"]) == ("größe 1", "finished", ["a", "Ω"])
    assert one["status_reason"] == "imported from W&B"
    assert one["reported_config"] == CONFIG
    assert one["notes"].startswith("Imported from W&B; it began at 20")
    assert one["notes"].endswith("UTC.\n\ntwo\nlines")
    assert one["numbers"]["train/loss"][:6] == LOSSES
    assert one["numbers"][UNICODE] == ACCURACIES
    page = server.get(f"/runs/{one['id']}")
    assert page.status_code == 200
    assert "größe 1" in page.text


def test_a_source_that_has_grown_adds_its_new_rows_only(server: httpx.Client, tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("step,loss\n" + "".join(f"{i},{i / 8}\n" for i in range(3000)))
    assert run(server, table, "--project", "p").exit_code == 0
    (before,) = stored(server)
    table.write_text(table.read_text() + "3000,nan\n3001,inf\n")
    assert run(server, table, "--project", "p").exit_code == 0
    (after,) = stored(server)
    loss = after["numbers"]["train/loss"]
    assert loss[:3000] == before["numbers"]["train/loss"] == spelled(list(range(3000)), [i / 8 for i in range(3000)])
    assert loss[3000:] == spelled([3000, 3001], [float("nan"), float("inf")])
    assert (after["status"], after["attempt"], after["seq"]) == ("finished", 1, before["seq"] + 1)


def test_an_ingest_token_is_enough_and_a_read_token_is_refused(server: httpx.Client, samples: Path) -> None:
    for scope, code in (("ingest", 0), ("read", 1)):
        token = server.post("/api/tokens", json={"name": scope, "scope": scope}).json()["secret"]
        done = run(server, samples / "lightning", "--project", scope, token=token)
        assert done.exit_code == code, done.output
    assert "the server refuses it" in done.output
    assert len(stored(server)) == 1
    wrong = run(server, samples / "lightning", "--project", "p", token="wrong")
    assert wrong.exit_code == 1
    assert "refuses the token: set STABLESSM_TOKEN, or --data-dir to the folder of `stablessm up`" in wrong.output


def test_the_loss_can_be_named(server: httpx.Client, samples: Path) -> None:
    done = run(server, samples / "lightning", "--project", "p", "--loss", UNICODE)
    assert f"{UNICODE} is stored as train/loss" in done.output
    assert stored(server)[0]["numbers"]["train/loss"] == ACCURACIES
    wrong = run(server, samples / "lightning", "--project", "p", "--loss", "train_los")
    assert wrong.exit_code == 1
    assert "no series is called 'train_los'; did you mean train_loss?" in wrong.output
    assert len(stored(server)) == 1


def test_bad_input_is_one_sentence(server: httpx.Client, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "empty").mkdir()
    cases = {
        (tmp_path / "text", "--project", "p"): (1, "is not recognized; what can be imported: event files of TensorBoard"),
        (tmp_path / "empty", "--project", "p"): (1, "is recognized; what can be imported"),
        (tmp_path / "none", "--project", "p"): (2, "does not exist"),
        (samples,): (2, "--project NAME is needed"),
        (samples / "lightning", "--project", "p" * 300): (1, "project"),
        (samples / "lightning", "--project", "p", "--step", "stp"): (1, "no column is called 'stp'; did you mean step?"),
    }
    for arguments, (code, words) in cases.items():
        done = run(server, *arguments)
        assert done.exit_code == code, done.output
        assert words in done.output
        assert "Traceback" not in done.output
    assert stored(server) == []
    server.base_url = "http://127.0.0.1:9"
    away = run(server, samples / "lightning", "--project", "p")
    assert (away.exit_code, "no server answers at http://127.0.0.1:9" in away.output) == (1, True)


def test_an_archive_of_runs_is_imported_as_such(server: httpx.Client, samples: Path, tmp_path: Path) -> None:
    run(server, samples / "lightning", "--project", "p")
    environment = {"STABLESSM_URL": str(server.base_url).rstrip("/"), "STABLESSM_TOKEN": TOKEN}
    CliRunner().invoke(main, ["export", "1", "--archive", str(tmp_path / "a")], env=environment, catch_exceptions=False)
    done = run(server, tmp_path / "a")
    assert (done.exit_code, "is run 2:" in done.output) == (0, True), done.output
    wrong = run(server, tmp_path / "a", "--project", "p")
    assert (wrong.exit_code, "takes no --project" in wrong.output) == (2, True)


def test_a_damaged_file_is_stored_up_to_the_damage(server: httpx.Client, samples: Path) -> None:
    path = next((samples / "tensorboard").iterdir())
    path.write_bytes(path.read_bytes()[:900])
    done = run(server, path, "--project", "p")
    assert done.exit_code == 0, done.output
    assert "the file ends inside a record at byte" in done.output
    (one,) = stored(server)
    assert one["numbers"]["train/loss"] == LOSSES[:4]


def test_after_ctrl_c_the_same_command_goes_on(server: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text("step,loss\n" + "".join(f"{i},{i / 8}\n" for i in range(30_000)))
    send, posts = imports.send_run, []

    def interrupted(*arguments: Any) -> Any:
        def advance(count: int) -> None:
            posts.append(count)
            raise KeyboardInterrupt

        return send(*arguments[:-1], advance)

    monkeypatch.setattr("server.importing.sending.POST_BYTES", 10_000)
    monkeypatch.setattr(imports, "send_run", interrupted)
    stopped = run(server, tmp_path / "t", "--project", "p")
    assert (stopped.exit_code, stopped.output) == (130, "interrupted; the same command goes on from here\n")
    assert len(posts) == 1
    assert [one["status"] for one in stored(server)] == ["running"]
    monkeypatch.undo()
    assert run(server, tmp_path / "t", "--project", "p").exit_code == 0
    (one,) = stored(server)
    assert one["status"] == "finished"
    assert one["numbers"]["train/loss"] == spelled(list(range(30_000)), [i / 8 for i in range(30_000)])


def test_a_terminal_shows_a_bar_and_ctrl_c_ends_in_a_sentence(server: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("step,loss\n" + "".join(f"{i},{i / 8}\n" for i in range(400_000)))
    environment = os.environ | {"STABLESSM_URL": str(server.base_url).rstrip("/"), "STABLESSM_TOKEN": TOKEN, "TERM": "xterm"}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "server", "import", str(tmp_path / "t"), "--project", "p"]
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    os.close(theirs)
    shown, stop, until = b"", False, time.monotonic() + 120
    with contextlib.suppress(OSError):  # the terminal is closed at the end
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 65536)
            if not stop and "sending" in shown.decode(errors="replace"):
                program.send_signal(signal.SIGINT)
                stop = True
    assert program.wait(60) == 130
    os.close(ours)
    text = shown.decode()
    assert "sending" in text
    assert "━" in text
    assert "interrupted; the same command goes on from here" in text
    assert "Traceback" not in text


def test_the_samples_are_small_and_name_no_machine(samples: Path) -> None:
    assert all(path.stat().st_size < 30_000 for path in (Path(__file__).parent / "samples").rglob("*"))
    private = [b"/root", b"/tmp", b"/work", b"/home/"]
    logs = [path for path in samples.rglob("*") if path.suffix in (".wandb", ".csv", ".yaml")]
    assert logs
    assert [(path, word) for path in logs for word in private if word in path.read_bytes()] == []
