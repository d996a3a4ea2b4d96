"""The run list: filters find the same runs on both engines, and pages neither skip nor repeat a run."""

from __future__ import annotations

import base64
import json
import math

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.search import listing
from server.search.filter_syntax import FilterError
from stablessm_core.telemetry.forms import Form
from tests.server.recording import config

pytestmark = pytest.mark.both_engines

RUNS = [
    # name, changes, tags, status, result
    ("alpha", {"model__reparameterization__name": "best", "optimizer__lr": 0.005}, ["a"], "finished", {"train_loss": 0.5}),
    ("Beta É", {"model__reparameterization__name": "direct"}, ["b", "demo x"], "diverged", {"train_loss": math.nan}),
    ("100% _sure", {"optimizer__lr": 0.3}, [], "diverged", {"train_loss": math.inf}),
    (None, {"task__name": "digits", "task__permuted": True, "optimizer__grad_clip": 1.0}, ["a"], "queued", None),
    (
        "alphabet",
        {"task__name": "digits", "train__seed": 7},
        ['q"x\\'],
        "finished",
        {"train_loss": 0.1 + 0.2, "eval_accuracy": 0.9},
    ),
]


@pytest.fixture
def listed(database: Database) -> Database:
    """A database with runs 1 to 5 from RUNS."""
    with database.write() as session:
        for name, changes, tags, status, result in RUNS:
            run = lifecycle.submit(session, config(**changes, name=name, tags=tags))
            session.execute(update(Run).where(Run.id == run.id).values(status=status, result=result, created_at=1000.0 + run.id))
    return database


def ids(session: Session, **options: object) -> list[int]:
    return [run.id for run in listing.list_runs(session, **options).runs]  # type: ignore[arg-type]


def test_each_filter_finds_the_expected_runs(listed: Database) -> None:
    expected = {
        "": [5, 4, 3, 2, 1],
        "reparam=direct": [2],
        "model.reparameterization.name != best": [2],
        "lr>=0.01 lr<0.3": [5, 4, 2],
        "optimizer.lr = 0.005": [1],
        "task=digits seed=7": [5],
        "task.permuted=true": [4],
        "task.permuted!=true": [5, 3, 2, 1],
        "optimizer.grad_clip=null": [5, 3, 2, 1],
        "optimizer.grad_clip!=null": [4],
        "optimizer.grad_clip!=2": [5, 4, 3, 2, 1],
        "task.kernel!=authors task.kernel!=null": [3, 2, 1],
        "loss<0.4": [5],
        "loss=0.30000000000000004": [5],
        "loss>0.4": [3, 1],
        "loss=inf": [3],
        "loss=nan": [2],
        "loss!=nan": [5, 4, 3, 1],
        "loss=null": [4],
        "result.eval_accuracy>0.5": [5],
        "accuracy>0.5": [5],
        "status=diverged": [3, 2],
        "tag=a": [4, 1],
        "tag!=a": [5, 3, 2],
        'tag="demo x"': [2],
        "tag~DEMO": [2],
        r'tag="q\"x\\"': [5],
        "alpha": [5, 1],
        "ALPHA bet": [5],
        '"beta é"': [2],
        "name~%": [3],
        "name~_s": [3],
        "name=alpha": [1],
        "name!=alpha": [5, 4, 3, 2],
        "name=null": [4],
        "id>=4": [5, 4],
        "id=1.5": [],
        "id<1e300": [5, 4, 3, 2, 1],
        "created>1003": [5, 4],
        "sweep=null step=0": [5, 4, 3, 2, 1],
    }
    with listed.read() as session:
        assert {q: ids(session, q=q) for q in expected} == expected
        assert ids(session, status="diverged,queued", tag="a") == [4]


def test_the_map_filter_uses_the_stored_maps_of_all_layers_instead_of_the_configuration(
    listed: Database,
) -> None:
    """Run 2 is configured with direct, the other runs with best."""
    stored = {2: ["exp", "direct", "tanh"], 3: ["softplus"], 5: ["best"]}
    with listed.write() as session:
        for run_id, maps in stored.items():
            forms = [Form.of_map(map_, "discrete").data for map_ in maps]
            session.execute(update(Run).where(Run.id == run_id).values(forms=forms))
        # This release cannot read such a configuration.
        session.execute(update(Run).where(Run.id == 4).values(config={"task": {"name": "foreign"}}))
        session.execute(update(Run).where(Run.id == 5).values(config={}))
    expected = {
        "reparam=best": [5, 1],
        "reparam!=best": [4, 3, 2],
        "reparam=exp": [2],
        "reparam=direct": [2],
        "reparam!=direct": [5, 4, 3, 1],
        "reparam~TAN": [2],
        "reparam~e": [5, 2, 1],
        "reparam=null": [4],
        "reparam!=null": [5, 3, 2, 1],
        "reparam<exp": [5, 1],
        "reparam>=exp": [3, 2],
        "reparam=exp reparam=tanh": [2],
    }
    with listed.read() as session:
        assert {q: ids(session, q=q) for q in expected} == expected
        # Sorted by the map of the first layer; runs without a map come last.
        assert ids(session, sort="reparam") == [1, 5, 2, 3, 4]


def test_pages_of_any_size_contain_every_run_once_in_order(listed: Database) -> None:
    expected = {
        "id": [1, 2, 3, 4, 5],
        "-id": [5, 4, 3, 2, 1],
        "name": [3, 2, 1, 5, 4],
        "-name": [5, 1, 2, 3, 4],
        "loss": [5, 1, 3, 2, 4],
        "-loss": [3, 1, 5, 4, 2],
        "lr": [1, 2, 4, 5, 3],
        "-created": [5, 4, 3, 2, 1],
        "status": [2, 3, 1, 5, 4],
        "-task.permuted": [4, 5, 3, 2, 1],
        "-sweep": [5, 4, 3, 2, 1],
        "optimizer.grad_clip": [4, 1, 2, 3, 5],
    }
    with listed.read() as session:
        for sort, order in expected.items():
            for limit in (1, 2, 3, 5, 6):
                page = listing.list_runs(session, sort=sort, limit=limit)
                got = [run.id for run in page.runs]
                while page.next_cursor is not None:
                    page = listing.list_runs(session, sort=sort, cursor=page.next_cursor, limit=limit)
                    got += [run.id for run in page.runs]
                assert got == order, (sort, limit)


def test_a_cursor_stays_valid_while_runs_are_added(listed: Database) -> None:
    with listed.read() as session:
        page = listing.list_runs(session, limit=2)
    with listed.write() as session:
        lifecycle.submit(session, config())
    with listed.read() as session:
        assert ids(session, cursor=page.next_cursor, limit=10) == [3, 2, 1]


def test_a_cursor_of_another_list_is_refused(listed: Database) -> None:
    def forged(*parts: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")

    with listed.read() as session:
        cursor = listing.list_runs(session, sort="name", limit=1).next_cursor
        with pytest.raises(listing.CursorError, match="made for sort 'name'"):
            listing.list_runs(session, sort="id", cursor=cursor)
        bad = ["", "x", "!!!!", "é", forged(), forged("id", "1"), forged({}, "1", 1)]
        bad += [forged("id", value, 1) for value in ("x", "nan", 1, [1], True, {})]
        bad += [forged("id", "1", number) for number in (0, -1, 2**70, True, "1", 1.5, None)]
        for text in bad:
            with pytest.raises(listing.CursorError):
                listing.list_runs(session, sort="id", cursor=text)
        with pytest.raises(listing.CursorError):
            listing.list_runs(session, sort="name", cursor=forged("name", "a\0b", 1))


def test_invalid_list_options_are_refused(sqlite: Database) -> None:
    with sqlite.read() as session:
        for options, error in [
            ({"limit": 0}, ValueError),
            ({"limit": 501}, ValueError),
            ({"status": "done"}, FilterError),
            ({"sort": "colour"}, FilterError),
            ({"sort": "tag"}, FilterError),
        ]:
            with pytest.raises(error):
                listing.list_runs(session, **options)  # type: ignore[arg-type]


def test_chosen_runs_are_returned_in_the_requested_order(listed: Database) -> None:
    with listed.read() as session:
        assert [r.id for r in listing.chosen_runs(session, ids=[4, 1, 4], limit=3)] == [4, 1]
        assert [r.id for r in listing.chosen_runs(session, q="task=digits", limit=3)] == [4, 5]
        assert listing.chosen_runs(session, sweep=1, limit=3) == []
        with pytest.raises(LookupError, match="no run 77"):
            listing.chosen_runs(session, ids=[1, 77], limit=3)
        with pytest.raises(ValueError, match="more than 3 runs"):
            listing.chosen_runs(session, q="", limit=3)
