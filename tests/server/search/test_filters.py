"""The filter language: its meaning on both engines, its errors with positions, and its safety against hostile text."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from server.access.tokens import Principal, create_token
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.lifecycle.submitters import owned_by
from server.search.filter_fields import SHORT, all_names, config_fields, field
from server.search.filter_syntax import MAX_DEPTH, OPERATORS, FilterError, Group, Node, Not, Term, Text, Word, parse
from server.search.filters import parse_filter
from server.search.listing import list_runs
from server.series.alerts import insert_alerts
from tests.server.recording import config, nonfinite

DAY = 86_400.0
NOVEMBER = 1_793_491_200.0  # 2026-11-01, 00:00 UTC
CAROL = Principal(1, "carol", "submit")
RUNS = [
    # name, changes, tags, status, result, created
    ("alpha", {"model__reparameterization__name": "best", "optimizer__lr": 0.005}, ["a"], "finished", {"train_loss": 0.5}, 0),
    ("Beta x", {"model__reparameterization__name": "direct"}, ["b"], "diverged", {"train_loss": math.nan}, DAY / 2),
    ("gamma or", {"optimizer__lr": 0.3}, [], "diverged", {"train_loss": math.inf}, DAY),
    (None, {"task__name": "digits", "task__permuted": True}, ["a", "b"], "queued", None, 2 * DAY),
    (
        "alphabet",
        {"task__name": "digits", "train__seed": 7, "model__eigenvalue_range": [0.5, 0.9]},
        [],
        "running",
        None,
        2.5 * DAY,
    ),
]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with runs 1 to 5 from RUNS, created from 1 November on. No test changes them."""
    sqlite = f"sqlite:///{tmp_path_factory.mktemp('filters') / 'x.db'}"
    database = Database(sqlite if request.param == "sqlite" else request.getfixturevalue("module_postgres_url"))
    database.migrate()
    with database.write() as session:
        _, _ = create_token(session, "carol", "submit", None)
        for name, changes, tags, status, result, created in RUNS:
            run = lifecycle.submit(session, config(**changes, name=name, tags=tags), submitted_by=1 if name == "alpha" else None)
            values = {"status": status, "result": result, "created_at": NOVEMBER + created}
            session.execute(update(Run).where(Run.id == run.id).values(values))
        insert_alerts(session, 2, 1, [nonfinite(), nonfinite("nonfinite_gradient"), nonfinite(step=4)], 2)
        insert_alerts(session, 3, 1, [nonfinite("nonfinite_state")], 2)
        now = time.time()
        session.execute(update(Run).where(Run.id == 1).values(started_at=NOVEMBER, finished_at=NOVEMBER + 600))
        session.execute(
            update(Run).where(Run.id == 5).values(started_at=now - 3600, owner="gpu3:7:1", host="gpu3", gpu_name="H200")
        )
    yield database
    database.close()


def ids(session: Session, q: str) -> list[int]:
    conditions = parse_filter(q, session.get_bind().dialect.name, owned_by(CAROL))
    return list(session.scalars(select(Run.id).where(*conditions).order_by(Run.id)))


def test_filters_support_or_not_in_and_parentheses(filled: Database) -> None:
    expected = {
        "": [1, 2, 3, 4, 5],
        "   ": [1, 2, 3, 4, 5],
        "status=queued OR status=running": [4, 5],
        "status=queued or reparam=direct OR tag=a": [1, 2, 4],
        "status=diverged reparam=direct OR tag=a": [1, 2, 4],
        "status=diverged AND (reparam=direct OR tag=a)": [2],
        "(task=digits OR lr=0.3) (status=diverged OR seed=7)": [3, 5],
        "NOT status=diverged": [1, 4, 5],
        "NOT (status=diverged OR tag=a)": [5],
        "not not tag=a": [1, 4],
        "status in (queued, running)": [4, 5],
        "status NOT IN (queued,running)": [1, 2, 3],
        'name in (alpha, "gamma or")': [1, 3],
        "tag in (b)": [2, 4],
        "tag not in (a, b)": [3, 5],
        "lr in (0.005, 3e-1)": [1, 3],
        "reparam in (direct, exp)": [2],
        "map in (direct, exp)": [2],
        "map!=best status=diverged": [2],
        "result.train_loss in (nan, inf)": [2, 3],
        # a comparison with a missing value is false, so NOT finds the run
        "loss<1": [1],
        "NOT loss<1": [2, 3, 4, 5],
        "NOT loss>=1": [1, 2, 4, 5],
        "NOT (loss<1 OR loss>=1)": [2, 4, 5],
        "alpha": [1, 5],
        "NOT alpha": [2, 3, 4],
        "alpha OR beta": [1, 2, 5],
        '"gamma or"': [3],
        '"OR"': [3],
        'name="or"': [],
        "model.eigenvalue_range.1<0.95": [5],
        "model.eigenvalue_range.0=0.5 task.permuted=false": [5],
        "layer=stable_ssm task in (digits)": [4, 5],
    }
    with filled.read() as session:
        assert {q: ids(session, q) for q in expected} == expected


def test_filters_compare_the_extremes_and_verdicts_of_a_run(filled: Database) -> None:
    numbers: dict[int, dict[str, Any]] = {
        1: {"largest_ratio": 12.0, "largest_relative_step": 0.3, "nearest_distance": 0.0, "overflow_budget": 0.0},
        2: {"nearest_distance": -math.inf, "overflow_budget": math.inf, "largest_relative_step": 13.0},
        3: {"nearest_distance": -0.4, "overflow_budget": 0.9, "largest_ratio": 0.7},
    }
    with filled.write() as session:
        for run_id, values in numbers.items():
            session.execute(update(Run).where(Run.id == run_id).values(values))
        session.execute(update(Run).where(Run.id == 3).values(unstable={"eigenvalues": 2, "of": 64}, cause="explosion"))
    expected = {
        "largest_ratio>10": [1],
        "NOT largest_ratio>10": [2, 3, 4, 5],
        "nearest_distance<0": [2, 3],
        "nearest_distance=0": [1],
        "nearest_distance=-inf": [2],
        "overflow_budget>=0.9": [2, 3],
        "overflow_budget=inf": [2],
        "overflow_budget=null": [4, 5],
        "largest_relative_step>1": [2],
        "unstable=true": [3],
        "unstable=false": [1, 2, 4, 5],
        "unstable!=true": [1, 2, 4, 5],
        "cause=explosion": [3],
        "cause in (explosion, unknown)": [3],
        "cause=null status=diverged": [2],
    }
    with filled.read() as session:
        assert {q: ids(session, q) for q in expected} == expected
        page = list_runs(session, sort="-overflow_budget")
        assert [run.id for run in page.runs][:3] == [2, 3, 1]
        with pytest.raises(FilterError, match="cause is never 'bad luck'") as refused:
            ids(session, 'cause="bad luck"')
    assert "eigenvalue_overflow" in str(refused.value.allowed)


def test_filters_compare_dates_ages_and_durations(filled: Database) -> None:
    expected = {
        "created=2026-11-01": [1, 2],
        "created!=2026-11-01": [3, 4, 5],
        "created>2026-11-01": [3, 4, 5],
        "created>=2026-11-01": [1, 2, 3, 4, 5],
        "created<2026-11-01": [],
        "created<=2026-11-01": [1, 2],
        "created in (2026-11-01, 2026-11-03)": [1, 2, 4, 5],
        "created>2026-11-01T12:00": [3, 4, 5],
        "created>=2026-11-01T13:00+01:00": [2, 3, 4, 5],
        "created=2026-11-02T00:00:00Z": [3],
        f"created>{NOVEMBER + DAY}": [4, 5],
        "started<2h": [5],
        "started>2h": [1],
        "started<=1.5h30m": [5],
        "started=null": [2, 3, 4],
        "NOT started<2h": [1, 2, 3, 4],
        "finished=2026-11-01": [1],
        "finished!=2026-11-01": [2, 3, 4, 5],
        "duration=10m": [1],
        "duration>10m": [5],
        "duration>=600": [1, 5],
        "duration<1h10m duration>59m": [5],
        "duration=null": [2, 3, 4],
    }
    with filled.read() as session:
        assert {q: ids(session, q) for q in expected} == expected


def test_an_age_is_relative_to_the_time_of_the_request(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements are cached, and the list is read a second time after the clock has advanced."""
    clock = time.time()
    with filled.read() as session:
        assert [run.id for run in list_runs(session, q="started<90m").runs] == [5]
        monkeypatch.setattr("server.lifecycle.run_fields.time.time", lambda: clock + 3600)
        assert list_runs(session, q="started<90m").runs == []
        assert [run.id for run in list_runs(session, q="duration>90m").runs] == [5]


def test_filters_match_alerts_submitters_and_workers(filled: Database) -> None:
    expected = {
        "alerts>0": [2, 3],
        "alerts=3": [2],
        "alerts=0": [1, 4, 5],
        "alerts=nonfinite_loss": [2],
        "alerts!=nonfinite_loss": [1, 3, 4, 5],
        "alerts~nonfinite": [2, 3],
        "alerts in (nonfinite_state, nonfinite_gradient)": [2, 3],
        "alerts in (0, 1)": [1, 3, 4, 5],
        "submitted_by=carol": [1],
        "submitted_by=me": [1],
        "submitted_by!=me": [2, 3, 4, 5],
        'submitted_by="me"': [],
        "submitted_by~ARO": [1],
        "submitted_by in (carol, nobody)": [1],
        "worker~gpu3": [5],
        "worker=null": [1, 2, 3, 4],
        "host=gpu3 gpu_name~h2": [5],
        "NOT host=gpu3": [1, 2, 3, 4],
    }
    with filled.read() as session:
        assert {q: ids(session, q) for q in expected} == expected
        for sort in ("alerts", "-alerts", "duration", "submitted_by", "-worker"):
            whole = [run.id for run in list_runs(session, sort=sort).runs]
            first = list_runs(session, sort=sort, limit=2)
            rest = list_runs(session, sort=sort, cursor=first.next_cursor)
            assert [run.id for run in (*first.runs, *rest.runs)] == whole


@pytest.mark.parametrize(
    ("q", "at", "message", "allowed"),
    [
        ("lr>0 colour=red", 6, "there is no field 'colour'", "GET /api/fields lists them"),
        ("statsu=failed", 1, "did you mean status?", "status"),
        ("optimizer=adamw", 1, "'optimizer' is a section", "optimizer.name"),
        ("result.los=1", 1, "no field 'result.los'; did you mean", "result.train_loss"),
        ("result.=1", 1, "there is no field", "result.train_loss"),
        ("task.kernal=x", 1, "did you mean task.kernel?", "task.kernel"),
        ("status=finnished", 8, "status is never 'finnished'", "queued, running, finished, failed, diverged, cancelled"),
        ("status in (failed, finnished)", 20, "status is never 'finnished'", "queued, running"),
        ("reparam=bset", 9, "reparam is never 'bset'; did you mean best?", "best"),
        ("map=bset", 5, "map is never 'bset'; did you mean best?", "best"),
        ("task!=mnits", 7, "task is never 'mnits'", "mnist"),
        ("layer=lstm", 7, "layer is never 'lstm'", "stable_ssm"),
        ("time=discreet", 6, "time is never 'discreet'", "continuous, discrete"),
        ("optimizer.schedule=cosin", 20, "is never 'cosin'", "cosine"),
        ("alerts=nonfinite_los", 8, "alerts is never 'nonfinite_los'", "nonfinite_loss"),
        ("alerts>nonfinite_loss", 8, "is not a number of alerts", "a kind of alert"),
        ("lr=fast", 4, "'fast' is not a number", "a number"),
        ("lr=1_000", 4, "'1_000' is not a number", "a number"),
        ("loss<nan", 6, "NaN cannot be compared with <", "=nan"),
        ("loss<null", 6, "null cannot be compared with <", "=null"),
        ("lr~1", 4, "~ needs a text", ">="),
        ("task.permuted=maybe", 15, "is true or false", "=true"),
        ("tag<a", 5, "a tag cannot be compared with <", "= != ~"),
        ("created>yesterday", 9, "'yesterday' is not a time", "2026-11-01"),
        ("created>2026-13-01", 9, "not in the calendar", "a day such as"),
        ("created=7d", 9, "an age cannot be compared with =", "< (within)"),
        ("created~7d", 9, "~ needs a text", ">="),
        ("duration>soon", 10, "is not a length of time", "1h30m"),
        ("submitted_by>me", 14, "me cannot be compared with >", "=me"),
        ("lr 0.1", 3, "an operator is expected after the field lr", ">="),
        ("status is diverged", 7, "an operator is expected after the field status", "IN"),
        ("loss", 5, "an operator is expected after the field loss", "quotes"),
        ("status=failed,diverged", 14, "a list cannot follow =", "status in (one, another)"),
        ("status=(failed, diverged)", 8, "a list cannot follow =", "status in (one, another)"),
        ("lr>(0.1)", 4, "a list cannot follow >", "lr in"),
        ("status in failed", 11, "IN needs a list", "(value, value)"),
        ("status in ()", 12, "a value is missing in the list", "a value"),
        ("status in (failed", 18, "the list is not closed", "double quotes"),
        ("status in (failed diverged)", 19, "the list is not closed", ","),
        ("(lr>0", 1, "this parenthesis is not closed", ")"),
        ("lr>0)", 5, "this parenthesis was never opened", "field operator value"),
        ("()", 2, "or is empty", "field operator value"),
        ("lr>0 OR", 8, "something is missing at the end", "field operator value"),
        ("OR lr>0", 1, "'OR' is not allowed here", "field operator value"),
        ("a and and b", 7, "'and' is not allowed here", "field operator value"),
        ("NOT", 4, "something is missing at the end", "NOT"),
        ("a && b", 3, "'&&' is not an operator here", "AND"),
        ("a || b", 3, "'||' is not an operator here", "OR"),
        ("a !b", 3, "cannot read '!'", "NOT"),
        ("a =", 4, "a value is missing after a =", "a value"),
        ("lr == 1", 5, "a value is missing after lr =", "a value"),
        ("= 3", 1, "'=' is not allowed here", "field operator value"),
        ('name="open', 6, "a quote is not closed", 'closing "'),
        ('name="a"b', 9, "a space or quotes are missing", "double quotes"),
        ("name=foo(1)", 9, "a space or quotes are missing", "double quotes"),
        ("lr>=0.1<0.3", 8, "a space or quotes are missing", "double quotes"),
        ("(a)(b)", 4, "a space or quotes are missing", "double quotes"),
        ("a-b=1", 1, "'a-b' is not the name of a field", "a field"),
        ("x" * 1001, None, "it has 1001 characters", "1000"),
        ("a " * 51, 101, "too many terms", "50"),
        (f"id in ({','.join('1' * 51)})", 108, "too many terms", "50"),
        ("(" * 30, MAX_DEPTH + 1, "it is nested too deep", "20 levels"),
        ("NOT " * 30 + "a", MAX_DEPTH * 4 + 1, "it is nested too deep", "20 levels"),
        ("name=\x01", 6, "control characters", "printable"),
    ],
)  # fmt: skip
def test_an_invalid_filter_is_refused_with_its_position_and_the_allowed_values(
    q: str, at: int | None, message: str, allowed: str
) -> None:
    for dialect in ("sqlite", "postgresql"):
        with pytest.raises(FilterError) as refused:
            parse_filter(q, dialect, owned_by(CAROL))
        assert message in refused.value.message
        assert allowed in refused.value.allowed
        assert str(refused.value).startswith("q: ")
        if at is not None:
            assert refused.value.position + 1 == at
            assert f"at character {at})" in str(refused.value)


@pytest.mark.slow
def test_every_field_can_be_used_in_a_filter_and_for_sorting(filled: Database) -> None:
    assert config_fields()["optimizer.lr"] == ("number", ())
    assert config_fields()["model.activation"][0] == config_fields()["task.kernel"][0] == "text"
    assert config_fields()["task.permuted"][0] == config_fields()["telemetry.all_eigenvalues"][0] == "flag"
    assert set(SHORT) < set(all_names())
    samples = {"flag": "false", "tag": "zzz", "text": "zzz", "map": "best", "submitter": "zzz"}
    with filled.read() as session:
        for name in all_names():
            known = field(name, filled.dialect)
            value = known.values[0] if known.values else samples.get(known.kind, "0")
            ids(session, f"{name}={value} OR NOT {name}!={value}")
            if known.kind != "tag":
                assert sorted(run.id for run in list_runs(session, sort=name).runs) == [1, 2, 3, 4, 5], name


def test_sql_in_a_filter_is_treated_as_text(filled: Database) -> None:
    hostile = ["'; DROP TABLE runs; --", '" OR 1=1', "%", "_", "x') OR ('1'='1", "\\", "$1", ":name", "{}"]
    with filled.read() as session:
        for text in map(json.dumps, hostile):
            for q in (f"name={text}", f"tag={text}", f"name~{text}", text, f"name in ({text}, {text})", f"submitted_by={text}"):
                assert ids(session, q) == [], q
        assert len(ids(session, "")) == 5


# Random trees of terms, written in all ways that the language allows.
plain = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
names = st.sampled_from(["lr", "status", "name", "tag", "result.train_loss", "x.y_z", "created"])
texts = st.builds(Text, plain, quoted=st.just(True)) | st.builds(
    Text, st.from_regex(r"[A-Za-z0-9.:+_-]{1,8}", fullmatch=True), quoted=st.just(False)
)
terms = st.builds(Term, names.map(Text), st.sampled_from(OPERATORS), texts.map(lambda text: (text,)))
lists = st.builds(Term, names.map(Text), st.just("in"), st.lists(texts, min_size=1, max_size=3).map(tuple))
words = st.builds(Word, texts.filter(lambda text: text.quoted or text.text.upper() not in ("AND", "OR", "NOT", "IN")))


def trees(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    groups = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, parts) | st.builds(Group, st.sampled_from(["and", "or"]), groups)


def spelled(node: Node, choose: random.Random) -> str:
    """The tree, written in one of the possible ways."""

    def quoted(text: Text) -> str:
        inside = text.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{inside}"' if text.quoted else text.text

    def keyword(word: str) -> str:
        return choose.choice([word, word.lower(), word.title()])

    def inner(part: Node) -> str:
        return f"({gap()}{spelled(part, choose)}{gap()})" if isinstance(part, Group) else spelled(part, choose)

    def gap() -> str:
        return " " * choose.randrange(3)

    match node:
        case Word(text):
            return quoted(text)
        case Not(part):
            return f"{keyword('NOT')} {inner(part)}"
        case Term(name, "in", values):
            return f"{name.text} {keyword('IN')}{gap()}({gap()}{f'{gap()},{gap()}'.join(map(quoted, values))}{gap()})"
        case Term(name, operator, values):
            return f"{name.text}{gap()}{operator}{gap()}{quoted(values[0])}"
        case Group("or", parts):
            return f" {keyword('OR')} ".join(map(inner, parts))
        case Group(_, parts):
            return choose.choice(["  ", f" {keyword('AND')} "]).join(map(inner, parts))
    raise AssertionError(node)


@settings(max_examples=150)
@given(st.recursive(terms | lists | words, trees, max_leaves=8), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_every_spelling_of_a_filter_parses_to_the_same_tree(tree: Node, choose: random.Random) -> None:
    text = spelled(tree, choose)
    if len(text) <= 1000:
        assert parse(text) == tree


@settings(max_examples=150)
@given(
    st.text(max_size=80)
    | st.from_regex(r"([a-z.]{1,8} ?(=|!=|<=|~|in|not)\"?[ -~]{0,8}\"? ?(OR|AND|NOT|\(|\))? ?){1,3}", fullmatch=True)
    | st.lists(
        st.sampled_from(
            ["(", ")", "OR", "NOT", "in", ",", "lr", "status", "=", "<", "~", "1", "7d", "nan", "null", "me", "failed", "alerts",
             "created", "2026-11-01", '"', "tag", "name", "reparam", "duration", "submitted_by", "task.permuted", "true"]
        )
    ).map(" ".join)
)  # fmt: skip
@pytest.mark.slow
def test_any_text_is_a_valid_filter_or_is_refused_with_the_allowed_values(q: str) -> None:
    for dialect in ("sqlite", "postgresql"):
        try:
            parse_filter(q, dialect, owned_by(CAROL))
        except FilterError as refused:
            error = refused
        else:
            continue
        assert error.allowed
        assert 0 <= error.position <= len(q)


@settings(max_examples=60)
@given(tree=st.recursive(
    st.sampled_from(["lr>0.01", "status=diverged", "tag=a", "loss<1", "loss=nan", "reparam=direct", "alerts>0", "started<2h",
                     "duration>10m", "created=2026-11-01", "alpha", "NOT seed=7", "status in (queued, failed)", "name=null",
                     "submitted_by=me", "task.permuted!=true"]),
    lambda parts: st.tuples(parts, st.sampled_from(["OR", "AND", ""]), parts).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
    max_leaves=6,
))  # fmt: skip
@pytest.mark.slow
def test_every_run_matches_either_a_filter_or_its_negation(filled: Database, tree: str) -> None:
    with filled.read() as session:
        found, others = ids(session, tree), ids(session, f"NOT {tree}")
    assert sorted(found + others) == [1, 2, 3, 4, 5]
