"""Pairs of our layers with layers from repositories that are not packages: S4 and S4D (state-spaces/s4), DSS (ag1988/dss).

One folder contains clones of these repositories, named `s4` and `dss`. Each public layer is in a standalone file. These files
import only a few names from other libraries, such as a decorator and an einsum. `STANDING_IN` contains substitutes for them.
"""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.layers.pair import Pair, give, ours

STANDING_IN: dict[str, dict[str, Any]] = {
    "pytorch_lightning": {},
    "pytorch_lightning.utilities": {"rank_zero_only": lambda function: function},
    "omegaconf": {"DictConfig": lambda options: SimpleNamespace(**options)},
    "opt_einsum": {"contract": torch.einsum, "contract_expression": None},
    "src": {},
    "src.models": {},
    "src.models.nn": {"DropoutNd": torch.nn.Dropout},
}


def file(path: Path) -> Any:
    """Imports a file as a module."""
    for name, attributes in STANDING_IN.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        sys.modules.setdefault(name, module)
    spec = util.spec_from_file_location(f"checkout_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def s4(d_model: int, checkouts: Path) -> Pair:
    """The pair for S4. The public layer replaces C with C (I - A_bar^length) at its first input, so C is copied before that."""
    layer = ours("s4", d_model)
    d_state = 2 * layer.w.shape[1]
    block = file(checkouts / "s4" / "models" / "s4" / "s4.py").S4Block
    theirs = block(d_model, transposed=False, mode="dplr", init="legs", d_state=d_state, activation="gelu", final_act="glu")
    kernel, readout = theirs.layer.kernel, theirs.output_linear[0]
    weights = {
        kernel.A_real: layer.w,
        kernel.A_imag: layer.omega,  # the public file stores the other mode of each conjugate pair
        kernel.P: _conjugate(layer.P),
        kernel.B: _conjugate(layer.B),
        kernel.C: _conjugate(layer.C),
        kernel.inv_dt: layer.log_dt,
        theirs.layer.D: layer.D,
        readout.weight: layer.readout.weight,
        readout.bias: layer.readout.bias,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def s4d(d_model: int, checkouts: Path) -> Pair:
    layer = ours("s4d", d_model)
    theirs = file(checkouts / "s4" / "models" / "s4" / "s4d.py").S4D(d_model, 2 * layer.w.shape[1], transposed=False)
    readout = theirs.output_linear[0]
    weights = {
        theirs.kernel.log_A_real: layer.w,
        theirs.kernel.A_imag: layer.A_imag,
        theirs.kernel.log_dt: layer.log_dt,
        theirs.kernel.C: layer.C,
        theirs.D: layer.D,
        readout.weight: layer.readout.weight,
        readout.bias: layer.readout.bias,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def dss(d_model: int, checkouts: Path, *, version: str = "exp") -> Pair:
    layer = ours("dss", d_model, version=version)
    module = file(checkouts / "dss" / "src" / "models" / "sequence" / "ss" / "standalone" / "dss.py")
    theirs = module.DSS(d_model, len(layer.w), transposed=False, version=version)
    kernel, readout = theirs.kernel, layer.readout[1]
    modes = (
        {kernel.Lambda_log_neg_re: layer.w, kernel.Lambda_im: layer.Lambda_imag}
        if version == "exp"
        else {kernel.Lambda: torch.stack([layer.w, layer.Lambda_imag], -1)}
    )
    weights = modes | {
        kernel.log_dt: layer.log_dt,
        kernel.W: layer.W,
        theirs.D: layer.D,
        theirs.output_linear.weight: readout.weight,
        theirs.output_linear.bias: readout.bias,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def _conjugate(pairs: Tensor) -> Tensor:
    return pairs * torch.tensor([1.0, -1.0])
