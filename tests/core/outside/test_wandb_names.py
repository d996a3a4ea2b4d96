"""A program for W&B runs after `import stablessm as wandb`."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import stablessm
import stablessm as wandb
from stablessm_core.outside import wandb_missing
from stablessm_core.outside.options import RunOptions
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import Mamba2Mixer, model_of

# the steps of W&B's quick start, with a run as a context manager as its newest text has it, and with functions as its older text
WITH_BLOCK = """
import stablessm as wandb
import random
wandb.login()
config = {"epochs": 10, "lr": 0.01}
with wandb.init(project="awesome", config=config) as run:
    offset = random.random() / 5
    for epoch in range(2, config["epochs"]):
        acc = 1 - 2**-epoch - random.random() / epoch - offset
        loss = 2**-epoch + random.random() / epoch + offset
        run.log({"accuracy": acc, "loss": loss})
"""
FUNCTIONS = """
import stablessm as wandb
import random
wandb.login()
run = wandb.init(entity="team", project="awesome", config={"lr": 0.01, "epochs": 10})
offset = random.random() / 5
for epoch in range(2, wandb.config.epochs):
    acc = 1 - 2**-epoch - random.random() / epoch - offset
    loss = 2**-epoch + random.random() / epoch + offset
    wandb.log({"accuracy": acc, "loss": loss})
run.log_code()
wandb.finish()
"""


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs go into tmp_path, and none stays open."""
    monkeypatch.setenv("STABLESSM_MODE", "offline")
    monkeypatch.setenv("STABLESSM_DIR", str(tmp_path))
    monkeypatch.setattr(wandb_missing, "_told", set())
    yield
    wandb.finish()


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    page = Path("docs/watch/wandb.md").read_text(encoding="utf-8")
    exec(compile(page.split("```python\n")[1].split("```")[0], "page", "exec"), {})
    found = read(tmp_path)
    assert len(found.metrics["loss"]) == 10
    assert found.ends[0].result == {"best_accuracy": 1 - 2**-9, "telemetry_dropped": 0}


@pytest.mark.parametrize("program", [WITH_BLOCK, FUNCTIONS], ids=["with a block", "with functions"])
def test_the_quick_start_runs_unchanged(program: str, tmp_path: Path) -> None:
    exec(compile(program, "quick start", "exec"), {})
    found = read(tmp_path)
    assert (found.file.opening["project"], found.file.opening["config"]) == ("awesome", {"lr": 0.01, "epochs": 10})
    assert [step for step, _ in found.metrics["accuracy"]] == list(range(1, 9))
    assert set(found.metrics) == {"accuracy", "loss"}
    assert [end.status for end in found.ends] == ["finished"]
    assert wandb.run is None


def test_the_module_follows_the_run(tmp_path: Path) -> None:
    assert wandb.run is None
    run = wandb.init(name="first", config=argparse.Namespace(lr=0.1), id="abc123", group="g", job_type="train")
    assert wandb.run is run
    assert (wandb.config.lr, run.config["lr"], run.name, run.id) == (0.1, 0.1, "first", "abc123")
    assert wandb.init() is run
    second = wandb.init(reinit=True, id="abc123", dir=tmp_path / "second")
    assert wandb.run is second
    wandb.finish(exit_code=3)
    first, again = read(tmp_path), read(tmp_path / "second")
    assert first.file.opening["id"] == again.file.opening["id"]
    assert first.file.opening["tags"] == ["group:g", "job:train"]
    assert [end.status for end in (*first.ends, *again.ends)] == ["finished", "failed"]


def test_a_configuration_that_changes_after_init_reaches_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with wandb.init(config={"lr": 0.1}) as run:
        wandb.log({"a": 1})
        run._send_logged()
        run.config.lr = 0.2
        run.config["depth"] = 3
        run.config.update({"nested": {"x": [1]}}, allow_val_change=True)
        run.config.update(argparse.Namespace(seed=7))
        run.config.setdefaults({"seed": 8, "new": None})
        wandb.log({"a": 2})
        run.config.huge = "x" * 70_000
        with pytest.raises(AttributeError, match="no 'absent'"):
            _ = run.config.absent
    found = read(tmp_path)
    assert found.file.opening["config"] == {"lr": 0.2, "depth": 3, "nested": {"x": [1]}, "seed": 7, "new": None}
    assert found.metrics["a"] == [(1, 1.0), (2, 2.0)]
    assert capfd.readouterr().err.count("config has 70") == 1


def test_each_call_of_log_is_a_step_unless_the_program_says_otherwise(tmp_path: Path) -> None:
    with wandb.init() as run:
        wandb.log({"a": {"b": 1, "c": {"d": 2}}})
        wandb.log({"x": 1}, commit=False)
        wandb.log({"y": 2})
        wandb.log({"z": 3}, step=10)
        wandb.log({"w": 4})
        wandb.log({"v": 5})
        wandb.log({"late": 6}, step=4)
        wandb.log({"u": 7})
        assert run.step == 12
    steps = {name: points[0][0] for name, points in read(tmp_path).metrics.items()}
    assert steps == {"a/b": 1, "a/c/d": 1, "x": 2, "y": 2, "z": 10, "w": 10, "v": 11, "late": 4, "u": 12}


def test_the_summary_is_the_result_of_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with wandb.init() as run:
        run.log({"loss": torch.tensor(0.5, requires_grad=True), "acc": 0.25})
        run.summary["best"] = torch.tensor(0.75)
        wandb.summary.update({"text": "good", "inf": float("inf")})
        assert (run.summary["loss"], run.summary["acc"], run.summary["best"]) == (0.5, 0.25, 0.75)
    (end,) = read(tmp_path).ends
    assert end.result == {"best": 0.75, "inf": float("inf"), "telemetry_dropped": 0}
    assert capfd.readouterr().err.count("summary: text is a str") == 1


def test_what_is_missing_is_one_sentence_and_nothing_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with wandb.init(settings=wandb.Settings(silent=True), save_code=True) as run:
        for i in range(5):
            table = wandb.Table(columns=["a"], data=[[1]])
            table.add_data(2)
            artifact = wandb.Artifact("data", type="dataset")
            with artifact.new_file("x") as file:
                file.write("content")
            artifact.metadata["a"] = 1
            wandb.log({
                "i": i, "table": table, "image": wandb.Image([1]), "text": "word", "none": None,
                "histogram": wandb.Histogram([1, 2]), "plot": wandb.plot.line(table, "x", "y"),
            })  # fmt: skip
            run.log_artifact(artifact).wait()
            wandb.save("file")
            run.define_metric("i", summary="max")
            wandb.alert("title", "text", level=wandb.AlertLevel.ERROR, wait_duration=3)
            run.name = "other"
        wandb.require("core")
    err = capfd.readouterr().err
    for name in ("Table", "Artifact", "Image", "Histogram", "plot", "log_artifact", "save", "Settings"):
        assert err.count(f"W&B's {name} is not recorded") == 1
    for sentence in (
        "text is a str",
        "none is a NoneType",
        "define_metric is not used",
        "name of a run cannot",
        "init does not use",
    ):
        assert err.count(sentence) == 1
    found = read(tmp_path)
    assert set(found.metrics) == {"i"}
    assert len(found.sink.alerts) == 5


@pytest.mark.parametrize("use", [
    lambda: wandb.sweep({}), lambda: wandb.agent("x", print), lambda: wandb.Api(), lambda: wandb.init().use_artifact("x"),
])  # fmt: skip
def test_what_should_give_something_back_raises_and_says_so(use: Any) -> None:
    with pytest.raises(NotImplementedError, match="nothing in place of W&B's"):
        use()


def test_a_wrong_argument_of_init_raises() -> None:
    with pytest.raises(TypeError, match=r"^projct is no argument"):
        wandb.init(projct="x")
    with pytest.raises(ValueError, match=r"^resume is 'perhaps'"):
        wandb.init(resume="perhaps")


def test_log_without_a_run_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    wandb.log({"a": 1})
    wandb.log({"a": 1})
    assert capfd.readouterr().err.count("call stablessm.init() first") == 1


def test_every_function_shows_each_option() -> None:
    for function in (stablessm.watch, stablessm.log_only, stablessm.init):
        shown = inspect.signature(function).parameters
        assert RunOptions.__annotations__.keys() <= shown.keys()
        assert not [p for p in shown.values() if p.kind is p.VAR_KEYWORD]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
    """The weights of the first layer before each step."""
    weights = []
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.1)
        weights.append(model[0].A_log.detach().clone())
        optimizer.step()
    return weights


def test_watch_finds_the_optimizer_and_records_each_of_its_steps(tmp_path: Path) -> None:
    with wandb.init() as run:
        wandb.log({"before": 1})
        run._send_logged()
        model = nn.Sequential(Mamba2Mixer(5), nn.Linear(3, 3))
        wandb.watch(model, nn.CrossEntropyLoss(), log="all", log_freq=10)
        other = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(nn.Sequential(Mamba2Mixer(5)), torch.optim.SGD(other.parameters(), lr=1.0), 3)
        weights = train(model, optimizer, 20)
        wandb.log({"after": 1})
        assert run.step == 20
    found = read(tmp_path)
    steps, recorded = found.sink.series("ssm/0/weight")
    assert steps.tolist() == list(range(1, 21))
    assert recorded.tobytes() == torch.stack(weights).numpy().tobytes()
    assert found.file.opening["how"]["optimizer"] == "sgd"
    assert [layer["path"] for layer in found.file.opening["layers"]] == ["0.A_log"]
    assert (found.metrics["before"], found.metrics["after"]) == ([(1, 1.0)], [(20, 1.0)])
    assert not _global_optimizer_pre_hooks


def test_watch_finds_two_optimizers_that_share_the_layers(tmp_path: Path) -> None:
    model = nn.Sequential(Mamba2Mixer(5), Mamba2Mixer(4))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    with stablessm.watch(model) as run:
        for _ in range(6):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1)
            for optimizer in optimizers:
                optimizer.step()
        assert run.step == 6
    found = read(tmp_path)
    for layer in (0, 1):
        assert found.sink.series(f"ssm/{layer}/gradient")[0].tolist() == list(range(1, 7))


def test_a_first_step_that_a_scaler_skips_is_counted(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    with stablessm.watch(model) as run:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for value in (float("inf"), 1.0, 1.0):
            loss = scaler.scale(sum((p * value).sum() for p in model.parameters()))
            optimizer.zero_grad()
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
        assert run.step == 3
    assert read(tmp_path).sink.series("train/skipped")[1][:, 0].tolist() == [1, 0, 0]


def test_a_model_without_eigenvalues_is_counted_by_its_optimizer(tmp_path: Path) -> None:
    model, optimizer = model_of(1, lambda: nn.Linear(3, 3))
    with wandb.init() as run:
        run.watch([model])
        for _ in range(4):
            optimizer.step()
            run.log({"loss": 1.0})
    assert [step for step, _ in read(tmp_path).metrics["loss"]] == [1, 2, 3, 4]


def test_a_model_that_nobody_trains_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, _ = model_of(1)
    with wandb.init() as run:
        with pytest.raises(TypeError, match=r"^model is a int"):
            stablessm.watch(3)
        run.watch(model)
        run.watch(model)
    err = capfd.readouterr().err
    assert err.count("no torch optimizer has trained") == 1
    assert err.count("watches a model already") == 1
    assert not _global_optimizer_pre_hooks
