"""Pairs of our layers with layers of small packages: mambapy, s5-pytorch, LRU-pytorch, neural-ssm, minGRU-pytorch.

The LRU and S5 layers of these packages end with the readout C h + D x. So our LRU and S5 layers are compared without the gated
readout of their blocks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.layers.of_transformers import mamba as mamba_of_transformers
from benchmarks.layers.pair import Pair, give, ours


def mamba_of_mambapy(d_model: int, *, pscan: bool = True) -> Pair:
    """The pair for mambapy's block. Its weights have the same names as in transformers."""
    pair = mamba_of_transformers(d_model)
    module = import_module("mambapy.mamba")
    config = module.MambaConfig(d_model=d_model, n_layers=1, d_state=pair.ours.w.shape[1], pscan=pscan)  # type: ignore[union-attr]
    theirs = module.MambaBlock(config)
    of_name = dict(theirs.named_parameters())
    given = {of_name[name]: pair.given[parameter] for name, parameter in pair.theirs.named_parameters()}
    return Pair(pair.ours, theirs, theirs, give(theirs, given))


def s5_of_s5_pytorch(d_model: int, **options: Any) -> Pair:
    """The pair for s5-pytorch. Its layer returns Re(C h); our layer returns 2 Re(C h), because it has one mode per conjugate
    pair. So the public C is set to twice our C."""
    layer = without_readout(ours("s5", d_model, **options))
    modes = len(layer.w)
    theirs = import_module("s5").S5(d_model, modes)
    ssm = theirs.seq
    weights = {
        ssm.Lambda: torch.complex(layer.w, layer.Lambda_imag),
        ssm.B: layer.B,
        ssm.C: 2 * torch.view_as_complex(layer.C),
        ssm.D: layer.D,
        ssm.log_step: layer.log_dt,
    }
    return Pair(layer, theirs, theirs, give(theirs, weights))


def lru_of_lru_pytorch(d_model: int) -> Pair:
    layer = without_readout(ours("lru", d_model))
    theirs = import_module("LRU_pytorch").LRU(d_model, d_model, len(layer.w))
    given = give(theirs, _lru_weights(layer, theirs, theirs.B) | {theirs.D: torch.diag(layer.D)})
    return Pair(layer, theirs, theirs, given)


def lru_of_neural_ssm(d_model: int, *, mode: str = "scan") -> Pair:
    """The pair for neural-ssm's LRU, whose output at a step uses the state before that step's update. Both layers are compared
    without the term D x."""
    layer = without_readout(ours("lru", d_model))
    del layer.D
    layer.D = torch.zeros(d_model)
    theirs = import_module("neural_ssm.ssm.cells.lti").LRU(d_model, d_model, len(layer.w))
    del theirs.D
    theirs.D = layer.D.diag()
    return Pair(layer, theirs, lambda x: theirs(x, mode=mode)[0], give(theirs, _lru_weights(layer, theirs, theirs.Bp)), lag=1)


def _lru_weights(layer: Any, theirs: Any, B: nn.Parameter) -> dict[nn.Parameter, Tensor]:
    return {
        theirs.nu_log: layer.w,
        theirs.theta_log: layer.theta_log,
        theirs.gamma_log: layer.gamma_log,
        B: torch.view_as_complex(layer.B),
        theirs.C: torch.view_as_complex(layer.C),
    }


def l2ru(d_model: int, *, mode: str = "loop") -> Pair:
    """The pair for L2RU. The public layer computes its matrices in float32 and adds 1e-6 to one matrix before factoring it."""
    layer = ours("l2ru", d_model)
    theirs = import_module("neural_ssm.ssm.cells.legacy").L2RU(d_model, gamma=float(layer.gamma))
    weights = {
        theirs.X11_params: layer.X11,
        theirs.X22_params: layer.X22,
        theirs.Skew_params: layer.skew,
        theirs.X21: layer.X21,
        theirs.C: layer.C,
        theirs.Dt: layer.Dt,
        theirs.alpha: layer.alpha,
    }
    return Pair(layer, theirs, lambda x: theirs(x, mode=mode)[0], give(theirs, weights))


def min_gru(d_model: int, expand: int = 1) -> Pair:
    layer = ours("min_gru", d_model, expand=expand)
    theirs = import_module("minGRU_pytorch").minGRU(d_model, expansion_factor=float(expand))
    weights = {theirs.to_hidden_and_gate.weight: torch.cat([layer.candidate.weight, layer.gate.weight])}
    if layer.out_proj is not None:
        weights[theirs.to_out.weight] = layer.out_proj.weight
    return Pair(layer, theirs, theirs, give(theirs, weights))


def without_readout(layer: Any) -> Any:
    layer.readout = nn.Identity()
    return layer
