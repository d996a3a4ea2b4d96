"""What is watched in a model. Any layer is watched the same way: it announces records, each a weight and its form, through
`Watchable`; nothing else about it is known here, nor in the probe, the recorder, the server or a chart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names


@dataclass(frozen=True)
class Record:
    """One group of eigenvalues of a layer, or of weights that decide about them, and the form by which they follow.

    weight: any shape, flattened row by row: one eigenvalue per element. A parameter, or a constant tensor for the form "fixed";
    None where `rows` are given. log_dt: logarithms of the step sizes, where the form says that they are recorded as "dt"; each
    belongs to as many neighbouring eigenvalues as there are more of them. phase: the second weight of complex eigenvalues, as
    many as of the first. rows: parameters whose first axis is the eigenvalue and whose rows together decide it, where no single
    weight does; recorded are then the norm of a row and that of its gradient. gate: which of the layer's
    `gates` is the form's; each value belongs to neighbouring eigenvalues as a step size does. gates: how many values it has.
    gradient: record |dL/dw| beside the ratio, because weights may be exactly 0. name: "" for the layer's own eigenvalues, the
    first record; else what the series of this one are called by, in lower case.
    """

    form: Form
    weight: Tensor | None = None
    log_dt: nn.Parameter | None = None
    phase: nn.Parameter | None = None
    rows: tuple[nn.Parameter, ...] = ()
    gate: str = ""
    gates: int = 0
    gradient: bool = False
    name: str = ""

    @property
    def width(self) -> int:
        return self.rows[0].shape[0] if self.weight is None else self.weight.numel()

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters whose training it watches one by one: they are in the optimizer's recurrent group."""
        return [p for p in (self.weight, self.log_dt, self.phase) if isinstance(p, nn.Parameter)]


@runtime_checkable
class Watchable(Protocol):
    """A layer whose eigenvalues are recorded.

    last_state: detached, the final state of the last forward; (batch, eigenvalues of the first record), of complex states the
    absolute value, of states with more numbers per eigenvalue the largest. None before the first forward.
    """

    last_state: Tensor | None

    def records(self) -> list[Record]:
        """What is watched; the first record holds the layer's eigenvalues. The same list at every call."""

    def gates(self) -> dict[str, Tensor]:
        """Per gate (3, values): smallest, mean and largest over batch and time in the last forward, detached; {} if it has none.

        The values are s_t of the form's decay, or -ln|lambda_bar_t| for the map "gate".
        """


@runtime_checkable
class Measured(Protocol):
    """A layer that computes more at evaluations than could be computed at every step."""

    def measured(self) -> dict[str, Tensor]:
        """By the kind of its series (`telemetry.series`), numbers of the layer as it stands, (n,), detached."""


@dataclass(frozen=True)
class WatchedRecord:
    """A record of a model: the number of its layer in forward order, where its numbers come from, its parameter path.

    id: what its series are called by, "0", or "0.dt_bias" for a further record of the layer.
    """

    layer: int
    module: Watchable
    record: Record
    path: str
    wide: bool

    @property
    def id(self) -> str:
        return f"{self.layer}.{self.record.name}" if self.record.name else str(self.layer)

    @property
    def form(self) -> Form:
        return self.record.form

    @property
    def width(self) -> int:
        return self.record.width

    @property
    def catalogue(self) -> list[names.SeriesSpec]:
        """Its series, recorded ones first, in the column order of its blocks."""
        record = self.record
        if self.wide:
            return names.wide_layer_catalogue(self.id, self.form, gates=record.gates)
        steps = None if record.log_dt is None else record.log_dt.numel()
        return names.layer_catalogue(self.id, self.width, self.form, steps=steps, gates=record.gates, gradient=record.gradient)

    @property
    def first(self) -> bool:
        """Whether it holds the eigenvalues of its layer, to which the final state belongs."""
        return not self.record.name


def watched_records(model: nn.Module, *, all_eigenvalues: bool = False) -> list[WatchedRecord]:
    """Every record of every Watchable in `model`, in the order of its modules. A Watchable inside another is the outer's matter.

    Raises ValueError for a record that does not fit together.
    """
    paths = {id(p): path for path, p in model.named_parameters()}
    found: list[WatchedRecord] = []
    layers: list[Watchable] = []
    inner: set[int] = set()
    for module in model.modules():
        if not isinstance(module, Watchable) or id(module) in inner:
            continue
        inner |= {id(part) for part in module.modules()}
        for record in module.records():
            _check(record)
            main = record.rows[0] if record.weight is None else record.weight
            wide = record.width > names.WIDE and not all_eigenvalues
            found.append(WatchedRecord(len(layers), module, record, paths.get(id(main), record.name or "eigenvalues"), wide))
        layers.append(module)
    return found


def _check(record: Record) -> None:
    form, width = record.form, record.width
    if (record.log_dt is None) == ("dt" in form.inputs):
        raise ValueError(f"record {record.name!r} has dt {form.dt!r}; needs log_dt exactly for 'dt'")
    if (record.phase is None) == (form.phase is not None):
        raise ValueError(f"record {record.name!r} has phase {form.phase!r}; needs a phase weight exactly where its form has one")
    if bool(record.gate) != form.gate or (form.gate and (not record.gates or width % record.gates)):
        raise ValueError(
            f"record {record.name!r} has gate {record.gate!r} of {record.gates}; {width} eigenvalues must divide by it"
        )
    if record.log_dt is not None and width % record.log_dt.numel():
        raise ValueError(
            f"record {record.name!r} has {record.log_dt.numel()} step sizes; {width} eigenvalues must divide by them"
        )
    if record.phase is not None and record.phase.numel() != width:
        raise ValueError(f"record {record.name!r} has {record.phase.numel()} phases for {width} eigenvalues")
    if (record.weight is None) != bool(record.rows) or any(row.shape[0] != width for row in record.rows):
        raise ValueError(f"record {record.name!r} needs a weight, or rows of one length")
