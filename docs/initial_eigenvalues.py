"""Builds every layer and writes its initial eigenvalues to a file: `python docs/initial_eigenvalues.py`.

The file is stablessm_core/theory/initial_eigenvalues.json. The server does not import torch, so it reads the eigenvalues from
this file. A test compares the file with newly built layers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model
from stablessm_core.telemetry.forms import GATES, spread

FILE = Path(__file__).parent.parent / "stablessm_core" / "theory" / "initial_eigenvalues.json"
D_MODEL, SEED = 64, 0
BATCH, LENGTH = 4, 128  # shape of the random input, drawn from N(0, 1), on which gates are measured
MOST = 160  # maximum number of eigenvalues kept per layer
GOLDEN = (5**0.5 - 1) / 2


def initial(name: str) -> dict[str, Any]:
    """The numbers that a recorder would record for this layer before the first step: {form, eigenvalues, recorded}.

    `recorded` is {kind: numbers}: for each input of the form, one number per kept eigenvalue (at most MOST). `eigenvalues` is
    the total number of the layer's eigenvalues.
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
    """The indices of the kept eigenvalues: all eigenvalues of a layer that has at most MOST, otherwise at most MOST of them.

    In the second case, the indices are taken at multiples of the golden ratio. So the kept eigenvalues cover the layer evenly,
    independently of the order of channels and modes.
    """
    if width <= MOST:
        return np.arange(width)
    return np.unique((np.arange(1, MOST + 1) * GOLDEN % 1 * width).astype(int))


def main() -> None:
    found = {name: initial(name) for name in LAYERS}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(of)}" for name, of in found.items())
    FILE.write_text(f'{{\n  "d_model": {D_MODEL},\n  "layers": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
