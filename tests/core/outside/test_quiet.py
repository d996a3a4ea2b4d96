"""After `watch` has returned, nothing raises, nothing waits, and the program's state is untouched."""

from __future__ import annotations

import gc
import json
import random
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import stablessm
from stablessm_core.outside.recording import Recording
from stablessm_core.outside.run import Run
from stablessm_core.outside.sink import OutsideSink
from stablessm_core.report import outbox
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import Mamba2Mixer, MambaMixer, model_of


class Broken(OutsideSink):
    """A sink that raises at every call."""

    def put(self, message: object) -> None:
        raise RuntimeError("this sink is broken")

    open = write = put


def test_a_sink_that_raises_at_every_call_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(2)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    broken = Broken(run._outbox)
    run._sink = run._recording._sink = broken
    before = model[0].A_log.detach().clone()
    for _ in range(20):
        run.loss(torch.tensor(1.0))
        optimizer.step()
        run.log({"a": 1})
        run.alert("title")
    run.finish()
    assert not torch.equal(model[0].A_log, before)
    assert run.step == 20
    assert "this sink is broken" in capfd.readouterr().err


def test_an_error_inside_the_hook_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(2)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        optimizer.step()
        optimizer.step()
        run._recording._row.take = None
        for _ in range(5):
            optimizer.step()
        run.loss(1.0)
    err = capfd.readouterr().err
    assert err.count("recording failed") == 1
    assert read(tmp_path).ends[0].status == "finished"


@pytest.mark.parametrize("call", [
    lambda run: run.log(3),
    lambda run: run.log({"a": "text", "b": None, "c": [1, 2], 5: 1, "": 1, "x" * 500: 1}),
    lambda run: run.log({"a": 1}, step=-1),
    lambda run: run.log({"a": 1}, step="x"),
    lambda run: run.log({"deep": {"deeper": {"a": torch.ones(3)}}}),
    lambda run: run.loss("text"),
    lambda run: run.loss(torch.ones(3)),
    lambda run: run.eigenvalues("x", weight=None, map="exp", time="continuous"),
    lambda run: run.eigenvalues("x", weight=torch.ones(3), map="no such map", time="continuous", step=1.0),
    lambda run: run.finish("no such status"),
])  # fmt: skip
def test_wrong_values_after_the_start_are_one_sentence_each(call: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    capfd.readouterr()
    call(run)
    assert "stablessm: " in capfd.readouterr().err
    optimizer.step()
    run.finish()


def test_random_numbers_and_the_memory_of_the_model_stay_untouched(tmp_path: Path) -> None:
    model, optimizer = model_of(3)
    pointers = [(p.data_ptr(), p.grad.data_ptr()) for p in model.parameters()]
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for _ in range(5):
            run.loss(1.0)
            optimizer.step()
            run.log({"a": 1})
    assert [(p.data_ptr(), p.grad.data_ptr()) for p in model.parameters()] == pointers
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert not optimizer._optimizer_step_pre_hooks
    assert torch.amp.GradScaler._maybe_opt_step.__name__ == "_maybe_opt_step"


def test_training_with_and_without_watch_has_the_same_bits(tmp_path: Path) -> None:
    def trained(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(MambaMixer(), Mamba2Mixer())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = stablessm.watch(model, optimizer, mode="offline" if watched else "disabled", dir=tmp_path)
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            loss.backward()
            run.loss(loss)
            optimizer.step()
        run.finish()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(True), trained(False))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("clipped", [False, True])
def test_a_step_takes_few_operations_however_many_layers_and_none_waits_for_the_device(tmp_path: Path, clipped: bool) -> None:
    counts: dict[int, list[list[str]]] = {}
    for layers in (4, 40):
        model, optimizer = model_of(layers)
        with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path / str(layers)) as run:
            for _ in range(3):
                run.loss(torch.tensor(1.0))
                optimizer.step()
            loss = torch.tensor(1.0)
            for _ in range(5):
                with Counting() as mode:
                    run.loss(loss)
                    if clipped:
                        run._clipped(loss)
                    run._recording.take(0, optimizer, skipped=False)
                counts.setdefault(layers, []).append(mode.names)
    # a step that also hands the recorded rows over, which happens a few times per second, has some more
    assert min(counts[4], key=len) == min(counts[40], key=len)
    every = counts[4] + counts[40]
    assert max(map(len, every)) <= 40
    assert not [name for names in every for name in names if "_local_scalar_dense" in name or "nonzero" in name]


@pytest.mark.slow
def test_a_full_queue_drops_rows_and_never_waits(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    run.loss(1.0)
    optimizer.step()
    write = run._recording._sink.write
    run._recording._sink.write = lambda flush: time.sleep(0.7) or write(flush)
    longest = 0.0
    for _ in range(6000):
        began = time.thread_time()
        run.loss(1.0)
        optimizer.step()
        longest = max(longest, time.thread_time() - began)
    run._recording._sink.write = write
    began = time.perf_counter()
    run.finish()
    assert time.perf_counter() - began < 5
    assert longest < 0.25  # CPU time of the training thread; a wait of PATIENCE would show in the wall time of the loop
    assert run.step == 6001


@pytest.mark.slow
def test_no_call_waits_for_a_disk_and_a_network_that_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = model_of(2)
    goes_on, write, hung = threading.Event(), outbox.write_at, []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        monkeypatch.setattr("stablessm_core.outside.life.FIRST_ANSWER", 0.1)
        run = stablessm.watch(model, optimizer, url=f"http://127.0.0.1:{silent.getsockname()[1]}", dir=tmp_path)
        run.loss(1.0)
        optimizer.step()
        monkeypatch.setattr(outbox, "write_at", lambda *of: (hung.append(0), goes_on.wait(60), write(*of)))
        calls: dict[str, Callable[[], Any]] = {
            "loss": lambda: run.loss(1.0),
            "loss of a tensor": lambda: run.loss(torch.tensor(1.0)),
            "hook": optimizer.step,
            "log": lambda: run.log({"a": 1.0, "b": torch.tensor(2.0)}),
            "alert": lambda: run.alert("title"),
            "properties": lambda: (run.should_stop, run.step, run.url, run.path),
        }
        wall: dict[str, list[float]] = {name: [] for name in calls}
        cpu: dict[str, list[float]] = {name: [] for name in calls}
        while not hung or len(wall["hook"]) < 300:
            for name, call in calls.items():
                began, began_cpu = time.perf_counter(), time.thread_time()
                call()
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.thread_time() - began_cpu)
        goes_on.set()
        run.finish()
    for name in calls:
        # a call that waited for the disk would take 60 seconds; on a busy machine other programs interrupt many calls
        assert max(wall[name]) < 30, name
        assert np.quantile(wall[name], 0.5) < 0.005, name
        assert np.quantile(cpu[name], 0.99) < 0.005, name


def test_a_second_watch_of_a_model_ends_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(1)
    first = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path / "first")
    optimizer.step()
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path / "second"):
        optimizer.step()
        optimizer.step()
    assert first.step == 1
    assert read(tmp_path / "first").ends[0].status == "finished"
    assert read(tmp_path / "second").sink.step == 2
    assert capfd.readouterr().err.count("watched already") == 1


def test_a_deleted_model_is_freed_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(2)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    for _ in range(3):
        optimizer.step()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    optimizer.step()
    run.finish()
    assert capfd.readouterr().err.count("the watched model was deleted") == 1
    assert read(tmp_path).sink.step == 3


def test_a_replaced_parameter_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(1)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path):
        optimizer.step()
        for p in model.parameters():
            p.grad = None
        for _ in range(150):
            optimizer.step()
    assert capfd.readouterr().err.count("were they replaced in the model?") == 1


def test_a_model_without_eigenvalues_keeps_its_loss_and_metrics(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(1, lambda: nn.Linear(3, 3))
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for i in range(5):
            run.loss(float(i))
            optimizer.step()
            run.log({"val/acc": i / 10})
    found = read(tmp_path)
    assert found.sink.series("train/loss")[1][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.metrics["val/acc"] == [(i + 1, i / 10) for i in range(5)]
    assert "nothing to watch here" in capfd.readouterr().err


def test_a_parameter_with_a_telling_name_is_proposed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.my_decay = nn.Parameter(torch.ones(3))

    model, optimizer = model_of(1, Own)
    stablessm.watch(model, optimizer, mode="offline", dir=tmp_path).finish()
    assert "this parameter looks like eigenvalues and is not watched: 0.my_decay" in capfd.readouterr().err


def test_an_unknown_parameter_can_be_watched_explicitly(tmp_path: Path) -> None:
    model, optimizer = model_of(1, lambda: nn.Linear(3, 3))
    weight = nn.Parameter(torch.linspace(-1, 1, 5))
    weight.grad = torch.full((5,), 0.5)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        run.eigenvalues("ssm", weight=weight, map="exp", time="continuous", step=stablessm.softplus(model[0].bias[:1].detach()))
        optimizer.step()
        optimizer.step()
    found = read(tmp_path)
    assert found.file.opening["layers"] == [{"name": "explicit", "path": "ssm", "width": 5, "note": None}]
    assert found.sink.series("ssm/0/gradient")[1].tolist() == [[0.5] * 5] * 2


def test_a_declared_parameter_can_be_watched(tmp_path: Path) -> None:
    model, optimizer = model_of(2)
    layers = {"1.A_log": stablessm.eigenvalues("exp", "continuous", step=0.1)}
    with stablessm.watch(model, optimizer, layers=layers, mode="offline", dir=tmp_path):
        optimizer.step()
        optimizer.step()
    assert [layer["note"] for layer in read(tmp_path).file.opening["layers"]] == ["at gate zero", None]


@pytest.mark.parametrize(("argument", "value"), [
    ("project", 3), ("name", "x" * 300), ("config", 3), ("config", {"a": "x" * 70_000}),
    ("config", {"a": 2**63}), ("config", {"a": "\0"}), ("config", {"k" * 201: 1}),
    ("config", json.loads('{"a":' * 40 + "1" + "}" * 40)),
    ("tags", "one"), ("tags", [1]),
    ("notes", 1), ("id", "no uuid"), ("resume", "perhaps"), ("mode", "sometimes"), ("dir", 3), ("every", 0), ("every", 1.5),
    ("layers", {"a": 1}), ("url", "ftp://x"), ("token", 5), ("from_step", -1), ("total_steps", 0),
])  # fmt: skip
def test_a_wrong_argument_raises_at_once_and_is_named(argument: str, value: Any, tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    with pytest.raises((TypeError, ValueError), match=f"^{argument} "):
        stablessm.watch(model, optimizer, **{"dir": tmp_path, "mode": "offline"} | {argument: value})
    assert not optimizer._optimizer_step_pre_hooks


def test_a_model_or_an_optimizer_of_another_kind_raises_at_once(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    with pytest.raises(TypeError, match=r"^model is a int"):
        stablessm.watch(3, optimizer, mode="offline", dir=tmp_path)
    with pytest.raises(TypeError, match=r"^optimizer is a int"):
        stablessm.watch(model, 3, mode="offline", dir=tmp_path)


def test_online_without_an_address_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mode is 'online', but url is None"):
        stablessm.log_only(mode="online", dir=tmp_path)


def test_the_environment_fills_in_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_PROJECT", "from the environment")
    monkeypatch.setenv("STABLESSM_DIR", str(tmp_path))
    stablessm.log_only().finish()
    assert read(tmp_path).file.opening["project"] == "from the environment"
    monkeypatch.setenv("STABLESSM_MODE", "disabled")
    run = stablessm.log_only(dir=tmp_path / "nothing")
    run.log({"a": 1})
    run.finish()
    assert not (tmp_path / "nothing").exists()


def test_the_package_imports_no_torch_and_nothing_of_the_service() -> None:
    code = (
        "import sys, stablessm; bad = {'torch', 'pydantic', 'httpx', 'server', 'scipy', 'pyarrow'} & set(sys.modules)\n"
        "run = stablessm.log_only(mode='offline', dir=sys.argv[1]); run.log({'a': 1}); run.finish()\n"
        "bad |= {'torch', 'pydantic', 'httpx', 'server', 'scipy', 'pyarrow'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True)


def test_recording_holds_its_run_only_through_the_optimizer(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    assert isinstance(run, Run)
    assert isinstance(run._recording, Recording)
    run.finish()
    run.finish()
    run.log({"a": 1})
    optimizer.step()
    assert len(read(tmp_path).ends) == 1
