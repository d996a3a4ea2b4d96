"""A task and a layer from installed packages: workers that have these packages train them; all others report a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from server.database.models import Run
from tests.extending import ROOT, install_plug_in
from tests.installation import Installation
from tests.worker.station import SMALL, Station

pytestmark = [pytest.mark.spread, pytest.mark.long]

ECHO = {"task": {"name": "echo", "length": 32}, "model": {"d_model": 8, "d_state": 8}, "train": {"steps": 20, "batch_size": 8}}
TURNING = ECHO | {"model": {"layer": "turning", "d_model": 8}}


@pytest.fixture
def installation(data_dir: Path, free_port: int) -> Iterator[Installation]:
    made = Installation(data_dir, free_port)
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install_plug_in(tmp_path / "site", "echo")
    install_plug_in(tmp_path / "site", "turning")
    return tmp_path / "site"


def start(installation: Installation, *arguments: str, paths: tuple[Path, ...] = ()) -> None:
    installation.environment = {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    installation.start(*arguments, "--data-dir", str(installation.data_dir))


def answers(installation: Installation) -> bool:
    try:
        return httpx.get(f"{installation.url}/healthz", timeout=60).is_success
    except httpx.TransportError:
        return False


def test_a_plug_in_task_is_trained_only_by_a_worker_that_has_it(installation: Installation, site: Path) -> None:
    start(installation, "migrate")
    assert installation.processes.pop().wait(180) == 0, installation.output()
    start(installation, "serve", "--port", str(installation.port), paths=(site,))
    installation.wait("server", lambda: answers(installation))
    with installation.client() as client:
        early = client.post("/api/runs", json=TURNING).raise_for_status().json()  # no worker has registered yet
        start(installation, "worker")
        installation.wait_until_ready()
        (worker,) = client.get("/api/workers").json()["workers"]
        assert "echo" not in worker["capabilities"]["tasks"]
        refused = client.post("/api/runs", json=ECHO)
        assert refused.status_code == 422
        error = refused.json()["error"]
        assert (error["field"], error["message"]) == ("task.name", "no worker has the task 'echo'")
        assert "polynomial_memory" in error["allowed"]
        builtin = client.post("/api/runs", json=SMALL | {"train": {"steps": 3}}).raise_for_status().json()
        # The worker skips the run that it cannot train.
        assert installation.wait_for_end(client, builtin["id"])["status"] == "finished"
        waiting = client.get(f"/api/runs/{early['id']}").json()
        assert waiting["status"] == "queued"
        assert "it does not have the task 'echo'" in waiting["waits_for"]
        start(installation, "worker", paths=(site,))
        ended = installation.wait_for_end(client, early["id"])
        assert (ended["status"], ended["step"]) == ("finished", 20), ended["status_reason"]
        assert ended["environment"]["data"]["delay"] == 4
        assert ended["result"]["eval_loss"] > 0
        form, schema = client.get("/new", headers={"Accept": "text/html"}).text, client.get("/openapi.json").json()
        assert 'data-task="echo"' in form
        assert 'data-path="task.delay"' in form
        assert 'data-of="model.layer.name" data-is="turning"' in form
        assert {"Echo", "Turning"} <= schema["components"]["schemas"].keys()
        series = {entry["name"] for entry in client.get(f"/api/runs/{early['id']}/series").json()["series"]}
        assert {"ssm/0/weight", "ssm/0/phase_weight", "ssm/0/eigenvalue", "ssm/0/phase"} <= series
        wrong = client.post("/api/runs", json={"task": {"name": "echo", "delay": 64}}).json()["error"]
        assert wrong["field"] == "task.delay"


def test_a_run_whose_task_its_worker_lacks_fails_with_a_clear_reason(sqlite_url: str, tmp_path: Path) -> None:
    station = Station(Database(sqlite_url), tmp_path / "state")
    try:
        run_id = station.submit(SMALL)
        # As stored by a server of an older release: the run does not state what it needs.
        with station.database.write() as session:
            run = session.get_one(Run, run_id)
            run.config, run.needs_task = run.config | {"task": ECHO["task"]}, ""
        station.start("--slots", "1")
        ended = station.until_ended(run_id)
        assert ended.status == "failed"
        assert "this worker cannot train the run: task.name: 'echo' is not installed here" in ended.status_reason
        assert "polynomial_memory" in ended.status_reason
    finally:
        station.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("section.py", "from typing", "import no_such_module\nfrom typing"), "No module named 'no_such_module'"),
        (("section.py", 'Literal["echo"]', 'Literal["other"]'), "the entry point is named 'echo', its section 'other'"),
        (("section.py", "(TaskSection)", ""), "is not a subclass of"),
        (("section.py", "trained_by: ClassVar[str] =", "trained: ClassVar[str] ="), "must set trained_by"),
    ],
)
def test_an_unusable_plug_in_is_ignored_and_its_name_is_refused_with_the_reason(
    site: Path, change: tuple[str, str, str], reason: str
) -> None:
    name, before, after = change
    file = site / "stablessm_echo" / name
    file.write_text(file.read_text().replace(before, after))
    answer = _parsed(site, "echo")
    assert "task.name" in answer
    assert reason in answer
    assert "allowed: polynomial_memory" in answer
    assert _parsed(site, "digits") == "digits"


def test_a_plug_in_cannot_take_the_name_of_another_task(site: Path) -> None:
    points = next(site.glob("*.dist-info")) / "entry_points.txt"
    points.write_text("[stablessm.tasks]\ndigits = stablessm_echo.section:Echo\n")
    section = site / "stablessm_echo" / "section.py"
    section.write_text(section.read_text().replace('Literal["echo"]', 'Literal["digits"]'))
    assert _parsed(site, "digits") == "digits"


def _parsed(site: Path, task: str) -> str:
    """The class of the task as parsed by a process that has `site` on its path, or else the error message."""
    code = f"""
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
try:
    print(parse_config({{"task": {{"name": {task!r}}}}}).task.__module__.rpartition(".")[2])
except ConfigError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
