"""Files that tools export or write beside their own formats: charts of W&B, CSV of TensorBoard, trainer_state.json, JSONL."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from server.importing.found_run import Unreadable
from server.importing.sending import name_loss
from server.importing.sources import IMPORTERS, find_sources
from tests.server.importing.reading import found, points, record_of, spelled, write_events


def test_each_run_of_a_chart_of_wandb_is_a_run(tmp_path: Path) -> None:
    names = [f"{run} - {metric}{end}" for run in ("a - 1", "b-2") for metric in ("loss", "acc") for end in ("", "__MIN", "__MAX")]
    header = ",".join(f'"{name}"' for name in ["Step", *names])
    (tmp_path / "chart.csv").write_text(f'{header}\n"0"{",1" * 6},2,2,2,3,3,3\n"10"{"," * 6},NaN,9,9,Infinity,0,0\n')
    first, second = found(tmp_path)
    assert (first.name, second.name, first.names, second.names) == ("a - 1", "b-2", ["loss", "acc"], ["loss", "acc"])
    assert points(first, "loss") == spelled([0], [1.0])
    assert points(second, "loss") == spelled([0, 10], [2.0, float("nan")])
    assert points(second, "acc") == spelled([0, 10], [3.0, float("inf")])
    assert first.left_out == second.left_out == {"columns __MIN and __MAX, between which W&B draws a band": 4}
    assert first.id("p") != second.id("p")


def test_the_exports_of_tensorboard_for_one_run_are_one_run(tmp_path: Path) -> None:
    for tag, value in (("loss", 0.5), ("val_acc", 0.75)):
        text = f"Wall time,Step,Value\n1640000000.5,0,{value}\n1640000009.25,7,nan\n"
        (tmp_path / f"run-exp_1-tag-{tag}.csv").write_text(text)
    (tmp_path / "run-exp_2-tag-loss.csv").write_text("Wall time,Step,Value\n1.5,3,4\n")
    first, second = found(tmp_path)
    assert (first.name, second.name) == ("exp_1", "exp_2")
    assert points(first, "loss") == spelled([0, 7], [0.5, float("nan")])
    assert points(first, "val_acc") == spelled([0, 7], [0.75, float("nan")])
    assert (first.started_at, first.ended_at) == (1640000000.5, 1640000009.25)


def test_the_states_of_one_trainer_are_one_run(tmp_path: Path) -> None:
    log = [{"loss": 2.0, "epoch": 0.5, "step": 10}, {"eval_loss": float("nan"), "step": 10}, {"loss": 1.0, "step": 20}]
    end = {"train_loss": 1.5, "train_runtime": 9.0, "total_flos": 10**30, "step": 20, "epoch": 1.0}
    for folder, step, count in (("checkpoint-9", 10, 2), ("checkpoint-10", 20, 3), (".", 20, 4)):
        (tmp_path / "out" / folder).mkdir(exist_ok=True, parents=True)
        state = {"best_metric": None, "global_step": step, "max_steps": 20, "log_history": [*log, end][:count]}
        (tmp_path / "out" / folder / "trainer_state.json").write_text(json.dumps(state))
    (one,) = found(tmp_path)
    assert points(one, "loss") == spelled([10, 20], [2.0, 1.0])
    assert points(one, "eval/loss") == spelled([10], [float("nan")])
    assert (one.name, one.config, one.result["train_loss"]) == ("out", {"max_steps": 20}, 1.5)
    assert one.left_out == {"earlier states of the same training": 2}
    assert name_loss(one, None) == "loss"
    (alone,) = found(tmp_path / "out" / "checkpoint-9" / "trainer_state.json")
    assert alone.id("p") == one.id("p")
    (tmp_path / "out" / "trainer_state.json").write_text('{"log_history": [')
    with pytest.raises(Unreadable, match="it is no JSON, or not whole"):
        find_sources(tmp_path / "out" / "trainer_state.json", None, print)


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"config": 1}', '{"step": 1, "loss": NaN, "a": {"b": 2}, "word": "x", "list": [1], "timestamp": 1700000000.5}', "",
        "oops",
        '{"step": 2, "loss": -Infinity, "big": 1' + "0" * 500 + ', "null": null, "flag": true}', "[1]", '{"step": 3, "lo',
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    (one,) = found(tmp_path)
    assert points(one, "loss") == spelled([1, 2], [float("nan"), float("-inf")])
    assert points(one, "a/b") == spelled([1], [2.0])
    assert points(one, "flag") == spelled([2], [1.0])
    assert one.left_out == {
        "lines without a whole number as step": 1, "lines that are no JSON": 1, "lines that are no JSON objects": 1,
        "values of the kind text": 1, "values of the kind list": 1,
    }  # fmt: skip
    assert "line 7 is not whole" in one.remarks[0]
    assert one.started_at == 1_700_000_000.5
    (tmp_path / "log.jsonl").write_text('{"prompt": "x", "length": 7}\n')
    with pytest.raises(Unreadable, match="none of its first objects has a number called step"):
        find_sources(tmp_path / "log.jsonl", None, print)


def test_the_old_history_of_wandb_and_what_lies_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "run-20190102_030405-abcd1234"
    folder.mkdir(parents=True)
    rows = [{"loss": 1 / (i + 1), "_step": 2 * i, "_timestamp": 1_546_400_000 + i, "h": {"_type": "histogram"}} for i in range(3)]
    (folder / "wandb-history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "wandb-summary.json").write_text('{"best": 0.25, "_step": 4, "word": "x"}')
    (folder / "wandb-metadata.json").write_text('{"startedAt": "2019-01-02T03:04:05.5", "state": "failed", "exitcode": 3}')
    settings = "wandb_version: 1\n\nlr:\n  desc: null\n  value: 0.1\nname:\n  value: 'x'\nl:\n  value:\n  - 1\n"
    (folder / "config.yaml").write_text(settings)
    (one,) = found(tmp_path)
    assert points(one, "loss") == spelled([0, 2, 4], [1.0, 0.5, 1 / 3])
    assert (one.tool, one.name, one.config, one.result) == ("W&B", "abcd1234", {"lr": 0.1, "name": "x"}, {"best": 0.25})
    assert (one.status, one.reason, one.started_at) == ("failed", "exit code 3", 1546398245.5)
    assert one.left_out == {"values of the kind histogram": 3, "settings of several lines": 1}


def hparams_event(name: str, value: float) -> bytes:
    """An event with a hyperparameter, as TensorBoard's plugin stores it."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    entry = field(1, name.encode()) + field(2, b"\x11" + struct.pack("<d", value))
    plugin = field(1, b"hparams") + field(2, field(3, field(1, entry)))
    return field(5, field(1, field(1, b"_hparams_/session_start_info") + field(9, field(1, plugin))))


@pytest.mark.parametrize("inside", ["exp/train", "exp"])
def test_hyperparameters_of_tensorboard_join_their_run(inside: str, tmp_path: Path) -> None:
    # Keras writes them above the folders of its runs, and torch in a folder inside the folder of the run
    write_events(tmp_path / inside / "events.out.tfevents.1.h", [(0, 1.0)])
    settings = tmp_path / ("exp" if inside != "exp" else "exp/1700000000.123456") / "events.out.tfevents.2.h"
    write_events(settings, [])
    settings.write_bytes(settings.read_bytes() + record_of(hparams_event("lr", 0.5)))
    (one,) = found(tmp_path)
    assert (one.name, one.config, one.names) == (inside, {"lr": 0.5}, ["loss"])


def test_each_importer_says_what_it_reads() -> None:
    assert len({importer.what for importer in IMPORTERS}) == len(IMPORTERS)
