"""The study "who killed the run?": its runs, an interruption, and what it reads from runs and autopsies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import autopsies
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsy_findings import check_findings
from stablessm_core.client import Client
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.paths import with_settings
from studies import culprits
from studies.culprits import FROZEN, FULL, QUICK, NotThisStudy, Size, arms, reproduce, resumed, submit
from studies.stability_map import MapSize, map_base, map_grid
from tests.server.autopsies import findings
from tests.server.http_service import TOKEN, InProcess, application
from tests.server.recording import claim

TINY = replace(QUICK, seeds=2, steps=20, map=MapSize((8,), (0.1,), ("best",), seeds=1, steps=20))
RUNS = 2 * (3 + 1) + 1  # rwkv4: native, direct, best; native and frozen; one point of the stability map


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.fixture
def client(database: Database, tmp_path: Path) -> Iterator[Client]:
    with Client("http://127.0.0.1:8000", TOKEN, transport=InProcess(application(database.url, tmp_path))) as client:
        yield client


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(culprits, "QUICK", replace(TINY, seeds=5))


def act_as_worker(database: Database, runs: int) -> None:
    """The first run diverges and has an autopsy, the last is cancelled, all others finish."""
    for number in range(runs):
        claimed = claim(database)
        status = "diverged" if number == 0 else "cancelled" if number == RUNS - 2 else "finished"
        with database.write() as session:
            lifecycle.finish(session, claimed.run_id, claimed.attempt, status, "", {"train_loss": 0.5})
        if number == 0:
            with database.write() as session:
                autopsies.queue_autopsy(session, session.get_one(Run, claimed.run_id), step=3)
                job = autopsies.claim_autopsy(session, claimed.run_id, "here:1:1")
                assert job is not None
                assert autopsies.end_autopsy(session, job, findings=check_findings(findings()))


@pytest.mark.parametrize("size", [QUICK, FULL], ids=lambda size: size.name)
def test_every_layer_has_its_native_map_and_the_other_maps_that_it_can_have(size: Size) -> None:
    sections = arms(size)
    assert {section["layer"] for section in sections} == set(LAYERS)
    maps = {name: [s["reparameterization"]["name"] for s in sections if s["layer"] == name] for name in LAYERS}
    assert maps["mamba"] == ["native", "direct", "best"]
    assert (maps["s5"], maps["stable_ssm"], maps["gla"]) == (["native", "best"], ["native", "direct"], ["native"])
    for section in sections:
        parse_config({"task": dict(size.task), "model": section})
    for name, values in map_grid(size.map).items():
        for value in values:
            parse_config(with_settings(map_base(size.map), {name: value}))


def test_one_grid_of_each_size_fits_into_a_sweep() -> None:
    for size in (QUICK, FULL):
        assert len(arms(size)) * len(size.rates) * size.seeds <= 2000


@pytest.mark.slow
def test_an_interrupted_study_is_resumed_without_a_second_run(database: Database, client: Client) -> None:
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(client, TINY, ["rwkv4"], interrupt)
    assert lines == ["sweep 1 at http://127.0.0.1:8000/sweeps; if interrupted, continue with --resume 1"]
    assert len(list(client.sweeps())) == 1, "interrupted between two sweeps"

    def work(line: str) -> None:
        lines.append(line)
        if "--resume" not in line and "0 of 9" in line:
            act_as_worker(database, RUNS)

    found = reproduce(client, FULL, [], work, resume=1)  # size, seeds and layers come from the sweep
    assert (found.size, found.sweeps, len(list(client.runs()))) == (TINY, [1, 2, 3], RUNS)
    assert {(cell.layer, cell.arm) for cell in found.cells} == {("rwkv4", arm) for arm in ("native", "direct", "best", FROZEN)}
    native = next(cell for cell in found.cells if cell.arm == "native")
    assert (native.finite, set(native.deaths)) == ({0: False, 1: True}, {0})
    assert (native.deaths[0].kind, native.deaths[0].place, native.deaths[0].tenth) == ("unknown", "norm", False)
    assert found.problems == ["1 runs neither finished nor diverged, among them run 8; they do not count."]
    assert len(next(cell for cell in found.cells if cell.arm == FROZEN).finite) == 1
    (point,) = found.points
    assert (point.length, point.map, point.fatal, math.isnan(point.largest)) == (8, "best", None, True), "nothing was recorded"
    again = reproduce(client, TINY, ["rwkv4"], lines.append, resume=2)
    assert (again.cells, again.sweeps) == (found.cells, found.sweeps), "the same runs give the same findings"


@pytest.mark.slow
def test_a_sweep_of_another_study_is_refused(client: Client) -> None:
    grid = {"train.seed": [0]}
    other = client.submit_sweep({"task": {"name": "polynomial_memory"}}, grid, name="mine")["id"]
    with pytest.raises(NotThisStudy, match="sweep 1 \\('mine'\\) is no sweep of this study"):
        resumed(client, other)
    one = submit(client, TINY, ["gla"], "0123abcd", lambda _line: None)
    assert len(one) == 2, "no layer here has a recurrence to freeze"
    client.update_sweep(one[0], name="renamed")
    with pytest.raises(NotThisStudy, match="was deleted or renamed"):
        resumed(client, one[1])


@pytest.mark.slow
def test_deleted_runs_are_reported(database: Database, client: Client) -> None:
    sweeps = submit(client, TINY, ["rwkv4"], "0123abcd", lambda _line: None)
    act_as_worker(database, RUNS)
    gone = client.sweep(sweeps[1])["runs"][0]["id"]
    client.send("DELETE", f"/api/runs/{gone}")
    found = culprits.read(client, TINY, sweeps, lambda _line: None)
    assert f"1 of 2 runs of sweep {sweeps[1]} were deleted." in found.problems
