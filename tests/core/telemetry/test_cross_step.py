"""Layers with the same form are computed together; each layer gets the same result as if computed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.cross_step import CrossStepSeries
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.forms import Form

pytestmark = pytest.mark.slow

BEST, EXP = Form.of_map("best", "discrete"), Form.of_map("exp", "continuous")
ANGLE = Form("exp", "discrete", "none", phase="angle")
LAYERS = [
    LayerForm(0, "a.w", BEST, 3),
    LayerForm(1, "b.w", EXP, 4),
    LayerForm(2, "c.w", BEST, 3),
    LayerForm(2, "c.v", BEST, 3, record="v"),
    LayerForm(3, "d.w", BEST, 5),
    LayerForm(4, "e.w", EXP, 4),
    LayerForm(5, "f.w", ANGLE, 2),
    LayerForm(6, "g.w", ANGLE, 2),
]
STEPS = {1: 4, 4: 2}  # by layer: number of step sizes that its eigenvalues share
ROWS = 700


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {names.TRAIN_LOSS: np.exp(rng.standard_normal((ROWS, 1))), "norms": np.ones((ROWS, 2 * len(LAYERS)))}
    for layer in LAYERS:
        widths = {"grad_over_weight": layer.width} | dict.fromkeys(layer.form.inputs, layer.width)
        if "dt" in widths:
            widths["dt"] = STEPS[layer.index]
        for kind, width in widths.items():
            found[names.layer_series(layer.id, kind)] = np.exp(0.1 * np.cumsum(rng.standard_normal((ROWS, width)), axis=0))
    found[names.layer_series(2, "weight")][300:, 1] = np.nan
    found[names.layer_series(4, "grad_over_weight")][50, 2] = np.inf
    return {name: values.astype(np.float32) for name, values in found.items()}


def series_reader(layers: list[LayerForm], every: int) -> CrossStepSeries:
    catalogue = [
        series
        for layer in layers
        for series in names.following_catalogue(
            layer.id, layer.width, layer.form, length=None if layer.record else 100, every_eigenvalue=every == 1
        )
    ]
    return CrossStepSeries(layers, catalogue, every)


def read_flushes(
    reader: CrossStepSeries, columns: dict[str, np.ndarray], every: int
) -> tuple[list[Block], list[dict[str, float]]]:
    blocks, extremes, at = [], [], 0
    for count in (1, 130, 7, 200, 16, 300):
        made, _, found = reader.read(1 + at, {name: values[at : at + count] for name, values in columns.items()})
        blocks, extremes, at = blocks + made, [*extremes, found], at + count
        state, reader = reader.state(), series_reader([layer for stack in reader._stacks for layer in stack.layers], every)
        reader.restore(state)
    return blocks, extremes


def numbers(blocks: list[Block]) -> dict[Any, list[float]]:
    return {(b.group, b.level, b.first_step, b.stride): b.values.view(np.uint32).tolist() for b in blocks}


@pytest.mark.parametrize("every", [1, 3])
def test_cross_step_series_are_the_same_for_layers_read_together_and_separately(
    columns: dict[str, np.ndarray], every: int
) -> None:
    together = series_reader(LAYERS, every)
    alone = [series_reader([layer], every) for layer in LAYERS]
    blocks, extremes = read_flushes(together, columns, every)
    each = [read_flushes(reader, columns, every) for reader in alone]
    assert numbers(blocks) == {k: v for own, _ in each for k, v in numbers(own).items()}
    for i, found in enumerate(extremes):
        apart = [own[i] for _, own in each]
        assert found == {
            name: keep(e[name] for e in apart if name in e)
            for name, keep in names.SO_FAR.items()
            if any(name in e for e in apart)
        }


def test_a_checkpoint_stores_the_state_of_each_layer_under_its_name(columns: dict[str, np.ndarray]) -> None:
    together, alone = series_reader(LAYERS, 1), [series_reader([layer], 1) for layer in LAYERS]
    for reader in (together, *alone):
        reader.read(1, columns)
    kept = together.state()
    apart = {key: array for reader in alone for key, array in reader.state().items()}
    assert kept.keys() == apart.keys()
    for key, array in apart.items():
        assert array.dtype == kept[key].dtype
        np.testing.assert_array_equal(kept[key], array)


def test_derived_series_are_the_same_for_layers_read_together_and_separately(columns: dict[str, np.ndarray]) -> None:
    rows, derived = ColumnReader(LAYERS, Detectors([])).read(1, columns)
    assert [row.id for row in rows.layers] == [layer.id for layer in LAYERS]
    for layer, row in zip(LAYERS, rows.layers, strict=True):
        (own,) = ColumnReader([layer], Detectors([])).read(1, columns)[0].layers
        assert own.recorded is not None
        for kind, values in zip(layer.form.derived, derived[names.layer_group(layer.id)], strict=True):
            np.testing.assert_array_equal(values, layer.form.derive(kind, own.recorded))
        np.testing.assert_array_equal(row.distance.values, own.distance.values)
        np.testing.assert_array_equal(row.weight.values, columns[names.layer_series(layer.id, "weight")])
