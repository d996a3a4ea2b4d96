"""Start a run from another run's checkpoint: with the same weights, but another map, learning rate or optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import ForkError, carried_weights, differences, refuse_fixed, summarize_changes
from stablessm_core.telemetry.detectors.episodes import without_alerts
from stablessm_core.telemetry.forms import NO_MAP
from stablessm_core.training.checkpoint import Checkpoint
from stablessm_core.watch.flusher import CROSS_STEP_STATE, DETECTOR_STATE
from stablessm_core.watch.watchable import WatchedRecord

LEARNING_RATES = ("optimizer.lr", "optimizer.recurrent_lr")


def forked(
    checkpoint: Checkpoint, config: RunConfig, model: nn.Module, records: Sequence[WatchedRecord]
) -> tuple[Checkpoint, dict[str, Any]]:
    """Makes the first checkpoint of a run with the configuration `config` from another run's checkpoint. Also returns the facts
    about the fork that users see.

    If the map differs, the weights are changed so that every eigenvalue stays the same (see `carried_weights`). The moments of
    these weights start at 0, because the old moments belong to another quantity. If the optimizer differs, all moments start at
    0. Learning rates that rollbacks lowered remain lowered, unless the fork sets a rate. The fork's series begin at the first
    step after the checkpoint. The detectors keep their state. records: the `watched_records` of the model.

    Raises ForkError for an eigenvalue that the map cannot reach, for a field that a fork cannot change, and if the checkpoint
    is at or after the fork's last step.
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
    # keep the state of the detectors: they compare the loss with the original run's best loss, and alert episodes continue
    detectors = {path: t.numpy() for path, t in checkpoint.under(f"levels/{DETECTOR_STATE}").items()}
    tensors |= {f"levels/{DETECTOR_STATE}/{key}": torch.from_numpy(a) for key, a in without_alerts(detectors).items()}
    best_loss = f"levels/{CROSS_STEP_STATE}/best_loss"
    tensors |= {path: t for path, t in checkpoint.tensors.items() if path.startswith(best_loss)}
    reset: list[str] = []
    sections = config.model.sections()  # a fork cannot change the layers
    for watched in records:
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
    progress = checkpoint.state["progress"] | {"seconds": 0.0, "nonfinite_evaluations": [], "bests": []}
    if any(path in LEARNING_RATES for path in differs):
        progress |= {"lr_scale": 1.0, "lowered": []}
    facts = {"at_step": checkpoint.step, "changed": summarize_changes(differs), "moments": _moments(original, config, reset)}
    return Checkpoint(checkpoint.step, tensors, checkpoint.state | {"progress": progress}), facts


def _moments(original: RunConfig, config: RunConfig, reset: list[str]) -> str:
    if original.optimizer.name != config.optimizer.name:
        return f"none: {config.optimizer.name} starts at 0, the original had {original.optimizer.name}"
    return f"kept, but those of {', '.join(reset)} start at 0: the map changed" if reset else "kept"
