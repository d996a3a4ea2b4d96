"""The autopsy of a run over HTTP, from the Python client and on the command line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from server.cli.main import main
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import autopsies
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsy_findings import check_findings
from stablessm_core.client import Client
from tests.server.autopsies import findings
from tests.server.http_service import TOKEN, application, client_of, error_of, running
from tests.server.recording import Recording, claimed


@pytest.fixture
def died(sqlite: Database) -> int:
    """A run that died at step 40."""
    recording = Recording(sqlite, claimed(sqlite), weird=False)
    recording.write(40)
    own = recording.claim
    with sqlite.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, "diverged", divergence={"step": 40, "tensor": "w", "value": "NaN"})
    return own.run_id


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        yield client


def done(database: Database, run_id: int) -> autopsies.Job:
    """Do the queued autopsy as a worker does."""
    with database.write() as session:
        job = autopsies.claim_autopsy(session, run_id, "here:1:1")
        assert job is not None
        assert autopsies.end_autopsy(session, job, findings=check_findings(findings(step=job.step)))
    return job


def test_an_autopsy_is_asked_for_and_its_findings_are_read(sqlite: Database, client: httpx.Client, died: int) -> None:
    path = f"/api/runs/{died}/autopsy"
    assert client.get(path).json()["state"] == "none"
    asked = client.post(path, json={"step": 12})
    assert (asked.status_code, asked.json()["state"], asked.json()["asked_step"]) == (202, "queued", 12)
    assert asked.json()["requested_by"]
    assert client.post(path).json()["asked_step"] is None, "a new request replaces a queued one"
    with sqlite.write() as session:
        job = autopsies.claim_autopsy(session, died, "here:1:1")
    assert job is not None
    assert job.step == 40
    assert client.get(path).json()["state"] == "running"
    error = error_of(client.post(path, json={}), 409)
    assert (error["message"], error["field"]) == (f"an autopsy of run {died} is running", "state")
    with sqlite.write() as session:
        assert autopsies.end_autopsy(session, job, findings=check_findings(findings()))
    found = client.get(path).json()
    assert (found["state"], found["loss"], found["batch"]["largest_input"]) == ("done", "NaN", "Infinity")
    assert found["first_nonfinite"] == findings()["first_nonfinite"]
    assert found["counterfactuals"][0]["loss"] == [1.0, "-Infinity"]


def test_impossible_requests_get_one_clear_error(sqlite: Database, client: httpx.Client, died: int) -> None:
    path = f"/api/runs/{died}/autopsy"
    for step in (0, -1, "12", 1.5, True):
        assert error_of(client.post(path, json={"step": step}), 422)["field"] == "step"
    error = error_of(client.post(path, json={"step": 41}), 422)
    assert (error["field"], error["allowed"]) == ("step", "steps 1 to 40, which the run has trained")
    assert error_of(client.post(path, json={"steps": 4}), 422)["field"] == "steps"
    assert error_of(client.post("/api/runs/99/autopsy"), 404)["field"] == "run_id"
    error = error_of(client.post(f"/api/runs/{claimed(sqlite).run_id}/autopsy"), 409)
    assert (error["field"], error["allowed"]) == ("status", "runs that are finished, failed, diverged, cancelled")


def test_a_server_without_autopsies_refuses_requests_and_says_so(sqlite: Database, tmp_path: Path, died: int) -> None:
    with client_of(application(sqlite.url, tmp_path, autopsy="off")) as client:
        answer = client.get(f"/api/runs/{died}/autopsy").json()
        assert (answer["state"], answer["reason"]) == ("off", "autopsies are off on this server (STABLESSM_AUTOPSY)")
        assert error_of(client.post(f"/api/runs/{died}/autopsy"), 409)["field"] == "state"


def test_only_the_owner_of_a_run_may_ask_for_its_autopsy(client: httpx.Client, died: int) -> None:
    secret = client.post("/api/tokens", json={"name": "other", "scope": "submit"}).json()["secret"]
    own = {"Authorization": f"Bearer {secret}"}
    assert error_of(client.post(f"/api/runs/{died}/autopsy", headers=own), 403)["field"] == "run_id"
    assert client.get(f"/api/runs/{died}/autopsy", headers=own).status_code == 200


@pytest.mark.slow
def test_the_command_waits_for_the_autopsy_and_prints_it_in_words(sqlite: Database, tmp_path: Path, died: int) -> None:
    folder = tmp_path / "state"
    with running(sqlite.url, tmp_path) as (address, _):
        environment = {"STABLESSM_DATA_DIR": str(folder), "STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN, "COLUMNS": "200"}

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(main, ["autopsy", str(died), *arguments], env=environment, catch_exceptions=False)

        def work() -> None:
            while not asked(sqlite, died):
                time.sleep(0.02)
            done(sqlite, died)

        worker = threading.Thread(target=work)
        worker.start()
        first = run()
        worker.join()
        assert first.exit_code == 0
        for sentence in (
            f"the autopsy of run {died} is queued",
            f"autopsy of run {died}, step 40",
            "equal the recorded ones, bit for bit",
            "largest |input| Infinity; usual in this run: 1.5",
            "Forward pass: native_layer_norm in blocks.0.mlp.norm made -Infinity at index (1, 3); 19 numbers are not finite.",
            "It belongs to layer 0, eigenvalue 2.",
            "Every number is finite: loss 1.34",
            "the trouble begins in step 2: its update moves an eigenvalue across the stability boundary",
            "dies at step 5",
            "not tried",
            "The step cannot be computed twice.",
        ):
            assert sentence in first.output, first.output
        assert run().exit_code == 0, "the second call prints what is there"
        assert json.loads(run("--json").stdout)["loss"] == "NaN"
        with Client(address, TOKEN) as client:
            assert client.autopsy(died)["step"] == 40
            assert client.request_autopsy(died, step=7)["asked_step"] == 7
        with sqlite.write() as session:
            job = autopsies.claim_autopsy(session, died, "here:1:1")
            assert job is not None
            autopsies.end_autopsy(session, job, findings=check_findings({"step": 7, "refused": "The checkpoint is missing."}))
        refused = run()
        assert (refused.exit_code, refused.stdout.strip()) == (
            1,
            f"autopsy of run {died}, step 7: no result: The checkpoint is missing.",
        )


def asked(database: Database, run_id: int) -> bool:
    with database.read() as session:
        return autopsies.autopsy_json(session, session.get_one(Run, run_id), on=True)["state"] == "queued"


def test_the_command_does_not_wait_with_an_automatic_autopsy_for_training_to_pause(
    sqlite: Database, tmp_path: Path, died: int
) -> None:
    with sqlite.write() as session:
        autopsies.queue_autopsy(session, session.get_one(Run, died))
    with sqlite.read() as session:
        assert autopsies.candidates(session, asked=True) == []
    with running(sqlite.url, tmp_path) as (address, _):
        environment = {"STABLESSM_DATA_DIR": str(tmp_path / "state"), "STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}

        def work() -> None:
            for _ in range(1000):
                with sqlite.read() as session:
                    if autopsies.candidates(session, asked=True):
                        break
                time.sleep(0.02)
            done(sqlite, died)

        worker = threading.Thread(target=work)
        worker.start()
        shown = CliRunner().invoke(main, ["autopsy", str(died)], env=environment, catch_exceptions=False)
        worker.join()
    assert shown.exit_code == 0
    with sqlite.read() as session:
        assert autopsies.autopsy_json(session, session.get_one(Run, died), on=True)["requested_by"] is not None
