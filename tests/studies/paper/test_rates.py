"""The study of largest stable rates: it trains rounds until each seed's rate is known, can be interrupted, and names what is
missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.cli.reproduce_paper import Sweeps
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import autopsies
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsy_findings import check_findings
from stablessm_core.client import Client
from studies import autopsies as waiting
from studies.paper import rates, rates_rounds
from studies.paper.designs import Design
from studies.paper.formats import html_text, latex, markdown
from studies.paper.images import real
from studies.paper.rates import MOST_RUNS, NOT_JUDGED, collect_rates, new_searches, rates_design
from studies.paper.rates_report import rates_report
from studies.paper.rates_rounds import begin, blocks_of, take_up_rates, train_rounds
from studies.paper.registry import load
from studies.paper.report import dumps
from tests.server.autopsies import findings
from tests.server.http_service import TOKEN, InProcess, application
from tests.server.recording import claim

REGISTRY = load()
BEARS = {"direct": 0.02, "softplus": 5.12, "exp": 20.48, "best": 1310.72}  # the largest rate of seed 0; rates of the quick grid
DEAD = {"finite": False, "loss": None, "largest": 1e300, "narrow": [], "first_nonfinite": None}
CALM: dict[str, Any] = {  # float64 is finite, and float32 could hold every number
    "float64": DEAD | {"finite": True, "loss": 1.0, "largest": 2.0},
    "modules": [{"module": "head", "pass": "forward", "largest": 2.0, "largest_float64": 2.0, "nonfinite": 1}],
    "first_nonfinite": None,
}


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
def without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of these tests are never trained, so they need no images."""

    def design(size: str) -> Design:
        (part,) = real(size).parts
        return replace(real(size), parts=(replace(part, base=dict(part.base) | {"task": {"name": "polynomial_memory"}}),))

    monkeypatch.setattr(rates, "real", design)


def true_rate(name: str, seed: int) -> float:
    """What a map bears at a seed, at most the top of the grid: odd seeds bear one step of the grid less."""
    return min(BEARS[name] / (4.0 if seed % 2 else 1.0), 327.68)


def train_next(database: Database, confirmed: bool = True) -> bool:
    """Act as the worker on the next run: it lives up to its true rate. Every death has an autopsy. False without a run."""
    try:
        own = claim(database)
    except AssertionError:
        return False
    config = own.config if isinstance(own.config, dict) else own.config.model_dump(mode="json")
    name = config["model"]["reparameterization"]["name"]
    rate, decay = config["optimizer"]["lr"], config["optimizer"]["weight_decay"]
    lives = rate * decay < 2 if decay else rate <= true_rate(name, config["train"]["seed"])
    result = {"train_loss": 0.5, "eval_loss": 0.5, "eval_accuracy": 0.6} if lives else {"train_loss": math.nan}
    where = None if lives else {"step": 3, "layer": 0, "eigenvalue": 1, "tensor": "w", "value": "NaN"}
    with database.write() as session:
        lifecycle.finish(session, own.run_id, own.attempt, "finished" if lives else "diverged", "", result, where)
    if not lives:
        with database.write() as session:
            autopsies.queue_autopsy(session, session.get_one(Run, own.run_id), step=3)
            job = autopsies.claim_autopsy(session, own.run_id, "here:1:1")
            assert job is not None
            found = findings(float64=DEAD) if confirmed else findings(**CALM)
            assert autopsies.end_autopsy(session, job, findings=check_findings(found))
            judge(session.get_one(Run, own.run_id))
    return True


def judge(run: Run) -> None:
    """Plant the cause of a death: runs with the map `direct` die of their eigenvalues, others of their learning rate."""
    name = run.config["model"]["reparameterization"]["name"]
    run.cause = "eigenvalue_overflow" if name == "direct" else "lr_too_large"
    run.judged_at = 1.0


def work(
    database: Database, monkeypatch: pytest.MonkeyPatch, confirmed: Callable[[int], bool] = lambda _: True
) -> list[list[int]]:
    """Let a worker train whatever waits while the study waits for its sweeps. Returns the sweeps of each wait."""
    waited: list[list[int]] = []
    trained = 0

    def wait(_client: Client, sweep_ids: list[int], _report: Any) -> None:
        nonlocal trained
        waited.append(list(sweep_ids))
        while train_next(database, confirmed(trained)):
            trained += 1

    monkeypatch.setattr(rates_rounds, "wait_for_sweeps", wait)
    return waited


def test_maps_that_train_the_same_rate_with_the_same_seeds_share_a_sweep() -> None:
    proposed = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}, "c": {0: 1.0, 2: 1.0}}
    assert blocks_of(proposed) == [(1.0, ("a", "b"), (0,)), (1.0, ("c",), (0, 2)), (2.0, ("a", "b"), (1,))]


def test_full_runs_of_the_study_bound_their_rounds_and_share_one_grid() -> None:
    design = rates_design("full")
    searches = new_searches(design)
    assert list(searches) == ["direct", "clip", "softplus", "exp", "best", "heavytail"]
    assert {search.grid for search in searches.values()} == {design.parts[0].rates}
    assert max(search.rounds_left() for search in searches.values()) <= 5
    assert design.seeds == 12
    assert MOST_RUNS == 8


@pytest.mark.slow
def test_rounds_find_every_seeds_rate_and_an_exact_test_compares_the_maps(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = work(database, monkeypatch)
    said: list[str] = []
    design = rates_design("quick", 12)
    group = begin(design, REGISTRY)
    source = Sweeps(client, group.group)
    found = train_rounds(client, source, design, group, said.append)
    assert found.problems == []
    for name, search in found.searches.items():
        assert {seed: one.rate for seed, one in search.results().items()} == {seed: true_rate(name, seed) for seed in range(12)}
    assert 3 <= len(waited) <= MOST_RUNS
    assert said[0] == "round 1, 3 left with this one: 48 runs, about 2 min left"
    assert "if interrupted, continue with --resume 1" in said[1]
    report = rates_report(found, REGISTRY)
    assert (
        report["findings"][-1] == "best bears a larger learning rate than exp: p = 0.0029, adjusted for 6 comparisons, 12 seeds."
    )
    assert (
        report["findings"][0]
        == "direct: 12 runs died next to the largest stable rates. Cause by verdict: eigenvalue overflow 12."
    )
    assert report["findings"][3] == (
        "best: without weight decay, every run stays finite, even at 327.7, the largest rate of the grid."
    )
    assert report["findings"][5] == (
        "With weight decay 0.01 and a rate of 327.7, a step multiplies decayed weights by -2.277 at first: 0 of 3 runs stay "
        "finite. Cause by verdict: learning rate too large 3."
    )
    deaths = ["direct", "search", "12", "eigenvalue overflow 12", "not finite 12", "norm 12", "not tried", "0/12"]
    assert report["tables"][1]["rows"][0] == deaths
    assert [(cell["rate"], cell["variant"], cell["finite"], cell["ended"]) for cell in report["cells"][2:4]] == [
        (81.92, "best", 1, 1), (327.68, "softplus", 0, 1),
    ]  # fmt: skip
    assert report["tables"][0]["rows"][0] == ["direct", "12/12", 0.005, 0.005, 0.02, 0.005, 0.02, "12/12", "0", "0"]
    assert dumps(report) == dumps(rates_report(collect_rates(source, design, group), REGISTRY)), "the same bytes again"
    for write in (markdown, latex, html_text):
        text = write(report, REGISTRY)
        assert "Largest stable learning rate of each seed" in text
        assert "claim of the paper" not in text, "this study judges no claim"


@pytest.mark.slow
def test_an_interrupted_search_goes_on_from_its_runs_and_trains_deleted_ones_again(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = work(database, monkeypatch)
    design = rates_design("quick", 2)
    group = begin(design, REGISTRY)
    source = Sweeps(client, group.group)
    monkeypatch.setattr(rates_rounds, "wait_for_sweeps", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_rounds(client, source, design, group, print)
    client.cancel_sweep(1)
    again, same = take_up_rates(client, 1)
    assert (again.seeds, same) == (2, group)
    work_again = work(database, monkeypatch)
    before = len(list(client.sweeps(group.group)))
    found = train_rounds(client, source, again, same, print)
    assert found.problems == []
    assert work_again[0] == list(range(1, before + 1)), "the sweeps that exist are waited for first"
    assert not waited
    total = sum(one["runs"] for one in found.sweeps)
    client.bulk("delete", [found.runs["direct", 0, true_rate("direct", 0)].run_id])
    missing = collect_rates(source, again, same)
    assert any("is not known." in problem for problem in missing.problems)
    answers = [one for one in rates_report(missing, REGISTRY)["findings"] if "a larger learning rate than" in one]
    assert answers
    assert all(": cannot tell, " in one for one in answers)
    healed = train_rounds(client, source, again, same, print)
    assert healed.problems == []
    assert sum(one["runs"] for one in healed.sweeps) == total, "the deleted run was trained again"


@pytest.mark.slow
def test_deaths_that_float64_does_not_confirm_are_counted_and_can_decide_nothing(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(database, monkeypatch, confirmed=lambda _: False)
    design = rates_design("quick", 12)
    group = begin(design, REGISTRY)
    found = train_rounds(client, Sweeps(client, group.group), design, group, print)
    report = rates_report(found, REGISTRY)
    assert report["tables"][0]["rows"][0][-1] == "12"
    assert any("the answer depends on deaths that float64 does not confirm" in one for one in report["findings"])


@pytest.mark.slow
def test_the_report_waits_for_the_verdict_that_the_end_of_an_autopsy_has_taken_away(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(database, monkeypatch)
    design = rates_design("quick", 1)
    group = begin(design, REGISTRY)
    source = Sweeps(client, group.group)
    [died] = train_rounds(client, source, design, group, print).deciding_deaths()["direct"]
    with database.write() as session:
        run = session.get_one(Run, died)
        run.cause = run.judged_at = None
    assert collect_rates(source, design, group).deaths[died][0] == NOT_JUDGED

    def judge_in_the_meantime(_seconds: float) -> None:
        with database.write() as session:
            judge(session.get_one(Run, died))

    monkeypatch.setattr(rates_rounds, "time", SimpleNamespace(monotonic=time.monotonic, sleep=judge_in_the_meantime))
    assert train_rounds(client, source, design, group, print).deaths[died][0] == "eigenvalue_overflow"


@pytest.mark.slow
def test_every_autopsy_is_asked_for_before_the_first_one_ends(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit_sweep({"task": {"name": "polynomial_memory"}}, {"train.seed": [0, 1]})
    died = []
    for _ in range(2):
        own = claim(database)
        where = {"step": 3, "layer": 0, "eigenvalue": 1, "tensor": "w", "value": "NaN"}
        with database.write() as session:
            lifecycle.finish(session, own.run_id, own.attempt, "diverged", "", {"train_loss": math.nan}, where)
            autopsies.queue_autopsy(session, session.get_one(Run, own.run_id), step=3)
        died.append(own.run_id)

    def end_both(_seconds: float) -> None:
        with database.write() as session:
            for run_id in died:
                job = autopsies.claim_autopsy(session, run_id, "here:1:1")
                assert job is not None
                assert job.asked, "somebody has asked for it"
                assert autopsies.end_autopsy(session, job, findings=check_findings(findings(float64=DEAD)))

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=time.monotonic, sleep=end_both))
    answers = waiting.wait_for_autopsies(client, died, print)
    assert {run_id: answer["state"] for run_id, answer in answers.items()} == dict.fromkeys(died, "done")


def test_a_sweep_of_another_study_is_refused(client: Client) -> None:
    other = client.submit_sweep({"task": {"name": "polynomial_memory"}}, {"train.seed": [0]})
    with pytest.raises(ValueError, match="belongs to no search for largest rates; expected a sweep with the tag `study=rates`"):
        take_up_rates(client, other["id"])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
