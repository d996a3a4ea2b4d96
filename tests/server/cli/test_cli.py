"""The command line: its output, its errors, and how it finds the server and the token."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from server.cli.main import LazyCommand, main
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY
from tests.server.recording import Recording, claim, nonfinite

pytestmark = [pytest.mark.spread, pytest.mark.slow]


def run(served_dir: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, env={"STABLESSM_DATA_DIR": str(served_dir)}, catch_exceptions=False)


def test_a_run_is_submitted_with_changed_settings_and_shown(served_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(BODY))
    done = run(served_dir, "submit", str(file), "--set", "optimizer.lr=0.125", "--set", "model.reparameterization.name=exp")
    assert done.exit_code == 0, done.output
    assert "run 1 is queued" in done.output
    assert "none is known" in done.output
    shown = run(served_dir, "show", "1")
    assert "optimizer.lr = 0.125" in shown.output
    assert "model.reparameterization.name = exp" in shown.output
    assert json.loads(run(served_dir, "show", "1", "--json").output)["config"]["optimizer"]["lr"] == 0.125


def test_a_run_gets_a_name_tags_and_notes_that_show_prints(served_dir: Path) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY | {"tags": ["old"]}))
    assert run(served_dir, "rename", "1", "The baseline").output == "run 1 is called 'The baseline'\n"
    assert run(served_dir, "tag", "1", "paper", "seed 3", "--remove", "old").output == "tags of run 1: paper, seed 3\n"
    assert run(served_dir, "note", "1", "first line\nsecond line").output == "first line\nsecond line\n"
    shown = run(served_dir, "show", "1").output
    for said in ("run 1 'The baseline'", "tags paper, seed 3", "note first line\n", "note second line\n"):
        assert said in shown
    assert run(served_dir, "runs", "tag=paper").output.count("The baseline") == 1
    assert (run(served_dir, "tag", "1").output, run(served_dir, "note", "1").output.count("line")) == (
        "tags of run 1: paper, seed 3\n",
        2,
    )
    wrong = run(served_dir, "tag", "1", "--remove", "none such")
    assert (wrong.exit_code, wrong.output) == (1, "Error: run 1 has no tag 'none such'; its tags: paper, seed 3\n")
    assert run(served_dir, "note", "1", "").output == "run 1 has no notes\n"
    assert run(served_dir, "rename", "1", "").output == "run 1 has no name\n"


def test_the_list_of_runs_can_be_filtered(served_dir: Path) -> None:
    for name in ("best", "direct"):
        config = json.dumps(BODY | {"model": {"reparameterization": {"name": name}}})
        assert run(served_dir, "submit", "-", text=config).exit_code == 0
    assert run(served_dir, "runs").output.count("queued") == 2
    assert run(served_dir, "runs", "reparam=direct").output.count("queued") == 1
    assert [json.loads(line)["id"] for line in run(served_dir, "runs", "--json").output.splitlines()] == [2, 1]


def test_a_run_is_cancelled_and_resumed(served_dir: Path) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY))
    assert "cancelled" in run(served_dir, "cancel", "1").output
    assert "queued" in run(served_dir, "resume", "1").output


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (("submit", "-"), '{"task": {"name": "digits"}, "train": {"steps": 0}}', "allowed: >= 1"),
        (("submit", "-"), "{nope", "is not JSON"),
        (("submit", "-"), "[1]", "a configuration must be a JSON object"),
        (("submit", "-", "--set", "lr"), "{}", "expected PATH=VALUE"),
        (("submit", "-", "--set", "a..b=1"), "{}", "is not a path"),
        (("show", "99"), None, "there is no run 99"),
        (("runs", "weather=good"), None, "there is no field 'weather'"),
        (("cancel", "99"), None, "there is no run 99"),
        (("compare",), None, "exactly one of runs, sweep and q"),
        (("export", "99"), None, "there is no run 99"),
    ],
)
def test_a_refused_command_prints_one_line_and_exits_with_status_1(
    served_dir: Path, arguments: tuple[str, ...], text: str | None, said: str
) -> None:
    done = run(served_dir, *arguments, text=text)
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("shwo", "1"), "'show'"),
        (("show", "1", "--jsno"), "'--json'"),
        (("figure", "1", "loss", "--format", "pgn"), "png"),
        (("token", "create", "x", "--scope", "sumbit"), "submit"),
        (("runs", "statsu=queued"), "status"),
        (("runs", "map=bset"), "best"),
        (("runs", "--status", "finishd"), "finished"),
        (("runs", "--sort", "creatd"), "created"),
        (("submit", "-", "--set", "optimizer.lrr=1"), "lr"),
        (("submit", "-", "--set", "optimzer.lr=1"), "optimizer"),
        (("submit", "-", "--set", "model.reparameterization.name=bset"), "best"),
        (("user", "quota", "ownre", "--running", "1"), "owner"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion_and_a_short_list(served_dir: Path, arguments: tuple[str, ...], meant: str) -> None:
    done = run(served_dir, *arguments, text=json.dumps(BODY))
    assert done.exit_code in (1, 2)
    assert re.search(rf"[Dd]id you mean {meant}", done.output), done.output
    assert len(done.output) < 600, done.output
    known = done.output.partition("allowed: ")[2]
    assert known == "" or done.output.count(known.split(",")[0]) <= 2, done.output


def test_users_get_names_quotas_and_grants(served_dir: Path) -> None:
    assert run(served_dir, "token", "create", "laptop", "--user", "alice").exit_code == 0
    assert run(served_dir, "token", "create", "sso", "--proxy").exit_code == 0
    listed = run(served_dir, "token", "list").output
    assert "alice" in listed
    assert "a proxy's" in listed
    assert run(served_dir, "user", "name", "The lab").output == "you are 'The lab'\n"
    assert "token 'settings' of the scope admin" in run(served_dir, "user", "me").output
    done = run(served_dir, "user", "quota", "Alice", "--running", "2", "--queued", "30", "--bytes", "1000")
    assert done.output.splitlines()[1].split() == ["1", "0", "of", "2", "0", "of", "30", "0", "of", "1,000", "own", "alice"]
    assert "0 of 2 " not in run(served_dir, "user", "quota", "alice", "--running", "none").output
    assert run(served_dir, "user", "grant", "alice").output == "alice may change all runs\n"
    assert run(served_dir, "user", "grant", "alice", "--revoke").output == "alice may change their own runs only\n"
    users = [json.loads(line) for line in run(served_dir, "user", "list", "--json").output.splitlines()]
    quotas = [(one["name"], one["max_running"], one["max_queued"]) for one in users]
    assert quotas == [("The lab", None, None), ("alice", None, 30)]
    refusals = {
        ("quota", "bob", "--running", "1"): "there is no user 'bob'", ("quota", "alice"): "--running",
        ("quota", "alice", "--queued", "-1"): "is not a limit", ("name", "ALICE"): "there is already a user",
    }  # fmt: skip
    for arguments, said in refusals.items():
        refused = run(served_dir, "user", *arguments)
        assert refused.exit_code != 0
        assert said in refused.output


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9 "),
        ("127.0.0.1:9", "it must begin with http:// or https://"),
        ("ftp://127.0.0.1", "it must begin with http:// or https://"),
        ("http://127.0.0.1:nine", "is not the address of a server"),
    ],
)
def test_a_wrong_or_unreachable_address_is_reported_in_one_sentence(url: str, said: str) -> None:
    done = CliRunner().invoke(main, ["runs"], env={"STABLESSM_URL": url})
    assert (done.exit_code, said in done.output, len(done.output.splitlines())) == (1, True, 1), done.output
    assert url in done.output


def test_a_wrong_token_is_reported_with_advice(served_dir: Path) -> None:
    (served_dir / "token").write_text("another-token-of-the-tests")
    done = run(served_dir, "runs")
    assert (done.exit_code, "does not accept this token; set STABLESSM_TOKEN" in done.output) == (1, True)
    assert len(done.output.splitlines()) == 1
    (served_dir / "token").unlink()
    assert "needs a token; set STABLESSM_TOKEN" in run(served_dir, "runs").output


@pytest.mark.parametrize(
    "program",
    ["import worker.main as m; m.main(['--data-dir', 'x'])", "import server.cli.main as m; m.main(['up', '--data-dir', 'x'])"],
)
def test_missing_torch_is_reported_once_without_an_address(tmp_path: Path, program: str) -> None:
    command = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; {program}"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    expected = "Error: training needs torch, which is not installed: pip install 'stablessm-service[train]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


def test_completion_is_installed_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for shell, script in (("bash", "completion.bash"), ("zsh", "completion.zsh"), ("fish", "stablessm.fish")):
        for _ in range(2):
            done = CliRunner().invoke(main, ["completion", shell])
            assert (done.exit_code, script in done.output) == (0, True), done.output
    assert (tmp_path / ".bashrc").read_text() == f". '{tmp_path}/.local/share/stablessm/completion.bash'\n"
    probe = ". ~/.bashrc; complete -p stablessm; COMP_WORDS=(stablessm swe); COMP_CWORD=1; _stablessm_completion stablessm"
    probe += '; echo "${COMPREPLY[@]}"'
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = subprocess.run(["bash", "-c", probe], env=os.environ | path, capture_output=True, text=True, timeout=200)
    assert found.stdout.splitlines()[-1].split() == ["sweep", "sweep-table", "sweeps"], found
    unknown = CliRunner().invoke(main, ["completion"], env={"SHELL": "/bin/tcsh"})
    assert (unknown.exit_code, "allowed: bash, zsh, fish" in unknown.output) == (1, True)


def test_watch_in_a_pipe_prints_a_line_for_every_tenth_of_the_steps(served_dir: Path, sqlite: Database) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY | {"train": {"steps": 40}}))
    recording = Recording(sqlite, claim(sqlite), width=4)
    command = [sys.executable, "-m", "server", "watch", "1"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(served_dir)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watching:
        assert watching.stdout is not None
        assert "running at step 0" in watching.stdout.readline()
        recording.write(20)
        assert re.match(r"step 20/40  loss [\d.]", watching.stdout.readline())
        with sqlite.write() as session:
            lifecycle.finish(session, 1, 1, "finished", "", {"train_loss": 0.5, "eval_accuracy": None})
        rest = watching.stdout.read()
    assert "finished at step 20" in rest
    assert "eval_accuracy" not in rest, "a result that the task does not have is not printed"
    assert watching.returncode == 0


def test_a_watched_fork_prints_what_it_shows_about_the_original(served_dir: Path, sqlite: Database) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY | {"train": {"steps": 40}}))
    Recording(sqlite, claim(sqlite), width=4).write(30)
    with sqlite.write() as session:
        lifecycle.finish(session, 1, 1, "diverged", "loss is NaN", {"train_loss": float("nan")}, {"step": 30})
    command = [sys.executable, "-m", "server", "fork", "1", "--lr", "0.001", "--from-step", "0", "--watch"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(served_dir)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watching:
        assert watching.stdout is not None
        assert "run 2, forked from run 1 at step 0" in watching.stdout.readline()
        Recording(sqlite, claim(sqlite), width=4).write(40)
        with sqlite.write() as session:
            lifecycle.finish(session, 2, 1, "finished", "", {"train_loss": 0.5})
        rest = watching.stdout.read()
    assert "it lives to its end, step 40 (the original died at step 30)" in rest
    assert watching.returncode == 0


def test_watch_prints_alerts_and_the_end_of_the_run(served_dir: Path, sqlite: Database) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY))
    recording = Recording(sqlite, claim(sqlite), width=4)
    command = [sys.executable, "-m", "server", "watch", "1"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(served_dir)}
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


def test_watch_shows_a_progress_bar_with_step_loss_and_time_left_on_a_terminal(served_dir: Path, sqlite: Database) -> None:
    config = json.dumps(BODY)
    assert run(served_dir, "submit", "-", text=config).exit_code == 0
    recording = Recording(sqlite, claim(sqlite), width=4)
    command = [sys.executable, "-m", "server", "watch", "1"]
    environment = os.environ | {"STABLESSM_DATA_DIR": str(served_dir), "TERM": "xterm-256color", "COLUMNS": "100"}
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


def test_a_narrow_terminal_truncates_the_run_name_but_no_number(served_dir: Path) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY | {"name": "a name of many words which is too long for this terminal"}))
    environment = os.environ | {"STABLESSM_DATA_DIR": str(served_dir), "TERM": "xterm-256color", "COLUMNS": "40"}
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "server", "runs"], env=environment, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = read_until(ours, "\N{HORIZONTAL ELLIPSIS}")
    os.close(ours)
    assert "0/1000  polynomial_memory  best  0.01" in shown


def read_until(terminal: int, text: str) -> str:
    """The terminal's output without styles, up to and including `text`."""
    seen, deadline = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65_536).decode())
    return seen


def test_series_are_exported_as_files(served_dir: Path, sqlite: Database, tmp_path: Path) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY))
    Recording(sqlite, claim(sqlite), width=4).write(25)
    done = run(served_dir, "export", "1", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "run.json", "series.json", "train-loss.csv", "ssm-0-grad_over_weight.csv", "ssm-0-weight.csv", "ssm-0-eigenvalue.csv",
        "ssm-0-boundary_distance.csv", "ssm-0-relative_step.csv", "ssm-0-overflow_budget.csv",
    }  # fmt: skip
    assert len((tmp_path / "out" / "train-loss.csv").read_text().splitlines()) == 26
    assert run(served_dir, "export", "1", "train/loss", "-o", "-").output.startswith("step,value\n1,")


def test_whole_runs_are_exported_as_one_file_and_imported_again(served_dir: Path, sqlite: Database, tmp_path: Path) -> None:
    run(served_dir, "submit", "-", text=json.dumps(BODY))
    recording = Recording(sqlite, claim(sqlite), width=4)
    recording.write(25)
    file = str(tmp_path / "runs.tar")
    still = run(served_dir, "export", "1", "--archive", file)
    assert (still.exit_code, "run 1 is running" in still.output) == (1, True), still.output
    with sqlite.write() as session:
        lifecycle.finish(session, 1, recording.claim.attempt, "finished")
    for chosen in (["1"], ["--q", "status=finished"]):
        done = run(served_dir, "export", *chosen, "--archive", file)
        assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.glob("*runs.tar*")] == ["runs.tar"]
    taken = run(served_dir, "import", file)
    assert taken.exit_code == 0, taken.output
    assert "run 1 of http://" in taken.output
    assert "is run 2: http://" in taken.output
    assert (
        run(served_dir, "export", "2", "train/loss", "-o", "-").output
        == run(served_dir, "export", "1", "train/loss", "-o", "-").output
    )
    Path(file).write_bytes(Path(file).read_bytes()[:-3000])
    cut = run(served_dir, "import", file)
    assert (cut.exit_code, "the archive is refused: it " in cut.output) == (1, True), cut.output
    for wrong in (["export"], ["export", "1", "--q", "a"], ["export", "x", "--archive", file]):
        assert run(served_dir, *wrong).exit_code == 2


def test_runs_are_compared(served_dir: Path, sqlite: Database) -> None:
    for name in ("best", "direct"):
        run(served_dir, "submit", "-", text=json.dumps(BODY | {"model": {"reparameterization": {"name": name}}}))
    Recording(sqlite, claim(sqlite), width=4).write(25)
    done = run(served_dir, "compare", "1", "2", "--group-by", "model.reparameterization.name")
    assert done.exit_code == 0, done.output
    assert "model.reparameterization.name" in done.output
    assert "100" in done.output  # 25 steps of 4 eigenvalues
    assert "groups" in done.output
    both = run(served_dir, "compare", "1", "2", "--group-by", "map", "--group-by", "seed").output
    assert "reparameterization=best, seed=0" in both
    wrong = run(served_dir, "compare", "1", "2", "--group-by", "model.reparametrization.name")
    assert (wrong.exit_code, "did you mean model.reparameterization.name?" in wrong.output) == (1, True)


def test_migrate_creates_the_schema(tmp_path: Path) -> None:
    done = run(tmp_path / "new", "migrate")
    assert done.exit_code == 0, done.output
    database = Database(f"sqlite:///{tmp_path}/new/stablessm.db")
    with database.read() as session:
        session.connection().exec_driver_sql("SELECT id FROM runs")
    database.close()


@pytest.mark.slow
def test_the_doctor_reports_what_is_missing_and_how_to_fix_it(tmp_path: Path, served_dir: Path, sqlite: Database) -> None:
    served_dir.chmod(0o700)
    (served_dir / "token").chmod(0o600)
    well = run(served_dir, "doctor", "--database-url", sqlite.url)
    assert well.exit_code == 0, well.output
    assert "schema" in well.output
    ill = run(served_dir, "doctor", "--database-url", "postgresql://127.0.0.1:1/x", "--broker-url", "redis://127.0.0.1:1")
    assert ill.exit_code == 1
    assert ill.output.count("missing") >= 2
    assert "stablessm migrate" in ill.output
    assert "kernels: " in well.output


@pytest.mark.parametrize("arguments", [("serve", "--host", "0.0.0.0"), ("serve", "--host", "0.0.0.0", "--no-auth")])
def test_a_server_that_others_can_reach_does_not_start_without_a_token(served_dir: Path, arguments: tuple[str, ...]) -> None:
    done = run(served_dir, *arguments)
    assert done.exit_code == 1
    assert "STABLESSM_TOKEN" in done.output or "--no-auth" in done.output


def test_serve_creates_the_database_in_a_fresh_directory(tmp_path: Path, free_port: int) -> None:
    folder = tmp_path / "new" / "state"
    command = [sys.executable, "-m", "server", "serve", "--port", str(free_port), "--data-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as serving:
        try:
            deadline = time.monotonic() + 120
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"http://127.0.0.1:{free_port}/healthz").status_code == 200:
                        break
                assert serving.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            token = (folder / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"http://127.0.0.1:{free_port}/api/runs", headers=headers, timeout=60).json()["runs"] == []
            assert folder.stat().st_mode & 0o777 == 0o700
        finally:
            serving.terminate()


def test_the_command_line_has_exactly_the_expected_commands() -> None:
    local, remote = (
        "up serve worker migrate doctor backup restore token queue user",
        "submit runs show watch cancel resume fork autopsy compare figure export import sync sweep sweeps sweep-table logs "
        "checkpoints delete undelete trash retention reproduce rename tag note completion table",
    )
    assert set(main.commands) == {*local.split(), *remote.split()}
    for name, command in main.commands.items():
        assert isinstance(command, LazyCommand)
        assert command.load().name == name
        if name != "worker":
            assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_help_and_completion_list_every_command_and_import_none() -> None:
    probe = "import sys, server.cli.main as m; m.main(prog_name='stablessm', standalone_mode=False); "
    probe += "print([n for n in sys.modules if n.startswith('server.cli.')])"
    listed = subprocess.run([sys.executable, "-c", probe, "--help"], capture_output=True, text=True, timeout=200).stdout
    assert listed.splitlines()[-1] == "['server.cli.main']"
    assert [name for name in main.commands if f"\n  {name} " not in listed] == []
    assert not any(line.endswith("...") for line in listed.splitlines()[1:])  # each description fits a terminal of 80 columns
    completed = {"up": "up", "sweep": "sweep sweeps sweep-table", "queue pa": "pause", "runs --so": "--sort"}
    for typed, expected in completed.items():
        words = {"COMP_WORDS": f"stablessm {typed}", "COMP_CWORD": str(len(typed.split()))}
        environment = os.environ | words | {"_STABLESSM_COMPLETE": "bash_complete"}
        program = [sys.executable, "-c", "from server.cli.main import main; main(prog_name='stablessm')"]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)
        assert {line.partition(",")[2] for line in done.stdout.splitlines()} == set(expected.split()), done.stderr


def test_the_service_starts_without_slow_imports() -> None:
    slow = ("fastapi", "sqlalchemy", "numpy", "torch", "plotly")
    probe = f"import sys, server.cli.main, server.cli.up; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
