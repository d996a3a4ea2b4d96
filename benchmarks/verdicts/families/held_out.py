"""Held-out families. No rule of the verdict was written with a look at this file."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.verdicts.families.development import DATA
from benchmarks.verdicts.families.drawing import (
    LAYERS,
    SIMPLE,
    Config,
    Family,
    FamilyPlant,
    base,
    configured,
    in_layer,
    in_task,
    size,
    step_of,
    without_task_fault,
)
from benchmarks.verdicts.families.held_out_configurations import (
    all_decay,
    bare,
    clipped,
    frozen,
    half_rates,
    long,
    mixed_layers,
    momentum,
    of_configuration,
    of_map,
    other_rates,
    recurrent_direct,
    recurrent_rate,
    root_map,
    schedules,
    tokens_direct,
    warm_up,
)
from benchmarks.verdicts.families.held_out_watched import WATCHED
from benchmarks.verdicts.families.truths import LEARNED_NOTHING

MEMORY, FLOATS, ANY = ("polynomial_memory",), ("polynomial_memory", "digits"), ("polynomial_memory", "digits", "tokens")
SGD, ADAMW, EITHER = ("sgd", "momentum"), ("adamw",), ("adamw", "sgd", "momentum")
OF_DATA, OF_LOSS, OF_GRADIENT = {"bad_input", "changed_data"}, {"bad_loss", "changed_loss"}, {"wrong_gradient"}
NAN_GRADIENT, OF_FORM = {"wrong_gradient", "bad_loss"}, {"not_its_form", "model_forward"}
# from the first step on, these are the run's own data and loss: that its rate is too large for them is right too
OF_THE_RUN = ("one_unit", "offset_target", "heavy_tails", "power_of_target", "scaled_loss", "summed", "power_of_error")
Draw = Callable[[Random], FamilyPlant]


def _task(
    name: str, fault: str, low: float, high: float, causes: set[str], hows: tuple[str, ...], *, tasks: tuple[str, ...] = ANY,
    optimizers: tuple[str, ...] = EITHER, at_once: bool = False, must_die: bool = True, alive: str = "", sign: int = 1,
    first: float = 0.12, plain_size: bool = False, **options: Any,
) -> Draw:  # fmt: skip
    """A family of a fault of the task. low, high: of its size, as powers of ten; plain_size: as they are. at_once: the run dies
    in the fault's first step, which the verdict must name."""

    def draw(random: Random) -> FamilyPlant:
        config = base(random, task=random.choice(tasks), optimizer=random.choice(optimizers), **options)
        how, at = random.choice(hows), step_of(random, config, first=first)
        number = sign * (round(random.uniform(low, high), 3) if plain_size else size(random, low, high))
        changed = in_task(config, fault, at, how, number, random.choice((2, 3, 5)))
        said = f"{fault} {how} at step {at}, size {number:g}"
        right = causes | ({"explosion", "lr_too_large"} if (at, how) == (1, "from") and fault in OF_THE_RUN else set())
        return FamilyPlant(
            name, said, changed, without_task_fault(), frozenset(right), at if at_once else None, alive=alive, must_die=must_die
        )

    return draw


def _layer(
    name: str, fault: str, low: float, high: float, causes: set[str], hows: tuple[str, ...], *, tasks: tuple[str, ...] = ANY,
    optimizers: tuple[str, ...] = EITHER, at_once: bool = False, must_die: bool = True, plain_size: bool = False, **options: Any,
) -> Draw:  # fmt: skip
    def draw(random: Random) -> FamilyPlant:
        number = round(random.uniform(low, high), 3) if plain_size else size(random, low, high)
        how = random.choice(hows)
        own = {"task": random.choice(tasks), "optimizer": random.choice(optimizers)} | options
        config, control, at = in_layer(random, fault, number, how, **own)
        said = f"{fault} {how} at step {at}, size {number:g}"
        return FamilyPlant(name, said, config, control, frozenset(causes), at if at_once else None, must_die=must_die)

    return draw


def _skipped(random: Random) -> FamilyPlant:
    config = in_task(base(random, task=random.choice(FLOATS)), "hole", random.randint(3, 9), "every", 1.0, 3)
    changes = {"train.on_bad_batch": "skip"}
    return configured("Bad batches that the run leaves out", "every third", config, changes, alive=r"batch|skip|left out")


def _scaled_and_lives(random: Random) -> FamilyPlant:
    config = base(random, task="polynomial_memory", optimizer="adamw", steps=(40, 60), every=(1, 1, 2))
    at, number = random.randint(10, 25), random.choice((100.0, 1000.0, 3e4))
    changed = in_task(config, "one_unit", at, "from", number)
    return FamilyPlant("Data in another unit, and the run lives", f"from step {at}", changed, None, alive=DATA)


def _harmless(random: Random) -> FamilyPlant:
    """Something unusual that does no harm."""
    config = base(random, task="polynomial_memory", optimizer="adamw", steps=(40, 70), every=(1,))
    fault, number = random.choice((("scaled_loss", 0.3), ("one_unit", 2.0), ("summed", 0.01), ("growing_input", 1.005)))
    return FamilyPlant("Unusual and harmless", fault, in_task(config, fault, random.randint(5, 30), "few", number), None)


def _healthy(random: Random) -> FamilyPlant:
    config = base(random, task=random.choice(ANY), among=tuple(LAYERS), steps=(40, 90), every=(1, 1, 2, 3))
    schedule = random.choice(("constant", "cosine", "linear"))
    return configured(
        "Healthy runs", schedule, config, {"optimizer.schedule": schedule, "optimizer.warmup_steps": random.choice((0, 5))}
    )


def _nothing(random: Random) -> FamilyPlant:
    config = base(random, task=random.choice(FLOATS), among=SIMPLE, optimizer="sgd", steps=(60, 90), every=(1, 1, 2))
    what = random.choice(("zero", "shuffled", "blocked", "rate", "clip", "warm-up"))
    of_task = {"task.how": "from", "task.at": 1}
    possible: dict[str, Config] = {
        "zero": {"task.fault": "zero_input", "task.base": "polynomial_memory"} | of_task,
        "shuffled": {"task.fault": "shuffled"} | of_task,
        "blocked": {"task.fault": "blocked"} | of_task,
        "rate": {"optimizer.lr": random.choice((1e-8, 1e-10))},
        "clip": {"optimizer.grad_clip": random.choice((1e-7, 1e-9))},
        "warm-up": {"optimizer.warmup_steps": 10_000_000},
    }
    return configured("Runs that learn nothing", what, config, possible[what], alive=LEARNED_NOTHING)


def _two_faults(random: Random) -> FamilyPlant:
    """A fault that kills, and a harmless one before it."""
    config, control, at = in_layer(random, "wrong_mask", 1.0, "once", task="polynomial_memory", optimizer="adamw")
    changed = in_task(config, "one_unit", max(1, at - 2), "once", 3.0)
    return FamilyPlant(
        "A harmless fault before a deadly one", f"at step {at}", changed, control, frozenset({"model_forward"}), at, must_die=True
    )


ONCE, FROM, SOME = ("once",), ("from",), ("once", "few", "every", "from")
STEPS = {"steps": (50, 80)}


def _named(name: str, share: int, make: Callable[..., Draw], *given: Any, **options: Any) -> tuple[str, int, Draw]:
    return name, share, make(name, *given, **options)


HELD_OUT: dict[str, tuple[tuple[str, int, Draw], ...]] = {
    "data": (
        _named("Some samples in another unit", 12, _task, "one_unit", 3, 7, OF_DATA, SOME, tasks=MEMORY, optimizers=SGD),
        _named("One time step far too large", 12, _task, "one_time", 8, 30, OF_DATA, SOME, tasks=FLOATS),
        _named("Targets that drift away", 10, _task, "offset_target", 1, 4, OF_DATA, FROM, tasks=MEMORY, optimizers=SGD, **STEPS),
        _named("Heavy tails", 10, _task, "heavy_tails", 1, 5, OF_DATA, SOME, tasks=MEMORY, optimizers=SGD),
        _named("Holes in the data", 10, _task, "hole", 0, 0, OF_DATA, SOME, tasks=FLOATS, at_once=True),
        _named(
            "Inputs that grow", 10, _task, "growing_input", 1.6, 12, OF_DATA, ("grows",), tasks=FLOATS, plain_size=True, **STEPS
        ),
        _named("A standardised constant", 8, _task, "quotient", 0, 0, OF_DATA, SOME, tasks=FLOATS, at_once=True),
        _named("Targets raised to a power", 8, _task, "power_of_target", 12, 60, OF_DATA, SOME, tasks=MEMORY, plain_size=True),
    ),
    "loss": (
        _named("Logarithm of zero in the loss", 8, _task, "log_of_error", 0, 0, OF_LOSS, SOME, tasks=FLOATS, at_once=True),
        _named("Division by zero in the loss", 8, _task, "relative", 0, 0, OF_LOSS, SOME, tasks=MEMORY, at_once=True),
        _named("Mean of nothing in the loss", 8, _task, "empty_mask", 0, 0, OF_LOSS, SOME, tasks=FLOATS, at_once=True),
        _named("Angle without a value in the loss", 8, _task, "angle", 0, 0, OF_LOSS, SOME, tasks=FLOATS, at_once=True),
        _named("Loss times a factor", 14, _task, "scaled_loss", 4, 12, {"changed_loss"}, SOME, tasks=FLOATS, optimizers=SGD),
        _named(
            "Loss with the other sign",
            10,
            _task,
            "turned_loss",
            0,
            1.5,
            OF_LOSS,
            FROM,
            tasks=MEMORY,
            optimizers=SGD,
            steps=(60, 90),
        ),
        _named(
            "Loss that grows by itself",
            10,
            _task,
            "growing_loss",
            2,
            30,
            {"changed_loss"},
            FROM,
            tasks=FLOATS,
            optimizers=SGD,
            plain_size=True,
            **STEPS,
        ),
        _named("Sum in place of a mean", 8, _task, "summed", 0, 3, {"changed_loss"}, SOME, tasks=MEMORY, optimizers=SGD, **STEPS),
        _named(
            "Power of the error", 10, _task, "power_of_error", 8, 40, OF_LOSS, SOME, tasks=MEMORY, optimizers=SGD, plain_size=True
        ),
        _named("Hyperbolic loss", 8, _task, "cosh", 1.5, 3, {"bad_loss", "arithmetic"}, FROM, tasks=MEMORY),
        _named(
            "Half sums in the loss", 10, _task, "half_sum", 5.5, 9, {"precision", "bad_loss"}, SOME, tasks=MEMORY, at_once=True
        ),
        _named(
            "Loss with a running scale", 8, _task, "running_scale", -1, 1, OF_LOSS, FROM, tasks=FLOATS, optimizers=SGD, **STEPS
        ),
        _named("Loss over a deviation of zero", 8, _task, "over_deviation", 0, 0, OF_LOSS, SOME, tasks=FLOATS, at_once=True),
        _named(
            "Shares without a shift in the loss",
            8,
            _task,
            "naive_entropy",
            3,
            5,
            {"bad_loss", "arithmetic"},
            SOME,
            tasks=FLOATS,
            at_once=True,
        ),
    ),
    "backward": (
        _named(
            "Gradient of the loss that grows",
            10,
            _task,
            "steep_growing",
            2,
            20,
            OF_GRADIENT,
            FROM,
            tasks=FLOATS,
            optimizers=SGD,
            plain_size=True,
            **STEPS,
        ),
        _named(
            "Gradient with the other sign",
            8,
            _task,
            "gradient_turned",
            0,
            1.5,
            OF_GRADIENT,
            FROM,
            tasks=MEMORY,
            optimizers=SGD,
            steps=(60, 90),
        ),
        _named("Noise in the gradient", 10, _task, "noisy", 2, 7, OF_GRADIENT, SOME, tasks=MEMORY, optimizers=SGD),
        _named("One gradient that is not finite", 8, _task, "one_infinite", 0, 0, NAN_GRADIENT, SOME, tasks=FLOATS, at_once=True),
        _named(
            "Gradient of a layer that grows",
            10,
            _layer,
            "gradient_grows",
            2,
            20,
            OF_GRADIENT,
            FROM,
            optimizers=SGD,
            plain_size=True,
            **STEPS,
        ),
        _named("Gradient of one sample", 8, _layer, "gradient_of_one", 5, 10, OF_GRADIENT, SOME, optimizers=SGD),
        _named(
            "Gradient that grows back in time",
            8,
            _layer,
            "gradient_by_time",
            1.4,
            3,
            OF_GRADIENT,
            SOME,
            optimizers=SGD,
            plain_size=True,
        ),
        _named("Gradient of a layer without a value", 8, _layer, "gradient_nan", 0, 0, NAN_GRADIENT, SOME, at_once=True),
        _named(
            "Gradient of some training steps", 8, _layer, "training_noise", 5, 9, OF_GRADIENT, ("every", "few"), optimizers=SGD
        ),
    ),
    "forward": (
        _named("Division by zero in a layer", 8, _layer, "divides", 0, 0, {"model_forward"}, SOME, at_once=True),
        _named("Inverse function beyond its range", 8, _layer, "arc", 0, 0, {"model_forward"}, SOME, at_once=True),
        _named("Variance below zero", 8, _layer, "variance", 0, 0, {"model_forward"}, SOME, at_once=True),
        _named("Exponential in a layer", 8, _layer, "exponential", 2.1, 3, {"model_forward", "arithmetic"}, SOME, at_once=True),
        _named(
            "Shares without a shift in a layer",
            8,
            _layer,
            "naive_softmax",
            2.1,
            3,
            {"model_forward", "arithmetic"},
            SOME,
            at_once=True,
        ),
        _named("Half products in a layer", 8, _layer, "half_product", 6, 9, {"precision", "model_forward"}, SOME, at_once=True),
        _named("Mask that hides everything", 8, _layer, "wrong_mask", 0, 0, {"model_forward"}, SOME, at_once=True),
        _named("Second recurrence in a layer", 10, _layer, "departs", 3, 30, OF_FORM, FROM, tasks=MEMORY, plain_size=True),
        _named(
            "Recurrence unlike its record",
            10,
            _layer,
            "grown_transition",
            3,
            30,
            OF_FORM,
            FROM,
            tasks=MEMORY,
            among=("stable_ssm",),
            plain_size=True,
        ),
    ),
    "map": (
        _named("Map that bends outwards", 8, of_map, "planted_map_b", "discrete", (0.5, 1.0, 2.0)),
        ("A map without a value far from 0", 6, root_map),
        _named("Rate that turns positive", 6, of_map, "planted_map_d", "continuous", (0.5, 1.0, 2.0)),
    ),
    "optimizer": (
        _named("Warm-up into a rate that kills", 12, of_configuration, warm_up, task="polynomial_memory", steps=(70, 100)),
        _named("Schedules from a rate that kills", 8, of_configuration, schedules, task="polynomial_memory", steps=(50, 80)),
        _named("Momentum near 1", 10, of_configuration, momentum, task="polynomial_memory", steps=(60, 90)),
        ("Every weight multiplied by more than 1", 8, all_decay),
        _named(
            "Fast eigenvalues with usual maps",
            8,
            of_configuration,
            recurrent_rate,
            task="polynomial_memory",
            steps=(50, 80),
            must_die=False,
        ),
        _named(
            "Fast eigenvalues with direct",
            12,
            of_configuration,
            recurrent_direct,
            task="polynomial_memory",
            steps=(50, 80),
            must_die=False,
        ),
        _named("SGD on the other layers", 14, of_configuration, other_rates, task="polynomial_memory", steps=(40, 60)),
        _named("High rates in bfloat16", 8, of_configuration, half_rates, task="polynomial_memory", steps=(40, 60)),
        _named("Frozen eigenvalues and a high rate", 8, of_configuration, frozen, task="polynomial_memory", steps=(40, 60)),
        _named("Different layers with direct", 10, of_configuration, mixed_layers, task="polynomial_memory", steps=(50, 80)),
        _named("Bare blocks with direct", 10, of_configuration, bare, task="polynomial_memory", steps=(60, 90)),
        _named("Long sequences with direct", 6, of_configuration, long, task="polynomial_memory", steps=(60, 80)),
        _named("Tokens with direct", 8, of_configuration, tokens_direct, task="tokens", steps=(60, 90)),
        _named("Clipped and still dead", 8, of_configuration, clipped, task="polynomial_memory", steps=(60, 90)),
        ("A harmless fault before a deadly one", 8, _two_faults),
    ),
    "lives": (
        _named("Evaluation without a value", 6, _task, "nan_evaluation", 0, 0, {"bad_input"}, FROM, tasks=MEMORY, must_die=False),
        _named("Evaluation far too large", 6, _task, "inf_evaluation", 25, 35, {"bad_input"}, FROM, tasks=FLOATS, must_die=False),
        ("Bad batches that the run leaves out", 6, _skipped),
        ("Data in another unit, and the run lives", 8, _scaled_and_lives),
        ("Unusual and harmless", 12, _harmless),
        ("Healthy runs", 36, _healthy),
        ("Runs that learn nothing", 30, _nothing),
    ),
    "watched": WATCHED,
}


FAMILIES = tuple(Family(name, "held_out", share, draw, place) for place, own in HELD_OUT.items() for name, share, draw in own)
