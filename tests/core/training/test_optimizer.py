"""Each parameter has the learning rate and the weight decay that the configuration specifies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from stablessm_core.layers import StableSSM
from stablessm_core.model import Network, build_model
from stablessm_core.spec.config import Optimizer, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.loading import get_task
from stablessm_core.training.optimizer import (
    AdamW,
    Scheduled,
    build_optimizer,
    describe_groups,
    lr_factor,
    parameter_groups,
    steps_per_epoch,
)


def network(time: str = "continuous") -> Network:
    model = {"n_layers": 2, "d_model": 4, "d_state": 6, "reparameterization": {"name": "exp", "time": time}}
    config = parse_config({"task": {"name": "polynomial_memory", "length": 8}, "model": model})
    return build_model(config, get_task(config.task, None))  # type: ignore[arg-type]


def test_every_parameter_is_in_the_right_optimizer_group() -> None:
    model = network()
    config = Optimizer(lr=0.02, recurrent_lr=0.001, weight_decay=0.1, recurrent_weight_decay=0.3)
    optimizer = build_optimizer(model, config)
    paths = {id(p): path for path, p in model.named_parameters()}
    groups = {g["name"]: [paths[id(p)] for p in g["params"]] for g in optimizer.param_groups}
    assert sorted(groups["recurrent"]) == [f"blocks.{i}.ssm.{p}" for i in range(2) for p in ("log_dt", "w")]
    assert all(dict(model.named_parameters())[path].ndim == 2 for path in groups["matrices"])
    assert all(dict(model.named_parameters())[path].ndim == 1 for path in groups["vectors"])
    assert sorted(path for paths_ in groups.values() for path in paths_) == sorted(paths.values())
    described = {g["name"]: (g["lr"], g["weight_decay"], g["count"]) for g in describe_groups(optimizer)}
    assert described["recurrent"] == (0.001, 0.3, 24)
    assert described["matrices"][:2] == (0.02, 0.1)
    assert described["vectors"][:2] == (0.02, 0.0)
    assert sum(count for _, _, count in described.values()) == sum(p.numel() for p in model.parameters())


def test_the_recurrent_group_uses_the_common_learning_rate_by_default() -> None:
    optimizer = build_optimizer(network("discrete"), Optimizer(lr=0.02))
    assert {float(g["lr"]) for g in optimizer.param_groups} == {0.02}


def test_weight_decay_shrinks_only_matrices() -> None:
    model = network()
    optimizer = build_optimizer(model, Optimizer(lr=0.1, weight_decay=0.5))
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.update()
    for path, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[path] * (0.95 if p.ndim == 2 else 1.0))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decay_of_all_parameters_shrinks_every_parameter(name: str) -> None:
    model = network()
    optimizer = build_optimizer(model, Optimizer(name=name, lr=0.1, weight_decay=0.5, decay="all"))  # type: ignore[arg-type]
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.update()
    for path, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[path] * 0.95)
    assert {g["name"]: g["weight_decay"] for g in describe_groups(optimizer)} == dict.fromkeys(
        ("recurrent", "matrices", "vectors"), 0.5
    )


@pytest.mark.slow
def test_decay_of_all_parameters_is_adamw_over_all_parameters_step_by_step() -> None:
    """As the StableSSM authors train: torch.optim.AdamW(model.parameters()), whose rate a scheduler lowers after each epoch."""
    config = parse_config({
        "task": {"name": "digits"}, "model": {"block": "post_norm", "layer": {"name": "s4d", "d_state": 4}, "d_model": 5},
        "optimizer": {"lr": 0.02, "weight_decay": 0.1, "decay": "all", "schedule": "cosine_per_epoch"},
        "train": {"steps": 24, "batch_size": 300},
    })  # fmt: skip
    task = get_task(config.task, None)  # type: ignore[arg-type]
    ours, theirs = build_model(config, task), build_model(config, task)
    optimizer = build_optimizer(ours, config.optimizer)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.02, weight_decay=0.1, fused=True)
    epoch_steps = steps_per_epoch(task.train_examples, 300)
    assert epoch_steps == 5, "1,437 images are four batches of 300 and a smaller one"
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=5)
    for step in range(1, 25):
        x, y = task.batch(step, 300, 0, "cpu")
        for network_, update in ((ours, optimizer), (theirs, reference)):
            update.zero_grad(set_to_none=True)
            task.loss(network_(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.factor.fill_(lr_factor(config.optimizer, step, 24, epoch_steps))
        optimizer.schedule()
        optimizer.update()
        reference.step()
        if step % epoch_steps == 0:
            scheduler.step()
        for (path, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7, msg=f"{path} at step {step}")


def test_a_separate_recurrent_learning_rate_moves_the_recurrent_weights_at_that_rate() -> None:
    model = network("discrete")
    optimizer = build_optimizer(model, Optimizer(lr=0.1, recurrent_lr=0.001, weight_decay=0.0))
    optimizer.factor.fill_(0.5)
    optimizer.schedule()
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.update()
    for path, p in model.named_parameters():
        step = 0.0005 if path.endswith("ssm.w") else 0.05  # the first Adam step equals the learning rate
        torch.testing.assert_close(before[path] - p.detach(), torch.full_like(p, step), rtol=1e-3, atol=1e-6)


def pytorchs(optimizer: Scheduled, ours: Network, theirs: Network, settings: dict[str, float]) -> torch.optim.Optimizer:
    """PyTorch's optimizer for the same groups of the other model; SGD without weight decay, which PyTorch's SGD couples."""
    path_of = {id(p): path for path, p in ours.named_parameters()}
    of = dict(theirs.named_parameters())
    groups = [{**g, "params": [of[path_of[id(p)]] for p in g["params"]], "lr": g["base_lr"]} for g in optimizer.param_groups]
    if isinstance(optimizer, AdamW):
        return torch.optim.AdamW(groups, fused=True)
    return torch.optim.SGD([{**g, "weight_decay": 0.0} for g in groups], fused=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adamw"},
        {"name": "sgd"},
        {"name": "sgd", "momentum": 0.9},
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
    ],
    ids=["adamw", "sgd", "momentum", "nesterov"],
)
def test_the_update_has_the_same_bits_as_pytorchs_optimizer(settings: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    config = Optimizer(lr=0.02, recurrent_lr=0.003, weight_decay=0.1, grad_clip=None, **settings)
    optimizer = build_optimizer(ours, config)
    reference = pytorchs(optimizer, ours, theirs, {key: settings[key] for key in settings.keys() - {"name"}})
    for step in range(1, 21):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step * 1000 + p.numel()))
            q.grad = p.grad.clone()
        optimizer.factor.fill_(step / 20)
        optimizer.schedule()
        optimizer.update()
        for group in reference.param_groups:
            group["lr"] = group["base_lr"] * (step / 20)
            if config.name == "sgd" and group["name"] == "matrices":  # decoupled weight decay, as in AdamW
                with torch.no_grad():
                    for p in group["params"]:
                        p.mul_(1 - group["lr"] * 0.1)
        reference.step()
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_recurrent_learning_rate_of_0_freezes_only_the_recurrence(name: str) -> None:
    model = network()
    optimizer = build_optimizer(model, Optimizer(name=name, momentum=0.9, recurrent_lr=0.0))  # type: ignore[arg-type]
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.update()
    for path, p in model.named_parameters():
        assert torch.equal(p, before[path]) == path.endswith((".w", ".log_dt")), path


@pytest.mark.parametrize(
    ("schedule", "after", "last"),
    [("constant", 1.0, 1.0), ("linear", 0.5, 1 / 80), ("cosine", 0.5, math.sin(math.pi / 160) ** 2)],
)
def test_every_schedule_warms_up_before_it_follows_its_curve(schedule: str, after: float, last: float) -> None:
    config = Optimizer(schedule=schedule, warmup_steps=20)  # type: ignore[arg-type]
    factors = [lr_factor(config, step, 100) for step in range(1, 101)]
    assert factors[:20] == pytest.approx([s / 20 for s in range(1, 21)])
    assert factors[20] == 1.0
    assert factors[60] == pytest.approx(after)
    assert factors[-1] == pytest.approx(last, rel=1e-3)
    assert all(a >= b for a, b in itertools.pairwise(factors[20:]))


def test_a_warm_up_longer_than_the_run_never_reaches_the_full_rate() -> None:
    assert lr_factor(Optimizer(warmup_steps=1000, schedule="cosine"), 10, 10) == 0.01
    assert lr_factor(Optimizer(warmup_steps=10, schedule="cosine"), 10, 10) == 1.0


def test_a_cosine_per_epoch_is_constant_within_an_epoch_and_has_pytorchs_rates() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    config = Optimizer(schedule="cosine_per_epoch")
    for epoch in range(4):
        rates = {lr_factor(config, step, 28, 8) for step in range(1 + 8 * epoch, min(9 + 8 * epoch, 29))}
        assert list(rates) == pytest.approx(scheduler.get_last_lr())
        optimizer.step()
        scheduler.step()
    assert lr_factor(config, 5, 5, 8) == 1.0, "a run within its first epoch has the full rate"
    with pytest.raises(ValueError, match="has no epochs"):
        lr_factor(config, 1, 10, None)


@pytest.mark.parametrize(
    ("task", "optimizer", "message"),
    [
        ("copying", {"schedule": "cosine_per_epoch"}, "optimizer.schedule: is 'cosine_per_epoch'; allowed: constant, cosine or"),
        ("digits", {"schedule": "cosine_per_epoch", "warmup_steps": 3}, "optimizer.warmup_steps: is 3; allowed: 0 with schedule"),
        ("digits", {"decay": "all", "recurrent_weight_decay": 0.1}, "optimizer.recurrent_weight_decay: is 0.1; allowed: 0 with"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(task: str, optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": task}, "optimizer": optimizer})
    assert message in str(refused.value)


def test_tasks_have_epochs_if_and_only_if_they_count_their_training_examples() -> None:
    for name in ("digits", "pathfinder", "copying", "listops", "polynomial_memory"):
        config = parse_config({"task": {"name": name}})
        task = get_task(config.task, None)  # type: ignore[arg-type]
        assert (task.train_examples is not None) == config.task.has_epochs
        assert task.train_examples == task.facts.get("train_images")


def test_parameter_groups_work_with_any_optimizer_and_any_model_that_contains_a_layer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), StableSSM(4, 5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(parameter_groups(model, lr=0.1, weight_decay=0.5))
    found = {g["name"]: (g["weight_decay"], [tuple(p.shape) for p in g["params"]]) for g in optimizer.param_groups}
    assert found == {
        "recurrent": (0.0, [(5,)]),
        "matrices": (0.5, [(4, 3), (5, 4), (4, 5), (1, 4)]),
        "vectors": (0.0, [(4,), (4,), (1,)]),
    }
