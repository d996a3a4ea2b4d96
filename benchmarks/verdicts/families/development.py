"""Development families: the kinds of fault at which the rules of the verdict may be looked at while they are written."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.verdicts.families.drawing import (
    LAYERS,
    SIMPLE,
    WITH_MAPS,
    Config,
    Family,
    FamilyPlant,
    base,
    configured,
    in_layer,
    in_task,
    layer_of,
    size,
    step_of,
    without_task_fault,
)
from benchmarks.verdicts.families.truths import LEARNED_NOTHING
from benchmarks.verdicts.faults import KINDS, Kind
from stablessm_core.spec.paths import with_settings

DATA = r"input|batch|target|data"


def _task_plant(
    random: Random, kind: str, fault: str, number: float, causes: set[str], *, how: str = "once", at: int | None = None,
    alive: str = "", must_die: bool = True, step: bool = False, **options: Any,
) -> FamilyPlant:  # fmt: skip
    config = base(random, **options)
    at = step_of(random, config) if at is None else at
    said = f"{fault} {how} at step {at}, size {number:g}"
    changed = in_task(config, fault, at, how, number)
    return FamilyPlant(
        kind, said, changed, without_task_fault(), frozenset(causes), at if step else None, alive=alive, must_die=must_die
    )


def _rate_kills(random: Random) -> FamilyPlant:
    config = base(random, task="polynomial_memory", among=("lru", "s5", "rg_lru", "s4d", "gated_deltanet", "stable_ssm"))
    lr, momentum = random.choice((0.3, 0.5, 1.0, 2.0)), random.choice((0.0, 0.0, 0.9))
    changes = {"optimizer": {"name": "sgd", "lr": lr, "momentum": momentum, "weight_decay": 0.0}, "train.steps": 60}
    name = config["model"]["layer"]["name"]
    return configured(
        "Layers under SGD at a rate that kills", f"{name}, SGD {lr:g}, {momentum:g}", config, changes, must_die=True
    )


def _divided_once(random: Random) -> FamilyPlant:
    kind, number = "Loss divided by a small number in one step", size(random, -11, -7)
    return _task_plant(
        random, kind, "divided", number, {"changed_loss", "bad_loss"}, task="polynomial_memory", optimizer="sgd", step=True
    )


def _ascends(random: Random) -> FamilyPlant:
    number = random.choice((1.0, 3.0, 10.0))
    kind = "Gradient ascent from the first step"
    options: dict[str, Any] = {"task": "polynomial_memory", "optimizer": "momentum", "steps": (60, 80)}
    return _task_plant(random, kind, "ascent", number, {"changed_loss", "bad_loss"}, how="from", at=1, must_die=False, **options)


def _all_ignored(random: Random) -> FamilyPlant:
    causes = {"bad_input", "changed_data", "bad_loss"}
    return _task_plant(random, "All labels ignored in one step", "ignored", 1, causes, task="digits", step=True)


def _scaled_inputs(random: Random) -> FamilyPlant:
    kind, number = "Inputs 255 times larger from a step on", random.choice((100.0, 255.0, 1000.0))
    causes = {"changed_data", "bad_input"}
    return _task_plant(
        random, kind, "times_input", number, causes, how="from", must_die=False, alive=DATA, task="polynomial_memory",
        optimizer="sgd", among=("stable_ssm", "s5", "lru"),
    )  # fmt: skip


def _steeper(random: Random) -> FamilyPlant:
    number, how = random.choice((10.0, 100.0, 1000.0, 1e4)), random.choice(("from", "from", "once"))
    kind = "Backward pass of the loss too steep"
    options: dict[str, Any] = {"task": "polynomial_memory", "optimizer": "sgd", "steps": (40, 60)}
    at = 1 if how == "from" else None
    return _task_plant(random, kind, "steeper", number, {"wrong_gradient"}, how=how, at=at, **options)


def _in_training_only(random: Random) -> FamilyPlant:
    config, control, at = in_layer(
        random,
        "training_gradient",
        size(random, 3, 6),
        random.choice(("from", "once")),
        task="polynomial_memory",
        optimizer="sgd",
    )
    kind = "Backward pass of a layer wrong in training mode only"
    return FamilyPlant(kind, f"from step {at}", config, control, frozenset({"wrong_gradient"}), must_die=True)


def _beyond_one(random: Random) -> FamilyPlant:
    lr = random.choice((0.2, 0.3, 0.5, 1.0))
    config = base(random, task="polynomial_memory", among=("stable_ssm",), steps=(50, 80), every=(1,))
    changes: Config = {
        "model.reparameterization": {"name": "planted_map_a", "time": "discrete"},
        "optimizer": {"name": "adamw", "lr": 0.01, "recurrent_lr": lr},
        "task.length": random.choice((64, 300, 600)),
    }
    return configured("A map that reaches 1.2", f"recurrent rate {lr:g}", config, changes)


def _forward_nan(random: Random) -> FamilyPlant:
    fault = random.choice(("log_of_output", "root_of_negative", "one_row_deviation"))
    config, control, at = in_layer(random, fault, 1.0, random.choice(("once", "from", "every")))
    kind = "NaN made in the forward pass of a layer"
    return FamilyPlant(kind, f"{fault} from step {at}", config, control, frozenset({"model_forward"}), at, must_die=True)


def _half_in_layer(random: Random) -> FamilyPlant:
    config, control, at = in_layer(random, "half_layer", size(random, 5.5, 8), "from")
    kind = "Half precision inside a layer"
    return FamilyPlant(kind, f"from step {at}", config, control, frozenset({"precision", "model_forward"}), at, must_die=True)


def _half_in_loss(random: Random) -> FamilyPlant:
    kind, causes = "Half precision inside the loss from a step on", {"precision", "bad_loss"}
    return _task_plant(random, kind, "half_cast", size(random, 5.5, 8), causes, how="from", task="polynomial_memory", step=True)


def _recurrent_decay(random: Random) -> FamilyPlant:
    lr, decay = random.choice((0.4, 0.5, 0.8, 1.0)), random.choice((6.0, 8.0, 10.0))
    among = ("stable_ssm", "lru", "s5", "rg_lru", "s4d")
    config = base(random, task="polynomial_memory", among=among, steps=(70, 90), optimizer="adamw", every=(1, 1, 2))
    settings = {"optimizer.recurrent_lr": lr, "optimizer.recurrent_weight_decay": decay}
    return FamilyPlant(
        "Recurrent rate times recurrent weight decay above 2", f"{lr:g} x {decay:g}", with_settings(config, settings),
        {"optimizer.recurrent_weight_decay": 0.0}, frozenset({"optimizer"}), must_die=True, mentions=r"weight.decay|decay",
    )  # fmt: skip


def _unreset(random: Random) -> FamilyPlant:
    kind, causes = "A loss that keeps a sum", {"changed_loss", "bad_loss"}
    return _task_plant(
        random, kind, "unreset_sum", random.choice((1.3, 1.5, 2.0)), causes, how="from", task="polynomial_memory",
        optimizer="sgd", steps=(60, 90),
    )  # fmt: skip


def _learned_nothing(random: Random) -> FamilyPlant:
    among = random.choice((("stable_ssm",), SIMPLE))
    config = base(random, task=random.choice(("polynomial_memory", "digits")), among=among, optimizer="sgd", steps=(60, 80))
    what = random.choice(("clip", "rate", "labels"))
    possible: dict[str, Config] = {
        "clip": {"optimizer.grad_clip": 1e-8},
        "rate": {"optimizer.lr": 1e-9},
        "labels": {"task.base": "digits", "task.fault": "random_labels", "task.how": "from", "task.at": 1},
    }
    return configured("Learned nothing", what, config, possible[what], alive=LEARNED_NOTHING)


def _loss_operations(random: Random) -> FamilyPlant:
    kind, fault = "Operations of the loss without a value", random.choice(("zero_by_zero", "root_of_zero", "cosine_of_zero"))
    task = random.choice(("polynomial_memory", "digits"))
    return _task_plant(random, kind, fault, 1, {"bad_loss", "wrong_gradient"}, step=True, task=task)


def _dss_direct(random: Random) -> FamilyPlant:
    config = base(random, task="polynomial_memory", among=("dss",), optimizer="adamw", steps=(50, 70), every=(1, 1, 2))
    lr = random.choice((0.5, 1.0, 1.5))
    changes = {"model.reparameterization.name": "direct", "optimizer": {"name": "adamw", "lr": lr}, "task.length": 50}
    return configured("DSS with direct", f"AdamW {lr:g}", config, changes, must_die=True)


def _direct_layers(random: Random) -> FamilyPlant:
    among = tuple(name for name in WITH_MAPS if name not in ("dss", "stable_ssm"))
    config = base(random, task="polynomial_memory", optimizer="adamw", steps=(50, 70), every=(1, 1, 2))
    layer = layer_of(random, among)
    lr = random.choice((0.1, 0.3, 0.5))
    changes: Config = {"model.layer": layer, "model.reparameterization": {"name": "direct"}, "optimizer.lr": lr}
    return configured("Layers with direct under AdamW", f"{layer['name']}, lr {lr:g}", config, changes)


def _healthy(random: Random) -> FamilyPlant:
    config = base(random, among=tuple(LAYERS), steps=(40, 80))
    return FamilyPlant("Healthy, every layer", config["model"]["layer"]["name"], config)


def _watched(
    name: str, fault: str, numbers: tuple[float, ...], causes: set[str], *, how: str = "once", must_die: bool = True,
    alive: str = "", optimizers: tuple[str, ...] = ("adamw", "sgd"), **options: Any,
) -> Callable[[Random], FamilyPlant]:  # fmt: skip
    """A family of a fault in a user's own loop."""

    def draw(random: Random) -> FamilyPlant:
        optimizer = random.choice(optimizers)
        made = {
            "model": random.choice(("LRU", "S4DKernel", "Mamba", "RGLRULike")), "layers": random.choice((1, 2)),
            "optimizer": optimizer, "lr": 0.05 if optimizer == "sgd" else 0.01, "steps": random.randint(40, 60), "batch": 4,
            "length": 24, "seed": random.randrange(1000), "fault": fault, "at": random.randint(5, 25), "how": how,
            "size": random.choice(numbers), **options,
        }  # fmt: skip
        return FamilyPlant(name, fault, {}, None, frozenset(causes), alive=alive, must_die=must_die, watched=made)

    return draw


DEVELOPMENT = (
    ("Layers under SGD at a rate that kills", 16, _rate_kills),
    ("Loss divided by a small number in one step", 6, _divided_once),
    ("Gradient ascent from the first step", 8, _ascends),
    ("All labels ignored in one step", 6, _all_ignored),
    ("Inputs 255 times larger from a step on", 10, _scaled_inputs),
    ("Backward pass of the loss too steep", 10, _steeper),
    ("Backward pass of a layer wrong in training mode only", 8, _in_training_only),
    ("A map that reaches 1.2", 8, _beyond_one),
    ("NaN made in the forward pass of a layer", 12, _forward_nan),
    ("Half precision inside a layer", 6, _half_in_layer),
    ("Half precision inside the loss from a step on", 6, _half_in_loss),
    ("Recurrent rate times recurrent weight decay above 2", 8, _recurrent_decay),
    ("A loss that keeps a sum", 6, _unreset),
    ("Learned nothing", 12, _learned_nothing),
    ("Operations of the loss without a value", 9, _loss_operations),
    ("DSS with direct", 6, _dss_direct),
    ("Layers with direct under AdamW", 14, _direct_layers),
    ("Healthy, every layer", 18, _healthy),
    (
        "Watched: root of zero in the loss",
        6,
        _watched("Watched: root of zero", "root_of_zero", (1,), {"bad_loss", "wrong_gradient"}),
    ),
    ("Watched: NaN in the loss", 6, _watched("Watched: NaN in the loss", "nan_loss", (1,), {"bad_loss"})),
    (
        "Watched: a rate that jumps",
        8,
        _watched(
            "Watched: rate", "rate_jumps", (1e4, 1e6), {"lr_too_large", "optimizer", "explosion"}, how="few", must_die=False
        ),
    ),
    (
        "Watched: an absurd weight",
        6,
        _watched("Watched: absurd weight", "absurd_weight", (3e30,), {"model_forward", "optimizer", "unknown"}, must_die=False),
    ),
    (
        "Watched: a scaler that skips every step",
        4,
        _watched(
            "Watched: skips", "skipped", (1,), set(), how="from", at=1, must_die=False, alive=LEARNED_NOTHING + "|skipped|chang"
        ),
    ),
    ("Watched: healthy loops", 6, _watched("Watched: healthy", "none", (1,), set(), must_die=False)),
)


def _of_kind(kind: Kind) -> Family:
    """A kind of the first benchmark as a family."""

    def draw(random: Random) -> FamilyPlant:
        plant = kind.draw(random)
        return FamilyPlant(**{name: getattr(plant, name) for name in plant.__dataclass_fields__})

    return Family(f"First benchmark: {kind.name}", "development", kind.share, draw, "first benchmark", first=True)


PLACES = {  # the words of a family's name -> where its fault is; the first that fits decides
    "Watched": "watched", "Healthy": "lives", "Learned nothing": "lives", "First benchmark": "first benchmark", "labels": "data",
    "Inputs": "data", "Backward": "backward", "map that": "map", "forward pass": "forward", "inside a layer": "forward",
    "decay": "optimizer", "rate": "optimizer", "direct": "optimizer",
}  # fmt: skip


def _place(name: str) -> str:
    return next((place for words, place in PLACES.items() if words in name), "loss")


FAMILIES = (
    *(Family(name, "development", share, draw, _place(name)) for name, share, draw in DEVELOPMENT),
    *map(_of_kind, KINDS),
)
