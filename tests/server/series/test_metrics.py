"""Free metrics are stored exactly, at any steps, in few rows, and are read like every other series."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.fence import LeaseLost, lock_run
from server.database.models import AlertRow, BlockRow, Run
from server.lifecycle import transitions as lifecycle
from server.series import alerts as alert_rows
from server.series import metrics
from server.series.catalogue import read_catalogue
from server.series.compaction import compact
from server.series.events import events_after
from server.series.last_values import fill_last_values
from server.series.layout import Layout
from server.series.reading import SeriesData, read_series
from server.series.recording import delete_steps
from server.series.rules import block_alerts
from stablessm_core.report.frames import BadFrame
from stablessm_core.report.messages import MetricsMessage, from_bytes, to_bytes
from stablessm_core.telemetry.series import SeriesSpec
from tests.server.recording import Recording, claimed, run_of
from tests.server.storing import store_catalogue, store_flush, store_metrics

pytestmark = pytest.mark.both_engines


def log(database: Database, own: lifecycle.Claim, steps: list[int], **values: list[float | None]) -> int:
    """Store metrics, with __ for the slash of a name."""
    message = MetricsMessage(steps, {name.replace("__", "/"): numbers for name, numbers in values.items()})
    with database.write() as session:
        return store_metrics(session, own.run_id, own.attempt, message)


def read(database: Database, own: lifecycle.Claim, name: str, **options: int) -> SeriesData:
    with database.read() as session:
        return read_series(session, own.run_id, name, **options)


def points(database: Database, own: lifecycle.Claim, name: str, **options: int) -> list[tuple[int, float]]:
    data = read(database, own, name, **options)
    assert data.value is not None
    return list(zip(data.step.tolist(), data.value[:, 0].tolist(), strict=True))


def blocks(database: Database, run_id: int) -> list[BlockRow]:
    with database.read() as session:
        return list(session.scalars(select(BlockRow).where(BlockRow.run_id == run_id).order_by(BlockRow.seq)))


def test_values_at_irregular_steps_are_read_back_exactly(database: Database) -> None:
    own = claimed(database)
    nan, inf = math.nan, math.inf
    log(database, own, [3, 500, 507, 40_000], val__acc=[0.5, nan, inf, -inf], lr=[0.1, None, -0.0, None])
    found = read(database, own, "val/acc")
    assert found.step.tolist() == [3, 500, 507, 40_000]
    assert [str(x) for x in found.value[:, 0]] == ["0.5", "nan", "inf", "-inf"]
    assert points(database, own, "lr") == [(3, pytest.approx(0.1)), (507, 0.0)]
    assert math.copysign(1, points(database, own, "lr")[1][1]) == -1


def test_the_later_of_two_values_at_one_step_counts(database: Database) -> None:
    own = claimed(database)
    log(database, own, [10, 10, 5, 10], a=[1.0, 2.0, 3.0, None])
    assert points(database, own, "a") == [(5, 3.0), (10, 2.0)]
    log(database, own, [10], a=[7.0])
    log(database, own, [20], a=[8.0])
    log(database, own, [5], a=[4.0])
    assert points(database, own, "a") == [(5, 4.0), (10, 7.0), (20, 8.0)]


@pytest.mark.slow
def test_a_thousand_single_points_need_few_rows(database: Database) -> None:
    own = claimed(database)
    steps = np.cumsum(np.random.default_rng(0).integers(1, 700, 1100)).tolist()
    with database.write() as session:
        for i, step in enumerate(steps):
            store_metrics(session, own.run_id, own.attempt, MetricsMessage([step], {"val/loss": [float(i)], "val/acc": [0.0]}))
    assert points(database, own, "val/loss", max_points=5000) == [(step, float(i)) for i, step in enumerate(steps)]
    assert len(blocks(database, own.run_id)) == 2
    assert run_of(database, own.run_id).bytes_stored == sum(len(b.payload) for b in blocks(database, own.run_id)) < 12_000


def test_a_metric_that_joins_or_pauses_keeps_the_points_of_the_others(database: Database) -> None:
    own = claimed(database)
    log(database, own, [1, 2], a=[1.0, 2.0], b=[10.0, 20.0])
    log(database, own, [3], a=[3.0])
    log(database, own, [4], a=[4.0], b=[40.0], c=[5.0])
    assert points(database, own, "a") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert points(database, own, "b") == [(1, 10.0), (2, 20.0), (4, 40.0)]
    assert points(database, own, "c") == [(4, 5.0)]
    with database.read() as session:
        series = {info.name: (info.group, info.width, info.meaning) for info in read_catalogue(session, own.run_id)}
    assert series == {"a": ("metrics/0", 1, ""), "b": ("metrics/0", 1, ""), "c": ("metrics/1", 1, "")}


def test_a_long_metric_is_read_as_an_envelope(database: Database) -> None:
    own = claimed(database)
    values = np.random.default_rng(1).normal(size=6000).astype(np.float32)
    for at in range(0, 6000, 1500):
        log(database, own, list(range(7 * at, 7 * (at + 1500), 7)), a=values[at : at + 1500].tolist())
    found = read(database, own, "a", max_points=100)
    assert found.value is None
    assert (len(found.step) <= 100, int(found.count.sum())) == (True, 6000)
    assert (found.min.min(), found.max.max(), found.last[-1, 0]) == (values.min(), values.max(), values[-1])
    assert points(database, own, "a", from_step=700, to_step=720) == [(7 * i, float(values[i])) for i in (100, 101, 102)]


def test_a_repeated_message_is_no_event(database: Database) -> None:
    own = claimed(database)
    message = {"a": [1.0, math.nan], "b": [None, 2.0]}
    seq = log(database, own, [1, 2], **message)
    before = [(b.seq, b.payload) for b in blocks(database, own.run_id)]
    assert log(database, own, [1, 2], **message) == seq == run_of(database, own.run_id).seq
    assert [(b.seq, b.payload) for b in blocks(database, own.run_id)] == before
    assert log(database, own, [1, 2], a=[1.0, 5.0], b=[None, 2.0]) == seq + 1


def test_the_messages_of_a_long_run_may_all_be_repeated(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TAIL_POINTS", 10)
    own = claimed(database)
    found = []
    for _ in range(2):
        for first in range(0, 120, 5):
            steps = list(range(first, first + 5))
            seq = log(database, own, steps, a=[float(s) for s in steps], b=[0.5] * 5)
        found.append((seq, [(block.seq, block.payload) for block in blocks(database, own.run_id)]))
    assert len(found[0][1]) == 12
    assert found[1] == found[0]
    with database.read() as session:
        assert session.scalar(select(Run.last_values)) == {"metrics/0": [119.0, 0.5]}


def test_far_apart_steps_of_a_message_read_only_the_blocks_that_may_have_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TAIL_POINTS", 10)
    monkeypatch.setattr(metrics, "READ_TOGETHER", 2)
    own = claimed(database)
    for first in range(1, 401, 10):
        log(database, own, list(range(first, first + 10)), a=[float(s) for s in range(first, first + 10)])
    read: list[int] = []
    numbers = metrics.stored_numbers
    monkeypatch.setattr(metrics, "stored_numbers", lambda block: (read.append(block.first_step), numbers(block))[1])
    seq = run_of(database, own.run_id).seq
    assert log(database, own, [5, 205, 400], a=[5.0, 205.0, 400.0]) == seq  # a repeat
    assert sorted(read) == [1, 201, 391]
    assert log(database, own, [5, 10**15], a=[-1.0, 7.0]) == seq + 1
    assert len(read) == 5
    every = [float(s) for s in range(1, 401)]
    assert log(database, own, list(range(1, 401)), a=[*every[:4], -1.0, *every[5:]]) == seq + 1  # compares with all 41 blocks
    assert len(read) == 46


def test_the_newest_value_is_the_value_at_the_last_step_whenever_it_arrives(database: Database) -> None:
    own = claimed(database)
    log(database, own, [100], a=[1.0], b=[5.0])
    log(database, own, [40, 50], a=[2.0, 3.0], b=[None, 6.0])
    with database.read() as session:
        assert session.scalar(select(Run.last_values)) == {"metrics/0": [1.0, 5.0]}
    log(database, own, [50, 100], a=[4.0, 7.0])
    with database.read() as session:
        assert session.scalar(select(Run.last_values)) == {"metrics/0": [7.0, 5.0]}


def test_each_event_holds_the_points_of_its_message(database: Database) -> None:
    own = claimed(database)
    first = log(database, own, [5, 9], a=[1.0, 2.0])
    second = log(database, own, [7], a=[3.0], b=[4.0])
    with database.read() as session:
        events = {event.seq: event for event in events_after(session, own.run_id, first - 1)}
    assert [(p.name, p.step.tolist(), p.value[:, 0].tolist()) for p in events[first].points] == [("a", [5, 9], [1.0, 2.0])]
    assert [(p.name, p.step.tolist(), p.value[:, 0].tolist()) for p in events[second].points] == [
        ("a", [7], [3.0]),
        ("b", [7], [4.0]),
    ]
    assert events[second].last_step == 7


def test_a_restart_at_the_first_step_replaces_the_values(database: Database) -> None:
    own = claimed(database)
    steps = list(range(3000))
    for low in range(0, 3000, 1000):
        log(database, own, steps[low : low + 1000], a=[1.0] * 1000)
    for low in range(0, 3000, 1000):
        log(database, own, steps[low : low + 1000], a=[2.0] * 1000)
    assert points(database, own, "a", max_points=10_000) == [(step, 2.0) for step in steps]


def test_deleted_steps_take_their_metrics_and_newest_values_with_them(database: Database) -> None:
    own = claimed(database)
    log(database, own, [1, 500], a=[1.0, 2.0], b=[5.0, None])
    log(database, own, [700], a=[3.0])
    with database.write() as session:
        assert delete_steps(session, own.run_id, 500)
    assert points(database, own, "a") == [(1, 1.0)]
    with database.read() as session:
        assert session.scalar(select(Run.last_values)) == {"metrics/0": [1.0], "metrics/1": [5.0]}


def test_the_newest_value_of_each_scalar_is_kept_beside_the_run(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(64)
    log(database, recording.claim, [1, 2], val__loss=[3.0, math.nan], val__acc=[0.1, None])
    with database.read() as session:
        stored = session.scalar(select(Run.last_values))
        layout = Layout(session, recording.claim.run_id)
    assert (stored["metrics/0"], stored["metrics/1"]) == (["NaN"], [pytest.approx(0.1)])
    loss = layout.find("train/loss")
    assert np.float32(stored[loss.group][loss.offset]) == read(database, recording.claim, "train/loss").value[-1, 0]


def test_a_recorded_series_keeps_its_values(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(64)
    before = points(database, recording.claim, "train/loss")
    log(database, recording.claim, [1], train__loss=[77.0], extra=[1.0])
    assert repr(points(database, recording.claim, "train/loss")) == repr(before)
    assert points(database, recording.claim, "extra") == [(1, 1.0)]


def test_a_series_that_is_recorded_later_takes_the_name_of_a_metric(database: Database) -> None:
    own = claimed(database)
    log(database, own, [1], train__loss=[77.0])
    recording = Recording(database, own)
    recording.write(64)
    log(database, own, [2], train__loss=[78.0])
    assert points(database, own, "train/loss (2)") == [(1, 77.0)]
    assert len(points(database, own, "train/loss")) == 64


def test_two_metrics_with_one_long_beginning_give_way_to_recorded_series(database: Database) -> None:
    own = claimed(database)
    names = ["x" * 110 + end for end in "abc"]
    log(database, own, [1], **{name: [7.0] for name in names})
    with database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, [SeriesSpec(name, "own", 1, "", "") for name in names])
    for i in (2, 3, 4):
        assert points(database, own, "x" * 100 + f" ({i})") == [(1, 7.0)]


def test_two_thousand_metrics_share_few_rows_and_more_are_refused(database: Database) -> None:
    own = claimed(database)
    for step in (1, 5):
        log(database, own, [step], **{f"m{i}": [float(i * step)] for i in range(2000)})
    assert len(blocks(database, own.run_id)) == 32
    assert points(database, own, "m1999") == [(1, 1999.0), (5, 9995.0)]
    with pytest.raises(BadFrame, match=r"'more' is new in run 1, which has 2,000 metrics; allowed: 2,000"):
        log(database, own, [6], more=[1.0])


def test_only_the_owner_of_the_run_stores_metrics(database: Database) -> None:
    own = claimed(database)
    with pytest.raises(LeaseLost), database.write() as session:
        store_metrics(session, own.run_id, own.attempt + 1, MetricsMessage([1], {"a": [1.0]}))


@pytest.mark.parametrize(
    ("steps", "values", "error"),
    [
        ([], {"a": []}, "steps is"),
        ([-1], {"a": [1.0]}, "steps is -1"),
        ([2**53], {"a": [1.0]}, "steps is 9007199254740992"),
        ([True], {"a": [1.0]}, "steps is True"),
        ([1], {}, "values is {}"),
        ([1], {"": [1.0]}, "names of 1 to 120"),
        ([1], {"x" * 121: [1.0]}, "names of 1 to 120"),
        ([1], {"a\n": [1.0]}, "names of"),
        ([1], {"ssm/0/weight": [1.0]}, "do not begin with ssm/"),
        ([1], {"a": [1.0, 2.0]}, "values.a is"),
        ([1], {"a": ["1"]}, "values.a is '1'"),
    ],
)
def test_a_message_that_is_not_allowed_is_named(sqlite: Database, steps: object, values: object, error: str) -> None:
    with pytest.raises(ValueError, match=error), sqlite.write() as session:
        store_metrics(session, 1, 1, MetricsMessage(steps, values))  # type: ignore[arg-type]


def test_a_message_survives_its_bytes(sqlite: Database) -> None:
    message = MetricsMessage([1, 1, 9], {"a": [1.0, None, math.inf], "b": [0.1, -0.0, 3.0]})
    assert from_bytes(to_bytes(message)) == message


def with_rules(database: Database, *rules: dict[str, object]) -> lifecycle.Claim:
    own = claimed(database)
    with database.write() as session:
        session.get_one(Run, own.run_id).rules = list(rules)
    return own


def alerts(database: Database, run_id: int) -> list[tuple[str, str, int, str]]:
    with database.read() as session:
        rows = session.scalars(select(AlertRow).where(AlertRow.run_id == run_id).order_by(AlertRow.id))
        return [(row.kind, row.series, row.step, row.value) for row in rows]


def test_a_rule_about_a_metric_fires_once_across_messages(database: Database) -> None:
    rules = [{"name": "val/loss", "condition": "> 5", "steps": 1000}, {"name": "later", "condition": "nonfinite", "steps": 1}]
    own = with_rules(database, *rules)
    for step in range(500, 4001, 500):
        seq = log(database, own, [step], val__loss=[9.0])
    log(database, own, [4000], val__loss=[9.0])
    log(database, own, [4100], later=[math.inf])
    assert alerts(database, own.run_id) == [("rule", "val/loss", 1500, "9.0"), ("rule", "later", 4100, "Infinity")]
    with database.read() as session:
        events = events_after(session, own.run_id, seq)
    assert [[alert.series for alert in event.alerts] for event in events] == [["later"]]


def test_a_rule_about_a_recorded_scalar_of_a_reported_run_is_judged_at_its_flush(database: Database) -> None:
    own = with_rules(database, {"name": "train/loss", "condition": "< 100", "steps": 3})
    recording = Recording(database, own)
    flush = recording.write(64)
    with database.write() as session:
        found = block_alerts(session, lock_run(session, own.run_id, own.attempt), flush)
        store_flush(session, own.run_id, own.attempt, flush, found, 64)
    with database.write() as session:
        assert block_alerts(session, lock_run(session, own.run_id, own.attempt), flush) == []
    assert [alert[:2] for alert in alerts(database, own.run_id)] == [("rule", "train/loss")]


def test_a_rule_may_fire_again_after_its_steps_were_deleted(database: Database) -> None:
    own = with_rules(database, {"name": "a", "condition": "> 5", "steps": 1})
    log(database, own, [1, 10], a=[1.0, 9.0])
    with database.write() as session:
        delete_steps(session, own.run_id, 5)
    log(database, own, [300], a=[9.0])
    assert [alert[2] for alert in alerts(database, own.run_id)] == [10, 300]


def test_a_message_raises_a_bounded_number_of_alerts_and_so_does_a_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_rows, "MAX_RUN_ALERTS", 7)
    monkeypatch.setattr(alert_rows, "ALERTS_AT_ONCE", 5)
    own = with_rules(database, {"name": "a", "condition": "> 5", "steps": 1})
    values: list[float | None] = [9.0, 0.0] * 20
    log(database, own, list(range(200, 8200, 200)), a=values)
    assert [alert[2] for alert in alerts(database, own.run_id)] == [200, 600, 1000, 1400, 1800]
    log(database, own, list(range(10_200, 18_200, 200)), a=values)
    assert len(alerts(database, own.run_id)) == 7


def test_compaction_leaves_metrics_as_they_are(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(64)
    recording.write(64)
    log(database, recording.claim, [1, 700], a=[1.0, 2.0])
    log(database, recording.claim, [900], a=[3.0])
    with database.write() as session:
        session.get_one(Run, recording.claim.run_id).status = "finished"
    assert compact(database, recording.claim.run_id)
    assert points(database, recording.claim, "a") == [(1, 1.0), (700, 2.0), (900, 3.0)]


def test_housekeeping_reads_the_newest_values_of_runs_of_older_versions(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(64)
    log(database, recording.claim, [1, 2], a=[3.0, None], b=[math.inf, 2.0])
    with database.write() as session:
        run = session.get_one(Run, recording.claim.run_id)
        stored, run.last_values, run.status = run.last_values, None, "finished"
    assert fill_last_values(database) == 1
    assert fill_last_values(database) == 0
    with database.read() as session:
        assert session.scalar(select(Run.last_values)) == stored
