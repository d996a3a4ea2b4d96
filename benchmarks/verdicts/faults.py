"""The table of faults. Each kind draws a configuration with one fault, from a random generator.

The configuration of a plant is drawn across layers, optimizers, maps, precision and `telemetry.every`. The kind states what the
verdict must say if the run dies of the fault (`benchmarks.verdicts.truth` establishes whether it does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stablessm_core.spec.paths import with_settings

Config = dict[str, Any]
OTHER_LAYERS = ("s4d", "s5", "lru", "min_gru", "gla", "hgrn", "retnet", "dss", "rg_lru", "mamba", "rwkv4")
NONFINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Plant:
    """A run with one fault.

    config: the configuration. control: settings that remove the fault and nothing else; None if the fault is the configuration
    itself. causes: the right causes if the run dies of the fault; empty if only measurements can tell. step: the step that the
    verdict must name; None if there is no such step. mentions: what summary or evidence must mention, a regular expression.
    """

    kind: str
    fault: str
    config: Config
    control: Config | None = None
    causes: frozenset[str] = frozenset()
    step: int | None = None
    mentions: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of fault. share: its number of plants among `TOTAL`. draw: makes one plant."""

    name: str
    share: int
    draw: Callable[[Random], Plant] = field(repr=False)


def _base(random: Random, *, task: str | None = None, layers: bool = True, steps: tuple[int, int] = (24, 50)) -> Config:
    """A small healthy run. layers: True if other layers than stable_ssm may be drawn."""
    model: Config = {"n_layers": random.choice((1, 1, 1, 2)), "d_model": random.choice((8, 16))}
    if layers and random.random() < 0.25:
        model["layer"] = random.choice(OTHER_LAYERS)
    else:
        model |= {"d_state": random.choice((8, 16)), "activation": random.choice(("tanh", "tanh", "gelu", "relu"))}
        model["reparameterization"] = {"name": random.choice(("best", "exp", "softplus", "direct"))}
    base = task or random.choice(("polynomial_memory", "polynomial_memory", "digits"))
    return {
        "task": {"name": "planted_fault", "base": base, "length": random.choice((32, 64))},
        "model": model,
        "optimizer": random.choice(
            (
                {"name": "adamw", "lr": random.choice((0.003, 0.01))},
                {"name": "sgd", "lr": random.choice((0.01, 0.03)), "weight_decay": 0.0},
                {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0},
            )
        ),
        "train": {
            "steps": random.randint(*steps),
            "batch_size": random.choice((4, 8)),
            "seed": random.randrange(1000),
            "device": "cpu",
            "precision": random.choice(("float32", "float32", "float32", "bfloat16")),
            "eval_every": 0,
            "checkpoint_every": random.choice((0, 0, 10)),
        },
        "telemetry": {"every": random.choice((1, 1, 1, 1, 2, 5, 10))},
    }


def _size(random: Random, low: float, high: float) -> float:
    return float(f"{10 ** random.uniform(low, high):.2g}")


def _step(random: Random, config: Config) -> int:
    """A step of the run. Every eighth fault is in the first step."""
    return 1 if random.random() < 1 / 8 else random.randint(2, config["train"]["steps"] - 2)


def _in_batch(kind: str, place: str, random: Random, *, huge: tuple[float, float] | None = None) -> Plant:
    config = _base(random, task="polynomial_memory" if place == "target" else None)
    step, extent = _step(random, config), random.choice(("one", "sequence", "batch"))
    change = random.choice(NONFINITE) if huge is None else "times"
    size = 1.0 if huge is None else _size(random, *huge)
    fault = {"task.place": place, "task.step": step, "task.change": change, "task.size": size, "task.extent": extent}
    what = change if huge is None else f"x {size:g}" if extent != "one" else f"{size:g}"
    said = f"{what} in {extent} of the {place} at step {step}"
    return Plant(kind, said, with_settings(config, fault), {"task.place": "none"}, frozenset({"bad_input"}), step)


def _nonfinite_input(random: Random) -> Plant:
    return _in_batch("NaN or infinity in the input", "input", random)


def _nonfinite_target(random: Random) -> Plant:
    return _in_batch("NaN or infinity in the target", "target", random)


def _huge_input(random: Random) -> Plant:
    return _in_batch("Input times 1e3 to 1e30", "input", random, huge=(3, 30))


def _huge_target(random: Random) -> Plant:
    return _in_batch("Target times 1e3 to 1e30", "target", random, huge=(3, 30))


def _in_step(kind: str, place: str, random: Random, change: str, size: float = 1.0) -> Plant:
    config = _base(random)
    step = _step(random, config)
    fault = {"task.place": place, "task.step": step, "task.change": change, "task.size": size}
    said = f"{change if change != 'times' else f'gradient x {size:g}'} made by the {place} at step {step}"
    causes = frozenset({"bad_loss"} | ({"wrong_gradient"} if place == "backward" else set()))
    return Plant(kind, said, with_settings(config, fault), {"task.place": "none"}, causes, step)


def _loss(random: Random) -> Plant:
    return _in_step("NaN or infinity made by the loss function", "loss", random, random.choice(NONFINITE))


def _backward(random: Random) -> Plant:
    return _in_step("NaN or infinity in the backward pass only", "backward", random, random.choice(NONFINITE))


def _gradient(random: Random) -> Plant:
    return _in_step("Gradient far too large at one step", "backward", random, "times", _size(random, 5, 9))


def _growing_target(random: Random) -> Plant:
    config = _base(random, task="polynomial_memory", steps=(60, 90))
    step, size = random.randint(2, 20), random.choice((2.0, 2.0, 4.0, 10.0))
    fault = {"task.place": "target", "task.step": step, "task.change": "grows", "task.size": size}
    said = f"targets {size:g} times larger in each step from step {step} on"
    kind = "Targets that grow in each step"
    return Plant(kind, said, with_settings(config, fault), {"task.place": "none"}, frozenset({"bad_input", "changed_data"}))


def _bad_batch(random: Random) -> Plant:
    """One batch of large targets, which makes SGD throw eigenvalues of `direct` across the boundary."""
    config = _base(random, task="polynomial_memory", layers=False)
    step, size = _step(random, config), _size(random, 2, 4)
    optimizer = {"name": "sgd", "lr": random.choice((0.03, 0.1)), "weight_decay": 0.0, "momentum": random.choice((0.0, 0.9))}
    config = with_settings(config, {"model.reparameterization": {"name": "direct"}, "optimizer": optimizer})
    fault = {"task.place": "target", "task.step": step, "task.change": "times", "task.size": size, "task.extent": "batch"}
    said = f"targets of step {step} x {size:g}"
    kind = "One bad batch under SGD with direct"
    return Plant(kind, said, with_settings(config, fault), {"task.place": "none"}, frozenset({"bad_input"}), step)


def _evaluation(random: Random) -> Plant:
    config = _base(random)
    change, size = random.choice((*NONFINITE, "times")), 1e30
    fault = {"task.place": "evaluation", "task.change": change, "task.size": size}
    said = f"{change if change != 'times' else f'{size:g}'} in the input of the evaluation"
    kind = "Evaluation that is not finite"
    return Plant(kind, said, with_settings(config, fault), {"task.place": "none"}, mentions="evaluation")


def _half_loss(random: Random) -> Plant:
    config = _base(random, task="polynomial_memory", steps=(50, 60))
    every = {"telemetry.every": random.choice((1, 1, 2)), "optimizer": {"name": "adamw", "lr": 0.003}}
    fault: Config = {"task.place": "half_loss", "task.change": "grows", "task.size": random.choice((1.08, 1.1, 1.15))}
    said = f"a loss summed in float16, targets {fault['task.size']:g} times larger in each step"
    right = frozenset({"precision", "bad_loss", "arithmetic"})
    changed = with_settings(config, fault | every)
    return Plant("Loss that overflows float16", said, changed, {"task.place": "same_loss"}, right)


def _narrow_loss(random: Random) -> Plant:
    config = _base(random, task="polynomial_memory", layers=False)
    size = float(random.choice((8, 10, 12, 16)))
    fault: Config = {
        "task.place": "narrow_loss",
        "task.change": "times",
        "task.size": size,
        "optimizer": {"name": "adamw", "lr": 0.003},
    }
    said = f"the loss log(mean(exp({size:g} error^2))), which overflows float32 but not float64"
    right = frozenset({"bad_loss", "arithmetic"})
    kind = "Loss that overflows only float32"
    return Plant(kind, said, with_settings(config, fault), {"task.place": "wide_loss"}, right)


def _configured(random: Random, kind: str, fault: str, changes: Config, **options: Any) -> Plant:
    config = _base(random, task="polynomial_memory", layers=False, **options)
    return Plant(kind, fault, with_settings(config, changes))


def _adamw_direct(random: Random) -> Plant:
    lr, length = random.choice((0.1, 0.15, 0.2, 0.3)), random.choice((64, 100))
    model: Config = {"n_layers": 1, "d_model": 16, "d_state": 16, "reparameterization": {"name": "direct"}}
    model["activation"] = random.choice(("tanh", "tanh", "gelu", "relu", "identity"))
    changes: Config = {"model": model, "optimizer": {"name": "adamw", "lr": lr}, "task.length": length}
    said = f"direct, {model['activation']}, AdamW, lr {lr:g}, length {length}"
    return _configured(random, "direct under AdamW with a high rate", said, changes, steps=(60, 80))


def _two_layers(random: Random) -> Plant:
    """Two layers of `direct`, one of which starts near the boundary."""
    lr, near, activation = random.choice((0.1, 0.15, 0.2)), random.randrange(2), random.choice(("tanh", "gelu", "identity"))
    ranges = [(0.1, 0.3), (0.1, 0.3)]
    ranges[near] = (0.9, 0.99)
    model: Config = {
        "layers": [{"name": "stable_ssm", "eigenvalue_range": list(r), "activation": activation, "d_state": 16} for r in ranges],
        "d_model": 16, "reparameterization": {"name": "direct", "time": "discrete"},
    }  # fmt: skip
    changes: Config = {"model": model, "optimizer": {"name": "adamw", "lr": lr}, "task.length": random.choice((64, 100))}
    said = f"two layers of direct, {activation}, layer {near} starts near the boundary, AdamW, lr {lr:g}"
    return _configured(random, "direct with two layers", said, changes, steps=(60, 80))


def _sgd_high(random: Random) -> Plant:
    lr, momentum = random.choice((0.2, 0.25, 0.4, 0.6)), random.choice((0.0, 0.0, 0.9))
    map_ = random.choice(("direct", "best", "exp"))
    changes: Config = {"model.reparameterization": {"name": map_}, "model.activation": random.choice(("tanh", "gelu"))}
    changes["optimizer"] = {"name": "sgd", "lr": lr, "momentum": momentum, "weight_decay": 0.0}
    said = f"{map_}, SGD, momentum {momentum:g}, lr {lr:g}"
    return _configured(random, "SGD with a high rate", said, changes, steps=(40, 60))


def _far_too_large(random: Random) -> Plant:
    name, map_ = random.choice(("adamw", "sgd")), random.choice(("best", "exp", "softplus", "direct"))
    lr = random.choice((100.0, 1000.0)) if name == "adamw" else random.choice((10.0, 100.0, 1000.0))
    optimizer = {"name": name, "lr": lr} | ({"weight_decay": 0.0} if name == "sgd" or random.random() < 0.5 else {})
    changes: Config = {"model.reparameterization": {"name": map_}, "optimizer": optimizer}
    return _configured(random, "Rate far too large", f"{map_}, {name}, lr {lr:g}", changes, steps=(24, 30))


def _weight_decay(random: Random) -> Plant:
    lr, decay = random.choice((0.4, 0.5, 0.8, 1.0)), random.choice((6.0, 8.0, 10.0))
    changes: Config = {"model.reparameterization": {"name": random.choice(("best", "exp", "softplus"))}}
    changes["optimizer"] = {"name": "adamw", "lr": lr, "weight_decay": decay, "recurrent_lr": 0.01}
    plant = _configured(random, "Rate times weight decay above 2", f"lr {lr:g}, weight decay {decay:g}", changes, steps=(70, 90))
    control = {"optimizer.weight_decay": 0.0}
    return Plant(
        plant.kind,
        plant.fault,
        plant.config,
        control,
        frozenset({"explosion", "lr_too_large", "optimizer"}),
        mentions=r"weight.decay",
    )


def _step_sizes(random: Random) -> Plant:
    map_, lr = random.choice(("exp", "softplus", "best")), random.choice((20.0, 50.0, 100.0))
    changes: Config = {"model.reparameterization": {"name": map_, "time": "continuous"}, "optimizer.name": "adamw"}
    changes |= {"optimizer.lr": 0.01, "optimizer.momentum": 0.0, "optimizer.recurrent_lr": lr}
    said = f"{map_} in continuous time, AdamW, recurrent lr {lr:g}"
    return _configured(random, "Step sizes that grow out of control", said, changes, steps=(24, 40))


def _healthy(random: Random) -> Plant:
    return Plant("Healthy", "no fault", _base(random))


def _crossing(random: Random) -> Plant:
    lr, length = random.choice((0.03, 0.05, 0.08)), random.choice((16, 32))
    changes: Config = {"model.reparameterization": {"name": "direct"}, "model.activation": "tanh", "task.length": length}
    changes["optimizer"] = {"name": "adamw", "lr": lr}
    said = f"direct, AdamW, lr {lr:g}, length {length}"
    return _configured(random, "Crosses the boundary and lives", said, changes, steps=(30, 40))


def _stopped(random: Random) -> Plant:
    """A tanh model given as a section or as a list of layers, whose overflow limit is 1 and not 1/2."""
    lr = random.choice((0.1, 0.15, 0.2))
    layer = {"name": "stable_ssm", "activation": "tanh", "d_state": 16}
    model: Config = {"d_model": 16, "reparameterization": {"name": "direct", "time": "discrete"}}
    model |= {"layers": [layer]} if random.random() < 0.5 else {"layer": layer, "n_layers": 1}
    changes: Config = {"model": model, "optimizer": {"name": "adamw", "lr": lr}, "train.on_warning": "stop", "task.length": 64}
    config = _base(random, task="polynomial_memory", layers=False, steps=(12, 20))
    plant = Plant("Healthy tanh model with on_warning: stop", f"direct, AdamW, lr {lr:g}", with_settings(config, changes))
    return Plant(plant.kind, plant.fault, plant.config, {"train.on_warning": "continue"})


def _ends_badly(random: Random) -> Plant:
    """An explosion that the last step interrupts while all numbers are finite."""
    lr = random.choice((0.15, 0.2, 0.25))
    changes: Config = {
        "model.reparameterization": {"name": "best"},
        "train.steps": random.choice((4, 5, 6)),
        "telemetry.every": 1,
    }
    changes["optimizer"] = {"name": "sgd", "lr": lr, "weight_decay": 0.0}
    return _configured(random, "Finishes with a loss far above its start", f"best, SGD, lr {lr:g}", changes)


KINDS = (
    Kind("NaN or infinity in the input", 10, _nonfinite_input),
    Kind("NaN or infinity in the target", 8, _nonfinite_target),
    Kind("Input times 1e3 to 1e30", 14, _huge_input),
    Kind("Target times 1e3 to 1e30", 12, _huge_target),
    Kind("NaN or infinity made by the loss function", 12, _loss),
    Kind("NaN or infinity in the backward pass only", 10, _backward),
    Kind("Gradient far too large at one step", 8, _gradient),
    Kind("Targets that grow in each step", 8, _growing_target),
    Kind("One bad batch under SGD with direct", 12, _bad_batch),
    Kind("Evaluation that is not finite", 8, _evaluation),
    Kind("Loss that overflows float16", 6, _half_loss),
    Kind("Loss that overflows only float32", 6, _narrow_loss),
    Kind("direct under AdamW with a high rate", 14, _adamw_direct),
    Kind("direct with two layers", 12, _two_layers),
    Kind("SGD with a high rate", 12, _sgd_high),
    Kind("Rate far too large", 8, _far_too_large),
    Kind("Rate times weight decay above 2", 6, _weight_decay),
    Kind("Step sizes that grow out of control", 6, _step_sizes),
    Kind("Healthy", 12, _healthy),
    Kind("Crosses the boundary and lives", 8, _crossing),
    Kind("Healthy tanh model with on_warning: stop", 6, _stopped),
    Kind("Finishes with a loss far above its start", 4, _ends_badly),
)
TOTAL = sum(kind.share for kind in KINDS)


def drawn(seed: int, count: int = TOTAL) -> list[Kind]:
    """The kinds of the first `count` plants: round by round one of each kind in an order drawn with the seed, until each kind
    has its share."""
    order = list(KINDS)
    Random(seed).shuffle(order)
    rounds = [kind for number in range(max(kind.share for kind in order)) for kind in order if number < kind.share]
    return [rounds[i % TOTAL] for i in range(count)]
