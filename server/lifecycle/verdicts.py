"""The verdict on a stored run. Only a few of the recorded rows are read, so judging a run of a million steps is as fast as
judging a short run.

The last rows are read at full resolution. The best loss is found in the coarse levels. The first crossing of the boundary is
found in the coarse levels, and then in the few rows of the bucket that contains it. If no eigenvalue was ever outside the
boundary, as with bounded maps, this search is skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import case, select, update
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import AlertRow, Run, Transition
from server.database.payloads import DamagedPayload
from server.database.single_runs import try_for_run
from server.lifecycle.autopsies import findings_of
from server.lifecycle.reported import REPORTED
from server.series.layout import Layout
from server.series.plans import Selection
from server.series.reading import SeriesData, read_points, read_series
from stablessm_core import verdict
from stablessm_core.spec.model import Model
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.assumptions import reservation
from stablessm_core.telemetry.forms import Form, spread
from stablessm_core.telemetry.how import how_of
from stablessm_core.telemetry.limits import MAX_STEP
from stablessm_core.telemetry.statuses import AT_REST
from stablessm_core.verdict.facts import LOSS_TAIL, SPIKE_ROWS
from stablessm_core.verdict.memory_source import MemorySource, between

WINDOW = 3 * SPIKE_ROWS + 4  # number of rows of a layer that are read at once
EXACT = 4096  # maximum number of raw points per layer (fewer for a wide layer); longer runs are read from coarse levels
EXACT_NUMBERS = 400_000
SCALAR_POINTS = 1000
OPTIONAL_SCALARS = {
    "weight_norm": names.WEIGHT_NORM, "batch": names.BATCH_NONFINITE, "largest_input": names.LARGEST_INPUT,
    "largest_target": names.LARGEST_TARGET,
}  # fmt: skip
ALERT_FIELDS = ("kind", "step", "layer", "eigenvalue", "tensor", "value", "message")
ALERTS = 200  # maximum number of alerts read from the start of a run; the same maximum applies to the fatal step
EVALUATIONS = 10  # maximum number of evaluation losses that are read; other programs name theirs as they like
AT_ONCE = 20  # maximum number of runs judged in one call

log = logging.getLogger("stablessm.verdicts")


class Stored:
    """The recorded values of a run, for its verdict. Each block is read only once. Raises DamagedPayload."""

    def __init__(self, session: Session, layout: Layout, layers: list[verdict.Layer], every: int, crossed: bool | None) -> None:
        self.session, self.layout, self.every, self.crossed = session, layout, every, crossed
        self._layers = {layer.index: layer for layer in layers}
        self._windows: dict[int, verdict.Rows] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._scalars: verdict.Scalars | None = None
        self._distances: dict[int, SeriesData] = {}
        self._losses: SeriesData | None = None

    def scalars(self, low: int, high: int) -> verdict.Scalars:
        kept = self._scalars
        if kept is None or not len(kept) or low < kept.step[0] or high > kept.step[-1]:
            kept = self._scalars = self._read_scalars(min(low, high - LOSS_TAIL * self.every), high)
        return between(kept, low, high)

    def best_loss(self, before: int) -> tuple[int, float] | None:
        losses = self._loss_levels()
        chosen = losses.step < before
        low = _least(losses)[chosen, 0]
        low = np.where(np.isfinite(low), low, np.nan)
        if not len(low) or np.isnan(low).all():
            return None
        at = int(np.nanargmin(low))
        return int(losses.step[chosen][at]), float(low[at])

    def largest_loss(self, before: int) -> float | None:
        losses = self._loss_levels()
        values = losses.value if losses.max is None else losses.max
        assert values is not None
        high = values[losses.step < before, 0].astype(np.float64)
        high = high[np.isfinite(high)]
        return float(high.max()) if len(high) else None

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        known = [name for name in self.layout.series if names.is_evaluation_loss(name)][:EVALUATIONS]
        if not known:
            return np.empty(0, np.int64), np.empty(0)
        # the steps of free metrics may exceed those of the training
        parts = [self._raw(name, 0, MAX_STEP) for name in known]
        step = np.concatenate([part[0] for part in parts])
        loss = np.concatenate([part[1][0].astype(np.float64) for part in parts])
        order = np.argsort(step, kind="stable")
        return step[order], loss[order]

    def layer(self, index: int, low: int, high: int) -> verdict.Rows:
        first, last = self._spans.get(index, (0, -1))
        if low < first or high > last:
            first, last = min(low, high - WINDOW * self.every), high
            self._windows[index], self._spans[index] = self._read_layer(self._layers[index], first, last), (first, last)
        return between(self._windows[index], low, high)

    def first_outside(self, index: int, eigenvalue: int | None = None) -> int | None:
        layer = self._layers[index]
        if self.crossed is False or (layer.wide and eigenvalue is not None):
            return None
        found = self._distance_levels(layer)
        low = _least(found)
        outside = (low < 0).any(axis=1) if eigenvalue is None else low[:, eigenvalue] < 0
        if not outside.any():
            return None
        at = int(np.argmax(outside))
        if found.last_step is None or found.step[at] == found.last_step[at]:
            return int(found.step[at])
        chosen = None if eigenvalue is None else [eigenvalue]
        steps, values = self._raw(found.name, int(found.step[at]), int(found.last_step[at]), chosen)
        inside_bucket = (values < 0).any(axis=0)
        return int(steps[int(np.argmax(inside_bucket))]) if inside_bucket.any() else int(found.step[at])

    def steps_outside(self, index: int, to_step: int) -> tuple[int, int]:
        found = self._distance_levels(self._layers[index])
        some = (_least(found) < 0).any(axis=1) & (found.step <= to_step)
        if found.count is None or found.max is None:
            return int(some.sum()), int(some.sum())
        # all steps of a bucket are counted if one eigenvalue was outside the boundary at every step of the bucket
        whole = (found.max < 0).any(axis=1) & (found.nonfinite == 0).all(axis=1) if found.nonfinite is not None else some & False
        return int(found.count[some & whole].sum()), int(found.count[some].sum())

    def _read_scalars(self, low: int, high: int) -> verdict.Scalars:
        if names.TRAIN_LOSS not in self.layout.series:
            return NOTHING.scalars(low, high)
        step, loss = self._raw(names.TRAIN_LOSS, low, high)
        columns = {"loss": loss[0], "grad_norm": np.full(len(step), np.nan), "lr": np.full(len(step), np.nan)}
        for field, name in (("grad_norm", names.GRAD_NORM), ("lr", names.LR)):
            if name in self.layout.series:
                columns[field] = _aligned(step, *self._raw(name, low, high))
        optional = {
            field: _aligned(step, *self._raw(name, low, high)) if name in self.layout.series else None
            for field, name in OPTIONAL_SCALARS.items()
        }
        return verdict.Scalars(step=step, **columns, **optional)  # type: ignore[arg-type]

    def _read_layer(self, layer: verdict.Layer, low: int, high: int) -> verdict.Rows:
        def of(kind: str) -> np.ndarray:
            return np.ascontiguousarray(self._raw(names.layer_series(layer.index, kind), low, high)[1].T, np.float64)

        if layer.wide:
            kind = "boundary_distance_smallest"
            step = self._raw(names.layer_series(layer.index, kind), low, high)[0]
            return verdict.Rows(step=step, distance=of(kind), at=of(f"{kind}_index"))
        group = names.layer_group(layer.index)
        step = self._raw(names.layer_series(layer.index, "weight"), low, high)[0]
        kinds = [
            *(("grad_over_weight",) if f"{group}/grad_over_weight" in self.layout.series else ()),
            *(layer.form.recorded if layer.form else ("weight",)),
        ]
        recorded = spread({kind: of(kind) for kind in kinds}, layer.width)
        if layer.form is None:
            return verdict.Rows(step=step, distance=np.full_like(recorded["weight"], np.nan))
        return verdict.Rows.derived(layer.form, step, recorded)

    def _raw(self, name: str, low: int, high: int, eigenvalues: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        selection = Selection(self.layout, self.layout.find(name), eigenvalues)
        return read_points(self.session, selection, [(low, high)])

    def _distance_levels(self, layer: verdict.Layer) -> SeriesData:
        if layer.index not in self._distances:
            channels = layer.form is not None and layer.form.channels
            kind = "_smallest" if layer.wide else "_closest" if channels else ""
            name = names.layer_series(layer.index, f"boundary_distance{kind}")
            points = min(EXACT, max(256, EXACT_NUMBERS // min(layer.width, names.WIDE)))
            self._distances[layer.index] = read_series(
                self.session, self.layout.run_id, name, max_points=points, layout=self.layout
            )
        return self._distances[layer.index]

    def _loss_levels(self) -> SeriesData:
        if self._losses is None:
            self._losses = read_series(
                self.session, self.layout.run_id, names.TRAIN_LOSS, max_points=SCALAR_POINTS, layout=self.layout
            )
        return self._losses


def judge_run(session: Session, run: Run, *, ending: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The run's verdict. ending: the status, reason and divergence that the row is about to get. Raises DamagedPayload."""
    described, source = describe_run(session, run, ending=ending)
    return verdict.judge(described, source)


def describe_run(
    session: Session, run: Run, *, ending: Mapping[str, Any] | None = None
) -> tuple[verdict.Run, Stored | MemorySource]:
    """The run and its recorded numbers, as the verdict reads them. Raises DamagedPayload."""
    layout = Layout(session, run.id)
    reported = run.kind == REPORTED
    layers = _layers(layout, run)
    known = {"status": run.status, "reason": run.status_reason, "divergence": run.divergence} | dict(ending or {})
    # with on_nonfinite "continue" a run continues after NaN, so its last step is the last recorded step
    described = verdict.Run(
        step=layout.step,
        config=run.config,
        reported=how_of(run) if reported else None,
        paths=tuple(str(layer.get("path", "")) for layer in run.layers or ()),
        environment=run.environment,
        alerts=_alerts(session, run, (known["divergence"] or {}).get("step")),
        layers=layers,
        first_step=(run.forked_at_step or 0) + 1,
        autopsy=findings_of(session, run),
        **known,
    )
    crossed = None if run.nearest_distance is None else run.nearest_distance < 0
    if names.TRAIN_LOSS not in layout.series and not reported:
        return replace(described, layers=(), divergence=None), NOTHING
    return described, Stored(session, layout, layers, described.every, crossed)


def verdict_columns(session: Session, run: Run, *, ending: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The columns of the run's row that its final verdict determines."""
    found = judge_run(session, run, ending=ending)
    return {"cause": found["cause"], "unstable": found["unstable"], "judged_at": time.time()}


def judge_ended(database: Database, most: int = AT_ONCE) -> int:
    """Judge up to `most` ended runs without a verdict (from older versions, or ended by the server) and return their number."""
    waiting = select(Run.id).where(Run.status.in_(AT_REST), Run.judged_at.is_(None), Run.deleted_at.is_(None))
    with database.read() as session:
        runs = list(session.scalars(waiting.order_by(Run.id.desc()).limit(most)))
    for run_id in runs:
        if not try_for_run(run_id, "the verdict", partial(judge_one, database, run_id), False):
            cause = case((Run.status == "diverged", "unknown"))
            with database.write() as session:  # otherwise every round would fail for this run again
                failed = update(Run).where(Run.id == run_id, Run.status.in_(AT_REST), Run.judged_at.is_(None))
                session.execute(failed.values(cause=cause, judged_at=time.time()).execution_options(synchronize_session=False))
    return len(runs)


def judge_one(database: Database, run_id: int) -> bool:
    """Compute the verdict on an ended run again and store its columns."""
    with database.read() as session:
        run = session.get(Run, run_id)
        if run is None:
            return True
        attempt, values = run.attempt, _columns(session, run)
    with database.write() as session:
        # skip a run that was resumed in the meantime
        same = update(Run).where(Run.id == run_id, Run.attempt == attempt, Run.status.in_(AT_REST))
        session.execute(same.values(values).execution_options(synchronize_session=False))
    return True


def _columns(session: Session, run: Run) -> dict[str, Any]:
    try:
        return verdict_columns(session, run)
    except (DamagedPayload, LookupError, ValueError) as error:
        log.warning("no verdict: %s", error, extra={"run": run.id})
        return {"cause": "unknown" if run.divergence else None, "judged_at": time.time()}


def _layers(layout: Layout, run: Run) -> list[verdict.Layer]:
    found = []
    for name, row in layout.series.items():
        kind = name.rpartition("/")[2]
        if not name.startswith(names.LAYER_GROUPS) or kind not in ("weight", "boundary_distance_smallest"):
            continue
        index, wide = names.layer_of(row.group), kind != "weight"
        if index is None or row.group != names.layer_group(index):
            continue  # the series belongs to a further record of the layer, which has no eigenvalues
        form = layout.forms.get(row.group) if not wide else (Form.from_data(row.form) if row.form else None)
        width = _eigenvalues(run, index, row.width) if wide else row.width
        found.append(verdict.Layer(index, width, form, wide, reservation(_note(run, index))))
    return sorted(found, key=lambda layer: layer.index)


def _note(run: Run, index: int) -> str | None:
    """What the program of a reported run says about a layer."""
    layers = run.layers or []
    return layers[index].get("note") if run.kind == REPORTED and index < len(layers) else None


def _eigenvalues(run: Run, index: int, recorded: int) -> int:
    """The number of eigenvalues of a layer whose series contain only the extreme eigenvalues. recorded: the number of these."""
    if run.kind == REPORTED:
        layers = run.layers or []
        return max(recorded, int(layers[index]["width"])) if index < len(layers) else recorded
    known = Model.model_validate(run.config["model"])
    return known.sections()[index].eigenvalues(known.d_model)


def _alerts(session: Session, run: Run, fatal: int | None) -> list[dict[str, Any]]:
    chosen = select(AlertRow).where(AlertRow.run_id == run.id)
    if run.kind == REPORTED:
        # the program took these steps back and trained them again, so their alerts say nothing about the run's end
        undone = select(Transition.seq).where(
            Transition.run_id == run.id, Transition.seq > AlertRow.seq, Transition.truncated_from <= AlertRow.step
        )
        chosen = chosen.where(~undone.correlate(AlertRow).exists())
    rows = list(session.scalars(chosen.order_by(AlertRow.id).limit(ALERTS)))
    if fatal is not None and len(rows) == ALERTS:
        last = chosen.where(AlertRow.step == fatal, AlertRow.id > rows[-1].id)
        rows += session.scalars(last.order_by(AlertRow.id).limit(ALERTS))
    return [{name: getattr(row, name) for name in ALERT_FIELDS} for row in rows]


def _least(data: SeriesData) -> np.ndarray:
    values = data.value if data.min is None else data.min
    assert values is not None
    return values


def _aligned(step: np.ndarray, own: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values (n,) of a series at these steps, NaN at steps where the series has no value."""
    found = np.full(len(step), np.nan)
    if len(own):
        at = np.clip(np.searchsorted(own, step), 0, len(own) - 1)
        same = own[at] == step
        found[same] = values[0, at[same]]
    return found


_NO_NUMBERS = np.empty(0)
NOTHING = MemorySource(  # the source for a run that has not recorded anything
    verdict.Scalars(step=np.empty(0, np.int64), loss=_NO_NUMBERS, grad_norm=_NO_NUMBERS, lr=_NO_NUMBERS), {}
)
