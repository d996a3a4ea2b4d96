"""How a run trains: one record for runs that our workers train and for runs that other programs report.

The verdict, the pages, the progress and the alerts read this record. They never read the configuration of a reported run. A
field is None if it is unknown, and then nobody says anything that depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol

from stablessm_core.telemetry.limits import MAX_HOW_NAME, MAX_STEP

RECORDED: Literal["recorded"] = "recorded"  # the learning rate of each step is in the series optim/lr


class HasHow(Protocol):
    """A row of a run. how: the stored record; None if it follows from `config`, the configuration of a trained run."""

    config: Any
    how: Any


@dataclass(frozen=True, kw_only=True)
class How:
    """How a run trains.

    optimizer: its name. lr: "recorded" if the learning rate of each step is recorded, else one number for all steps. grad_clip:
    the norm to which the gradient is clipped. length: the sequence length, in tokens. every: every how many steps have a
    recorded row. precision: the name of the type of the arithmetic, such as "bfloat16". total_steps: the steps of the whole
    training.
    """

    optimizer: str | None = None
    lr: float | Literal["recorded"] | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    grad_clip: float | None = None
    length: int | None = None
    every: int | None = None
    precision: str | None = None
    total_steps: int | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The record as plain data, for JSON."""
        return asdict(self)


NAMES = tuple(field.name for field in fields(How))


def how_of(run: HasHow) -> How:
    """How the run trains: from its stored record, else from its configuration."""
    return how_of_config(run.config) if run.how is None else read_how(run.how)


def how_of_config(config: Any) -> How:
    """How a run with this configuration of ours trains. An empty configuration gives unknown fields."""
    if not isinstance(config, Mapping) or not config:
        return How()
    optimizer, train, task = (_section(config, name) for name in ("optimizer", "train", "task"))
    return read_how({
        "optimizer": optimizer.get("name", "adamw"),
        "lr": RECORDED,
        "momentum": optimizer.get("momentum", 0.0),
        "nesterov": optimizer.get("nesterov", False),
        "grad_clip": optimizer.get("grad_clip"),
        "length": task.get("length"),
        "every": _section(config, "telemetry").get("every", 1),
        "precision": train.get("precision", "float32"),
        "total_steps": train.get("steps"),
    })  # fmt: skip


def read_how(data: Any) -> How:
    """The record from stored plain data. Fields that are missing, of another type or out of range become None."""
    if not isinstance(data, Mapping):
        return How()
    lr = data.get("lr")
    return How(
        optimizer=_name(data.get("optimizer")),
        lr=RECORDED if lr == RECORDED else _number(lr),
        momentum=_number(data.get("momentum")),
        nesterov=nesterov if isinstance(nesterov := data.get("nesterov"), bool) else None,
        grad_clip=_number(data.get("grad_clip")),
        length=_count(data.get("length")),
        every=_count(data.get("every")),
        precision=_name(data.get("precision")),
        total_steps=_count(data.get("total_steps")),
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_HOW_NAME else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_STEP else None
