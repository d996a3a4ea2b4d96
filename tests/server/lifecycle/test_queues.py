"""The choice of the next run by priority, fair shares, queue limits and pauses, and GPU kinds; and what the API reports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text, update

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import queues
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import CPU, config, run_of

pytestmark = pytest.mark.both_engines

GPUS = {"devices": ["cpu", "cuda"], "gpus": ["NVIDIA H200"]}
CLAIMANTS = 8


def put(database: Database, count: int = 1, **place: Any) -> list[int]:
    with database.write() as session:
        return [lifecycle.submit(session, config(), **place).id for _ in range(count)]


def take(database: Database, capabilities: dict[str, Any] = CPU) -> int | None:
    with database.write() as session:
        claim = lifecycle.claim(session, "tester", capabilities)
    return claim and claim.run_id


def end(database: Database, run_id: int) -> None:
    with database.write() as session:
        lifecycle.finish(session, run_id, run_of(database, run_id).attempt, "finished")


def setting(database: Database, name: str, **changes: Any) -> None:
    with database.write() as session:
        queues.change_queue(session, name, changes)


def test_runs_are_claimed_by_priority_then_by_fewest_running_runs_of_the_submitter_then_by_age(database: Database) -> None:
    many, one, urgent = (
        put(database, 3, submitted_by=1),
        put(database, 2, submitted_by=2),
        put(database, submitted_by=1, priority=1),
    )
    own = put(database)  # submitted with the token from the settings
    order = [take(database) for _ in range(7)]
    # First the urgent run of submitter 1. Then submitter 2 and the owner have no running runs. After that, everyone has one.
    assert order == [urgent[0], one[0], own[0], many[0], one[1], many[1], many[2]]


def test_a_submitter_whose_run_ended_is_served_next(database: Database) -> None:
    first, second = put(database, 3, submitted_by=1), put(database, 3, submitted_by=2)
    assert [take(database), take(database)] == [first[0], second[0]]
    end(database, second[0])
    assert take(database) == second[1]


def test_an_old_run_starts_even_if_urgent_runs_keep_arriving(database: Database) -> None:
    (old,) = put(database, priority=-100, submitted_by=1)
    with database.write() as session:
        session.execute(update(Run).values(created_at=Run.created_at - queues.PATIENCE_SECONDS - 60))
    claims = 0
    # Without the share for old runs this loop would never end; with it, 400 failures in a row have probability 1e-23.
    while True:
        put(database, priority=100, submitted_by=2)
        claims += 1
        assert claims < 400
        found = take(database)
        if found == old:
            return
        assert found is not None
        end(database, found)


def test_a_run_is_claimed_only_by_workers_of_its_queue_with_its_gpu(database: Database) -> None:
    (far,), (gpu,), (plain,) = put(database, queue="far"), put(database, needs_gpu="h200"), put(database)
    assert take(database, CPU | {"queues": ["default"]}) == plain
    assert take(database, CPU | {"queues": ["default"]}) is None
    assert take(database, GPUS | {"queues": ["default"]}) == gpu
    assert take(database, CPU) == far  # a worker that names no queues serves all queues


def test_a_run_is_claimed_only_by_workers_with_its_task_and_does_not_block_other_runs(database: Database) -> None:
    (first,), (second,) = put(database), put(database)
    with database.write() as session:
        session.get_one(Run, first).needs_task = "echo"
    assert take(database, CPU | {"tasks": ["polynomial_memory"]}) == second
    assert take(database, CPU | {"tasks": ["polynomial_memory"]}) is None
    assert take(database, CPU | {"tasks": ["polynomial_memory", "echo"]}) == first


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"queue": "far"}, "it does not serve queue 'far'"),
        ({"needs_gpu": "H200"}, "it has no GPU named 'H200'"),
        ({"needs_task": "echo"}, "it does not have the task 'echo'"),
        ({"needs_task": "digits"}, None),
        ({}, None),
    ],
)
def test_the_reason_names_the_queue_gpu_or_task_that_a_worker_lacks(place: dict[str, Any], reason: str | None) -> None:
    known = CPU | {"queues": ["default"], "gpus": ["NVIDIA A100"], "tasks": ["digits"]}
    assert queues.why_not(known, queues.Needs(**{"needs_cuda": False, "needs_data": "", "queue": "default"} | place)) == reason


def test_a_paused_queue_starts_no_run_and_other_queues_continue(database: Database) -> None:
    (held,), (free,) = put(database, queue="held", priority=100), put(database)
    setting(database, "held", paused=True)
    assert [take(database), take(database)] == [free, None]
    setting(database, "held", paused=False)
    assert take(database) == held


def test_simultaneous_claims_do_not_exceed_the_limit_of_a_queue(database: Database) -> None:
    put(database, 24, queue="small")
    setting(database, "small", max_running=3)
    start = threading.Barrier(CLAIMANTS)
    most = []

    def left() -> int:
        with database.read() as session:
            return int(session.scalar(text("SELECT count(*) FROM runs WHERE status = 'queued'")) or 0)

    def work(_: int) -> list[int]:
        taken = []
        start.wait()
        while left():
            if (found := take(database)) is None:
                time.sleep(0.01)  # the queue has reached its limit
                continue
            taken.append(found)
            with database.read() as session:
                most.append(session.scalar(text("SELECT count(*) FROM runs WHERE status = 'running'")))
            end(database, found)
        return taken

    with ThreadPoolExecutor(CLAIMANTS) as threads:
        taken = [run for mine in threads.map(work, range(CLAIMANTS)) for run in mine]
    assert max(Counter(taken).values()) == 1
    assert len(taken) == 24
    assert max(most) <= 3


def test_simultaneous_claims_take_every_run_exactly_once(database: Database) -> None:
    everything = [run for submitter in range(1, 9) for run in put(database, 5, submitted_by=submitter, priority=submitter % 3)]
    start = threading.Barrier(CLAIMANTS)

    def work(_: int) -> list[int]:
        start.wait()
        taken = []
        while (found := take(database)) is not None:
            taken.append(found)
        return taken

    with ThreadPoolExecutor(CLAIMANTS) as threads:
        taken = [run for mine in threads.map(work, range(CLAIMANTS)) for run in mine]
    assert sorted(taken) == everything


def test_the_query_for_the_next_run_uses_an_index(sqlite: Database) -> None:
    put(sqlite, 3)
    with sqlite.read() as session:
        query = queues._FIRST_OF_EACH_KIND["sqlite"]
        plan = " ".join(str(row) for row in session.execute(text(f"EXPLAIN QUERY PLAN {query}")))
    assert "ix_runs_next" in plan
    assert "TEMP B-TREE" not in plan


def test_the_waiting_time_of_a_requeued_run_starts_at_its_return(database: Database) -> None:
    first, back = put(database, 2)
    with database.write() as session:
        lifecycle.request_cancel(session, back)
        lifecycle.resume_run(session, back)
        session.execute(update(Run).where(Run.id == first).values(created_at=1000.0))
        session.execute(update(Run).where(Run.id == back).values(created_at=10.0))
    with database.read() as session:
        assert queues.waiting(session) == {"default": (2, 1000.0)}


def test_a_claim_takes_a_fixed_number_of_statements_whatever_the_queue_length(database: Database) -> None:
    for submitter in range(20):
        put(database, 5, submitted_by=submitter, queue="night")
    setting(database, "night", max_running=3)
    asked: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert take(database) is not None
    # The statements read the heads of the queues and the running runs, lock the queue, read its running runs and the run, and
    # write the new status and the event. Each statement costs a switch of processes.
    assert len([statement for statement in asked if not statement.startswith("BEGIN")]) == 7, asked


def test_queue_priority_and_gpu_can_be_set_cloned_changed_and_filtered(database_url: str, tmp_path: Path) -> None:
    with client_of(application(database_url, tmp_path)) as client:
        made = client.post("/api/runs", json=BODY, params={"queue": "h100", "priority": 7, "gpu": "H100"}).json()
        assert (made["queue"], made["priority"], made["gpu"]) == ("h100", 7, "H100")
        copy = client.post(f"/api/runs/{made['id']}/clone", json={"priority": -3}).json()
        assert (copy["queue"], copy["priority"], copy["gpu"]) == ("h100", -3, "H100")
        sweep = {"base": BODY, "grid": {"train.seed": [1, 2]}, "queue": "night"}
        assert [run["queue"] for run in client.post("/api/sweeps", json=sweep).json()["runs"]] == ["night", "night"]
        moved = client.patch(f"/api/runs/{made['id']}", json={"queue": "night", "priority": 100, "gpu": ""}).json()
        assert (moved["queue"], moved["priority"], moved["gpu"]) == ("night", 100, "")
        found = client.get("/api/runs", params={"q": "queue=night priority>=50"}).json()["runs"]
        assert [run["id"] for run in found] == [made["id"]]
        assert client.post(f"/api/runs/{made['id']}/cancel").status_code == 200
        assert error_of(client.patch(f"/api/runs/{made['id']}", json={"priority": 1}), 409)["field"] == "priority"
        assert client.patch(f"/api/runs/{made['id']}", json={"name": "still"}).json()["name"] == "still"
        resumed = client.post(f"/api/runs/{made['id']}/resume").json()
        assert (resumed["queue"], resumed["priority"]) == ("night", 100)


@pytest.mark.parametrize(
    ("params", "field"),
    [({"priority": 101}, "priority"), ({"priority": "x"}, "priority"), ({"queue": ""}, "queue"), ({"queue": "a b"}, "queue"),
     ({"queue": "q" * 61}, "queue"), ({"gpu": "g" * 61}, "gpu"), ({"gpu": "\x00"}, "gpu"), ({"queu": "a"}, "queu")],
)  # fmt: skip
def test_an_invalid_queue_priority_or_gpu_is_refused_by_field(
    sqlite_url: str, tmp_path: Path, params: dict[str, Any], field: str
) -> None:
    with client_of(application(sqlite_url, tmp_path)) as client:
        assert error_of(client.post("/api/runs", json=BODY, params=params), 422)["field"] == field


def test_a_queue_with_a_dedicated_worker_accepts_runs_sweeps_and_clones(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    only = CPU | {"queues": ["night"], "tasks": ["polynomial_memory"]}
    with database.write() as session:
        lifecycle.register_worker(session, "w", "host", 1, only)
        lifecycle.register_worker(session, "s", "other", 1, {"queues": ["soon"]})
    with client_of(application(database_url, tmp_path)) as client:
        answer = client.post("/api/runs", json=BODY, params={"queue": "night"})
        assert answer.status_code == 201, answer.text
        assert answer.json()["waits_for"] == "a free worker"
        sweep = client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [0, 1]}, "queue": "night"})
        assert sweep.status_code == 201, sweep.text
        assert {run["waits_for"] for run in sweep.json()["runs"]} == {"a free worker"}
        clone = client.post("/api/runs/1/clone", json={"set": {"train.seed": 2}})
        assert (clone.status_code, clone.json().get("queue")) == (201, "night"), clone.text
        refused = error_of(client.post("/api/runs", json={"task": {"name": "digits"}}, params={"queue": "night"}), 422)
        assert (refused["field"], refused["allowed"]) == ("task.name", "polynomial_memory")
        soon = client.post("/api/runs", json=BODY, params={"queue": "soon"}).json()
        assert soon["waits_for"] == "a worker that is still starting"
    assert {take(database, only) for _ in range(4)} == {1, 2, 3, clone.json()["id"]}
    database.close()


def test_queues_can_be_limited_paused_and_listed_and_runs_report_their_waiting_reason(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    with database.write() as session:
        lifecycle.register_worker(session, "w", "host", 1, CPU | {"queues": ["default"]})
    with client_of(application(database_url, tmp_path)) as client:
        far = client.post("/api/runs", json=BODY, params={"queue": "h100"}).json()
        assert far["waits_for"] == "a worker: none serves queue 'h100'"
        gpu = client.post("/api/runs", json=BODY, params={"gpu": "H200"}).json()
        assert gpu["waits_for"] == "a worker that can train it; host: it has no GPU named 'H200'"
        near = client.post("/api/runs", json=BODY).json()
        assert near["waits_for"] == "a free worker"
        assert client.patch("/api/queues/default", json={"paused": True}).json()["paused"]
        assert client.get(f"/api/runs/{near['id']}").json()["waits_for"] == "its queue: 'default' is paused"
        limited = client.patch("/api/queues/default", json={"paused": False, "max_running": 0}).json()
        assert (limited["paused"], limited["max_running"]) == (False, 0)
        assert (
            client.get(f"/api/runs/{near['id']}").json()["waits_for"] == "its queue: 'default' is at its limit of 0 running runs"
        )
        assert client.patch("/api/queues/default", json={"max_running": None}).json()["max_running"] is None
        listed = {queue["name"]: queue for queue in client.get("/api/queues").json()["queues"]}
        assert {name: (queue["queued"], queue["running"], queue["workers"]) for name, queue in listed.items()} == {
            "default": (2, 0, 1),
            "h100": (1, 0, 0),
        }
        assert listed["h100"]["oldest_at"] is not None
        assert client.get("/api/queues/nobody").json()["queued"] == 0
        assert error_of(client.patch("/api/queues/a%20b", json={}), 422)["field"] == "name"
        assert error_of(client.patch("/api/queues/default", json={"max_running": -1}), 422)["field"] == "max_running"
    database.close()
