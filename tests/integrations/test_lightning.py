"""The logger and callback for Lightning record each step exactly, and end their run as the training ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.outside.reading import read
from tests.integrations.conftest import Lazily, code_of, loader, tiny_model, weights_of
from tests.integrations.reference import check_steps, recorded

adapter = Lazily("stablessm.integrations.lightning")
modules = Lazily("tests.integrations.lightning_modules")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning 2.6 with torch 2.13
]


def test_the_code_of_the_page_records_every_step_before_clipping(tmp_path: Path) -> None:
    model = tiny_model()
    raw: list[list[Tensor]] = [[], []]
    for i, weight in enumerate(weights_of(model)):
        weight.register_post_accumulate_grad_hook(lambda p, i=i: raw[i].append(p.grad.clone()))
    names: dict[str, Any] = {"model": model, "train_loader": loader(240), "test_loader": loader(8)}
    exec(code_of("lightning.md"), names)
    found = read(tmp_path / "runs")
    assert [(end.status, end.reason) for end in found.ends] == [("finished", "")]
    assert found.facts["gradient"] == "raw"
    for i in range(2):
        steps, values = found.sink.series(f"ssm/{i}/gradient")
        assert steps.tolist() == list(range(1, 31))
        expected = torch.stack([g.abs().flatten() for g in raw[i][1::2]])  # after the second batch of each step
        assert values.tobytes() == expected.numpy().tobytes()
    assert found.file.opening["total_steps"] == 30
    assert found.file.opening["config"] == {"lr": 1e-3}
    assert [layer["path"] for layer in found.file.opening["layers"]] == [
        f"model.backbone.layers.{i}.mixer.A_log" for i in range(2)
    ]
    assert found.metrics["val/loss"][-1][0] == 30


def test_losses_weights_and_gradients_have_the_bits_of_the_module(tmp_path: Path) -> None:
    module = modules.Module()
    modules.trained(module, adapter.StableSSMLogger(), gradient_clip_val=1e-3)
    found = read(tmp_path / "runs")
    check_steps(found, module.weights, module.gradients)
    assert recorded(found, "train/loss").tobytes() == torch.stack(module.losses).numpy().tobytes()
    assert dict(found.metrics["train_loss"])[6] == pytest.approx(module.losses[-1].item())
    assert [alert.kind for alert in found.sink.alerts] == []


def test_the_loss_of_a_step_is_the_mean_of_its_accumulated_batches(tmp_path: Path) -> None:
    module = modules.Module()
    modules.trained(module, adapter.StableSSMLogger(), accumulate_grad_batches=2)
    found = read(tmp_path / "runs")
    check_steps(found, module.weights, module.gradients)
    means = torch.stack(module.losses).view(6, 2).mean(1)
    torch.testing.assert_close(torch.from_numpy(recorded(found, "train/loss").copy()), means)


@pytest.mark.parametrize(("error", "status", "reason"), [
    (RuntimeError, "failed", "RuntimeError: out of memory, after step 4; 0 steps missing"),
    (KeyboardInterrupt, "cancelled", "Ctrl-C after step 4; 0 steps missing"),
])  # fmt: skip
def test_the_run_ends_as_the_training_ends(error: type[BaseException], status: str, reason: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((error, SystemExit)):
            modules.trained(modules.Module(error), adapter.StableSSMLogger())
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores later Ctrl-C
    assert [(end.status, end.reason) for end in read(tmp_path / "runs").ends] == [(status, reason)]


PROGRAM = """
import os, signal, sys, lightning
from stablessm.integrations.lightning import StableSSMLogger
from tests.integrations.conftest import loader
from tests.integrations.lightning_modules import QUIET, Module
class Ends(lightning.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 4:
            os.kill(os.getpid(), int(sys.argv[1]))
watch = StableSSMLogger()
lightning.Trainer(max_steps=20, logger=watch, callbacks=[Ends(), watch.callback], **QUIET).fit(Module(), loader(96))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "cause"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_the_run_as_cancelled(number: signal.Signals, cause: str, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(int(number))]
    subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True)
    (end,) = read(tmp_path / "runs").ends
    assert end.status == "cancelled"
    assert end.reason.startswith(f"{cause} after step")
    assert end.reason.endswith("; 0 steps missing")


def test_manual_optimization_records_what_the_optimizer_receives(tmp_path: Path) -> None:
    module = modules.Manual()
    modules.trained(module, adapter.StableSSMLogger(), max_steps=12)  # Lightning counts the steps of both optimizers
    found = read(tmp_path / "runs")
    check_steps(found, module.weights, module.gradients)
    assert found.facts["gradient"] == "unknown"
    assert recorded(found, "train/loss").tobytes() == torch.stack(module.losses).numpy().tobytes()


def test_an_optimizer_that_calls_its_closure_several_times_has_the_gradients_of_the_first_call(tmp_path: Path) -> None:
    module = modules.Lbfgs()
    calls: list[int] = []
    original = module.configure_optimizers

    def noted() -> torch.optim.Optimizer:
        optimizer = original()
        optimizer.register_step_pre_hook(lambda *_: calls.append(len(module.gradients)))
        return optimizer

    module.configure_optimizers = noted  # type: ignore[method-assign]
    modules.trained(module, adapter.StableSSMLogger(), max_steps=4)
    assert len(module.gradients) > len(calls)
    check_steps(read(tmp_path / "runs"), [module.weights[i] for i in calls], [module.gradients[i] for i in calls])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler:UserWarning")
def test_a_step_that_the_scaler_skips_is_recorded_as_skipped_with_unscaled_gradients(tmp_path: Path) -> None:
    module = modules.Overflows()
    modules.trained(module, adapter.StableSSMLogger(), plugins=[modules.Scaled()])
    found = read(tmp_path / "runs")
    check_steps(found, module.weights, module.gradients)
    assert recorded(found, "train/skipped")[:4].tolist() == [0, 0, 1, 0]
    assert recorded(found, "train/loss").tobytes() == torch.stack(module.losses).numpy().tobytes()
    assert found.sink.alerts == []


def test_numbers_are_reported_without_the_callback(tmp_path: Path) -> None:
    modules.trained(modules.Module(), adapter.StableSSMLogger(project="p"), callbacks=[])
    found = read(tmp_path / "runs")
    assert [step for step, _ in found.metrics["train_loss"]] == [1, 2, 3, 4, 5, 6]
    assert found.file.opening["layers"] == []


def test_numbers_after_the_training_are_kept_with_keep_open(tmp_path: Path) -> None:
    class Tested(modules.Module):
        def test_step(self, batch: Any, index: int) -> None:
            self.log("test/loss", self.model(**batch).loss)

    watch = adapter.StableSSMLogger(keep_open=True)
    module = Tested()
    modules.trained(module, watch).test(module, loader(8), verbose=False)
    watch.run.finish()
    assert [step for step, _ in read(tmp_path / "runs").metrics["test/loss"]] == [6]


def test_cancel_on_the_page_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablessm_core.outside.run.Run.should_stop", property(lambda run: run.step >= 3))
    assert modules.trained(modules.Module(), adapter.StableSSMLogger()).global_step == 3
    assert [end.status for end in read(tmp_path / "runs").ends] == ["cancelled"]


@pytest.mark.parametrize("through", ["logger", "experiment"])
def test_watch_of_the_logger_records_the_eigenvalues_without_the_callback(through: str, tmp_path: Path) -> None:
    module, logger = modules.Module(), adapter.StableSSMLogger()
    owner = logger if through == "logger" else logger.experiment
    owner.watch(module, log="all", log_freq=10, log_graph=True)
    modules.trained(module, logger, callbacks=[])
    found = read(tmp_path / "runs")
    check_steps(found, module.weights, module.gradients)
    assert [end.status for end in found.ends] == ["finished"]
    assert [step for step, _ in found.metrics["train_loss"]] == [1, 2, 3, 4, 5, 6]
    assert found.file.opening["how"]["optimizer"] == "adamw"


def test_watch_beside_the_callback_records_each_step_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Watches(modules.Module):  # type: ignore[misc, name-defined]
        def on_train_start(self) -> None:
            self.logger.experiment.watch(self, log="gradients")

    module, logger = Watches(), adapter.StableSSMLogger()
    logger.watch(module)
    modules.trained(module, logger)
    check_steps(read(tmp_path / "runs"), module.weights, module.gradients)
    assert capfd.readouterr().err.count("watches a model already") == 1


def test_one_bad_hyperparameter_removes_no_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module, logger = modules.Module(), adapter.StableSSMLogger(config={"mine": 1})
    module.save_hyperparameters({"lr": 0.1, "huge": 10**400, "device": torch.device("cpu"), "n": torch.tensor(3)})
    modules.trained(module, logger)
    config = read(tmp_path / "runs").file.opening["config"]
    assert config == {"lr": 0.1, "huge": str(10**400), "device": "cpu", "n": 3, "mine": 1}
    assert "config.huge is an integer of 1,329 bits" in capfd.readouterr().err
