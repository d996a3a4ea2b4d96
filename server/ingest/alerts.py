"""The built-in alerts of a reported run, which the server computes if the program computes none.

`stablessm.watch` computes them at every step and says so in its facts. A program that speaks the protocol by hand gets the same
alerts: the same detectors read the rows that it posts. How far they have come is stored in the run's row, in the transaction that
stores the rows. So a repeated post raises no alert again, and any server continues where the one before it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zstandard
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from server.database.models import Run, SeriesRow
from stablessm_core.report.messages import COMPUTES_ALERTS
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import PackedBlock
from stablessm_core.telemetry.column_reader import LayerForm
from stablessm_core.telemetry.detectors import KINDS, Alert, Detectors
from stablessm_core.telemetry.detectors.registry import THRESHOLDS
from stablessm_core.telemetry.detectors.steps import Steps, steps_of
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import how_of
from stablessm_core.telemetry.reported_rows import OutsideReader
from stablessm_core.telemetry.sink import Flush

OWN = b""  # the state of a run whose program computes its alerts itself
OLD_WATCH = {"device", "torch", "python", "gradient"}  # the facts of `stablessm.watch` before it said what it computes
NO_EIGENVALUE = Form("none", "discrete", "none")
MAX_STATE = 16 << 20  # bytes; the states of the groups that were posted first are forgotten
MAX_PIECES = 256  # of the rows of one event that do not follow each other evenly; further pieces raise no alert
SCALARS = (names.TRAIN_LOSS, names.SKIPPED, names.SCALE, names.BATCH_NONFINITE)
State = dict[str, dict[str, np.ndarray]]  # of the detectors of each set of groups that are posted together


def computes_alerts(facts: Any) -> bool:
    """True if these facts are those of a program that computes the built-in alerts itself."""
    return isinstance(facts, Mapping) and (facts.get(COMPUTES_ALERTS) is True or facts.keys() == OLD_WATCH)


def built_in_alerts(
    session: Session, run: Run, catalogue: Catalogue, flushes: Sequence[Flush], blocks: Sequence[PackedBlock]
) -> list[Alert] | None:
    """The alerts that the new blocks raise; None if the program computes them itself. The caller has locked the run's row, and
    stores the alerts with the blocks."""
    stored = session.scalar(select(Run.detector_state).where(Run.id == run.id))
    if stored == OWN:
        return None
    own = any(KINDS[alert.kind].detect is not None for flush in flushes for alert in flush.alerts)
    if own or (stored is None and computes_alerts(run.environment)):
        _keep(session, run.id, OWN)
        return None
    batches = catalogue.batches(blocks)
    if not batches:
        return []
    state, found = _unpacked(stored), []
    for batch in batches:
        detectors = catalogue.detectors(batch.groups, steps_of_run(run))
        detectors.restore(state.pop(batch.key, {}))
        for rows in batch.pieces():
            found += catalogue.scan(batch.groups, rows, detectors)
        state[batch.key] = detectors.state()
    _keep(session, run.id, _packed(state))
    return sorted(found, key=lambda alert: alert.step)


def last_alerts(session: Session, run: Run) -> list[Alert]:
    """The alerts whose conditions have held since they were last raised, with their durations, at the end of the run."""
    stored = session.scalar(select(Run.detector_state).where(Run.id == run.id))
    found = []
    for state in _unpacked(stored).values():
        detectors = Detectors([])
        detectors.restore(state)
        found += detectors.durations()
    return sorted(found, key=lambda alert: alert.step)


def steps_of_run(run: Run) -> Steps:
    """Whether the steps of the run's optimizer grow with the gradient."""
    how = how_of(run)
    return steps_of([how.optimizer] if how.optimizer else [], clips=how.grad_clip is not None)


@dataclass(frozen=True)
class Piece:
    """Rows that are `stride` steps apart: first_step, stride, and float32 (rows, width) of each series by name."""

    first_step: int
    stride: int
    columns: dict[str, np.ndarray]


@dataclass
class Batch:
    """New rows at the same steps of several groups. steps: ascending. columns: float32 (rows, width) of each series by name."""

    steps: np.ndarray
    groups: list[str] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return " ".join(self.groups)

    def pieces(self) -> Iterator[Piece]:
        """The rows, cut where the distance between two steps changes."""
        at = 0
        for _ in range(MAX_PIECES):
            if at >= len(self.steps):
                return
            apart = np.diff(self.steps[at:])
            stride = int(apart[0]) if len(apart) else 1
            other = np.flatnonzero(apart != stride)
            end = at + 1 + (int(other[0]) if len(other) else len(apart))
            yield Piece(int(self.steps[at]), stride, {name: values[at:end] for name, values in self.columns.items()})
            at = end


class Catalogue:
    """The recorded series of a run, as the detectors need them. A layer needs its weights and what its form derives from."""

    def __init__(self, session: Session, run: Run) -> None:
        of = SeriesRow.__table__.c
        rows = select(of.name, of.group_name, of.column_offset, of.width, of.form)
        rows = rows.where(of.run_id == run.id, of.derived.is_(False)).order_by(of.group_name, of.column_offset)
        self._series: dict[str, list[Any]] = {}
        for row in session.execute(rows):
            self._series.setdefault(row.group_name, []).append(row)
        paths = [str(layer.get("path") or "") for layer in run.layers or ()]
        self._layers = {group: form for group in self._series if (form := self._layer(group, paths)) is not None}
        self._scalars = {group for group, rows in self._series.items() if any(row.name in SCALARS for row in rows)}

    def _layer(self, group: str, paths: Sequence[str]) -> LayerForm | None:
        """The layer whose weights the group holds; None if it holds none from which its eigenvalues follow."""
        index, own = names.layer_of(group), {row.name.rpartition("/")[2]: row for row in self._series[group]}
        if index is None or "weight" not in own or group.endswith(names.MEASURED_GROUPS):
            return None
        form = NO_EIGENVALUE if own["weight"].form is None else Form.from_data(own["weight"].form)
        if not {*form.inputs} <= own.keys():
            return None
        record = group.removeprefix(names.LAYER_GROUPS).partition(".")[2]
        path = (paths[index] if index < len(paths) else "") or group
        more: dict[str, str] = {kind: f"{path} ({kind})" for kind in ("phase_weight", "dt") if kind in own}
        return LayerForm(index, path, form, own["weight"].width, record=record, paths=more)

    def batches(self, blocks: Sequence[PackedBlock]) -> list[Batch]:
        """The new rows of the groups that the detectors read."""
        own: dict[str, list[PackedBlock]] = {}
        for block in blocks:
            if block.level == 0 and (block.group in self._layers or block.group in self._scalars):
                own.setdefault(block.group, []).append(block)
        found: dict[bytes, Batch] = {}
        for group in sorted(own):
            parts = sorted(own[group], key=lambda block: block.first_step)
            steps = np.concatenate([b.first_step + b.stride * np.arange(b.point_count, dtype=np.int64) for b in parts])
            values = np.concatenate([block.values for block in parts], axis=1).T
            batch = found.setdefault(steps.tobytes(), Batch(steps))
            batch.groups.append(group)
            for row in self._series[group]:
                batch.columns[row.name] = values[:, row.column_offset : row.column_offset + row.width]
        return list(found.values())

    def detectors(self, groups: Sequence[str], steps: Steps) -> Detectors:
        """The detectors of groups that are posted together."""
        unused = () if self._has(groups, names.TRAIN_LOSS) else ("max_loss_over_best",)
        settings = {one.name: one.default for one in THRESHOLDS if one.name not in unused}
        return Detectors([name for _, name, _, _ in self._parameters(groups)], None, steps=steps, **settings)

    def scan(self, groups: Sequence[str], piece: Piece, detectors: Detectors) -> list[Alert]:
        """The alerts that these rows raise."""
        count = len(next(iter(piece.columns.values())))
        layers = [self._layers[group] for group in groups if group in self._layers]
        nothing = np.zeros((count, 1), np.float32)
        columns = {names.TRAIN_LOSS: nothing, names.SKIPPED: nothing} | piece.columns
        columns[names.NORMS] = self._norms(groups, columns, count)
        reader = OutsideReader(layers, detectors, has_loss=self._has(groups, names.TRAIN_LOSS))
        rows, _ = reader.read(piece.first_step, columns)
        return detectors.scan(replace(rows, stride=piece.stride))

    def _has(self, groups: Sequence[str], name: str) -> bool:
        return any(row.name == name for group in groups for row in self._series[group])

    def _parameters(self, groups: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """The series, the name and the ratio's series of each parameter, and the series of its gradient."""
        for group in groups:
            if (layer := self._layers.get(group)) is not None:
                yield f"{group}/weight", layer.path, f"{group}/grad_over_weight", f"{group}/gradient"
                for kind, path in layer.paths.items():
                    yield f"{group}/{kind}", path, f"{group}/grad_over_phase" if kind == "phase_weight" else "", ""

    def _norms(self, groups: Sequence[str], columns: Mapping[str, np.ndarray], count: int) -> np.ndarray:
        """The largest |x| of each parameter, then of each gradient: not finite if and only if one number is not finite."""
        weights, gradients = [], []
        for series, _, ratio, gradient in self._parameters(groups):
            weight = columns[series]
            weights.append(np.abs(weight).max(axis=1, initial=0))
            if gradient in columns:
                gradients.append(np.abs(columns[gradient]).max(axis=1, initial=0))
            elif ratio in columns and columns[ratio].shape == weight.shape:
                # a ratio to a weight that is 0 or not finite says nothing about the gradient
                known = np.isfinite(weight) & (weight != 0)
                gradients.append(np.where(known, np.abs(columns[ratio]), 0).max(axis=1, initial=0))
            else:
                gradients.append(np.zeros(count, np.float32))
        return np.stack([*weights, *gradients], axis=1) if weights else np.zeros((count, 0), np.float32)


def _keep(session: Session, run_id: int, state: bytes) -> None:
    statement = update(Run).where(Run.id == run_id).values(detector_state=state)
    session.execute(statement.execution_options(synchronize_session=False))


def _packed(state: State) -> bytes:
    """The arrays of each set of groups: a head in JSON, then the numbers. Only of the newest sets if all exceed MAX_STATE."""
    sizes = {key: sum(array.nbytes for array in arrays.values()) for key, arrays in state.items()}
    kept = dict(state)
    while len(kept) > 1 and sum(sizes[key] for key in kept) > MAX_STATE:
        kept.pop(next(iter(kept)))
    head = [[key, name, a.dtype.str, a.shape] for key, arrays in kept.items() for name, a in arrays.items()]
    text = json.dumps(head).encode()
    numbers = b"".join(np.ascontiguousarray(a).tobytes() for arrays in kept.values() for a in arrays.values())
    return zstandard.ZstdCompressor(level=1).compress(len(text).to_bytes(4, "little") + text + numbers)


def _unpacked(stored: bytes | None) -> State:
    if not stored:
        return {}
    data = zstandard.ZstdDecompressor().decompress(bytes(stored))
    at = 4 + int.from_bytes(data[:4], "little")
    found: State = {}
    for key, name, dtype, shape in json.loads(data[4:at]):
        size = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        found.setdefault(key, {})[name] = np.frombuffer(data[at : at + size], dtype).reshape(shape).copy()
        at += size
    return found
