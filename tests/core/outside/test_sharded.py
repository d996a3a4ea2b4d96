"""Parameters that FSDP2 shards over two processes: the first process records whole weights and reduced gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import stablessm
from stablessm_core.outside import sharded
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import Mamba2Mixer, MambaMixer

pytestmark = pytest.mark.slow

STEPS = 5


def on_two_ranks(tmp_path: Path, program: Callable[..., None], *arguments: Any) -> None:
    torch.multiprocessing.spawn(_rank, (tmp_path, program, *arguments), nprocs=2)


def _rank(rank: int, tmp_path: Path, program: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    program(rank, tmp_path, *arguments)
    torch.distributed.destroy_process_group()


def sharded_net(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(MambaMixer(7, 5), Mamba2Mixer(5))
    for part in model:
        fully_shard(part)
    fully_shard(model)
    return model, make(model.parameters())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole weights and gradients of the first layer before each step."""
    torch.manual_seed(1 + rank)
    weights, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) - 1).square().mean().backward()
        parameter: Any = model[0].A_log
        weights.append(parameter.full_tensor().detach().flatten().clone())
        gradients.append(parameter.grad.full_tensor().abs().flatten().clone())
        optimizer.step()
    return torch.stack(weights).numpy(), torch.stack(gradients).numpy()


def _watched(rank: int, tmp_path: Path) -> None:
    model, optimizer = sharded_net(lambda p: torch.optim.AdamW(p, lr=1e-2))
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path):
        weights, gradients = trained(model, optimizer, rank)
    assert not optimizer._optimizer_step_pre_hooks
    if rank == 0:
        np.savez(tmp_path / "reference.npz", weights=weights, gradients=gradients)


def test_whole_weights_and_reduced_gradients_of_sharded_layers_are_recorded_by_rank_0(tmp_path: Path) -> None:
    on_two_ranks(tmp_path, _watched)
    found = read(tmp_path)  # the other rank wrote no file
    reference = np.load(tmp_path / "reference.npz")
    assert [layer["path"] for layer in found.file.opening["layers"]] == ["0.A_log", "1.A_log"]
    assert found.sink.series("ssm/0/weight")[1].tobytes() == reference["weights"].tobytes()
    assert found.sink.series("ssm/0/gradient")[1].tobytes() == reference["gradients"].tobytes()
    assert found.sink.series("ssm/0/dt")[1].shape == (STEPS, 7)
    assert np.allclose(found.sink.series("optim/lr")[1], 1e-2)
    assert [end.status for end in found.ends] == ["finished"]


def _one_rank_watches(rank: int, tmp_path: Path, how: str) -> None:
    sharded.AGREE_SECONDS = 0.5
    model, optimizer = sharded_net(lambda p: torch.optim.SGD(p, lr=1e-2))
    run = None
    if rank == 0 or how == "disabled":
        run = stablessm.watch(model, optimizer, mode="disabled" if rank else "offline", dir=tmp_path)
        run.loss(1.0)
    trained(model, optimizer, rank)  # hangs if one rank gathers alone
    if run is not None:
        run.finish()


@pytest.mark.parametrize(("how", "why"), [("absent", "not every process called watch"), ("disabled", "does not watch")])
def test_a_rank_that_does_not_watch_keeps_nobody_waiting(
    how: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on_two_ranks(tmp_path, _one_rank_watches, how)
    found = read(tmp_path)
    assert len(found.sink.series("train/loss")[0]) == STEPS
    assert found.file.opening["layers"] == []
    assert "2 layers are sharded over several processes: " in (err := capfd.readouterr().err)
    assert why in err


def _finished_early(rank: int, tmp_path: Path) -> None:
    model, optimizer = sharded_net(lambda p: torch.optim.SGD(p, lr=1e-2))
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    if rank == 0:
        run._recording.stop("an error")  # the other rank does not know
    trained(model, optimizer, rank)
    run.finish()
    trained(model, optimizer, rank)


def test_a_recording_that_stops_keeps_gathering_for_the_other_rank(tmp_path: Path) -> None:
    on_two_ranks(tmp_path, _finished_early)
    assert [end.status for end in read(tmp_path).ends] == ["finished"]


def _fsdp1(rank: int, tmp_path: Path) -> None:
    model = FullyShardedDataParallel(nn.Sequential(MambaMixer(7, 5)), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            loss.backward()
            run.loss(loss)
            optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_fsdp1_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    on_two_ranks(tmp_path, _fsdp1)
    assert capfd.readouterr().err.count("FSDP1 is not supported") == 1
    assert len(read(tmp_path).sink.series("train/loss")[0]) == STEPS
