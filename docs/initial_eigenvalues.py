"""Writes where the eigenvalues of every layer start, from layers that are really built: `python docs/initial_eigenvalues.py`.

The server, which knows no torch, shows them from web/initial_eigenvalues.json; a test compares that file with what is built.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablessm_core.config import Model
from stablessm_core.forms import GATES, spread
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.registry import LAYERS
from stablessm_core.reparameterization import get_reparameterization

FILE = Path(__file__).parent.parent / "web" / "initial_eigenvalues.json"
D_MODEL, SEED = 64, 0
BATCH, LENGTH = 4, 128  # of the random input, N(0, 1), with which gates are measured
MOST = 160  # eigenvalues kept of a layer
GOLDEN = (5**0.5 - 1) / 2


def initial(name: str) -> dict[str, Any]:
    """What a recorder would find of this layer before the first step, of at most MOST eigenvalues: {form, eigenvalues, recorded}.

    recorded: {kind: numbers}, the inputs of the form, one number per eigenvalue that is kept. eigenvalues: how many there are.
    """
    model = Model.model_validate({"layer": name, "d_model": D_MODEL})
    section = model.sections()[0]
    map_ = model.map_of(section)
    reparameterization = None if map_ is None else get_reparameterization(map_.name, time=map_.time, a=map_.a, b=map_.b)
    torch.manual_seed(SEED)
    layer: Any = build_layer(section, Surroundings(D_MODEL, reparameterization))
    with torch.no_grad():
        layer(torch.randn(BATCH, LENGTH, D_MODEL))
    record, gates = layer.records()[0], layer.gates()
    rows = [row.detach().reshape(len(row), -1).norm(dim=1) for row in record.rows]
    of: dict[str, torch.Tensor] = {"weight": record.weight if record.weight is not None else torch.stack(rows).sum(0)}
    if record.log_dt is not None:
        of["dt"] = record.log_dt.exp()
    if record.phase is not None:
        of["phase_weight"] = record.phase
    if record.gate:
        of |= dict(zip(GATES, gates[record.gate], strict=True))
    numbers = {kind: values.detach().double().flatten().numpy() for kind, values in of.items() if kind in record.form.inputs}
    kept = places(record.width)
    whole = {kind: values[kept] for kind, values in spread(numbers, record.width).items()}
    rounded = {kind: [float(f"{value:.6g}") for value in values] for kind, values in whole.items()}
    return {"form": record.form.data, "eigenvalues": record.width, "recorded": rounded}


def places(width: int) -> np.ndarray:
    """Which eigenvalues are kept: all, or MOST of them, evenly but in no step that channels or modes could have."""
    if width <= MOST:
        return np.arange(width)
    return np.unique((np.arange(1, MOST + 1) * GOLDEN % 1 * width).astype(int))


def main() -> None:
    found = {name: initial(name) for name in LAYERS}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(of)}" for name, of in found.items())
    FILE.write_text(f'{{\n  "d_model": {D_MODEL},\n  "layers": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
