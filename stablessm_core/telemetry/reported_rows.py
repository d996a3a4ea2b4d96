"""Reads the rows of models that other programs train, for the detectors. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Values
from stablessm_core.telemetry.detectors.steps import Steps

NO_GRADIENT = np.float32(1e-30)  # stands for a gradient that does not exist: neither infinite nor dead


class OutsideReader(ColumnReader):
    """Reads rows for the detectors: a step that was skipped, a loss that nobody reported, and a weight without a gradient that no
    optimizer trains, raise no alert.

    has_loss: False if the loop reports no loss. unowned: the numbers of the layers whose weight no known optimizer trains.
    """

    def __init__(self, layers: list[LayerForm], detectors: Detectors, *, has_loss: bool, unowned: Collection[int] = ()) -> None:
        super().__init__(layers, detectors)
        self._has_loss, self._unowned = has_loss, unowned
        self._change: tuple[int, Collection[int], Steps] | None = None

    def change(self, step: int, unowned: Collection[int], steps: Steps) -> None:
        """From `step` on, other optimizers train the layers. Any thread may call this."""
        self._change = step, unowned, steps

    def read(self, first_step: int, columns: Mapping[str, np.ndarray]) -> tuple[Rows, dict[str, list[np.ndarray]]]:
        rows, derived = super().read(first_step, columns)
        if self._change is not None and first_step + len(rows.loss) > self._change[0]:
            _, self._unowned, steps = self._change
            self._change = None
            self.detectors.steps_are(steps)
        loss = rows.loss if self._has_loss else np.zeros_like(rows.loss)
        rows = replace(
            rows,
            loss=loss,
            grad_norm=None,
            lr=None,  # of the first watched weight only: no forecast of the next step is made from it
            layers=[self._read_layer(layer, form) for layer, form in zip(rows.layers, self.layers, strict=True)],
        )
        skipped = columns[names.SKIPPED][:, 0] != 0
        return (_without_gradients(rows, skipped) if skipped.any() else rows), derived

    def _read_layer(self, layer: LayerRows, form: LayerForm) -> LayerRows:
        layer = _without_log_ratios(layer, form)
        return _not_dead(layer) if layer.layer in self._unowned else layer


def _not_dead(layer: LayerRows) -> LayerRows:
    """The layer with tiny gradients in place of zeros: a weight that nobody trains has not stopped learning."""
    ratio = layer.ratio.values
    return replace(layer, ratio=Values(np.where(ratio == 0, NO_GRADIENT, ratio), layer.ratio.at))


def _without_log_ratios(layer: LayerRows, form: LayerForm) -> LayerRows:
    """The layer with finite ratios of at most 1 if its weight is a logarithm.

    A logarithm may be near 0, so its ratio says nothing: the gradient itself is the relative gradient of the rate.
    """
    ratio = layer.ratio.values
    if form.form.map != "exp" or not ratio.shape[1]:
        return layer
    return replace(layer, ratio=Values(np.where(np.isfinite(ratio), np.minimum(ratio, 1), ratio), layer.ratio.at))


def _without_gradients(rows: Rows, skipped: np.ndarray) -> Rows:
    """The rows with gradients of NO_GRADIENT in the steps that were skipped: neither infinite nor dead."""

    def quiet(values: np.ndarray) -> np.ndarray:
        return np.where(skipped[:, None], NO_GRADIENT, values)

    half = rows.norms.shape[1] // 2
    norms = np.concatenate([rows.norms[:, :half], quiet(rows.norms[:, half:])], axis=1)
    layers: list[LayerRows] = [
        replace(
            layer,
            ratio=Values(quiet(layer.ratio.values), layer.ratio.at) if layer.ratio.values.shape[1] else layer.ratio,
            gradients={kind: quiet(v) for kind, v in layer.gradients.items()},
        )
        for layer in rows.layers
    ]
    return replace(rows, norms=norms, layers=layers)
