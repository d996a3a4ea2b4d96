"""Draws the configuration around a fault: layer, map, optimizer, task, precision, and the steps in which the fault is active."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.verdicts.faults import Plant
from stablessm_core.spec.paths import with_settings

Config = dict[str, Any]

LAYERS: dict[str, Config] = {  # each built-in layer with small sizes
    "stable_ssm": {"d_state": 8}, "s4": {"d_state": 8}, "s4d": {"d_state": 8}, "s5": {"d_state": 8}, "dss": {"d_state": 8},
    "lru": {"d_state": 8}, "rg_lru": {}, "min_gru": {}, "gla": {"n_heads": 2}, "hgrn": {}, "retnet": {"n_heads": 2},
    "gated_deltanet": {"n_heads": 2, "head_width": 4}, "mamba": {"d_state": 4}, "mamba2": {"d_state": 8, "head_width": 8},
    "rwkv4": {}, "rwkv6": {"mix_rank": 4, "decay_rank": 4}, "l2ru": {}, "hyena": {},
}  # fmt: skip
WITH_MAPS = ("stable_ssm", "s4", "s4d", "s5", "dss", "lru", "rg_lru", "gated_deltanet", "mamba", "mamba2", "rwkv4", "rwkv6")
SIMPLE = ("stable_ssm", "stable_ssm", "s5", "lru", "rg_lru", "min_gru", "s4d", "hgrn", "gla", "mamba", "retnet", "rwkv4")


@dataclass(frozen=True)
class FamilyPlant(Plant):
    """A plant of a family. alive: what the verdict must mention if the run lives, a regular expression. must_die: draw again if
    the run lives. watched: the options of a watched loop; None for a run
    that we train."""

    alive: str = ""
    must_die: bool = False
    watched: Config | None = None


@dataclass(frozen=True)
class Family:
    """Plants that share a fault. group: "development" or "held_out" (`study` moves half of the latter to "opened"). share: its
    number of plants. place: where the fault is.
    first: True for a kind of the first benchmark, whose truth `benchmarks.verdicts.truth` establishes."""

    name: str
    group: str
    share: int
    draw: Callable[[Random], FamilyPlant] = field(repr=False)
    place: str
    first: bool = False


def size(random: Random, low: float, high: float) -> float:
    """A number from 10^low to 10^high."""
    return float(f"{10 ** random.uniform(low, high):.2g}")


def layer_of(random: Random, among: tuple[str, ...] = tuple(LAYERS), planted: Config | None = None) -> Config:
    """The section of a layer. planted: options of a planted layer's fault."""
    name = random.choice(among)
    own = dict(LAYERS[name])
    if name == "stable_ssm":
        own["activation"] = random.choice(("tanh", "tanh", "gelu", "relu"))
    return {"name": name, **own} if planted is None else {"name": f"planted_{name}", **own, **planted}


def optimizer_of(random: Random, kind: str | None = None) -> Config:
    """An optimizer whose rates are usual."""
    kind = kind or random.choice(("adamw", "adamw", "sgd", "momentum"))
    if kind == "adamw":
        return {"name": "adamw", "lr": random.choice((0.003, 0.01)), "weight_decay": random.choice((0.0, 0.01))}
    if kind == "sgd":
        return {"name": "sgd", "lr": random.choice((0.01, 0.02, 0.03)), "weight_decay": 0.0}
    return {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "nesterov": random.random() < 0.3}


def base(
    random: Random,
    *,
    task: str | None = None,
    among: tuple[str, ...] = SIMPLE,
    planted: Config | None = None,
    optimizer: str | None = None,
    steps: tuple[int, int] = (24, 50),
    every: tuple[int, ...] = (1, 1, 1, 1, 2, 5),
) -> Config:
    """A small healthy run."""
    task = task or random.choice(("polynomial_memory", "polynomial_memory", "digits", "tokens"))
    model: Config = {"n_layers": random.choice((1, 1, 2)), "d_model": random.choice((8, 16))}
    model["layer"] = layer_of(random, among, planted)
    if random.random() < 0.1:
        model["block"] = "post_norm"
    if "stable_ssm" in model["layer"]["name"]:
        time = "continuous" if random.random() < 0.2 else "discrete"
        model["reparameterization"] = {"name": random.choice(("best", "exp", "softplus", "sigmoid")), "time": time}
        if model["reparameterization"]["name"] == "sigmoid":
            model["reparameterization"]["time"] = "discrete"
    return {
        "task": {"name": "planted_family", "base": task, "length": random.choice((32, 64))},
        "model": model,
        "optimizer": optimizer_of(random, optimizer),
        "train": {
            "steps": random.randint(*steps),
            "batch_size": random.choice((4, 8)),
            "seed": random.randrange(1000),
            "device": "cpu",
            "precision": random.choice(("float32", "float32", "float32", "float32", "bfloat16")),
            "eval_every": 0,
            "checkpoint_every": random.choice((0, 0, 10)),
        },
        "telemetry": {"every": random.choice(every)},
    }


def step_of(random: Random, config: Config, *, first: float = 0.12, latest: int = 3) -> int:
    """A step for the beginning of a fault: the first one with this probability, else any but the last `latest`."""
    return 1 if random.random() < first else random.randint(2, max(2, config["train"]["steps"] - latest))


def in_task(config: Config, fault: str, at: int, how: str, number: float, period: int = 3) -> Config:
    """The configuration with this fault of the task."""
    return with_settings(
        config,
        {"task.fault": fault, "task.at": at, "task.how": how, "task.size": number, "task.period": period},
    )


def without_task_fault() -> Config:
    return {"task.fault": "none"}


def in_layer(random: Random, fault: str, number: float, how: str, **options: Any) -> tuple[Config, Config, int]:
    """(configuration with a planted layer, settings that remove its fault, step of the fault)."""
    config = base(random, planted={"fault": fault, "how": how, "size": number, "period": random.choice((3, 4))}, **options)
    at = step_of(random, config)
    return with_settings(config, {"model.layer.at": at}), {"model.layer.fault": "none"}, at


def configured(kind: str, fault: str, config: Config, changes: Config, **options: Any) -> FamilyPlant:
    """A plant that is nothing but a configuration."""
    return FamilyPlant(kind, fault, with_settings(config, changes), **options)
