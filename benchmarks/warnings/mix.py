"""Draws a mix of small runs: over every layer, its maps, tasks and optimizers, at rates from harmless to fatal.

The runs of a seed are always the same. No draw depends on what another run did.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from pydantic import ValidationError

from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model
from stablessm_core.spec.possible_maps import possible_maps
from stablessm_core.spec.tasks import TASKS

Config = dict[str, Any]
SMALL_STATES = (8, 16)  # of layers that have an option d_state
LENGTHS = (32, 48, 64)
# the rates of each optimizer, from one at which layers train to one that kills: the logarithm is drawn uniformly between them
OPTIMIZERS: dict[str, tuple[Config, tuple[float, float]]] = {
    "adamw": ({"name": "adamw"}, (0.001, 2.0)),
    "sgd": ({"name": "sgd", "weight_decay": 0.0}, (0.01, 6.0)),
    "momentum": ({"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}, (0.003, 2.0)),
}


def mixed_runs(count: int, seed: int) -> Iterator[Config]:
    """`count` configurations. The layers take turns, so that every layer has the same number of runs; all else is drawn."""
    layers = list(LAYERS)
    for number in range(count):
        random = Random(f"warnings {seed} {number}")
        yield {"name": f"mix-{seed}-{number}"} | _config(layers[number % len(layers)], random)


def _config(layer: str, random: Random) -> Config:
    optimizer = random.choice(("adamw", "adamw", "sgd", "momentum"))  # adamw as often as both others
    settings, (low, high) = OPTIMIZERS[optimizer]
    own = dict(settings) | {"lr": float(f"{low * (high / low) ** random.random():.3g}")}
    if random.random() < 0.15:
        own["grad_clip"] = random.choice((0.5, 1.0, 5.0))
    if random.random() < 0.15:
        own["warmup_steps"] = random.choice((5, 10, 20))
    if optimizer == "momentum" and random.random() < 0.25:
        own["nesterov"] = True
    return {
        "tags": ["mix", optimizer],
        "task": _task(random),
        "model": _model(layer, random),
        "optimizer": own,
        "train": {
            "steps": random.randint(60, 160),
            "batch_size": random.choice((4, 8)),
            "eval_every": 0,
            "checkpoint_every": 0,
            "device": "cpu",
            "seed": random.randrange(100_000),
        },
    }


def _task(random: Random) -> Config:
    length = random.choice(LENGTHS)
    tasks: list[Config] = [
        {"name": "polynomial_memory", "length": length},
        {"name": "copying", "noise_length": length - 8, "memorized": 4},
        {"name": "associative_recall", "length": length - 2},
        {"name": "modular_counting", "length": length},
        {"name": "induction_heads", "length": length},
    ]
    if "digits" in TASKS:
        tasks.append({"name": "digits"})
    return random.choice(tasks)


def _model(layer: str, random: Random) -> Config:
    section: Config = {"name": layer}
    if "d_state" in LAYERS[layer].model_fields and layer != "stable_ssm":
        section["d_state"] = random.choice(SMALL_STATES)
    model: Config = {"layer": section, "n_layers": random.choice((1, 1, 2)), "d_model": _width(section)}
    if random.random() < 0.2:
        model["block"] = "post_norm"
    if layer == "stable_ssm":
        model |= {"d_state": random.choice(SMALL_STATES), "activation": random.choice(("tanh", "gelu", "identity", "relu"))}
    maps = possible_maps(LAYERS[layer].model_validate(section), model["d_model"])
    wanted = random.choice(("direct", "direct", "native", "other"))
    of_kind = [one for one in maps if (one.name == "direct") == (wanted == "direct")]
    if wanted != "native" and of_kind:
        chosen = random.choice(of_kind)
        model["reparameterization"] = {"name": chosen.name, "time": chosen.time} | ({} if chosen.b is None else {"b": chosen.b})
    return model


def _width(section: Config) -> int:
    """8, or the narrowest wider model that the layer accepts."""
    for width in (8, 16, 32):
        try:
            Model.model_validate({"layer": section, "d_model": width})
        except ValidationError:
            continue
        return width
    raise ValueError(f"layer {section['name']} accepts no model of width 32 or less")
