"""The protocol `Watchable`, through which a layer declares what is recorded from it: records with a weight and a form each.

The telemetry, the server and the charts use no other information about a layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form


@dataclass(frozen=True)
class Record:
    """A group of a layer's eigenvalues, or of weights that determine eigenvalues, and the form that computes the eigenvalues.

    weight: any shape, one eigenvalue per element, flattened row by row. It is a parameter, or a constant tensor for the form
    "fixed"; None if there are `rows`. log_dt: logarithms of the step sizes, if the form records them as "dt". If there are
    fewer step sizes than eigenvalues, neighbouring eigenvalues share a step size. phase: the second weight of complex
    eigenvalues, with as many elements as `weight`. rows: parameters whose first axis has one entry per eigenvalue, if a whole
    row of weights determines an eigenvalue. The norm of each row and the norm of its gradient are recorded. gate: the name of
    the form's gate in the layer's `gates`. Neighbouring eigenvalues share gate values in the same way as step sizes. gates: the
    number of gate values. constant_gate: True if the gate does not depend on the input. gradient: record |dL/dw| in addition to
    |dL/dw / w|, because weights may be exactly 0. name: "" for the layer's first record, which contains the layer's own
    eigenvalues; otherwise the record's name in the names of its series, in lower case.
    """

    form: Form
    weight: Tensor | None = None
    log_dt: nn.Parameter | None = None
    phase: nn.Parameter | None = None
    rows: tuple[nn.Parameter, ...] = ()
    gate: str = ""
    gates: int = 0
    constant_gate: bool = False
    gradient: bool = False
    name: str = ""

    @property
    def width(self) -> int:
        return self.rows[0].shape[0] if self.weight is None else self.weight.numel()

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that are recorded element by element. They form the optimizer's recurrent group."""
        return [p for p in (self.weight, self.log_dt, self.phase) if isinstance(p, nn.Parameter)]


@runtime_checkable
class Watchable(Protocol):
    """A layer whose eigenvalues are recorded.

    last_state: the final state of the last forward, detached, (batch, eigenvalues of the first record); None before the first
    forward. For complex states it is the absolute value. For several states per eigenvalue it is the largest.
    """

    last_state: Tensor | None

    def records(self) -> list[Record]:
        """The layer's records, the same list at every call. The first record holds the layer's eigenvalues."""

    def gates(self) -> dict[str, Tensor]:
        """For each gate the smallest, mean and largest value over batch and time in the last forward: (3, values), detached.

        {} if the layer has no gates. The values are s_t of the form's decay, or -ln|lambda_bar_t| for the map "gate".
        """


@runtime_checkable
class Measured(Protocol):
    """A layer that also reports values that are computed only during evaluations, because they are too expensive for every
    step."""

    def measured(self) -> dict[str, Tensor]:
        """The layer's current values by the kind of their series (`telemetry.series`), each (n,), detached."""


@dataclass(frozen=True)
class WatchedRecord:
    """A record of a layer in a model.

    layer: the number of the layer in forward order. module: the layer. path: the path of the record's parameter in the model, or
    of its buffer for the form "fixed". wide: True if only quantiles and extremes are recorded. id: identifies the record in the
    names of its series, for example "0" for the first record of a layer and "0.dt_bias" for a further record. paths: the paths
    of log_dt ("dt") and of the phase ("phase_weight"), if the record has them.
    """

    layer: int
    module: Watchable
    record: Record
    path: str
    wide: bool
    paths: dict[str, str] = field(default_factory=dict)

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
        """The record's series, in the column order of the record's blocks: first the recorded series, then the derived ones."""
        record = self.record
        if self.wide:
            return names.wide_layer_catalogue(self.id, self.form, gates=record.gates)
        steps = None if record.log_dt is None else record.log_dt.numel()
        return names.layer_catalogue(self.id, self.width, self.form, steps=steps, gates=record.gates, gradient=record.gradient)

    @property
    def first(self) -> bool:
        """True if this is the layer's first record. The layer's final state belongs to the eigenvalues of that record."""
        return not self.record.name


def watched_records(model: nn.Module, *, all_eigenvalues: bool = False) -> list[WatchedRecord]:
    """Every record of every Watchable in `model`, in the order of the model's modules.

    If a Watchable contains another Watchable, only the records of the outer Watchable are used.
    Raises ValueError for a record whose fields contradict each other.
    """
    paths = {id(tensor): path for path, tensor in (*model.named_buffers(), *model.named_parameters())}
    found: list[WatchedRecord] = []
    layers: list[Watchable] = []
    inner: set[int] = set()
    places = {id(module): place for place, module in model.named_modules()}
    for module in model.modules():
        if not isinstance(module, Watchable) or id(module) in inner:
            continue
        inner |= {id(part) for part in module.modules()}
        for record in module.records():
            _check(record)
            main = record.rows[0] if record.weight is None else record.weight
            wide = record.width > names.WIDE and not all_eigenvalues
            path = paths.get(id(main)) or ".".join(filter(None, (places[id(module)], record.name or "eigenvalues")))
            second = {"dt": record.log_dt, "phase_weight": record.phase}
            others = {kind: paths[id(p)] for kind, p in second.items() if id(p) in paths}
            found.append(WatchedRecord(len(layers), module, record, path, wide, others))
        layers.append(module)
    return found


def _check(record: Record) -> None:
    form, width = record.form, record.width
    if (record.log_dt is None) == ("dt" in form.inputs):
        raise ValueError(f"record {record.name!r} has dt {form.dt!r}; needs log_dt exactly for 'dt'")
    if (record.phase is None) == (form.phase is not None):
        raise ValueError(f"record {record.name!r} has phase {form.phase!r}; needs a phase weight exactly if its form has one")
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
