"""Nothing is left out in silence: every value that is not stored as it was is counted, and one bad value keeps its neighbours."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import httpx
import pytest

from server.importing.found_run import FoundRun, parse_json
from server.importing.sending import name_loss, opening
from stablessm_core.telemetry.free_json import check_json
from tests.server.importing.command import run, stored
from tests.server.importing.reading import found, points, spelled, write_events

LATER, SAME = "earlier values at a step that has a later, different value", "repeated values at one step"


def test_values_at_one_step_are_counted_and_the_last_one_counts(tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1.h", [(0, 1.0), (1, 2.0), (0, 3.0), (0, 3.0), (1, 2.0)])
    (one,) = found(tmp_path)
    one.count_losses()
    assert points(one, "loss") == spelled([0, 1], [3.0, 2.0])
    assert one.left_out == {LATER: 1, SAME: 2}


def test_values_that_32_bits_cannot_hold_are_counted() -> None:
    one = FoundRun("test", "1")
    kept = [float("nan"), float("inf"), -0.0, 1e-45, 0.1, 2.0**24, 2.0**30, 3.4e38]
    for step, value in enumerate([*kept, 1e-46, -1e-300, 1e39, -1e300, 2.0**24 + 1, 2.0**53 - 1]):
        one.add("a", step, value)
    one.count_losses()
    assert sorted(one.changed.values()) == [2, 2, 2]
    assert all("32 bits" in kind for kind in one.changed)


def test_one_setting_that_cannot_be_stored_does_not_take_the_others_along() -> None:
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    big = 2**127 + 1
    config = {
        "id": big, "inner": {"list": [1, -big]}, "lr": 0.1, "nan": float("nan"), "deep": deep, "nul": "a\0b\ud800",
        "k" * 300: 1, "huge": 10**6000, "t\0": 2, "ok": 2**63 - 1,
    }  # fmt: skip
    one = FoundRun("test", "1", config=config)
    found_config = opening(one, "p", [])["config"]
    check_json(json.loads(json.dumps(found_config)), "config")
    assert (found_config["id"], found_config["inner"]) == (str(big), {"list": [1, str(-big)]})
    assert (found_config["lr"], found_config["nan"], found_config["ok"]) == (0.1, "NaN", 2**63 - 1)
    assert len(found_config) == len(config)
    assert sum("more than 63 bits" in sentence for sentence in one.remarks) == 3


def test_numbers_of_json_are_read_whatever_their_size() -> None:
    digits = "9" * 5000
    one = FoundRun("test", "1")
    for name, value in parse_json(f'{{"a": {digits}, "b": -{digits}, "c": 1, "d": -0, "e": Infinity}}').items():
        one.add_json(name, 1, value)
    one.count_losses()
    assert [one.values_at(name, 1) for name in "cde"] == [[1.0], [-0.0], [float("inf")]]
    assert list(one.changed.values()) == [2]  # finite numbers stay finite


@pytest.mark.parametrize("name", ["val", "validation", "eval", "test", "Valid", "run1_val"])
def test_the_loss_of_a_validation_is_no_training_loss(name: str, tmp_path: Path) -> None:
    for folder in (name, "train"):
        write_events(tmp_path / "logs" / folder / "events.out.tfevents.1.h", [(0, 1.0)])
    runs = {one.name: one for one in found(tmp_path / "logs")}
    assert name_loss(runs["train"], None) == "loss"
    assert name_loss(runs[name], None) is None
    assert runs[name].names == ["test/loss" if name == "test" else "eval/loss"]
    assert name_loss(found(tmp_path / "logs" / "train")[0], None) == "loss"


def mlflow_run(folder: Path, lines: str, **tags: str) -> Path:
    (folder / "metrics").mkdir(parents=True)
    (folder / "tags").mkdir()
    (folder / "metrics" / "m").write_text(lines)
    for name, value in tags.items():
        (folder / "tags" / name.replace("__", ".")).write_text(value)
    meta = {"artifact_uri": "x", "lifecycle_stage": "active", "run_id": "0" * 32, "status": 3, "end_time": 1_700_000_100_000}
    (folder / "meta.yaml").write_text("".join(f"{k}: {v}\n" for k, v in (meta | {"start_time": 1_700_000_000_000}).items()))
    return folder


def test_one_step_of_mlflow_has_the_value_with_the_largest_time_then_value_in_both_stores(tmp_path: Path) -> None:
    rows = [(1, 1.0, 0), (3, 3.0, 0), (2, 2.0, 0), (5, 7.0, 1), (5, 9.0, 1), (5, 8.0, 1), (4, 99.0, 1)]
    mlflow_run(tmp_path / "store" / "r", "".join(f"{at} {value} {step}\n" for at, value, step in rows))
    with sqlite3.connect(tmp_path / "m.db") as connection:
        connection.execute("CREATE TABLE runs (run_uuid, status, start_time, name, lifecycle_stage)")
        connection.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        connection.execute("CREATE TABLE params (key, value, run_uuid)")
        connection.execute("CREATE TABLE tags (key, value, run_uuid)")
        connection.execute("INSERT INTO runs VALUES ('0', 'FINISHED', 1, 'r', 'active')")
        values = [(value, at, step) for at, value, step in rows]
        connection.executemany("INSERT INTO metrics VALUES ('m', ?, ?, '0', ?, 0)", values)
    connection.close()
    for path in (tmp_path / "store", tmp_path / "m.db"):
        (one,) = found(path)
        assert points(one, "m") == spelled([0, 1], [3.0, 9.0])


def test_a_child_of_mlflow_names_its_parent(tmp_path: Path) -> None:
    (one,) = found(mlflow_run(tmp_path / "r", "1 1.0 0\n", mlflow__parentRunId="f" * 32, team="x"))
    assert one.tags == [f"parent:{'f' * 32}", "team=x"]
    assert (one.started_at, one.ended_at) == (1.0e-3, 1_700_000_100.0)


@pytest.mark.slow
def test_times_tags_and_refusals_are_told_and_counted(server: httpx.Client, tmp_path: Path) -> None:
    mlflow_run(tmp_path / "in" / "r", "1700000050000 1.0 0\n", mlflow__parentRunId="f" * 32)
    (tmp_path / "in" / "bad.csv").write_text("loss,loss\n1,2\n")
    (tmp_path / "in" / "notes.txt").write_text("hello")
    done = run(server, tmp_path / "in", "-p", "p", "--tag", "y" * 60)
    assert done.exit_code == 1
    for words in (
        "bad.csv: columns 1 and 2 are both called 'loss' and hold different values",
        f"the tag {'y' * 60!r} is cut to 50 characters", "1 files read, 1 refused; 1 runs with 1 values",
        "passed over: files of no known kind (1): notes.txt",
    ):  # fmt: skip
        assert words in done.output
    (one,) = stored(server)
    assert (one["started_at"], one["finished_at"]) == (1_700_000_000.0, 1_700_000_100.0)
