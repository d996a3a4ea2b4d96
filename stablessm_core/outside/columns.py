"""Computes the recorded columns from the rows of parameters and gradients. The flush thread runs everything here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from stablessm_core.outside.eigenvalues import Eigenvalues
from stablessm_core.outside.modules import Layer
from stablessm_core.outside.rows import HEADER, Place
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.assumptions import is_assumed
from stablessm_core.telemetry.column_reader import LayerForm
from stablessm_core.telemetry.forms import GATES, Form, spread
from stablessm_core.telemetry.gradients import is_of_gradient, state_gradient
from stablessm_core.telemetry.series import SeriesSpec


@dataclass(frozen=True)
class WatchedLayer:
    """A layer and the columns of its parameters in a row. number: its place in the model, which names its series."""

    number: int
    layer: Layer
    weight: Place
    imag: Place | None
    step: Place | None

    @property
    def trained(self) -> bool:
        return self.weight.gradient is not None

    @property
    def wide(self) -> bool:
        return self.layer.eigenvalues.width > names.WIDE

    @property
    def form(self) -> LayerForm:
        of = self.layer.eigenvalues
        return LayerForm(
            self.number, self.layer.path, of.form, of.width, self.wide, paths=self.layer.paths, assumed=is_assumed(of.note)
        )

    def catalogue(self, gradient: str, every: int, length: int | None = None) -> list[SeriesSpec]:
        """The layer's series. gradient: a key of GRADIENTS, which the meaning of each gradient's series states. length: of the
        sequences over which a state runs; None if it is unknown."""
        of = self.layer.eigenvalues
        steps = None if of.step is None else of.step.weight.numel()
        gate = steps if of.form.gate and steps is not None else 0
        if self.wide:
            found = names.wide_layer_catalogue(self.number, of.form, gates=gate)
        else:
            found = names.layer_catalogue(self.number, of.width, of.form, steps=steps, gates=gate, gradient=True)
        found += names.following_catalogue(
            self.number, of.width, of.form, length=length, every_eigenvalue=every == 1 and not self.wide, constant_gate=True
        )
        kept = [s for s in found if self.trained or not is_of_gradient(s.name)]
        return [replace(s, meaning=state_gradient(s.name, s.meaning, gradient)) for s in kept]


class Columns:
    """Turns rows (rows, columns) of a `StagedRow` into the columns of `layout`."""

    def __init__(self, layers: Sequence[WatchedLayer], places: Sequence[Place], parameter_names: Sequence[str]) -> None:
        self.layers, self._places, self.parameter_names = list(layers), list(places), list(parameter_names)
        scalars = (names.TRAIN_LOSS, names.LR, names.SKIPPED, names.GRAD_NORM, names.SCALE)
        self.layout: list[tuple[str, int]] = [(name, 1) for name in scalars]
        self.layout.append((names.NORMS, 2 * len(places)))
        for layer in layers:
            self.layout += [
                (name, values.shape[1]) for name, values in self._of(layer, np.zeros((1, self._width), np.float32)).items()
            ]

    @property
    def _width(self) -> int:
        parts = [part for place in self._places for part in (place.value, place.gradient) if part is not None]
        return max([len(HEADER), *(int(part.stop) for part in parts)])

    def follow(self, layers: Sequence[Layer]) -> None:
        """The layers have other tensors of the same shapes. May be called while another thread computes."""
        self.layers = [replace(watched, layer=layer) for watched, layer in zip(self.layers, layers, strict=True)]

    def compute(self, table: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of these rows, by name."""
        scale = table[:, 2:3]
        if (scale != 1).any():
            table = table.copy()
            for place in self._places:
                if place.gradient is not None:
                    table[:, place.gradient] /= scale
        columns = {
            names.TRAIN_LOSS: table[:, 0:1],
            names.LR: table[:, 1:2],
            names.SKIPPED: (table[:, 3:4] != 0).astype(np.float32),
            names.GRAD_NORM: table[:, 4:5],
            names.SCALE: table[:, 5:6],
            names.NORMS: self._norms(table),
        }
        for layer in self.layers:
            columns |= self._of(layer, table)
        return columns

    def _norms(self, table: np.ndarray) -> np.ndarray:
        """The largest |x| of each parameter, then of each gradient: not finite if and only if one number is not finite."""
        found = np.zeros((len(table), 2 * len(self._places)), np.float32)
        for i, place in enumerate(self._places):
            found[:, i] = np.abs(table[:, place.value]).max(axis=1, initial=0)
            if place.gradient is not None:
                found[:, len(self._places) + i] = np.abs(table[:, place.gradient]).max(axis=1, initial=0)
        return found

    def _of(self, layer: WatchedLayer, table: np.ndarray) -> dict[str, np.ndarray]:
        of = layer.layer.eigenvalues
        take = slice(0, None, 2) if of.pairs else slice(None)
        values = {"weight": _part(table, layer.weight.value, take, of)}
        gradients: dict[str, np.ndarray] = {}
        if layer.weight.gradient is not None:
            gradients["weight"] = _part(table, layer.weight.gradient, take, of)
        imag, imag_take = (layer.weight, slice(1, None, 2)) if of.pairs else (layer.imag, slice(None))
        if imag is not None:
            values["phase_weight"] = _part(table, imag.value, imag_take, of)
            if imag.gradient is not None:
                gradients["phase_weight"] = _part(table, imag.gradient, imag_take, of)
        if layer.step is not None and of.step is not None:
            steps = of.step.compute(torch.from_numpy(table)[:, layer.step.value]).numpy()
            values |= dict.fromkeys(GATES, steps) if of.form.gate else {"dt": steps}
        if layer.wide:
            found = _summary(layer, values, gradients)
        else:
            found = dict(values.items())
            with np.errstate(all="ignore"):
                if layer.trained:
                    found["grad_over_weight"] = np.abs(gradients["weight"] / values["weight"])
                    found["gradient"] = np.abs(gradients["weight"])
                    if "phase_weight" in values:
                        other = gradients.get("phase_weight", np.zeros_like(values["phase_weight"]))
                        found["grad_over_phase"] = np.abs(other / values["phase_weight"])
        named = {names.layer_series(layer.number, kind): v for kind, v in found.items() if kind != "weight_at"}
        if "weight_at" in found:
            named[names.weight_at_column(layer.number)] = found["weight_at"]
        if layer.step is not None and layer.step.gradient is not None and not layer.wide and of.form.dt is not None:
            named[names.step_gradient_column(layer.number)] = np.abs(table[:, layer.step.gradient])
        return named


def _part(table: np.ndarray, where: slice, take: slice, of: Eigenvalues) -> np.ndarray:
    """The numbers of each eigenvalue; several eigenvalues may share one."""
    part = table[:, where][:, take]
    part = part if of.repeat == 1 else np.repeat(part, of.repeat, axis=1)
    return part if of.tile == 1 else np.tile(part, (1, of.tile))


def _summary(layer: WatchedLayer, values: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The quantiles over a wide layer's eigenvalues and the most extreme eigenvalues, row by row."""
    of = layer.layer.eigenvalues
    rows = [
        _summary_of_row(of.form, {k: v[i] for k, v in values.items()}, {k: v[i] for k, v in gradients.items()}, of.width)
        for i in range(len(values["weight"]))
    ]
    found = {kind: np.stack([row[kind] for row in rows]).astype(np.float32) for kind in rows[0]}
    if of.form.gate and values[GATES[0]].shape[1] <= names.WIDE:
        found |= {kind: values[kind] for kind in GATES}
    return found


def _summary_of_row(
    form: Form, values: dict[str, np.ndarray], gradients: dict[str, np.ndarray], width: int
) -> dict[str, np.ndarray]:
    whole = spread(values, width)
    weight = whole["weight"]
    ranks = np.linspace(0, width - 1, len(names.QUANTILES)).round().astype(int)
    found = {"weight_quantiles": _ranked(weight, ranks), "weight_at": np.empty(0, np.float32)}
    nothing = np.empty(0, np.float32)
    found |= {"grad_over_weight_largest": nothing, "grad_over_weight_largest_index": nothing}
    if "weight" in gradients:
        with np.errstate(all="ignore"):
            ratio = np.abs(gradients["weight"] / weight)
        at = _most(np.where(np.isnan(ratio), np.inf, ratio), np.isnan(ratio))
        found["grad_over_weight_quantiles"] = _ranked(ratio, ranks)
        found |= {"grad_over_weight_largest": ratio[at], "grad_over_weight_largest_index": at.astype(np.float32)}
    if form.map != "none":
        distance = form.derive("boundary_distance", whole)
        at = _most(-np.where(np.isnan(distance), -np.inf, distance), np.isnan(distance))
        found["boundary_distance_quantiles"] = _ranked(distance, ranks)
        found |= {"boundary_distance_smallest": distance[at], "boundary_distance_smallest_index": at.astype(np.float32)}
        found["weight_at"] = weight[at]
    return found


def _ranked(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    ranked: np.ndarray = np.partition(values, ranks)[ranks]
    return ranked


def _most(size: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """The indices of the EXTREMES largest numbers, largest first, with the numbers marked as bad before all others."""
    count = min(names.EXTREMES, len(size))
    if bad.any():
        first = np.flatnonzero(bad)[:count]
        size = np.where(bad, -np.inf, size)
    else:
        first = np.empty(0, int)
    left = count - len(first)
    at = np.argpartition(-size, left)[:left] if 0 < left < len(size) else np.arange(len(size))[:left]
    return np.concatenate([first, at[np.argsort(-size[at], kind="stable")]])
