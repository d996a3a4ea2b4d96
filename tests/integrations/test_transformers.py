"""The callback for transformers' Trainer records each step exactly, and ends its run as the training ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.outside.reading import Recorded, read
from tests.integrations.conftest import Lazily, code_of, sequences, tiny_model
from tests.integrations.reference import check_steps, received, recorded

transformers = Lazily("transformers")
adapter = Lazily("stablessm.integrations.transformers")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning"),  # the Trainer's default
]


def trainer(callback: Any, *others: Any, **arguments: Any) -> Any:
    given = {"max_steps": 6, "logging_steps": 2, "report_to": "none", "save_strategy": "no", "disable_tqdm": True} | arguments
    args = transformers.TrainingArguments("out", use_cpu=True, **given)
    return transformers.Trainer(
        tiny_model(), args, train_dataset=sequences(64), eval_dataset=sequences(8), callbacks=[callback, *others]
    )


def test_the_code_of_the_page_records_every_step_as_the_optimizer_received_it(tmp_path: Path) -> None:
    code = code_of("transformers.md")
    names: dict[str, Any] = {"train_data": sequences(256, 64), "test_data": sequences(8, 64)}
    code = code.replace("hidden_size=32, state_size=8", "hidden_size=16, state_size=4")  # smaller, for the test
    with received() as (weights, gradients):
        exec(code, names)
    found = read(tmp_path / "runs")
    check_steps(found, weights, gradients)
    assert len(weights) == 30
    assert [(end.status, end.reason) for end in found.ends] == [("finished", "")]
    opening = found.file.opening
    assert (opening["project"], opening["name"], opening["total_steps"], opening["from_step"]) == ("hybrid", "tiny mamba", 30, 0)
    assert [layer["path"] for layer in opening["layers"]] == [f"backbone.layers.{i}.mixer.A_log" for i in range(2)]
    assert opening["config"]["trainer"]["gradient_accumulation_steps"] == 2
    assert opening["config"]["model"]["state_size"] == 4
    assert found.facts["gradient"] == "clipped"
    logged = {
        k: v for entry in names["trainer"].state.log_history for k, v in entry.items() if k == "loss" and entry["step"] == 20
    }
    assert dict(found.metrics["train/loss"])[20] == pytest.approx(logged["loss"], rel=1e-6)
    assert {"train/grad_norm", "train/learning_rate", "train/epoch"} <= found.metrics.keys()
    assert found.ends[0].result["train_loss"] == found.metrics["train/loss"][-1][1]


def test_without_clipping_the_gradients_are_raw_and_evaluations_are_metrics(tmp_path: Path) -> None:
    made = trainer(adapter.StableSSMCallback(), max_grad_norm=0.0, eval_strategy="steps", eval_steps=3)
    made.train()
    found = read(tmp_path / "runs")
    assert found.facts["gradient"] == "raw"
    assert [step for step, _ in found.metrics["eval/loss"]] == [3, 6]


def test_an_exception_that_the_program_catches_ends_the_run_as_failed_at_the_next_training(tmp_path: Path) -> None:
    class Raises(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 4:
                raise RuntimeError("out of memory")

    callback = adapter.StableSSMCallback()
    made = trainer(callback, Raises())
    with pytest.raises(RuntimeError, match="out of memory"):
        made.train()
    path = Path(str(callback.run.path))
    made.pop_callback(Raises)
    made.train()
    ends = [found.ends[0] for found in (moved(path, tmp_path / "first"), read(tmp_path / "runs"))]
    assert [end.status for end in ends] == ["failed", "finished"]
    assert ends[0].reason.startswith("the Trainer stopped before the end of the training after step 4; 0 steps missing")


def moved(path: Path, folder: Path) -> Recorded:
    folder.mkdir()
    path.rename(folder / path.name)
    return read(folder)


PROGRAM = """
import sys
from transformers import Trainer, TrainerCallback, TrainingArguments
from stablessm.integrations.transformers import StableSSMCallback
from tests.integrations.conftest import sequences, tiny_model
class Raises(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 4:
            raise KeyboardInterrupt if sys.argv[1] == "ctrl-c" else RuntimeError("out of memory")
arguments = TrainingArguments("out", use_cpu=True, max_steps=6, report_to="none", save_strategy="no", disable_tqdm=True)
try:
    Trainer(tiny_model(), arguments, train_dataset=sequences(64), callbacks=[StableSSMCallback(), Raises()]).train()
except RuntimeError:
    if sys.argv[1] != "caught":
        raise
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("exception", "failed", "RuntimeError: out of memory, after step 4; 0 steps missing"),
        ("caught", "failed", "the Trainer stopped before the end of the training after step 4; 0 steps missing"),
        ("ctrl-c", "cancelled", "Ctrl-C after step 4; 0 steps missing"),
    ],
)
def test_a_program_that_an_exception_ends_has_a_run_with_that_end(end: str, status: str, reason: str, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", PROGRAM, end], env=environment, cwd=tmp_path, check=False, capture_output=True)
    found = read(tmp_path / "runs")
    assert [(e.status, e.reason) for e in found.ends] == [(status, reason)]


def test_training_from_a_checkpoint_continues_the_steps(tmp_path: Path) -> None:
    trainer(adapter.StableSSMCallback(mode="disabled"), max_steps=3, save_strategy="steps", save_steps=3).train()
    with received() as (weights, gradients):
        trainer(adapter.StableSSMCallback()).train(resume_from_checkpoint=True)
    found = read(tmp_path / "runs")
    assert found.file.opening["from_step"] == 3
    check_steps(found, weights, gradients, first=4)


def test_cancel_on_the_page_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = adapter.StableSSMCallback()
    monkeypatch.setattr("stablessm_core.outside.run.Run.should_stop", property(lambda run: run.step == 3))
    made = trainer(callback)
    made.train()
    assert made.state.global_step == 3
    assert [end.status for end in read(tmp_path / "runs").ends] == ["cancelled"]


def test_evaluations_after_the_training_are_kept_with_keep_open_and_named_without(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    callback = adapter.StableSSMCallback(keep_open=True)
    made = trainer(callback)
    made.train()
    made.evaluate()
    callback.run.finish()
    found = read(tmp_path / "runs")
    assert [step for step, _ in found.metrics["eval/loss"]] == [6]
    assert recorded(found, "optim/lr")[0] == pytest.approx(5e-5)
    made = trainer(adapter.StableSSMCallback(mode="disabled"))
    made.train()
    made.evaluate()
    assert "keep_open=True keeps it open" in capfd.readouterr().err


def test_a_training_that_cannot_be_watched_goes_on_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    callback = adapter.StableSSMCallback()
    made = trainer(callback)
    callback._arguments["every"] = "often"
    made.train()
    assert made.state.global_step == 6
    assert "this training is not watched (TypeError: every is 'often'" in capfd.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    ({"projekt": "a"}, "StableSSMCallback has no argument 'projekt'; allowed: project, name"),
    ({"every": 0}, "every is 0; at least 1"),
    ({"mode": "live"}, "mode is 'live'; allowed: online, offline, disabled"),
])  # fmt: skip
def test_a_wrong_argument_raises_before_the_training(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        adapter.StableSSMCallback(**arguments)
