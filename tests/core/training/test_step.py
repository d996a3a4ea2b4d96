"""The training step is a function of tensors at fixed addresses; captured or compiled steps train like eager ones."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.loading import get_task
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.execution import READY, Execution, prepare
from stablessm_core.training.optimizer import build_optimizer, lr_factor
from stablessm_core.training.step import TrainingStep
from stablessm_core.training.train import train
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.ring import Ring

build_plain = build_model
pytestmark = [pytest.mark.spread, pytest.mark.slow]

NOWHERE = Path("/nonexistent")  # the tasks of this file need no data


SGD = {"name": "sgd", "momentum": 0.9, "nesterov": True}


def config(
    device: str = "cpu", *, time: str = "discrete", steps: int = 200, optimizer: dict[str, Any] | None = None,
    on_bad_batch: str = "stop", **model: Any,
) -> RunConfig:  # fmt: skip
    return parse_config(
        {
            "task": {"name": "polynomial_memory", "length": 12},
            "model": {"n_layers": 2, "d_model": 6, "d_state": 5, "reparameterization": {"name": "exp", "time": time}} | model,
            "optimizer": {"grad_clip": 0.3, "warmup_steps": 20, "schedule": "cosine", "recurrent_lr": 0.003} | (optimizer or {}),
            "train": {"steps": steps, "batch_size": 4, "device": device, "eval_every": 0, "checkpoint_every": 0}
            | {"on_bad_batch": on_bad_batch},
        }
    )


class Rig:
    """A training step with everything it needs; tests run it without a trainer."""

    def __init__(self, config: RunConfig, device: str = "cpu") -> None:
        self.config, self.task = config, get_task(config.task, NOWHERE)
        model = build_model(config, self.task).to(device)
        torch.manual_seed(0)
        self.optimizer, probe = build_optimizer(model, config.optimizer), Probe(model)
        self.columns = probe.layout
        self.ring = Ring(sum(width for _, width in probe.layout), 1000, torch.device(device))
        batch = self.task.batch(1, config.train.batch_size, 0, device)
        self.step = TrainingStep(
            model,
            self.task,
            self.optimizer,
            probe,
            self.ring,
            batch=batch,
            grad_clip=config.optimizer.grad_clip,
            skip_bad_batches=config.train.on_bad_batch == "skip",
        )
        self.done = 0

    def go(self, steps: int, run: Any = None) -> None:
        for _ in range(steps):
            self.done += 1
            x, y = self.task.batch(self.done, self.config.train.batch_size, 0, self.step.x.device)
            self.step.feed(x, y, lr_factor(self.config.optimizer, self.done, self.config.train.steps))
            (run or self.step.run)()
            self.ring.advance()

    def recorded(self) -> Tape:
        """Run one step, and return its recording."""
        tape = Tape()

        def run() -> None:
            with tape:
                self.step.eager()

        self.go(1, run)
        return tape

    def state(self) -> list[Tensor]:
        """Copies of all weights, buffers and moments, with the step counters."""
        tensors = [*self.step.model.parameters(), *self.step.model.buffers()]
        tensors += [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        return [tensor.detach().clone() for tensor in tensors]

    def rows(self) -> np.ndarray:
        return self.ring.take().wait().copy()

    def storages(self) -> dict[str, int]:
        model, step = self.step.model, self.step
        tensors = dict(model.named_parameters()) | {"x": step.x, "y": step.y, "cursor": self.ring.cursor}
        tensors |= {f"{id(p)}/{k}": t for p, state in self.optimizer.state.items() for k, t in state.items()}
        tensors |= {"factor": self.optimizer.factor, "rates": self.optimizer.rates}
        return {name: t.data_ptr() for name, t in tensors.items()}


class Tape(TorchDispatchMode):
    """Imitates a CUDA graph on the CPU: records the operations of one step and repeats them on the same tensors.

    Python values that a step uses, such as a number that changes, are frozen in the recording. The tape refuses an operation
    that would make the host wait for the device, or that returns a result with a data-dependent size.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "item", "masked_select", "unique", "is_nonzero", "equal", "_assert_async")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(name.startswith(word) for word in self.WAITING), f"{func} makes the host wait for the device"
        assert not (
            func is torch.ops.aten.index.Tensor and any(i.dtype == torch.bool for i in tree_leaves(args[1]) if i is not None)
        )
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        fresh = [
            (i, t)
            for i, t in enumerate(tree_leaves(out))
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given
        ]
        keep = lambda t: t.detach() if isinstance(t, Tensor) and t.requires_grad else t  # noqa: E731
        self.calls.append((func, tree_map(keep, args), tree_map(keep, kwargs or {}), fresh))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, fresh in self.calls:
            outs = tree_leaves(func(*args, **kwargs))
            for i, tensor in fresh:
                tensor.copy_(outs[i])


@pytest.mark.parametrize(("time", "optimizer"), [("discrete", {}), ("continuous", {}), ("discrete", SGD)])
@pytest.mark.slow
def test_a_step_recorded_once_and_replayed_trains_with_the_same_bits_as_an_eager_step(
    time: str, optimizer: dict[str, Any]
) -> None:
    eager, replayed = (Rig(config(time=time, optimizer=optimizer, dropout=0.2)) for _ in range(2))
    torch.manual_seed(1)
    eager.go(200)
    torch.manual_seed(1)
    replayed.go(2)
    tape = Tape()
    replayed.done += 1
    x, y = replayed.task.batch(3, 4, 0, "cpu")
    replayed.step.feed(x, y, lr_factor(replayed.config.optimizer, 3, 200))
    with tape:
        replayed.step.run()
    replayed.ring.advance()
    replayed.go(197, run=tape.replay)
    assert np.array_equal(*(rig.rows().view(np.uint32) for rig in (eager, replayed)))
    assert len(tape.calls) > 100


class Mean(nn.Module):
    """Returns its input, and keeps a running mean of it, as batch normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
        return x


@pytest.mark.parametrize(
    "optimizer", [{}, {"weight_decay": 0.1, "grad_clip": None}, SGD | {"weight_decay": 0.1}, {"name": "sgd"}]
)
def test_a_step_that_skips_bad_batches_changes_nothing_at_a_bad_batch_and_has_the_same_bits_at_others(
    optimizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "build_model", lambda *args: nn.Sequential(Mean(), build_plain(*args)))
    plain, skipping = (Rig(config(optimizer=optimizer, on_bad_batch=way)) for way in ("stop", "skip"))
    for rig in (plain, skipping):
        rig.go(4)
    assert all(map(torch.equal, plain.state(), skipping.state()))
    tape, plain_tape = skipping.recorded(), plain.recorded()
    assert all(map(torch.equal, plain.state(), skipping.state()))
    for run in (skipping.step.eager, tape.replay):
        for tensor, bad in ((skipping.step.x, torch.nan), (skipping.step.y, -torch.inf)):
            before, kept = skipping.state(), tensor.clone()
            tensor.view(-1)[3] = bad
            run()
            assert all(map(torch.equal, before, skipping.state()))
            tensor.copy_(kept)
    skipping.go(2, tape.replay)
    plain.go(2, plain_tape.replay)
    assert all(map(torch.equal, plain.state(), skipping.state()))


def test_tensors_that_a_cuda_graph_knows_by_address_never_move() -> None:
    rig = Rig(config())
    before = rig.storages()
    rig.go(5)
    assert rig.storages() == before


class Streams(TorchDispatchMode):
    """Checks two streams with vector clocks: an access that conflicts with the other stream must wait for that stream."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.held = "main", []  # type: ignore[var-annotated]
        self.clock = {"main": {"main": 0, "side": 0}, "side": {"main": 0, "side": 0}}
        self.touched: dict[int, list[tuple[str, int, bool]]] = {}
        self.aside_calls = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._wait("side", "main")
        self.now, self.aside_calls = "side", self.aside_calls + 1
        yield
        self.now = "main"

    def join(self) -> None:
        self._wait("main", "side")

    def _wait(self, who: str, whom: str) -> None:
        self.clock[who] = {stream: max(self.clock[who][stream], self.clock[whom][stream]) for stream in self.clock}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock[self.now][self.now] += 1
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in func._schema.arguments:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            writes &= argument.name != "grads" or given.get("grad_scale") is not None  # the fused update scales grads
            self._touch(func, given.get(argument.name), writes)
        out = func(*args, **(kwargs or {}))
        known = set(self.touched)
        self._touch(
            func, [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage()._cdata not in known], True
        )
        return out

    def _touch(self, func: Any, what: Any, writes: bool) -> None:
        other = "side" if self.now == "main" else "main"
        for tensor in tree_leaves(what):
            if isinstance(tensor, Tensor):
                self.held.append(tensor.untyped_storage())
                before = self.touched.setdefault(self.held[-1]._cdata, [])
                for stream, at, wrote in before:
                    ordered = stream == self.now or self.clock[self.now][other] >= at
                    assert ordered or not (writes or wrote), f"{func} on stream {self.now} does not wait for stream {other}"
                before.append((self.now, self.clock[self.now][self.now], writes))


@pytest.mark.parametrize("grad_clip", [None, 0.3])
def test_the_telemetry_stream_never_touches_memory_that_the_training_stream_is_using(grad_clip: float | None) -> None:
    rig = Rig(config(time="continuous"))
    rig.step.grad_clip = grad_clip
    streams = Streams()
    rig.step._beside_training, rig.step.join = streams.aside, streams.join  # type: ignore[method-assign]
    with streams:
        rig.step.run()
        rig.step.run()
    assert streams.aside_calls == 4


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the compiler itself
@pytest.mark.long
def test_a_compiled_step_with_telemetry_trains_like_an_eager_step_within_rounding() -> None:
    # Imported here, because the import takes two seconds and every test process collects this file.
    from torch._inductor import config as inductor

    small = config(n_layers=1, mlp_expansion=1, dropout=0.2)
    eager, compiled = Rig(small), Rig(small)
    before = compiled.storages()
    torch.manual_seed(1)
    eager.go(200)
    torch.manual_seed(1)
    torch._dynamo.utils.counters.clear()  # other tests of this process compile, too
    # without vector instructions, which take a third of the compiler's time and do not matter for this test
    with inductor.patch({"cpp.vec_isa_ok": False}):
        execution = prepare(compiled.step, "compile", steps=200)
    assert execution == Execution("compile", "asked for")
    assert compiled.storages() == before
    compiled.go(200)
    assert compiled.storages() == before
    assert torch._dynamo.utils.counters["graph_break"] == {}
    expected, rows = eager.rows(), compiled.rows()
    np.testing.assert_allclose(rows[:, 0], expected[:, 0], rtol=1e-4)  # the loss
    np.testing.assert_array_equal(rows[:, 1], expected[:, 1])  # the learning rate
    np.testing.assert_allclose(rows[:20], expected[:20], rtol=1e-3, atol=1e-5)


class Peeking(PolynomialMemoryTask):
    """A task that cannot be compiled as one graph, because its loss reads a number from a tensor."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(output, y)
        return loss if loss.item() < 1e30 else loss * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_step_that_cannot_be_compiled_trains_eagerly_with_the_same_bits_and_gives_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    eager, fallen = Rig(config(dropout=0.2)), Rig(config(dropout=0.2))
    fallen.step.task = Peeking(fallen.config.task, NOWHERE)  # type: ignore[arg-type]
    prepare(eager.step, "eager", steps=10)
    torch.manual_seed(1)
    eager.go(10)
    torch.manual_seed(1)
    execution = prepare(fallen.step, "compile", steps=10)
    assert execution.mode == "eager"
    reason = execution.reason.removeprefix("asked for; ")
    assert reason.startswith("compile failed: ")
    assert reason in caplog.text
    fallen.go(10)
    assert np.array_equal(*(rig.rows().view(np.uint32) for rig in (eager, fallen)))


def test_a_failed_execution_mode_frees_its_memory_before_the_next_mode_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Tensor]] = []

    def fails(_step: TrainingStep) -> None:
        activations, failure = torch.zeros(8), None
        left.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("no memory for the graph")
        except torch.OutOfMemoryError as error:
            failure = error
        raise failure  # the frame and the exception now refer to each other, as after a failed capture

    monkeypatch.setitem(READY, "compile", fails)
    gc.disable()
    try:
        assert prepare(Rig(config()).step, "compile", steps=10).mode == "eager"
        assert left[0]() is None
    finally:
        gc.enable()


def test_an_execution_mode_that_is_not_used_gives_the_reason() -> None:
    step = Rig(config()).step
    for wanted, options, reason in [
        ("auto", {}, "CUDA graphs need a CUDA device, this is cpu"),
        ("graph", {}, "CUDA graphs need a CUDA device, this is cpu"),
        ("eager", {}, "asked for"),
        ("compile", {"loop": True}, "the reference scan is a loop over time"),
        ("compile", {"steps": 0}, "no step is left to run"),
    ]:
        assert prepare(step, wanted, **{"steps": 10} | options) == Execution("eager", reason)


def test_the_environment_of_a_run_records_how_its_steps_were_launched(tmp_path: Path) -> None:
    environment: dict[str, Any] = {}
    train(config(steps=2), sink=MemorySink(), data_root=NOWHERE, checkpoint_dir=tmp_path, on_ready=environment.update)
    assert environment["execution"] == {"mode": "eager", "reason": "CUDA graphs need a CUDA device, this is cpu"}


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("wanted", "mode"), [("auto", "cuda_graph"), ("compile", "compile"), ("graph", "cuda_graph+compile")])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_on_a_gpu_every_execution_mode_has_the_losses_of_the_eager_mode_within_rounding(
    wanted: str, mode: str, dropout: float
) -> None:
    eager, other = (Rig(config("cuda", d_model=32, d_state=16, dropout=dropout), "cuda") for _ in range(2))
    torch.cuda.manual_seed(1)
    eager.go(200)
    torch.cuda.manual_seed(1)
    execution = prepare(other.step, wanted, steps=200)
    assert execution.mode == mode, execution.reason
    other.go(200)
    expected, rows = eager.rows(), other.rows()
    np.testing.assert_allclose(rows[:, 0], expected[:, 0], rtol=1e-4)
    np.testing.assert_allclose(rows[:5], expected[:5], rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_on_a_gpu_a_step_that_cannot_be_captured_trains_eagerly_with_the_same_bits() -> None:
    eager, fallen = (Rig(config("cuda"), "cuda") for _ in range(2))
    for rig in (eager, fallen):
        rig.step.task = Peeking(rig.config.task)  # type: ignore[arg-type]
    execution = prepare(fallen.step, "graph", steps=10)
    assert execution.mode == "eager"
    assert "cuda_graph+compile failed" in execution.reason
    assert "cuda_graph failed" in execution.reason
    eager.go(10)
    fallen.go(10)
    assert np.array_equal(*(rig.rows().view(np.uint32) for rig in (eager, fallen)))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("execution", ["eager", "auto", "graph"])
def test_on_a_gpu_a_diverging_run_ends_at_the_same_step_in_every_execution_mode(tmp_path: Path, execution: str) -> None:
    diverging = {
        "task": {"name": "polynomial_memory", "length": 100},
        "model": {"n_layers": 2, "d_model": 6, "d_state": 5, "reparameterization": {"name": "direct"}},
        "optimizer": {"lr": 1.0},
        "train": {"steps": 150, "batch_size": 4, "device": "cuda", "eval_every": 0, "checkpoint_every": 0},
    }
    outcomes = []
    for way in ("eager", execution):
        sink = MemorySink()
        diverging["train"]["execution"] = way  # type: ignore[index]
        outcomes.append(train(parse_config(diverging), sink=sink, data_root=NOWHERE, checkpoint_dir=tmp_path))
        assert outcomes[-1].status == "diverged"
        assert sink.step == outcomes[-1].step
    assert outcomes[0].step == outcomes[1].step
