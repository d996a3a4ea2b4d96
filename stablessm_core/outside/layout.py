"""What the first step fixes for a whole watched run: the row, its columns, and the recorder that receives the rows."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stablessm_core.outside.columns import Columns, WatchedLayer
from stablessm_core.outside.eigenvalues import Eigenvalues
from stablessm_core.outside.modules import Layer
from stablessm_core.outside.rows import StagedRow
from stablessm_core.outside.sink import OutsideSink
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.detectors.alert import Setup
from stablessm_core.telemetry.detectors.registry import THRESHOLDS
from stablessm_core.telemetry.detectors.steps import Steps
from stablessm_core.telemetry.reported_rows import OutsideReader
from stablessm_core.watch.flusher import Expansion
from stablessm_core.watch.recorder import Recorder

FLUSH_SECONDS = 0.15
RING_BYTES = 1 << 26  # memory of the rows that wait for the flush thread
FLUSH_STEPS = 256


def on_one_device(
    layers: Sequence[Layer], otherwise: torch.device, say: Callable[[str], None]
) -> tuple[list[Layer], torch.device]:
    """The layers that live on the device of the first one, and this device. A sentence names each other layer."""
    device = next((t.device for layer in layers for t in layer.eigenvalues.tensors), otherwise)
    kept: list[Layer] = []
    for layer in layers:
        own = layer.eigenvalues.tensors
        if any(t.device != device for t in own):
            say(f"{layer.path} lives on {own[0].device}, other layers on {device}; it is not recorded")
        else:
            kept.append(layer)
    return kept, device


def tensors_of(layers: Sequence[Layer]) -> list[Tensor]:
    """Every tensor that is recorded for the layers, once."""
    return list({id(t): t for layer in layers for t in layer.eigenvalues.tensors}.values())


def columns_of(layers: Sequence[Layer], tensors: Sequence[Tensor], row: StagedRow) -> Columns:
    """How the recorded columns follow from rows of these tensors."""
    at = dict(zip(map(id, tensors), row.places, strict=True))
    watched: list[WatchedLayer] = []
    paths: dict[int, str] = {}
    for number, layer in enumerate(layers):
        e = layer.eigenvalues
        imag, step = (None if t is None else at[id(t)] for t in (e.imag, None if e.step is None else e.step.weight))
        watched.append(WatchedLayer(number, layer, at[id(e.weight)], imag, step))
        paths[id(e.weight)] = layer.path
        for t, kind in ((e.imag, "phase_weight"), (None if e.step is None else e.step.weight, "dt")):
            if t is not None:
                paths.setdefault(id(t), layer.paths.get(kind, f"{layer.path} ({kind})"))
    return Columns(watched, row.places, [paths[id(t)] for t in tensors])


def with_tensors(layer: Layer, new: Mapping[int, Tensor]) -> Layer:
    """The layer with other tensors, by the identities of those in whose place they stand."""

    def swapped(of: Eigenvalues) -> Eigenvalues:
        step = None if of.step is None else replace(of.step, weight=new.get(id(of.step.weight), of.step.weight))
        imag = None if of.imag is None else new.get(id(of.imag), of.imag)
        return replace(of, weight=new.get(id(of.weight), of.weight), imag=imag, step=step)

    return replace(layer, eigenvalues=swapped(layer.eigenvalues))


def open_recorder(
    columns: Columns,
    row: StagedRow,
    sink: OutsideSink,
    *,
    every: int,
    gradient: str,
    scalars: Collection[str],
    steps: Steps,
    unowned: Collection[int],
    length: int | None = None,
) -> tuple[Recorder, OutsideReader]:
    """The recorder of the rows, and what reads them for the detectors.

    scalars: the recorded series of the group `scalars`. steps, unowned: see `Detectors` and `OutsideReader`. length: of the
    sequences over which a state runs, if known.
    """
    has_loss = names.TRAIN_LOSS in scalars
    catalogue = [names.scalar(name) for name in (*scalars, names.STEP_TIME)]
    catalogue += [names.scalar(names.LOSS_OVER_BEST, names.PROGRESS)] * has_loss
    for layer in columns.layers:
        catalogue += layer.catalogue(gradient, every, length)
    thresholds = {threshold.name: threshold.default for threshold in THRESHOLDS}
    setup = None if length is None else Setup(length=length, limits=[1.0] * len(columns.layers), optimizer="unknown")
    detectors = Detectors(columns.parameter_names, setup, steps=steps, **thresholds)
    reader = OutsideReader([layer.form for layer in columns.layers], detectors, has_loss=has_loss, unowned=unowned)
    sink.facts = _facts(row.row.device, gradient)
    recorder = Recorder(
        catalogue,
        sink,
        layout=columns.layout,
        device=row.row.device,
        every=every,
        reader=reader,
        gauges={names.STEP_TIME: lambda rows, seconds: seconds / rows},
        flush_steps=max(1, min(FLUSH_STEPS, RING_BYTES // (32 * row.columns))),
        flush_seconds=FLUSH_SECONDS,
        expansion=Expansion(row.columns, columns.compute),
        patience=0.0,
    )
    return recorder, reader


def _facts(device: torch.device, gradient: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "gradient": gradient,
    }
