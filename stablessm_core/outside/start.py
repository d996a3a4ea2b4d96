"""Starts the runs of `stablessm.watch` and `stablessm.log_only`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stablessm_core.outside.arguments import Arguments
from stablessm_core.outside.candidates import sentence
from stablessm_core.outside.eigenvalues import Declared
from stablessm_core.outside.life import described
from stablessm_core.outside.run import Run

if TYPE_CHECKING:
    from stablessm_core.outside.modules import Found
    from stablessm_core.outside.recording import Recording

R = TypeVar("R", bound=Run)

MAX_SENTENCES = 5
FSDP1 = "FSDP1 is not supported, so no eigenvalues are recorded: use FSDP2 (fully_shard)"
NOTHING_TO_WATCH = (
    "nothing to watch here: the model has no parameter that looks like eigenvalues; loss and logged numbers are recorded"
)

_runs: weakref.WeakKeyDictionary[Any, Run] = weakref.WeakKeyDictionary()


def start_watch(model: Any, optimizer: Any, arguments: Arguments, layers: Mapping[str, Declared] | None) -> Run:
    """A run that records the eigenvalues of `model` at each step of `optimizer`. Raises TypeError or ValueError for a wrong
    argument."""
    prepared = _prepare(model, optimizer, layers)
    run = Run(arguments, live=_is_first_rank())
    prepared = _gather(run, prepared)
    if run.mode != "disabled":
        _end_other_run(model, run)
        run.begin(*_record(run, prepared))
        _tell(run, prepared)
    return run


def watch_in(run: Run, model: Any, optimizer: Any, layers: Mapping[str, Declared] | None) -> None:
    """Record the eigenvalues of `model` in a run that has begun without a model. Raises TypeError or ValueError for a wrong
    argument."""
    prepared = _gather(run, _prepare(model, optimizer, layers))
    if run.mode != "disabled":
        _end_other_run(model, run)
        run.record(*_record(run, prepared))
        _tell(run, prepared)


@dataclass(frozen=True)
class _Prepared:
    """The checked arguments of `watch`. optimizers: empty if the recording has to find them."""

    model: Any
    optimizers: list[Any]
    found: Found


def _prepare(model: Any, optimizer: Any, layers: Mapping[str, Declared] | None) -> _Prepared:
    from torch import nn

    from stablessm_core.outside.hook import torch_optimizers
    from stablessm_core.outside.modules import Found, find_layers
    from stablessm_core.outside.sharded import is_fsdp1

    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; a torch.nn.Module is needed")
    optimizers = [] if optimizer is None else torch_optimizers(optimizer)
    if layers is not None and not (
        isinstance(layers, Mapping) and all(isinstance(k, str) and isinstance(v, Declared) for k, v in layers.items())
    ):
        raise TypeError("layers is no dictionary from patterns of parameter paths to stablessm.eigenvalues(...)")
    found = Found([], [FSDP1]) if is_fsdp1(model) else find_layers(model, layers)
    return _Prepared(model, optimizers, found)


def _gather(run: Run, prepared: _Prepared) -> _Prepared:
    """The same with whole copies of sharded parameters. Every process calls this, also those whose run records nothing."""
    from stablessm_core.outside.sharded import gather_sharded

    willing = run._arguments.mode != "disabled"
    found, run.gathering = gather_sharded(prepared.found, prepared.optimizers, run.say, willing=willing)
    return replace(prepared, found=found)


def _record(run: Run, prepared: _Prepared) -> tuple[Recording, dict[str, Any], list[dict[str, Any]]]:
    """The recording, how the model is trained, and the layers as the server is told of them."""
    from stablessm_core.outside.recording import Recording

    precision = _precision(prepared.model)
    recording = Recording(
        prepared.model, prepared.optimizers, prepared.found.layers, run._sink, every=run.every, length=run.length,
        first_step=run.first_step, say=run.say, found=lambda optimizer: run.describe_training(_how(optimizer, precision)),
    )  # fmt: skip
    how = _how(prepared.optimizers[0], precision) if prepared.optimizers else {}
    return recording, how, [described(layer) for layer in prepared.found.layers]


def _tell(run: Run, prepared: _Prepared) -> None:
    for one in prepared.found.sentences[:MAX_SENTENCES]:
        run.say(one)
    if (more := len(prepared.found.sentences) - MAX_SENTENCES) > 0:
        run.say(f"{more} more modules cannot be watched")
    if prepared.found.unwatched:
        run.say(sentence(prepared.found.unwatched))
    elif not prepared.found.layers and prepared.found.sentences != [FSDP1]:
        run.say(NOTHING_TO_WATCH)


def start_log_only(arguments: Arguments) -> Run:
    """A run without a model."""
    return begin_without_model(Run(arguments, live=is_rank_0_of_environment()))


def begin_without_model(run: R) -> R:
    """The run, open."""
    if run.mode != "disabled":
        run.begin(None, {}, [])
    return run


def _is_first_rank() -> bool:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return is_rank_0_of_environment()


def is_rank_0_of_environment() -> bool:
    """False in the processes of a distributed program that report nothing."""
    rank = os.environ.get("RANK", "0")
    return not rank.isdecimal() or int(rank) == 0


def _how(optimizer: Any, precision: str | None) -> dict[str, Any]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    momentum, nesterov = group.get("momentum"), group.get("nesterov")
    return {
        "optimizer": type(optimizer).__name__.lower()[:60],
        "lr": "recorded",
        "momentum": float(momentum) if isinstance(momentum, int | float) else None,
        "nesterov": nesterov if isinstance(nesterov, bool) else None,
        "precision": precision,
    }


def _precision(model: Any) -> str | None:
    parameter = next(iter(model.parameters()), None)
    return None if parameter is None else str(parameter.dtype).removeprefix("torch.")


def _end_other_run(model: Any, run: Run) -> None:
    """End the run of this model that is still open, and remember the new one."""
    old = _runs.get(model)
    if old is not None and old is not run and old._live:
        run.say(f"this model was watched already; its run {old.id[:8]} has ended")
        old.finish()
    _runs[model] = run
