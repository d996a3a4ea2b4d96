"""The recorded rows of a run, and what follows from them by the audit's own computation."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.verdicts.recorded import Recorded, trained
from stablessm_core.layers.form_probe import _claimed, _gates
from stablessm_core.model import build_model
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import ForkError
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form, spread
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.telemetry.stability import update_step
from stablessm_core.training.checkpoint import load_checkpoint

LN_LARGEST = math.log(3.4028235e38)


@dataclass(frozen=True)
class LayerRows:
    """Recorded rows of a layer: steps (n,), distance and value (n, eigenvalues), dt (n, ...) or None. bounded: False if
    eigenvalues outside the boundary are meant. real: True if eigenvalues are real numbers."""

    form: Form
    step: np.ndarray
    distance: np.ndarray
    value: np.ndarray
    dt: np.ndarray | None
    weight: np.ndarray | None
    real: bool
    recorded: Mapping[str, np.ndarray]

    def relative_step(self, row: int, eigenvalue: int) -> float:
        """How far the eigenvalue moved between row - 1 and row, divided by the distance to the boundary that it had."""
        two = {kind: values[row - 1 : row + 1, eigenvalue] for kind, values in self.recorded.items()}
        return float(update_step(self.form, two)[0])

    @property
    def bounded(self) -> bool:
        return self.form.bounded and self.form.map != "none"

    def row(self, step: int) -> int | None:
        at = np.flatnonzero(self.step == step)
        return int(at[0]) if len(at) else None


@dataclass
class Facts:
    """The rows of a run that we trained. findings: the autopsy's findings; with them the steps between the recorded rows count as
    known, and the audit trains the run again with a row for every step."""

    recorded: Recorded
    findings: Mapping[str, Any] | None = None
    forks: dict[Any, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return self.recorded.config

    @property
    def status(self) -> str:
        return str(self.recorded.outcome.status)

    @property
    def last(self) -> int:
        return int(self.recorded.sink.step)

    @property
    def died_at(self) -> int | None:
        return int(self.recorded.outcome.step) if self.recorded.died else None

    @property
    def reason(self) -> str:
        return str(self.recorded.outcome.reason or "")

    @property
    def tensor(self) -> str:
        return str((self.recorded.outcome.divergence or {}).get("tensor") or "")

    @property
    def alerts(self) -> list[Any]:
        return self.recorded.sink.alerts

    @cached_property
    def sink(self) -> MemorySink:
        every = int(self.config["telemetry"]["every"])
        if every == 1 or not self.findings or not self.findings.get("replayed"):
            return self.recorded.sink
        return trained(self.config, {"telemetry.every": 1}).sink

    def series(self, name: str) -> dict[int, float]:
        """The values of a scalar series by step."""
        if name not in self.sink.catalogue:
            return {}
        step, value = self.sink.series(name)
        known = self.known_steps
        pairs = zip(step.tolist(), value[:, 0].astype(float).tolist(), strict=True)
        return {s: v for s, v in pairs if known is None or s in known}

    @cached_property
    def known_steps(self) -> set[int] | None:
        """The steps that are recorded or that the autopsy trained again; None if every step is."""
        if self.sink is self.recorded.sink:
            return None
        assert self.findings is not None
        recorded = self.recorded.sink.series(names.TRAIN_LOSS)[0].tolist()
        return {*recorded, *(int(step) for step in self.findings["replayed"]["steps"])}

    @cached_property
    def complete(self) -> MemorySink:
        """The same run with a row for every step."""
        return self.sink if int(self.config["telemetry"]["every"]) == 1 else trained(self.config, {"telemetry.every": 1}).sink

    @cached_property
    def complete_layers(self) -> dict[int, LayerRows]:
        return layers_of(self.complete)

    @cached_property
    def loss(self) -> dict[int, float]:
        return self.series(names.TRAIN_LOSS)

    @cached_property
    def norm(self) -> dict[int, float]:
        return self.series(names.GRAD_NORM)

    @cached_property
    def lr(self) -> dict[int, float]:
        return self.series(names.LR)

    @cached_property
    def weight_norm(self) -> dict[int, float]:
        return self.series(names.WEIGHT_NORM)

    @cached_property
    def evaluations(self) -> dict[int, float]:
        return self.series(names.EVAL_LOSS)

    def finite_losses(self, upto: int) -> dict[int, float]:
        """The finite losses of the rows up to this step."""
        return {s: v for s, v in self.loss.items() if s <= upto and math.isfinite(v)}

    def best(self, upto: int) -> float:
        return min(self.finite_losses(upto).values(), default=math.nan)

    @property
    def length(self) -> int | None:
        data = self.recorded.environment.get("data") or {}
        length = data.get("length") or self.config["task"].get("length")
        return None if length is None else int(length)

    @property
    def parameters(self) -> int | None:
        return self.recorded.environment.get("parameters")

    @cached_property
    def layers(self) -> dict[int, LayerRows]:
        return layers_of(self.sink, self.known_steps)

    @cached_property
    def sizes(self) -> dict[int, tuple[float, float]]:
        """The largest magnitude of input and target of each batch, from the task itself; NaN for classes and tokens."""
        task, config = self.task_and_config
        found = {}
        for step in range(1, min(config.train.steps, (self.died_at or self.last) + 10) + 1):
            x, y = task.batch(step, config.train.batch_size, config.train.seed, "cpu")
            found[step] = (_largest(x), _largest(y))
        return found

    @cached_property
    def task_and_config(self) -> tuple[Any, Any]:
        config = parse_config(self.config)
        return get_task(config.task, Path()), config

    @cached_property
    def task_keeps_a_state(self) -> bool:
        """Whether the loss function gives two losses for the same outputs, asked twice in each of the first steps."""
        task, config = self.task_and_config
        for step in range(1, self.died_at or self.last):
            y = task.batch(step, config.train.batch_size, config.train.seed, "cpu")[1]
            classes = task.kind != "regression"
            output = torch.full((*y.shape, task.output_size), 0.1) if classes else torch.full_like(y, 0.1)
            first, again = (float(task.loss(output.clone().requires_grad_(), y)) for _ in range(2))
            if math.isfinite(first) and first != again:
                return True
        return False

    @cached_property
    def constant_loss(self) -> float | None:
        """The mean squared error of the mean target, or the entropy of the classes, over the batches of the run."""
        task, config = self.task_and_config
        targets = [task.batch(s, config.train.batch_size, config.train.seed, "cpu")[1] for s in range(1, self.last + 1)]
        if task.kind == "regression":
            return float(torch.cat(targets).double().var(unbiased=False))
        counts = torch.bincount(torch.cat([y[y >= 0].flatten() for y in targets])).double()
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * shares.log()).sum())

    def usual_size(self, step: int, part: int) -> float:
        """The median of the largest numbers of the other batches. part: 0 input, 1 target."""
        end = self.died_at or self.last
        others = [(s, pair[part]) for s, pair in self.sizes.items() if s != step and math.isfinite(pair[part])]
        recorded = [size for s, size in others if s <= end]
        known = recorded if len(recorded) > 2 else [size for _, size in others]  # of a short run, also batches that would follow
        return float(np.median(known)) if known else math.nan

    def fork(self, change: Mapping[str, Any], from_step: int, until: int) -> tuple[bool, int] | None:
        """(lives, its last or fatal step) of the run with this change from the step on; None if there is no such fork."""
        key = (repr(sorted(change.items())), from_step, until)
        if key not in self.forks:
            self.forks[key] = self._forked(dict(change), from_step, until)
        return self.forks[key]  # type: ignore[no-any-return]

    def _forked(self, change: dict[str, Any], from_step: int, until: int) -> tuple[bool, int] | None:
        try:
            if from_step == 0:
                made = trained(self.config, change | {"telemetry.every": 1})
            else:
                with tempfile.TemporaryDirectory() as folder:
                    start = state_after(self.config, from_step, Path(folder))
                    made = trained(self.config, change | {"telemetry.every": 1}, fork=start)
        except (ForkError, ConfigError, IndexError):
            return None
        died = made.died and int(made.outcome.step) <= until
        return not died, int(made.outcome.step)

    def form_error(self, index: int, step: int) -> float:
        """By how much of its size |lambda_bar| of an eigenvalue of this layer differs from the recorded form, at most.

        One step is computed in float64, with the weights before `step`.
        """
        task, config = self.task_and_config
        model = build_model(config, task)
        if step > 1:
            with tempfile.TemporaryDirectory() as folder:
                before = load_checkpoint(state_after(self.config, step - 1, Path(folder)))
                model.load_state_dict(before.under("model"))
        layer: Any = model.double().blocks[index].ssm
        x = layer.probe_scale * torch.arange(config.model.d_model, dtype=torch.float64).sin()[None]
        record, errors = layer.records()[0], []
        with torch.no_grad(), np.errstate(all="ignore"):
            actual = np.abs(layer.transition(x).to(torch.complex128).numpy())
            gates = _gates(layer, record, x) if record.form.gate else {"": None}
            for gate in gates.values():
                claimed = np.abs(_claimed(record, gate))[:, None]
                errors.append(np.abs(actual - claimed) / np.maximum(claimed, 1e-12))
        least = np.min([np.nanmax(np.where(np.isfinite(one), one, np.nan), axis=1) for one in errors], axis=0)
        return float(np.nanmax(least))

    def float64_loss(self, step: int) -> float | None:
        """The loss of this step in float64 with the weights before it; None for a task with a loss of its own and
        for a planted layer, which counts its steps."""
        config = parse_config(self.config)
        task = get_task(config.task, Path())
        planted = any(section.name.startswith("planted_") for section in config.model.sections())
        if "loss" in type(task).__dict__ or config.model.dropout or planted:
            return None
        x, y = task.batch(step, config.train.batch_size, config.train.seed, "cpu")
        model = build_model(config, task)
        with tempfile.TemporaryDirectory() as folder:
            if step > 1:
                before = state_after(self.config, step - 1, Path(folder))
                model.load_state_dict(load_checkpoint(before).under("model"))
        with torch.no_grad():
            output = model.double()(x.double() if x.is_floating_point() else x)
        if task.kind == "regression":
            return float((output - y.double()).square().mean())
        flat = output.reshape(-1, task.output_size)
        return float(torch.nn.functional.cross_entropy(flat, y.reshape(-1), ignore_index=-100))


class _Keeping(MemorySink):
    """A sink that keeps a copy of the checkpoint after one step. Of older checkpoints, a run deletes the files."""

    def __init__(self, step: int, kept: Path) -> None:
        super().__init__()
        self.wanted, self.kept = step, kept

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        super().checkpoint(step, path, sha256)
        if step == self.wanted:
            self.kept = self.kept.with_suffix(path.suffix)
            shutil.copy(path, self.kept)


def state_after(config: Mapping[str, Any], step: int, folder: Path) -> Path:
    """A checkpoint after this step of the run. The number of steps stays as it is, because a schedule depends on it."""
    sink = _Keeping(step, folder / f"after_{step}")
    trained(dict(config), {"train.checkpoint_every": step, "telemetry.every": 1}, folder=folder, sink=sink)
    return sink.kept


def layers_of(sink: MemorySink, known: set[int] | None = None) -> dict[int, LayerRows]:
    """The recorded eigenvalues of each layer, in these steps."""
    found = {}
    for name, spec in sink.catalogue.items():
        if not name.endswith("/weight") or spec.form is None:
            continue
        index = names.layer_of(spec.group)
        form = Form.from_data(spec.form)
        if index is None or form is None or spec.group != names.layer_group(index):
            continue
        recorded = {
            kind: sink.series(names.layer_series(index, kind))[1].astype(np.float64)
            for kind in form.recorded
            if names.layer_series(index, kind) in sink.catalogue
        }
        step = sink.series(name)[0]
        if known is not None:
            kept = np.isin(step, list(known))
            step, recorded = step[kept], {kind: values[kept] for kind, values in recorded.items()}
        recorded = spread(recorded, spec.width)
        with np.errstate(all="ignore"):
            unknown = np.full_like(next(iter(recorded.values())), np.nan)
            value, distance = recorded.get("weight", unknown), unknown
            if form.map != "none":  # of several channels with steps of their own, the worst counts
                kind = "boundary_distance_closest" if form.channels else "boundary_distance"
                distance = np.asarray(form.derive(kind, recorded), np.float64)
                value = 1 - distance if form.channels else np.asarray(form.derive("eigenvalue", recorded), np.float64)
        found[index] = LayerRows(
            form, step, distance, value, recorded.get("dt"), recorded.get("weight"), not form.complex, recorded
        )
    return found


def _largest(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point():
        return math.nan
    return float(tensor.abs().max()) if bool(tensor.isfinite().all()) else math.inf
