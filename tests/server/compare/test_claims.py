"""Planted sweeps: every page and file gives the same verdict, and no verdict rests on too few seeds or on equal maps."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from server.compare.claims import GroupClaim, group_claims
from server.compare.comparison import GROUP_BY, compare
from server.database.connection import Database
from server.database.models import Run
from tests.server.http_service import BODY, application, client_of

Loss = Callable[[str, float, int], float | str]  # map, rate, seed -> final loss; a string is the status of a run that has no loss
RATES = (0.01, 0.1)
HOLDS = "Does best bear a larger learning rate than direct?"


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        yield client


def plant(client: httpx.Client, database: Database, seeds: int, loss: Loss, **grid: Any) -> None:
    """A sweep whose runs have ended as `loss` says."""
    of = {GROUP_BY: ["direct", "best"], "optimizer.lr": list(RATES), "train.seed": list(range(seeds))} | grid
    client.post("/api/sweeps", json={"base": BODY, "grid": of}).raise_for_status()
    with database.write() as session:
        for run in session.scalars(select(Run)):
            end(run, loss(*cell(run)))


def cell(run: Run) -> tuple[str, float, int]:
    return run.config["model"]["reparameterization"]["name"], run.config["optimizer"]["lr"], run.config["train"]["seed"]


def end(run: Run, loss: float | str) -> None:
    run.status = loss if isinstance(loss, str) else "finished"
    run.result = {"train_loss": "NaN" if run.status == "diverged" else None if isinstance(loss, str) else loss}


def direct_dies(map_: str, rate: float, seed: int) -> float | str:
    return "diverged" if map_ == "direct" and rate == max(RATES) else 0.5 + seed / 100


def texts(client: httpx.Client) -> dict[str, str]:
    """What every page and file says about the sweep, by its address."""
    addresses = [
        "/sweeps/1", "/compare?sweep=1", "/api/compare?sweep=1&group_by=map", "/api/compare/claims?sweep=1",
        "/api/sweeps/1/table", "/api/sweeps/1/table?format=markdown", "/api/sweeps/1/table?format=latex",
        "/api/compare/table?sweep=1", "/api/compare/table?sweep=1&format=markdown", "/api/compare/table?sweep=1&format=latex",
        *(f"/api/compare/claims?sweep=1&format={form}" for form in ("csv", "markdown", "latex")),
    ]  # fmt: skip
    return {address: client.get(address).raise_for_status().text for address in addresses}


def claims(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {one["question"]: one for one in client.get("/api/compare/claims?sweep=1").raise_for_status().json()["claims"]}


@pytest.mark.slow
def test_three_of_three_seeds_cannot_tell_on_every_page_and_in_every_file(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 3, direct_dies)
    found = claims(client)["larger_rate"]
    assert (found["asked"], found["verdict"], found["reason"], found["p"]) == (HOLDS, "cannot tell", "3 seeds", 0.25)
    assert (found["first_share"]["count"], found["first_share"]["total"], found["second_share"]["count"]) == (3, 3, 0)
    for address, text in texts(client).items():
        assert "3 seeds" in text, address
        assert "cannot tell" in text.lower(), address
        assert "Holds:" not in text, address


def test_losses_are_compared_only_where_both_runs_trained(client: httpx.Client, sqlite: Database) -> None:
    """The target of polynomial memory has the mean square 1.48, which is the loss of a model that always answers 0."""
    plant(client, sqlite, 12, lambda map_, _, seed: 0.3 if map_ == "best" else 1.45 if seed < 6 else 0.5)
    found = claims(client)["lower_loss"]
    assert (found["seeds"], found["verdict"]) == (6, "holds"), "with direct, six seeds have learnt nothing"
    assert "reach a lower loss than direct where both trained?" in found["asked"]


@pytest.mark.slow
def test_twelve_of_twelve_seeds_hold_on_every_page_and_in_every_file(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 12, direct_dies)
    found = claims(client)["larger_rate"]
    assert (found["verdict"], found["reason"]) == ("holds", "p = 0.00049, 12 seeds")
    assert found["first_share"] == {"count": 12, "total": 12, "low": pytest.approx(0.7575, abs=1e-4), "high": 1.0}
    for address, text in texts(client).items():
        assert "p = 0.00049, 12 seeds" in text, address
    # the losses are equal where both are finite
    assert claims(client)["lower_loss"]["reason"] == "no difference was seen, 12 seeds"


def test_against_the_other_map_the_same_claim_does_not_hold(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 12, direct_dies)
    answer = client.get("/api/compare/claims?sweep=1&against=direct").raise_for_status().json()["claims"][0]
    assert (answer["asked"], answer["verdict"]) == (
        HOLDS.replace("best", "x").replace("direct", "best").replace("x", "direct"),
        "does not hold",
    )


@pytest.mark.slow
def test_one_nan_among_twelve_is_eleven_of_twelve_everywhere(client: httpx.Client, sqlite: Database) -> None:
    plant(
        client, sqlite, 12, lambda map_, _, seed: "diverged" if (map_, seed) == ("direct", 5) else 0.5, **{"optimizer.lr": [0.1]}
    )
    groups = {one["label"]: one for one in client.get("/api/compare?sweep=1&group_by=map").json()["groups"]}
    assert (groups["direct"]["finite"], groups["direct"]["total"], groups["best"]["finite"]) == (11, 12, 12)
    found = claims(client)["finite"]
    assert (found["second_share"]["count"], found["second_share"]["total"], found["verdict"]) == (11, 12, "cannot tell")
    assert claims(client)["lower_loss"]["seeds"] == 11
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/sweeps/1/table?group_by={GROUP_BY}&format=csv").text)))
    (direct,) = (row for row in rows if row[GROUP_BY] == "direct")
    assert (direct["finite"], direct["total"], direct["diverged"]) == ("11", "12", "1")
    assert [round(float(direct[f"finite_{end}"]), 3) for end in ("low", "high")] == [0.646, 0.985]
    rows = list(csv.DictReader(io.StringIO(client.get("/api/compare/claims?sweep=1&format=csv").text)))
    assert [(row["question"], row["first_count"], row["second_count"], row["seeds"]) for row in rows[:1]] == [
        ("finite", "12", "11", "12")
    ]
    for address in ("/api/sweeps/1/grid?format=latex", "/api/sweeps/1/grid?format=markdown", "/sweeps/1"):
        assert "11/12 finite" in client.get(address).text, address
    for form in ("latex", "markdown"):
        assert "(11/12)" in client.get(f"/api/compare/table?sweep=1&format={form}").text
    assert "11 / 12" in client.get("/compare?sweep=1").text
    for address, text in texts(client).items():
        if "/claims?" in address and not address.endswith("markdown"):
            assert all(count in text for count in ("11", "12")), address  # as numbers in columns of their own
        elif "/claims?" not in address:
            assert "11/12" in text, address


def test_an_open_run_leaves_the_verdict_open_and_stopped_or_arithmetic_ends_do_not_count(
    client: httpx.Client, sqlite: Database
) -> None:
    plant(client, sqlite, 12, direct_dies)
    with sqlite.write() as session:
        runs = {cell(run): run for run in session.scalars(select(Run))}
        runs["direct", 0.1, 0].cause = "arithmetic"
        end(runs["direct", 0.1, 1], "failed")
        end(runs["best", 0.1, 2], "cancelled")
    found = claims(client)["larger_rate"]
    assert found["left_out"] == {"open": 0, "stopped": 2, "arithmetic": 1, "unmatched": 0}
    assert (found["first_share"]["count"], found["seeds"], found["verdict"]) == (9, 12, "holds")  # three seeds are ties at 0.01
    assert "2 failed or cancelled, 1 died of float32's arithmetic alone" in found["text"]
    with sqlite.write() as session:
        run = session.get_one(Run, 1)
        run.status, run.result = "running", None
    found = claims(client)["larger_rate"]
    assert (found["verdict"], found["reason"]) == ("cannot tell", "1 run of the two groups has not ended")


def test_a_half_deleted_sweep_names_what_has_no_counterpart(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 12, direct_dies)
    with sqlite.write() as session:
        for run in session.scalars(select(Run)):
            if cell(run)[0] == "best" and cell(run)[2] >= 3:
                run.deleted_at = 1.0
    found = claims(client)["larger_rate"]
    assert (found["verdict"], found["reason"], found["left_out"]["unmatched"]) == ("cannot tell", "3 seeds", 18)
    assert "18 without a counterpart" in found["text"]


def test_with_three_maps_the_p_values_are_adjusted_for_all_three_pairs(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 6, direct_dies, **{GROUP_BY: ["direct", "best", "exp"]})
    found = client.get("/api/compare/claims?sweep=1").json()["claims"]
    rates = {one["second"]: one for one in found if one["question"] == "larger_rate"}
    assert rates["direct"]["p"] == pytest.approx(3 * 2 / 64)
    assert rates["direct"]["reason"] == "6 seeds, adjusted for 3 comparisons"
    assert {one["verdict"] for one in found} == {"cannot tell"}


def judged(sqlite: Database, loss: Loss) -> list[GroupClaim]:
    with sqlite.read() as session:
        runs = list(session.scalars(select(Run)))
        session.expunge_all()
        for run in runs:
            end(run, loss(*cell(run)))
        return group_claims(compare(session, runs, group_by=[GROUP_BY], curves=False))


@pytest.mark.slow
def test_maps_with_the_same_outcomes_never_differ(client: httpx.Client, sqlite: Database) -> None:
    plant(client, sqlite, 12, direct_dies)
    rng = random.Random(3)
    for _ in range(40):
        drawn = {(rate, seed): rng.choice(["diverged", rng.random()]) for rate in RATES for seed in range(12)}
        assert {one.claim.verdict for one in judged(sqlite, lambda _, rate, seed, drawn=drawn: drawn[rate, seed])} == {
            "cannot tell"
        }


@pytest.mark.slow
def test_among_drawn_nulls_a_claim_holds_as_rarely_as_its_level_allows(client: httpx.Client, sqlite: Database) -> None:
    """The reference is the group that did best, so a claim about it may hold for either of two equal maps: the bound is alpha."""
    plant(client, sqlite, 12, direct_dies)
    rng, held = random.Random(4), {"larger_rate": 0, "lower_loss": 0}
    for _ in range(200):
        for one in judged(sqlite, lambda *_: "diverged" if rng.random() < 0.4 else rng.random()):
            held[one.question] += one.claim.verdict == "holds"
    assert held["larger_rate"] <= 0.05 * 200
    assert held["lower_loss"] <= 0.05 * 200
