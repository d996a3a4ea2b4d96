"""A recorded tensor or optimizer that the program replaces is followed, or the run says that it is not recorded any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stablessm
from tests.core.outside.reading import Recorded, read
from tests.core.outside.stand_ins import Mamba2Mixer

Replace = Callable[[nn.Module, torch.optim.Optimizer], Any]


def train(tmp_path: Path, replace: Replace, *, steps: int = 12, at: int = 6) -> tuple[Recorded, list[float]]:
    """The run of a loop that calls `replace` before step `at`, and the true first weight before each of its steps. `replace` may
    return another optimizer, which then trains the model."""
    model = nn.Sequential(Mamba2Mixer(4))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    true: list[float] = []
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for step in range(1, steps + 1):
            if step == at:
                optimizer = replace(model, optimizer) or optimizer
            mixer: Any = model[0]
            loss = mixer.A_log.abs().square().sum() + mixer.dt_bias.square().sum()
            optimizer.zero_grad()
            loss.backward()
            true.append(float(mixer.A_log.detach().flatten()[-1].real))
            run.loss(loss)
            optimizer.step()
    return read(tmp_path), true


def in_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"] = list(model.parameters())


def new_parameter(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[0].A_log = nn.Parameter(torch.full((4,), 5.0))
    in_optimizer(model, optimizer)


def assigned(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict({k: v.clone() + 1 for k, v in model.state_dict().items()}, assign=True)
    in_optimizer(model, optimizer)


def new_module(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[0] = Mamba2Mixer(4)
    in_optimizer(model, optimizer)


def swapped(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.utils.swap_tensors(model[0].A_log, nn.Parameter(torch.full((4,), 3.0)))


def new_optimizer(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def replaced_and_new_optimizer(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    assigned(model, optimizer)
    return torch.optim.RMSprop(model.parameters(), lr=0.1)


def in_other_groups(model: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    mixer = model[0]
    rest = [p for p in model.parameters() if p is not mixer.A_log]
    return torch.optim.AdamW([{"params": rest, "lr": 0.5}, {"params": [mixer.A_log], "lr": 0.25}])


@pytest.mark.parametrize("replace", [
    new_parameter, assigned, new_module, swapped, new_optimizer, replaced_and_new_optimizer, in_other_groups,
])  # fmt: skip
def test_the_row_of_each_step_holds_the_weights_of_the_model(tmp_path: Path, replace: Replace) -> None:
    found, true = train(tmp_path, replace)
    steps, weights = found.sink.series("ssm/0/weight")
    assert steps.tolist() == list(range(1, 13))
    assert weights[:, -1].tolist() == pytest.approx(true, rel=1e-6)
    assert len(found.sink.series("train/loss")[0]) == 12
    assert found.ends[0].reason == ""
    told = [a.message for a in found.sink.alerts if a.kind == "recording_changed"]
    assert bool(told) == (replace is not swapped), told  # after swap_tensors, the tensor in the model is the same object


def test_the_page_and_the_alerts_learn_of_the_new_optimizer(tmp_path: Path) -> None:
    found, _ = train(tmp_path, in_other_groups)
    assert found.file.opening["how"]["optimizer"] == "adamw"
    assert found.sink.series("optim/lr")[1][:, 0].tolist() == [pytest.approx(0.1)] * 5 + [0.25] * 7
    (told,) = [a for a in found.sink.alerts if a.kind == "recording_changed"]
    assert told.message == "another optimizer (AdamW) trains the watched model from step 6 on; its steps are recorded"


@pytest.mark.parametrize("grow", [
    lambda mixer: setattr(mixer, "A_log", nn.Parameter(torch.zeros(8))),
    lambda mixer: delattr(mixer, "A_log") or setattr(mixer, "A_log", torch.zeros(4, requires_grad=True)),
    lambda mixer: setattr(mixer, "A_log", nn.Parameter(torch.zeros(4, dtype=torch.complex64))),
], ids=["longer", "no parameter any more", "complex"])  # fmt: skip
def test_a_replacement_that_no_row_can_hold_ends_the_rows_and_the_run_says_so(tmp_path: Path, grow: Any) -> None:
    def replace(model: Any, optimizer: torch.optim.Optimizer) -> None:
        model[0].dt_bias = nn.Parameter(torch.zeros(()))
        grow(model[0])
        in_optimizer(model, optimizer)

    found, _ = train(tmp_path, replace)
    assert found.sink.step == 5
    assert found.ends[0].reason.startswith("finished after step 5; 7 losses after it have no row because")
    (told,) = [a for a in found.sink.alerts if a.kind == "recording_changed"]
    assert "no more eigenvalues are recorded" in told.message


def test_a_container_that_nobody_keeps_is_watched_as_long_as_its_parts_live(tmp_path: Path) -> None:
    parts = Mamba2Mixer(4), Mamba2Mixer(3)
    each = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in parts]
    with stablessm.watch(nn.ModuleDict({"a": parts[0], "b": parts[1]}), each, mode="offline", dir=tmp_path) as run:
        for step in range(6):
            if step == 3:
                parts[1].A_log = nn.Parameter(torch.ones(3))
                each[1].param_groups[0]["params"] = list(parts[1].parameters())
            for part, optimizer in zip(parts, each, strict=True):
                optimizer.zero_grad()
                (part.A_log.square().sum() + part.dt_bias.sum()).backward()
                run.loss(1.0)
                optimizer.step()
    found = read(tmp_path).sink
    assert found.step == 6
    assert found.series("ssm/1/weight")[1][3].tolist() == [1.0] * 3


def test_a_second_optimizer_that_was_not_named_gets_its_own_part_of_the_row(tmp_path: Path) -> None:
    parts = Mamba2Mixer(4), Mamba2Mixer(3)
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in parts)
    with stablessm.watch(nn.ModuleList(parts), first, mode="offline", dir=tmp_path) as run:
        true = []
        for _ in range(5):
            for part, optimizer in ((parts[0], first), (parts[1], second)):
                optimizer.zero_grad()
                part.A_log.square().sum().backward()
                if optimizer is second:
                    true.append(parts[1].A_log.detach().clone())
                optimizer.step()
            run.loss(1.0)
    found = read(tmp_path).sink
    weights = found.series("ssm/1/weight")[1]
    assert [w.tolist() for w in weights] == [t.tolist() for t in true]
    assert found.series("ssm/1/grad_over_weight")[1][-1][1] > 0


def test_a_model_without_known_eigenvalues_keeps_its_losses_under_a_new_optimizer(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    critic = torch.optim.SGD(other.parameters(), lr=0.1)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for step in range(10):
            if step == 5:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            loss = model(torch.ones(3)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            run.loss(loss)
            critic.step()
            optimizer.step()
    assert read(tmp_path).sink.series("train/loss")[0].tolist() == list(range(1, 11))
