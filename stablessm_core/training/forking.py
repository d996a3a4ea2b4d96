"""A checkpoint of one run as the beginning of another: same weights, other map, learning rate or optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stablessm_core.config import ConfigError, RunConfig, parse_config
from stablessm_core.forking import ForkError, carried_weights, differences, refuse_fixed, said
from stablessm_core.forms import NO_MAP
from stablessm_core.telemetry.recorder import DETECTORS, FOLLOWING
from stablessm_core.telemetry.watch import watched_records
from stablessm_core.training.checkpoint import Checkpoint

LEARNING_RATES = ("optimizer.lr", "optimizer.recurrent_lr")


def forked(checkpoint: Checkpoint, config: RunConfig, model: nn.Module) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint with which a run of `config` goes on from one of another run, and what was kept of it, for people.

    Under another map the weights are those that keep every eigenvalue (see `carried_weights`); their moments are those of another
    quantity, and begin at 0. So do all moments under another optimizer. The learning rates that rollbacks have lowered stay
    lowered unless a rate is given anew. Series begin at the fork; what the detectors remember is kept.

    Raises ForkError for an eigenvalue that the map cannot reach, a field that a fork cannot change, and steps that are over.
    """
    original = parse_config(checkpoint.state["config"])
    differs = differences(original, config)
    try:
        refuse_fixed(differs)
    except ConfigError as error:
        raise ForkError(str(error)) from None
    if checkpoint.step >= config.train.steps:
        raise ForkError(f"the checkpoint is of step {checkpoint.step}; the fork has only {config.train.steps} steps")
    tensors = {path: t for path, t in checkpoint.tensors.items() if not path.startswith("levels/")}
    # of the telemetry what knows the steps before: a loss is compared with the original's best, an episode goes on
    kept = (f"levels/{DETECTORS}/", f"levels/{FOLLOWING}/best_loss")
    tensors |= {path: t for path, t in checkpoint.tensors.items() if path.startswith(kept)}
    reset: list[str] = []
    sections = config.model.sections()  # a fork keeps the layers
    for watched in watched_records(model):
        old, new = (settings.model.map_of(sections[watched.layer]) for settings in (original, config))
        if watched.form.map in NO_MAP or old is None or new is None or old == new:
            continue
        weight = tensors[f"model/{watched.path}"]
        tensors[f"model/{watched.path}"] = torch.from_numpy(carried_weights(weight.numpy(), old, new, watched.layer))
        reset.append(watched.path)
    if original.optimizer.name != config.optimizer.name:
        reset = [path for path, _ in model.named_parameters()]
    for path in reset:
        tensors = {name: t for name, t in tensors.items() if not name.startswith(f"optimizer/{path}/")}
    progress = checkpoint.state["progress"] | {"seconds": 0.0}
    if any(path in LEARNING_RATES for path in differs):
        progress |= {"lr_scale": 1.0, "lowered": []}
    facts = {"at_step": checkpoint.step, "changed": said(differs), "moments": _moments(original, config, reset)}
    return Checkpoint(checkpoint.step, tensors, checkpoint.state | {"progress": progress}), facts


def _moments(original: RunConfig, config: RunConfig, reset: list[str]) -> str:
    if original.optimizer.name != config.optimizer.name:
        return f"none: {config.optimizer.name} begins anew, the original had {original.optimizer.name}"
    return f"kept, but those of {', '.join(reset)} begin anew: the map changed" if reset else "kept"
