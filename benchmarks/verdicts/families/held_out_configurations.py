"""Configurations of held-out families: deaths that nothing but the configuration makes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.verdicts.families.drawing import WITH_MAPS, Config, FamilyPlant, base, configured, layer_of
from stablessm_core.spec.paths import with_settings

FLOATS = ("polynomial_memory", "digits")
Draw = Callable[[Random], FamilyPlant]


def of_configuration(name: str, change: Callable[[Random, Config], Config], *, must_die: bool = True, **options: Any) -> Draw:
    def draw(random: Random) -> FamilyPlant:
        own = {key: value(random) if callable(value) else value for key, value in options.items()}
        config = base(random, **own)
        changes = change(random, config)
        return configured(name, ", ".join(f"{k}: {v}" for k, v in changes.items()), config, changes, must_die=must_die)

    return draw


def sgd(lr: float, **options: Any) -> Config:
    return {"name": "sgd", "lr": lr, "weight_decay": 0.0, **options}


def warm_up(random: Random, config: Config) -> Config:  # noqa: ARG001
    lr = random.choice((0.5, 1.0, 2.0))
    own = sgd(lr) if random.random() < 0.6 else {"name": "adamw", "lr": 10 * lr}
    return {"optimizer": own | {"warmup_steps": random.choice((20, 40, 60))}}


def schedules(random: Random, config: Config) -> Config:  # noqa: ARG001
    own = sgd(random.choice((0.3, 0.6, 1.5)), momentum=random.choice((0.0, 0.9)))
    return {"optimizer": own | {"schedule": random.choice(("cosine", "linear"))}}


def momentum(random: Random, config: Config) -> Config:  # noqa: ARG001
    return {"optimizer": sgd(random.choice((0.05, 0.1, 0.2)), momentum=random.choice((0.95, 0.98, 0.99)), nesterov=True)}


def recurrent_rate(random: Random, config: Config) -> Config:  # noqa: ARG001
    rate = random.choice((0.5, 2.0, 5.0, 20.0))
    native: Config = {"name": "native", "time": None}
    return {
        "model.layer": layer_of(random, WITH_MAPS),
        "model.reparameterization": native,
        "optimizer": {"name": "adamw", "lr": 0.003, "recurrent_lr": rate},
    }


def recurrent_direct(random: Random, config: Config) -> Config:
    own = recurrent_rate(random, config)
    own["optimizer"]["recurrent_lr"] = random.choice((0.05, 0.1, 0.3))
    time = "discrete" if own["model.layer"]["name"] == "stable_ssm" else None
    return own | {"model.reparameterization": {"name": "direct", "time": time}}


def other_rates(random: Random, config: Config) -> Config:  # noqa: ARG001
    among = ("mamba", "mamba2", "gla", "hgrn", "hyena", "l2ru", "min_gru", "retnet", "rwkv4", "rwkv6", "dss", "s4")
    native: Config = {"name": "native", "time": None}
    return {
        "model.layer": layer_of(random, among),
        "model.reparameterization": native,
        "optimizer": sgd(random.choice((0.3, 1.0, 3.0, 10.0))),
    }


def half_rates(random: Random, config: Config) -> Config:  # noqa: ARG001
    own = sgd(random.choice((0.3, 1.0))) if random.random() < 0.5 else {"name": "adamw", "lr": random.choice((10.0, 50.0))}
    return {"optimizer": own, "train.precision": "bfloat16"}


def frozen(random: Random, config: Config) -> Config:  # noqa: ARG001
    return {"optimizer": sgd(random.choice((0.4, 1.0, 3.0)), recurrent_lr=0.0)}


def mixed_layers(random: Random, config: Config) -> Config:  # noqa: ARG001
    listed = [layer_of(random, WITH_MAPS) for _ in range(random.choice((2, 3)))]
    model: Config = {"layers": listed, "d_model": 16, "reparameterization": {"name": "direct", "time": None}}
    return {"model": model, "optimizer": {"name": "adamw", "lr": random.choice((0.1, 0.2, 0.5))}}


def bare(random: Random, config: Config) -> Config:  # noqa: ARG001
    model: Config = {"block": "bare", "n_layers": random.choice((1, 2)), "d_state": random.choice((8, 16))}
    model |= {"activation": random.choice(("tanh", "identity", "relu")), "reparameterization": {"name": "direct"}}
    adamw = random.random() < 0.6
    own = {"name": "adamw", "lr": random.choice((0.05, 0.1, 0.2))} if adamw else sgd(random.choice((0.05, 0.2, 0.5)))
    return {"model": model, "optimizer": own, "task.length": random.choice((64, 128))}


def long(random: Random, config: Config) -> Config:  # noqa: ARG001
    model: Config = {"d_model": 8, "d_state": 8, "activation": random.choice(("tanh", "gelu")), "n_layers": random.choice((1, 2))}
    model["reparameterization"] = {"name": "direct"}
    return {
        "model": model,
        "optimizer": {"name": "adamw", "lr": random.choice((0.02, 0.05))},
        "task.length": random.choice((300, 500)),
    }


def tokens_direct(random: Random, config: Config) -> Config:  # noqa: ARG001
    among = ("stable_ssm", "lru", "s5", "s4d", "rwkv4")
    layer = layer_of(random, among)
    time = "discrete" if layer["name"] == "stable_ssm" else None
    changes: Config = {"model.layer": layer, "model.reparameterization": {"name": "direct", "time": time}}
    return changes | {"optimizer": {"name": "adamw", "lr": random.choice((0.3, 0.6, 1.0))}}


def clipped(random: Random, config: Config) -> Config:  # noqa: ARG001
    model: Config = {
        "d_model": 16,
        "d_state": 8,
        "activation": random.choice(("tanh", "gelu")),
        "n_layers": random.choice((1, 2)),
    }
    model["reparameterization"] = {"name": "direct"}
    own = (
        sgd(random.choice((0.3, 1.0)), grad_clip=1.0) if random.random() < 0.5 else {"name": "adamw", "lr": 0.2, "grad_clip": 0.1}
    )
    return {"model": model, "optimizer": own, "task.length": 64}


def of_map(name: str, map_: str, time: str, rates: tuple[float, ...]) -> Draw:
    def change(random: Random, config: Config) -> Config:  # noqa: ARG001
        changes: Config = {"model.reparameterization": {"name": map_, "time": time}, "task.length": random.choice((64, 200))}
        return changes | {"optimizer": {"name": "adamw", "lr": 0.01, "recurrent_lr": random.choice(rates)}}

    return of_configuration(name, change, task="polynomial_memory", among=("stable_ssm",), steps=(60, 90), every=(1, 1, 2))


def root_map(random: Random) -> FamilyPlant:
    config = base(random, task="polynomial_memory", among=("stable_ssm",), steps=(60, 90))
    config["model"]["reparameterization"] = {"name": "planted_map_c", "time": "discrete"}
    config["model"]["eigenvalue_range"] = [0.8, 0.95]
    config["optimizer"] = {"name": "adamw", "lr": 0.01, "recurrent_lr": random.choice((0.05, 0.1, 0.3))}
    control: Config = {"model.reparameterization": {"name": "best", "time": "discrete"}}
    return FamilyPlant(
        "A map without a value far from 0",
        "recurrent rate",
        config,
        control,
        frozenset({"model_forward", "arithmetic"}),
        must_die=True,
    )


def all_decay(random: Random) -> FamilyPlant:
    lr, decay = random.choice(((0.3, 8.0), (0.5, 6.0), (0.4, 10.0)))
    config = base(random, task=random.choice(FLOATS), steps=(70, 100))
    own = sgd(lr) if random.random() < 0.3 else {"name": "adamw", "lr": lr}
    own |= {"weight_decay": decay, "decay": "all", "grad_clip": 0.01}
    return FamilyPlant(
        "Every weight multiplied by more than 1", f"{own}", with_settings(config, {"optimizer": own}),
        {"optimizer.weight_decay": 0.0},
        frozenset({"optimizer", "lr_too_large", "explosion"}), must_die=True, mentions="decay",
    )  # fmt: skip
