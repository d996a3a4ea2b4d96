"""What the tools wrote is read back: every number exactly, and what is known of the run."""

from __future__ import annotations

import contextlib
import csv
import random
import sqlite3
from pathlib import Path

import pandas as pd
import pytest

from server.importing import crc32c, tensorboard
from server.importing.found_run import FoundRun, Unreadable
from server.importing.sending import messages, name_loss, opening
from server.importing.sources import find_sources
from server.ingest.records import read_records
from stablessm_core.report.frames import pack
from stablessm_core.report.messages import to_bytes
from tests.server.importing.reading import ACCURACIES, LOSSES, UNSIGNED, found, points, spelled
from tests.server.importing.samples.write import ACCURACY, CONFIG, LOSS, STEPS, UNICODE


def test_tensors_and_hyperparameters_of_tensorboard(samples: Path) -> None:
    (run,) = found(samples / "tensorboard")
    assert points(run, "train_loss") == LOSSES
    assert points(run, UNICODE) == ACCURACIES
    assert run.config == CONFIG
    assert run.left_out == {"histograms": 1}


def test_simple_values_of_torchs_writer_and_a_run_that_went_back(samples: Path) -> None:
    run, inner = found(samples / "torch")
    assert points(run, "Loss/train") == [*LOSSES[:4], *spelled([1000], [0.25])]
    assert points(run, "val/acc") == ACCURACIES[:4]
    assert UNICODE not in run.names  # its only step is negative
    assert run.left_out == {
        "points with a step below 0 or above 2^53 - 1": 1, "histograms": 1, "images": 1, "texts": 1,
        "values that the program took back before it repeated their steps": 4,
    }  # fmt: skip
    assert (run.name, inner.name, points(inner, "several")) == ("torch", "several_a", spelled([7], [1.0]))


def test_wandb_with_a_process_that_resumed_the_run(samples: Path) -> None:
    (run,) = found(samples / "wandb")
    loss = points(run, "loss")
    assert loss[:6] == LOSSES
    last = 2**40
    assert loss[6:206] == spelled([last + i for i in range(1, 201)], [float(i) for i in range(1, 201)])
    assert loss[206:] == spelled([last + 300, last + 301, last + 302], [0.5] * 3)
    assert points(run, UNICODE) == ACCURACIES
    assert points(run, "nested/deep") == spelled(STEPS, [float(step) for step in STEPS])
    assert (run.name, run.config, run.tags, run.notes) == ("größe 1", CONFIG, ["a", "Ω"], "two\nlines")
    assert run.left_out == {"values of the kind histogram": 1, "values of the kind text": 1}


def test_the_exit_code_of_wandb_is_the_status(samples: Path) -> None:
    first, later = sorted((samples / "wandb").rglob("*.wandb"))
    (failed,), (finished,) = found(first), found(later)
    assert (failed.status, failed.reason, finished.status) == ("failed", "exit code 3", "finished")
    assert failed.id("p") == finished.id("p")
    later.write_bytes(later.read_bytes()[:-60])
    (killed,) = found(later)
    assert (killed.status, killed.reason) == ("finished", "its file has no end: the process was killed, or it still runs")
    later.write_bytes(later.read_bytes()[:7])  # what a process leaves that is killed early
    with pytest.raises(Unreadable, match="holds no run"):
        found(later)


@pytest.mark.parametrize("store", ["mlflow", "mlflow_folder"])
def test_both_stores_of_mlflow(store: str, samples: Path) -> None:
    runs = found(samples / store)
    assert {run.name: run.status for run in runs} == {
        "größe finished": "finished", "größe failed": "failed", "größe killed": "cancelled", "größe running": "finished",
    }  # fmt: skip
    for run in runs:
        assert points(run, "train_loss") == (UNSIGNED if store == "mlflow" else LOSSES)
        assert points(run, "val/acc") == ACCURACIES
        assert run.left_out == {"points with a step below 0 or above 2^53 - 1": 1}
        # MLflow keeps parameters as text
        assert run.config == CONFIG | {"fused": "True"}
        assert (run.tags, run.notes) == (["team=Ω"], "a note")
    assert {run.reason for run in runs} == {"", "MLflow says RUNNING"}


def test_trackio(samples: Path) -> None:
    first, second = found(samples / "trackio")
    assert (first.name, second.name, first.config) == ("größe 1", "second", CONFIG)
    for run in (first, second):
        assert points(run, "loss") == LOSSES
        assert points(run, UNICODE) == ACCURACIES
        assert points(run, "nested/deep") == spelled(STEPS, [float(step) for step in STEPS])
    assert first.id("p") != second.id("p")


def test_the_csv_file_of_lightning(samples: Path) -> None:
    (run,) = found(samples / "lightning")
    assert points(run, "train_loss") == LOSSES
    assert points(run, UNICODE) == ACCURACIES


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_of_pandas(kind: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"Step": STEPS, "loss": LOSS, UNICODE: ACCURACY, "word": ["a"] * 6, "flag": [True, False] * 3})
    path = tmp_path / "table.bin"
    if kind == "csv":
        table.to_csv(path, index=False, na_rep="NaN", sep=";")
    else:
        table.to_parquet(path)
    (run,) = found(path)
    # pandas writes a NaN into Parquet as a missing number
    assert points(run, "loss") == (LOSSES if kind == "csv" else [point for point in LOSSES if point[1] != "nan"])
    assert points(run, UNICODE) == ACCURACIES
    assert points(run, "flag") == spelled(STEPS, [1.0, 0.0] * 3)
    assert run.left_out == {"columns that are no numbers": 1}


def test_an_empty_cell_is_no_number_and_a_word_in_a_column_of_numbers_is_counted(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("step,a,b\n1,,nan\n2,5,-inf\nx,6,1\n4,oops,2\n5,7\n")
    (run,) = found(tmp_path / "t")
    assert points(run, "a") == spelled([2], [5.0])
    assert points(run, "b") == spelled([1, 2, 4], [float("nan"), float("-inf"), 2.0])
    assert run.left_out == {"rows whose 'step' is no whole number": 1, "cells of 'a' that are no numbers": 1}
    assert "1 rows have another number of cells" in run.remarks[0]


def test_rows_without_a_column_of_steps_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("time,loss\n0.5,3\n0.75,2\n")
    (run,) = found(tmp_path / "t")
    assert points(run, "loss") == spelled([1, 2], [3.0, 2.0])
    assert "numbered from 1" in run.remarks[0]
    with pytest.raises(Unreadable, match="no column is called 'tme'; did you mean time\\?; it has time, loss"):
        found(tmp_path / "t", step="tme")


def test_the_content_decides_and_not_the_name(samples: Path, tmp_path: Path) -> None:
    expected = {run.tool for run in found(samples)}
    assert expected == {"TensorBoard", "W&B", "MLflow", "trackio", "CSV"}
    for i, path in enumerate(path for path in samples.rglob("*") if path.is_file() and "mlflow_folder" not in path.parts):
        path.rename(path.with_name(f"{i}.txt"))
    assert {run.tool for run in found(samples)} == expected


@pytest.mark.parametrize(
    "content",
    [
        b"", b"a", b"hello, world\nthis is, a text\n", b"{}", b"a,b\n", b"1,2\n3,4\n", b"\0" * 5000, b"PK\x03\x04" + b"x" * 99,
        b"import a, b\nc = 1, 2\n", b"SQLite format 3\0" + b"\xff" * 5000, b"name,word\nx,y\n",
    ],
)  # fmt: skip
def test_another_file_is_not_recognized_and_the_message_says_what_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    for path in (tmp_path / "f", tmp_path):
        with pytest.raises(Unreadable, match=r"recognized; what can be imported: event files of TensorBoard, .*Parquet files"):
            find_sources(path, None, print)


def truncated_and_flipped(path: Path) -> list[bytes]:
    whole = path.read_bytes()
    dice = random.Random(path.stat().st_size)
    cut = [whole[: len(whole) * i // 9] for i in range(9)]
    flipped = []
    for _ in range(25):
        at = dice.randrange(len(whole))
        flipped.append(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :])
    return cut + flipped


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["tensorboard", "torch", "wandb", "mlflow", "mlflow_folder", "trackio", "lightning", "parquet"])
def test_a_damaged_file_is_one_sentence_and_never_another_exception(tool: str, samples: Path, tmp_path: Path) -> None:
    if tool == "parquet":
        (samples / tool).mkdir()
        pd.DataFrame({"step": STEPS, "loss": LOSS}).to_parquet(samples / tool / "t")
    for path in [path for path in (samples / tool).rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        for damaged in truncated_and_flipped(path)[:: 6 if tool == "mlflow_folder" else 1]:
            path.write_bytes(damaged)
            with contextlib.suppress(Unreadable):
                for source in find_sources(samples / tool, None, print):
                    for run in source.read(lambda _: None):
                        run.series()
        path.write_bytes(whole)


@pytest.mark.parametrize("tool", ["tensorboard", "wandb"])
def test_a_damaged_log_is_read_up_to_the_damage_and_says_so(tool: str, samples: Path) -> None:
    path = min((path for path in (samples / tool).rglob("*") if path.is_file()), key=lambda path: path.as_posix())
    whole = path.read_bytes()
    name = "train_loss" if tool == "tensorboard" else "loss"
    expected = points(found(path)[0], name)
    lengths = []
    for at in range(len(whole) // 3, len(whole), len(whole) // 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        (run,) = found(path)
        got = points(run, name) if name in run.names else []
        assert got == expected[: len(got)]
        assert len(run.remarks) == 1
        assert str(path) in run.remarks[0]
        assert "it is read up to there" in run.remarks[0]
        lengths.append(len(got))
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


def test_a_database_that_is_damaged_in_its_numbers_says_so(samples: Path) -> None:
    path = samples / "trackio" / "samples.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE metrics SET metrics = '[1]' WHERE run_name = 'second' AND step = 5")
    connection.close()
    whole, cut = found(path)
    assert points(whole, "loss") == LOSSES
    assert points(cut, "loss") == LOSSES[:3]
    assert "'second' is damaged after 3 rows" in cut.remarks[0]


def test_the_id_of_a_run_stays_when_its_source_grows_and_moves(samples: Path, tmp_path: Path) -> None:
    before = {run.name: run.id("p") for run in found(samples / "torch")}
    writer = samples / "torch" / "events.out.tfevents.9999999999.host.1"
    writer.write_bytes(next((samples / "tensorboard").iterdir()).read_bytes())
    (tmp_path / "elsewhere").mkdir()
    (samples / "torch").rename(tmp_path / "elsewhere" / "torch")
    assert {run.name: run.id("p") for run in found(tmp_path / "elsewhere" / "torch")} == before
    table = tmp_path / "t.csv"
    table.write_text("step,loss\n1,2\n")
    old = found(table)[0].id("p")
    table.write_text("step,loss,later\n1,2,\n2,1.5,7\n")
    assert found(table)[0].id("p") == old
    assert found(table)[0].id("another project") != old


def test_every_message_is_one_that_the_server_takes() -> None:
    run = FoundRun("test", "1")
    for step in range(5000):
        for name in ("a", "b"):
            run.add(name, step, -1.2345678901234567e-300)
    run.add("c", 3, 1.0)
    run.add("c", 3, 2.0)
    run.add("ssm/0/weight", 1, 1.0)
    run.add("x" * 200, 1, 1.0)
    sent = list(messages(run))
    read_records(pack(map(to_bytes, sent)))
    assert sum(len(message.steps) * len(message.values) for message in sent) == 10_001
    assert sent[-1].values == {"c": [2.0]}
    assert sum(run.left_out.values()) == 2


def test_an_obvious_name_is_taken_as_the_training_loss() -> None:
    def named(*names: str, asked: str | None = None) -> tuple[str | None, list[str]]:
        run = FoundRun("test", "1")
        for name in names:
            run.add(name, 1, 1.0)
        return name_loss(run, asked), run.names

    assert named("val/loss", "Loss/train") == ("Loss/train", ["val/loss", "train/loss"])
    assert named("loss", "train/loss") == ("train/loss", ["loss", "train/loss"])
    assert named("val_loss") == (None, ["val_loss"])
    assert named("loss", "objective", asked="objective") == ("objective", ["loss", "train/loss"])
    with pytest.raises(Unreadable, match="no series is called 'objectiv'; did you mean objective"):
        named("loss", "objective", asked="objectiv")
    with pytest.raises(Unreadable, match="another series has this name"):
        named("train/loss", "objective", asked="objective")


def test_what_a_server_would_refuse_is_cut_off() -> None:
    run = FoundRun("test", "1", "n\0" * 300, {"a": "x" * 70_000}, ["t" * 60, "", "\x1b[31m", *map(str, range(30))], "note\0")
    asked = opening(run, "p", ["mine"])
    assert len(asked["name"]) == 200
    assert asked["tags"][:3] == ["mine", "t" * 50, "\N{REPLACEMENT CHARACTER}[31m"]
    assert len(asked["tags"]) == 20
    assert asked["config"] == {}
    assert "config.a has 70,009 bytes and is left out" in run.remarks[0]
    assert "the tag 'tttt" in run.remarks[1]
    assert "13 tags are left out" in run.remarks[2]
    assert asked["notes"] == "Imported from test.\n\nnote\N{REPLACEMENT CHARACTER}"


def test_crc32c_of_short_and_long_data_agree() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283
    data = random.Random(0).randbytes(3 * crc32c.LONG)
    for size in (crc32c.LONG, crc32c.LONG + 1, 3 * crc32c.LONG - 1, 3 * crc32c.LONG):
        state = 0xFFFFFFFF
        for byte in data[:size]:
            state = crc32c.TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
        assert crc32c.crc32c(data[:size]) == state ^ 0xFFFFFFFF


def test_a_head_that_holds_only_a_part_of_the_first_event_is_recognized(samples: Path) -> None:
    head = next((samples / "tensorboard").iterdir()).read_bytes()
    assert all(tensorboard.recognizes(head[:size]) for size in range(13, len(head), 50))
    assert not any(tensorboard.recognizes(head[:size]) for size in range(12))


def test_a_csv_file_with_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    with (tmp_path / "t").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["step", "a, b"], [1, 2.5]])
    (run,) = found(tmp_path / "t")
    assert points(run, "a, b") == spelled([1], [2.5])
