"""An alert, and a kind of alert: its name, severity, meaning, setting and detector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values
from stablessm_core.telemetry.detectors.steps import Steps, steps_of

Severity = Literal["warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An event that users should see, and where it happened. `value` may be NaN or infinite. `series` names the chart to show.

    lasted: the number of steps on which the condition has held. If it is above 1, the alert extends an earlier alert of the same
    kind and step, and only its message differs.
    """

    kind: str
    severity: Severity
    step: int
    message: str
    series: str = ""
    layer: int | None = None
    eigenvalue: int | None = None
    tensor: str = ""
    value: float | None = None
    lasted: int = 1

    @property
    def event(self) -> tuple[str, str, str, int]:
        """What an alert and its extensions have in common, and no other alert."""
        return self.kind, self.series, self.tensor, self.step


@dataclass(frozen=True)
class Condition:
    """A condition that holds in some of the rows. `alert` makes the alert for a row in which the condition starts to hold.

    layer: the record's id, "0" or "0.dt_bias"; None if the condition is about the whole model. critical: the rows in which the
    alert is critical, if its severity depends on the row. A critical row raises an alert of its own in an episode that began
    with a warning.
    """

    layer: str | None
    holds: Any  # bool array (rows,); typed as Any because numpy's type for any(axis=1) is array or scalar
    alert: Callable[[int], Alert]
    critical: Any = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The part of a run's configuration that determines how its weights move and when its states overflow.

    length: the sequence length. limits: for each layer, the overflow budget at which numbers overflow
    (`stability.layer_limits`). recurrent: the learning rate of the eigenvalue weights divided by the general learning rate.
    grad_clip: the norm to which the gradient is clipped, or None. skips_bad_batches: True if the run does not train on batches
    with NaN or infinities.
    """

    length: int
    limits: Sequence[float]
    optimizer: str = "adamw"
    momentum: float = 0.0
    nesterov: bool = False
    recurrent: float = 1.0
    grad_clip: float | None = None
    skips_bad_batches: bool = False

    @property
    def steps(self) -> Steps:
        """Whether the steps of the weights grow with the gradient."""
        return steps_of([self.optimizer], clips=self.grad_clip is not None)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The data that a detector receives in addition to the rows.

    parameters: the names of the model's parameters. setup: None if unknown; detectors that need the setup then raise no alert.
    steps: whether the optimizer's steps grow with the gradient; this may be known if the setup is not. threshold: the alert's
    setting, 0 if the alert has no setting. memory: arrays that the detector keeps from flush to flush, by layer; checkpoints
    store these arrays.
    """

    parameters: list[str]
    setup: Setup | None = None
    steps: Steps = "unknown"
    threshold: float = 0.0
    memory: dict[str, np.ndarray] = field(default_factory=dict)


Detect = Callable[[Rows, Watch], Iterable[Condition]]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A number in the configuration's `alerts` section, its default and its allowed range. Null switches the alert off."""

    name: str
    default: float
    description: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


@dataclass(frozen=True, kw_only=True)
class AlertKind:
    """One kind of alert. `meaning` is a short text that the documentation and the API show.

    threshold: the alert's field in the configuration's `alerts` section. detect: finds the alert in recorded rows; None if
    another part of the program raises the alert.
    """

    name: str
    severity: Severity
    meaning: str
    detect: Detect | None = None
    threshold: Threshold | None = None
    nonfinite: bool = False  # True if the alert reports a NaN or infinity, which by default ends the run (`train.on_nonfinite`)
    comes_before: bool = False  # True if the alert predicts non-finite numbers; if critical, it triggers `train.on_warning`
    of_attempt: bool = False  # True if the alert is about an attempt, not a step; the next attempt may raise it again

    @property
    def setting(self) -> str | None:
        """Name of the field in the configuration's `alerts` section."""
        return None if self.threshold is None else self.threshold.name

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


def eigenvalue_alert(
    kind: AlertKind,
    rows: Rows,
    row: int,
    layer: LayerRows,
    values: Values,
    column: int,
    *,
    chart: str,
    count: int,
    what: str,
    tensor: str = "",
    more: str = "",
) -> Alert:
    """An alert that names one eigenvalue of a layer: the eigenvalue in `column` of `values`.

    chart: the kind of the layer's series that shows the problem. count: how many eigenvalues meet the condition. what: the text
    of the message, with the number and its comparison. more: text after the number of other eigenvalues.
    """
    value, eigenvalue = float(values.values[row, column]), values.eigenvalue(row, column)
    assumed = " (its map is assumed)" if layer.assumed else ""
    others = ""
    if count > 1:
        known = f"{count - 1} of the other {values.values.shape[1] - 1}" if values.at is None else f"at least {count - 1} other"
        others = f"; the same holds for {known} eigenvalues"
    return kind.alert(
        step=rows.step(row),
        message=f"layer {layer.layer}, eigenvalue {eigenvalue}{assumed}: {what}{others}{more}",
        series=names.layer_series(layer.id, chart),
        layer=layer.layer,
        eigenvalue=eigenvalue,
        tensor=tensor or layer.path,
        value=value,
    )
