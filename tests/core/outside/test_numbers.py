"""The recorded numbers have the bits of a float32 reference that the loop itself reads, however the loop steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stablessm
from tests.core.outside.reading import Recorded, read
from tests.core.outside.stand_ins import Mamba2Mixer, MambaMixer

INF = float("inf")


class Net(nn.Module):
    def __init__(self, *, tied: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.second = MambaMixer(), Mamba2Mixer(limit=(0.01, 1.0))
        self.third = MambaMixer()
        self.checkpointed = checkpointed
        if tied:
            self.third.A_log = self.first.A_log

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


class Loop:
    """A training loop and what it reads itself: per step the weights, gradients and step sizes of each layer."""

    def __init__(self, tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer] | None = None, **net: bool) -> None:
        torch.manual_seed(0)
        self.tmp_path = tmp_path
        self.model = Net(**net)
        self.optimizer = (make or (lambda p: torch.optim.AdamW(p, lr=1e-2)))(self.model.parameters())
        self.reference: list[dict[str, Tensor | None]] = []
        self.losses: list[Tensor] = []

    def watch(self, model: nn.Module | None = None, **more: Any) -> Any:
        return stablessm.watch(self.model if model is None else model, self.optimizer, mode="offline", dir=self.tmp_path, **more)

    def loss(self) -> Tensor:
        return (self.model(torch.randn(4, 3)) - 1).square().mean()

    def note(self, scale: float = 1.0) -> None:
        found: dict[str, Tensor | None] = {}
        for i, layer in enumerate((self.model.first, self.model.second, self.model.third)):
            bias = layer.dt_bias if isinstance(layer, Mamba2Mixer) else layer.dt_proj.bias
            dt = nn.functional.softplus(bias.detach().float())
            found[f"{i}/dt"] = dt.clamp(*layer.time_step_limit) if isinstance(layer, Mamba2Mixer) else dt
            found[f"{i}/weight"] = layer.A_log.detach().float().flatten().clone()
            grad = layer.A_log.grad
            found[f"{i}/gradient"] = None if grad is None else (grad.detach().float().flatten() / scale).abs()
        self.reference.append(found)

    def check(self, layers: tuple[int, ...] = (0, 1, 2)) -> Recorded:
        """Every recorded number has the bits of the reference."""
        found = read(self.tmp_path)
        for i in layers:
            for kind in ("weight", "dt", "gradient"):
                if f"ssm/{i}/{kind}" not in found.sink.catalogue:
                    continue
                steps, values = found.sink.series(f"ssm/{i}/{kind}")
                assert steps.tolist() == list(range(1, len(self.reference) + 1))
                expected = np.stack([np.asarray(step[f"{i}/{kind}"]) for step in self.reference])
                assert values.tobytes() == expected.tobytes(), f"ssm/{i}/{kind}"
        return found


def train(loop: Loop, steps: int = 12, *, after: bool = False, prepare: Callable[[Any], None] | None = None) -> None:
    with loop.watch() as run:
        for _ in range(steps):
            loop.optimizer.zero_grad()
            loss = loop.loss()
            loop.losses.append(loss.detach())
            if not after:
                run.loss(loss)
            loss.backward()
            if prepare is not None:
                prepare(run)
            loop.note()
            loop.optimizer.step()
            if after:
                run.loss(loss)


@pytest.mark.parametrize("after", [False, True])
def test_each_number_of_200_steps_and_each_loss_has_the_bits_of_a_reference_read_in_the_loop(tmp_path: Path, after: bool) -> None:
    loop = Loop(tmp_path)
    train(loop, 200, after=after)
    found = loop.check()
    steps, losses = found.sink.series("train/loss")
    assert steps.tolist() == list(range(1, 201))
    assert losses[:, 0].tobytes() == torch.stack(loop.losses).numpy().tobytes()
    assert {"unknown"} == {found.facts["gradient"]}


def test_the_loss_is_optional(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    with loop.watch():
        for _ in range(5):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            loop.note()
            loop.optimizer.step()
    found = loop.check()
    assert "train/loss" not in found.sink.catalogue
    assert found.sink.alerts == []


def _accumulation(loop: Loop) -> None:
    with loop.watch() as run:
        for _ in range(8):
            loop.optimizer.zero_grad()
            for _ in range(3):
                loss = loop.loss() / 3
                run.loss(loss)
                loss.backward()
            loop.note()
            loop.optimizer.step()


def _clipping(loop: Loop) -> None:
    norms = []

    def clip(run: Any) -> None:
        norms.append(run.clip_grad_norm_(loop.model.parameters(), 1e-3))

    train(loop, prepare=clip)
    found = loop.check()
    assert found.facts["gradient"] == "clipped"
    assert found.sink.series("optim/grad_norm")[1][:, 0].tobytes() == torch.stack(norms).numpy().tobytes()
    assert "Gradient: clipped" in found.sink.catalogue["ssm/0/gradient"].meaning


def _scaler(loop: Loop, bad_step: int | None = None) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    fused = "fused" in loop.optimizer.defaults and loop.optimizer.defaults["fused"]
    with loop.watch() as run:
        for step in range(1, 9):
            loop.optimizer.zero_grad()
            loss = loop.loss()
            run.loss(loss)
            scaler.scale(loss).backward()
            if step == bad_step:
                loop.model.first.A_log.grad[0, 0] = INF
            if fused:
                loop.note(scaler.get_scale())
            else:
                scaler.unscale_(loop.optimizer)
                loop.note()
            scaler.step(loop.optimizer)
            scaler.update()
    found = loop.check()
    skipped = found.sink.series("train/skipped")[1][:, 0]
    assert skipped.tolist() == [float(step == bad_step) for step in range(1, 9)]
    assert found.sink.alerts == []


def _closure(loop: Loop) -> None:
    with loop.watch() as run:
        for _ in range(8):

            def closure() -> Tensor:
                loop.optimizer.zero_grad()
                loss = loop.loss()
                run.loss(loss)
                loss.backward()
                loop.note()
                return loss

            loop.optimizer.step(closure)


def _lbfgs(loop: Loop) -> None:
    with loop.watch():
        for _ in range(4):
            first = True

            def closure() -> Tensor:
                nonlocal first
                loop.optimizer.zero_grad()
                loss = (loop.model(torch.ones(4, 3)) - 1).square().mean()
                loss.backward()
                if first:
                    loop.note()
                first = False
                return loss

            loop.optimizer.step(closure=closure)


def _set_to_none_false(loop: Loop) -> None:
    with loop.watch():
        for _ in range(8):
            loop.optimizer.zero_grad(set_to_none=False)
            loop.loss().backward()
            loop.note()
            loop.optimizer.step()


def _compiled_model(loop: Loop) -> None:
    compiled = torch.compile(loop.model, backend="eager")
    with loop.watch(compiled):
        for _ in range(5):
            loop.optimizer.zero_grad()
            (compiled(torch.randn(4, 3)) - 1).square().mean().backward()
            loop.note()
            loop.optimizer.step()
    assert read(loop.tmp_path).file.opening["layers"][0]["path"] == "first.A_log"


def _compiled_step(loop: Loop) -> None:
    step = torch.compile(lambda: loop.optimizer.step(), backend="eager")
    with loop.watch():
        for _ in range(5):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            loop.note()
            step()


def _tied(loop: Loop) -> None:
    train(loop)
    assert len(read(loop.tmp_path).file.opening["layers"]) == 2


def _frozen(loop: Loop) -> None:
    loop.model.first.A_log.requires_grad_(False)
    train(loop, 130)
    found = loop.check()
    assert "ssm/0/gradient" not in found.sink.catalogue
    assert "ssm/0/eigenvalue" in found.sink.catalogue
    assert [a for a in found.sink.alerts if a.layer == 0] == []


def _lora(loop: Loop) -> None:
    """As peft does: the base is frozen, and a wrapper with `base_layer` stands in place of each linear layer."""

    class LoraLinear(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base_layer = base
            self.low, self.high = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x) + self.high(self.low(x))

    class Base(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.base_model = nn.Module()
            self.base_model.model = model

    loop.model.requires_grad_(False)
    for layer in (loop.model.first, loop.model.third):
        layer.dt_proj = LoraLinear(layer.dt_proj)
    trained = [p for p in loop.model.parameters() if p.requires_grad]
    loop.optimizer = torch.optim.AdamW(trained, lr=1e-2)
    with loop.watch(Base(loop.model)):
        for _ in range(8):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            for layer in (loop.model.first, loop.model.third):
                layer.dt_proj.bias = layer.dt_proj.base_layer.bias
            loop.note()
            loop.optimizer.step()
    assert read(loop.tmp_path).file.opening["layers"][0]["path"] == "first.A_log"


def _bfloat16(loop: Loop) -> None:
    loop.model.to(torch.bfloat16)
    with loop.watch():
        for _ in range(6):
            for p in loop.model.parameters():
                p.grad = torch.randn_like(p)
            loop.note()
            loop.optimizer.step()
    assert read(loop.tmp_path).file.opening["how"]["precision"] == "bfloat16"


def _wrapped_optimizer(loop: Loop) -> None:
    """As accelerate does: its optimizer is a torch optimizer that was never initialised, around the real one."""

    class Accelerated(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    with stablessm.watch(loop.model, Accelerated(loop.optimizer), mode="offline", dir=loop.tmp_path):
        for _ in range(6):
            loop.optimizer.zero_grad()
            loop.loss().backward()
            loop.note()
            loop.optimizer.step()


CASES: dict[str, tuple[Callable[[Loop], None], Callable[[Any], torch.optim.Optimizer] | None, dict[str, bool]]] = {
    "accumulation": (_accumulation, None, {}),
    "clipping": (_clipping, None, {}),
    "scaler": (_scaler, None, {}),
    "scaler, fused": (_scaler, lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), {}),
    "scaler that skips": (lambda loop: _scaler(loop, 5), None, {}),
    "scaler that skips, fused": (lambda loop: _scaler(loop, 5), lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), {}),
    "closure": (_closure, None, {}),
    "L-BFGS": (_lbfgs, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4), {}),
    "foreach": (train, lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True), {}),
    "fused": (train, lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), {}),
    "learning rate as a tensor": (
        train,
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), capturable=False, foreach=False),
        {},
    ),
    "set_to_none=False": (_set_to_none_false, None, {}),
    "compiled model": (_compiled_model, None, {}),
    "compiled step": (_compiled_step, lambda p: torch.optim.SGD(p, lr=1e-2), {}),
    "checkpointing": (train, None, {"checkpointed": True}),
    "tied": (_tied, None, {"tied": True}),
    "frozen": (_frozen, None, {}),
    "LoRA": (_lora, None, {}),
    "bfloat16": (_bfloat16, None, {}),
    "wrapped optimizer": (_wrapped_optimizer, None, {}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case.startswith("compiled") else case for case in CASES]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_row_of_a_step_has_the_gradient_that_the_optimizer_uses(case: str, tmp_path: Path) -> None:
    run, make, net = CASES[case]
    loop = Loop(tmp_path, make, **net)
    run(loop)
    loop.check((0, 1) if net.get("tied") else (0, 1, 2))


def test_several_optimizers_share_the_row_of_a_step(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    halves = [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (loop.model.first, loop.model.second, loop.model.third)]
    with stablessm.watch(loop.model, halves, mode="offline", dir=tmp_path):
        for _ in range(6):
            loop.model.zero_grad()
            loop.loss().backward()
            loop.note()
            for half in halves:
                half.step()
    loop.check()


@pytest.mark.slow
def test_rank_0_records_the_reduced_gradient_under_ddp(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_ddp_rank, (tmp_path,), nprocs=2)
    found = read(tmp_path)  # the other rank wrote no file
    reference = np.load(tmp_path / "reference.npy")
    assert found.sink.series("ssm/0/gradient")[1].tobytes() == reference.tobytes()
    assert found.file.opening["layers"][0]["path"] == "first.A_log"
    assert [end.status for end in found.ends] == ["finished"]


def _ddp_rank(rank: int, tmp_path: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    gradients = []
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path):
        for _ in range(5):
            optimizer.zero_grad()
            (model(torch.randn(4, 3)) - 1).square().mean().backward()
            gradients.append(model.module.first.A_log.grad.abs().flatten().clone())
            optimizer.step()
    if rank == 0:
        np.save(tmp_path / "reference.npy", torch.stack(gradients).numpy())
    torch.distributed.destroy_process_group()
