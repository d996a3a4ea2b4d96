"""The command line: what it prints, what it refuses, and that it finds the server and its token by itself."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server.cli.main import main
from server.database.connection import Database
from server.runs import lifecycle
from tests.server.http_service import BODY, TOKEN, running
from tests.server.recording import Recording, claim, nonfinite


@pytest.fixture
def data_dir(sqlite: Database, tmp_path: Path) -> Iterator[Path]:
    """The data directory of a server that runs, as `stablessm up` leaves it."""
    folder = tmp_path / "state"
    with running(sqlite.url, tmp_path) as (address, _):
        folder.mkdir(exist_ok=True)
        (folder / "up.json").write_text(json.dumps({"pid": os.getpid(), "url": address}))
        (folder / "token").write_text(TOKEN)
        yield folder


def run(data_dir: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, env={"STABLESSM_DATA_DIR": str(data_dir)}, catch_exceptions=False)


def test_a_run_is_submitted_with_changes_and_shown(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(BODY))
    done = run(data_dir, "submit", str(file), "--set", "optimizer.lr=0.125", "--set", "model.reparameterization.name=exp")
    assert done.exit_code == 0, done.output
    assert "run 1 is queued" in done.output
    assert "none is known" in done.output
    shown = run(data_dir, "show", "1")
    assert "optimizer.lr = 0.125" in shown.output
    assert "model.reparameterization.name = exp" in shown.output
    assert json.loads(run(data_dir, "show", "1", "--json").output)["config"]["optimizer"]["lr"] == 0.125


def test_runs_are_listed_by_filter(data_dir: Path) -> None:
    for name in ("best", "direct"):
        config = json.dumps(BODY | {"model": {"reparameterization": {"name": name}}})
        assert run(data_dir, "submit", "-", text=config).exit_code == 0
    assert run(data_dir, "runs").output.count("queued") == 2
    assert run(data_dir, "runs", "reparam=direct").output.count("queued") == 1
    assert [json.loads(line)["id"] for line in run(data_dir, "runs", "--json").output.splitlines()] == [2, 1]


def test_a_run_is_cancelled_and_resumed(data_dir: Path) -> None:
    run(data_dir, "submit", "-", text=json.dumps(BODY))
    assert "cancelled" in run(data_dir, "cancel", "1").output
    assert "queued" in run(data_dir, "resume", "1").output


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (("submit", "-"), '{"task": {"name": "digits"}, "train": {"steps": 0}}', "allowed: >= 1"),
        (("submit", "-"), "{nope", "is not JSON"),
        (("submit", "-"), "[1]", "a configuration is a JSON object"),
        (("submit", "-", "--set", "lr"), "{}", "expected PATH=VALUE"),
        (("submit", "-", "--set", "a..b=1"), "{}", "is no path"),
        (("show", "99"), None, "there is no run 99"),
        (("runs", "weather=good"), None, "there is no field 'weather'"),
        (("cancel", "99"), None, "there is no run 99"),
        (("compare",), None, "one way to choose runs"),
        (("export", "99"), None, "there is no run 99"),
    ],
)
def test_a_refusal_is_one_line_and_exit_status_1(data_dir: Path, arguments: tuple[str, ...], text: str | None, said: str) -> None:
    done = run(data_dir, *arguments, text=text)
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_users_are_named_limited_and_granted(data_dir: Path) -> None:
    assert run(data_dir, "token", "create", "laptop", "--user", "alice").exit_code == 0
    assert run(data_dir, "token", "create", "sso", "--proxy").exit_code == 0
    listed = run(data_dir, "token", "list").output
    assert "alice" in listed
    assert "a proxy's" in listed
    assert run(data_dir, "user", "name", "The lab").output == "you are 'The lab'\n"
    assert "token 'settings' of the scope admin" in run(data_dir, "user", "me").output
    done = run(data_dir, "user", "quota", "Alice", "--running", "2", "--queued", "30", "--bytes", "1000")
    assert done.output.splitlines()[1].split() == ["1", "0", "of", "2", "0", "of", "30", "0", "of", "1,000", "own", "alice"]
    assert "0 of 2 " not in run(data_dir, "user", "quota", "alice", "--running", "none").output
    assert run(data_dir, "user", "grant", "alice").output == "alice may change all runs\n"
    assert run(data_dir, "user", "grant", "alice", "--revoke").output == "alice may change their own runs only\n"
    users = [json.loads(line) for line in run(data_dir, "user", "list", "--json").output.splitlines()]
    quotas = [(one["name"], one["max_running"], one["max_queued"]) for one in users]
    assert quotas == [("The lab", None, None), ("alice", None, 30)]
    refusals = {
        ("quota", "bob", "--running", "1"): "there is no user 'bob'", ("quota", "alice"): "--running",
        ("quota", "alice", "--queued", "-1"): "is no limit", ("name", "ALICE"): "there is a user",
    }  # fmt: skip
    for arguments, said in refusals.items():
        refused = run(data_dir, "user", *arguments)
        assert refused.exit_code != 0
        assert said in refused.output


def test_no_server_is_said_with_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["runs"], env={"STABLESSM_URL": "http://127.0.0.1:9"})
    assert (done.exit_code, "stablessm up" in done.output) == (1, True)


def test_a_wrong_token_is_said_with_what_to_do(data_dir: Path) -> None:
    (data_dir / "token").write_text("another-token-of-the-tests")
    done = run(data_dir, "runs")
    assert (done.exit_code, "STABLESSM_TOKEN" in done.output) == (1, True)


def test_watching_tells_alerts_and_the_end(data_dir: Path, sqlite: Database) -> None:
    run(data_dir, "submit", "-", text=json.dumps(BODY))
    recording = Recording(sqlite, claim(sqlite), width=4)
    command = [sys.executable, "-m", "server", "watch", "1"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(data_dir)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watching:
        assert watching.stdout is not None
        assert "running at step 0" in watching.stdout.readline()
        recording.write(30, [nonfinite(step=29)])
        assert "critical step 29: it is NaN" in watching.stdout.readline()
        with sqlite.write() as session:
            lifecycle.finish(session, 1, 1, "diverged", "loss is NaN", {"train_loss": float("nan")})
        rest = watching.stdout.read()
    assert "diverged at step 30: loss is NaN" in rest
    assert "train_loss NaN" in rest
    assert watching.returncode == 2


def test_on_a_terminal_a_bar_shows_step_loss_and_time_left(data_dir: Path, sqlite: Database) -> None:
    config = json.dumps(BODY)
    assert run(data_dir, "submit", "-", text=config).exit_code == 0
    recording = Recording(sqlite, claim(sqlite), width=4)
    command = [sys.executable, "-m", "server", "watch", "1"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(data_dir), "TERM": "xterm-256color", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as watching:
        os.close(theirs)
        try:
            read_until(ours, "running at step 0")
            recording.write(30)
            read_until(ours, "30/1000 loss ")
            with sqlite.write() as session:
                lifecycle.finish(session, 1, 1, "diverged", "loss is NaN", {"train_loss": float("nan")})
            assert "diverged at step 30: loss is NaN" in read_until(ours, "train_loss NaN")
            assert watching.wait(60) == 2
        finally:
            watching.kill()
            os.close(ours)


def test_a_narrow_terminal_cuts_the_name_and_no_number(data_dir: Path) -> None:
    run(data_dir, "submit", "-", text=json.dumps(BODY | {"name": "a name of many words which is too long for this terminal"}))
    environment = os.environ | {"STABLESSM_DATA_DIR": str(data_dir), "TERM": "xterm-256color", "COLUMNS": "40"}
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "server", "runs"], env=environment, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = read_until(ours, "\N{HORIZONTAL ELLIPSIS}")
    os.close(ours)
    assert "0/1000  polynomial_memory  best  0.01" in shown


def read_until(terminal: int, text: str) -> str:
    """What a terminal received, styles left out, up to and including `text`."""
    seen, deadline = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65_536).decode())
    return seen


def test_series_are_exported_as_files(data_dir: Path, sqlite: Database, tmp_path: Path) -> None:
    run(data_dir, "submit", "-", text=json.dumps(BODY))
    Recording(sqlite, claim(sqlite), width=4).write(25)
    done = run(data_dir, "export", "1", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "run.json", "train-loss.csv", "ssm-0-grad_over_weight.csv", "ssm-0-weight.csv", "ssm-0-eigenvalue.csv",
        "ssm-0-boundary_distance.csv", "ssm-0-relative_step.csv", "ssm-0-overflow_budget.csv",
    }  # fmt: skip
    assert len((tmp_path / "out" / "train-loss.csv").read_text().splitlines()) == 26
    assert run(data_dir, "export", "1", "train/loss", "-o", "-").output.startswith("step,value\n1,")


def test_whole_runs_are_exported_as_one_file_and_imported_again(data_dir: Path, sqlite: Database, tmp_path: Path) -> None:
    run(data_dir, "submit", "-", text=json.dumps(BODY))
    recording = Recording(sqlite, claim(sqlite), width=4)
    recording.write(25)
    file = str(tmp_path / "runs.tar")
    still = run(data_dir, "export", "1", "--archive", file)
    assert (still.exit_code, "run 1 is running" in still.output) == (1, True), still.output
    with sqlite.write() as session:
        lifecycle.finish(session, 1, recording.claim.attempt, "finished")
    for chosen in (["1"], ["--q", "status=finished"]):
        done = run(data_dir, "export", *chosen, "--archive", file)
        assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.glob("*runs.tar*")] == ["runs.tar"]
    taken = run(data_dir, "import", file)
    assert taken.exit_code == 0, taken.output
    assert "run 1 of http://" in taken.output
    assert "is run 2: http://" in taken.output
    assert (
        run(data_dir, "export", "2", "train/loss", "-o", "-").output
        == run(data_dir, "export", "1", "train/loss", "-o", "-").output
    )
    Path(file).write_bytes(Path(file).read_bytes()[:-3000])
    cut = run(data_dir, "import", file)
    assert (cut.exit_code, "the archive is refused: it " in cut.output) == (1, True), cut.output
    for wrong in (["export"], ["export", "1", "--q", "a"], ["export", "x", "--archive", file]):
        assert run(data_dir, *wrong).exit_code == 2


def test_runs_are_compared(data_dir: Path, sqlite: Database) -> None:
    for name in ("best", "direct"):
        run(data_dir, "submit", "-", text=json.dumps(BODY | {"model": {"reparameterization": {"name": name}}}))
    Recording(sqlite, claim(sqlite), width=4).write(25)
    done = run(data_dir, "compare", "1", "2", "--group-by", "model.reparameterization.name")
    assert done.exit_code == 0, done.output
    assert "model.reparameterization.name" in done.output
    assert "100" in done.output  # 25 steps of 4 eigenvalues
    assert "groups" in done.output


def test_the_schema_is_made_by_migrate(tmp_path: Path) -> None:
    done = run(tmp_path / "new", "migrate")
    assert done.exit_code == 0, done.output
    database = Database(f"sqlite:///{tmp_path}/new/stablessm.db")
    with database.read() as session:
        session.connection().exec_driver_sql("SELECT id FROM runs")
    database.close()


@pytest.mark.slow
def test_the_doctor_names_what_is_missing_and_how_to_get_it(tmp_path: Path, data_dir: Path, sqlite: Database) -> None:
    data_dir.chmod(0o700)
    (data_dir / "token").chmod(0o600)
    well = run(data_dir, "doctor", "--database-url", sqlite.url)
    assert well.exit_code == 0, well.output
    assert "schema" in well.output
    ill = run(data_dir, "doctor", "--database-url", "postgresql://127.0.0.1:1/x", "--broker-url", "redis://127.0.0.1:1")
    assert ill.exit_code == 1
    assert ill.output.count("missing") >= 2
    assert "stablessm migrate" in ill.output
    assert "kernels: " in well.output


@pytest.mark.parametrize("arguments", [("serve", "--host", "0.0.0.0"), ("serve", "--host", "0.0.0.0", "--no-auth")])
def test_a_server_open_to_others_without_a_token_does_not_start(data_dir: Path, arguments: tuple[str, ...]) -> None:
    done = run(data_dir, *arguments)
    assert done.exit_code == 1
    assert "STABLESSM_TOKEN" in done.output or "--no-auth" in done.output


def test_the_commands_of_the_contract_are_there() -> None:
    local, remote = (
        "up serve worker migrate doctor backup restore token queue user",
        "submit runs show watch cancel resume fork compare figure export import sweep sweeps sweep-table logs checkpoints "
        "delete undelete trash retention reproduce",
    )
    assert set(main.commands) == {*local.split(), *remote.split()}
    for name in main.commands:
        if name != "worker":
            assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_the_command_line_starts_without_slow_imports() -> None:
    slow = ("fastapi", "sqlalchemy", "numpy", "torch", "plotly")
    probe = f"import sys, server.cli.main, server.cli.up; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
