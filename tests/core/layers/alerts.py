"""Trains a layer for one step and returns the alerts about non-finite numbers that a run would raise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from stablessm_core.telemetry.column_reader import ColumnReader
from stablessm_core.telemetry.detectors import Alert, Detectors
from stablessm_core.training.recording import layer_forms
from stablessm_core.watch.probe import Probe


def nonfinite_alerts(layer: nn.Module, x: Tensor, plant: Callable[[], None] = lambda: None) -> list[Alert]:
    """The alerts, causes before consequences. The layer is called "ssm". The loss is the mean square of the layer's output.

    plant: called after the backward pass, to change gradients.
    """
    model = nn.Sequential(OrderedDict(ssm=layer))
    probe = Probe(model)
    weights = probe.weights()
    loss = model(x).square().mean()
    loss.backward()
    plant()
    row, _ = probe.row(weights, loss, torch.ones(1), probe.gradients(), probe.states(), probe.gates(), [x])
    ends = np.cumsum([width for _, width in probe.layout])
    columns = {name: row[None, end - width : end].numpy() for (name, width), end in zip(probe.layout, ends, strict=True)}
    detectors = Detectors(probe.parameter_names)
    rows, _ = ColumnReader(layer_forms(probe), detectors).read(1, columns)
    return [alert for alert in detectors.scan(rows) if alert.kind.startswith("nonfinite")]
