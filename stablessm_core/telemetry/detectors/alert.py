"""What an alert is, and what one kind of alert has in common: its name, severity, meaning, setting and detector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from stablessm_core.telemetry.detectors.rows import Rows

Severity = Literal["warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something a person should see, and where it happened. `value` may be NaN or infinite; `series` names the chart it is on."""

    kind: str
    severity: Severity
    step: int
    message: str
    series: str = ""
    layer: int | None = None
    eigenvalue: int | None = None
    tensor: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Condition:
    """Something that is true in some of the rows; `alert` makes the alert of a row in which it begins.

    `layer` is the record's id, "0" or "0.dt_bias"; None when the condition is about the whole model.
    """

    layer: str | None
    holds: Any  # bool array (rows,); numpy types the result of any(axis=1) as either array or scalar
    alert: Callable[[int], Alert]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What of the run's configuration says how its weights move and what its states bear.

    length: of the sequences. limit: the overflow budget at which numbers overflow (`stability.budget_limit`). recurrent: the
    learning rate of the eigenvalue weights over the common one. grad_clip: largest global norm of the gradient, or None.
    """

    length: int
    limit: float
    optimizer: str = "adamw"
    momentum: float = 0.0
    nesterov: bool = False
    recurrent: float = 1.0
    grad_clip: float | None = None


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a detector knows beside the rows. `threshold` is the alert's setting, 0 for an alert that has none.

    `setup` is None where nobody said it: what needs it stays silent. `memory` is the detector's own from flush to flush, by
    layer; checkpoints keep it.
    """

    parameters: list[str]
    setup: Setup | None = None
    threshold: float = 0.0
    memory: dict[str, np.ndarray] = field(default_factory=dict)


Detect = Callable[[Rows, Watch], Iterable[Condition]]


@dataclass(frozen=True, kw_only=True)
class AlertKind:
    """One kind of alert. `meaning` is one sentence that the documentation and the API show.

    `settings` is the alert's part of the configuration's `alerts` section: a model with one field, whose null switches the
    alert off. `detect` finds the alert in recorded rows; None when another part of the program raises it.
    """

    name: str
    severity: Severity
    meaning: str
    detect: Detect | None = None
    settings: type[BaseModel] | None = None
    nonfinite: bool = False  # numbers are lost: the run ends here unless `train.on_nonfinite` says otherwise
    comes_before: bool = False  # numbers are soon lost: where it is critical, `train.on_warning` says what to do
    of_attempt: bool = False  # about an attempt and not about a step: the next attempt may raise it again at the same step

    @property
    def setting(self) -> str | None:
        """Name of the field in the configuration's `alerts` section."""
        return None if self.settings is None else next(iter(self.settings.model_fields))

    def alert(
        self,
        *,
        step: int,
        message: str,
        series: str = "",
        layer: int | None = None,
        eigenvalue: int | None = None,
        tensor: str = "",
        value: float | None = None,
    ) -> Alert:
        return Alert(
            kind=self.name,
            severity=self.severity,
            step=step,
            message=message,
            series=series,
            layer=layer,
            eigenvalue=eigenvalue,
            tensor=tensor,
            value=value,
        )
