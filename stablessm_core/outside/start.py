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
WATCH_ARGUMENTS = frozenset({"log", "log_freq", "idx", "log_graph"})  # of W&B's function, which records histograms now and then
FSDP1 = "FSDP1 is not supported, so no eigenvalues are recorded: use FSDP2 (fully_shard)"
NOTHING_TO_WATCH = (
    "nothing to watch here: the model has no parameter that looks like eigenvalues; loss and logged numbers are recorded"
)

_runs: weakref.WeakKeyDictionary[Any, Run] = weakref.WeakKeyDictionary()


class WatchableRun(Run):
    """A run that can begin to watch a model."""

    def watch(
        self, models: Any, criterion: Any = None, *_: Any, layers: Mapping[str, Declared] | None = None, **others: Any
    ) -> WatchableRun:
        """Record the eigenvalues of the model at every step of the optimizer that trains it, in this run.

        criterion: an optimizer, or a list of them, is taken as the model's optimizer; anything else is not used, as are W&B's
        log, log_freq, idx and log_graph. layers: as in `stablessm.watch`. Raises TypeError or ValueError for a wrong argument.
        """
        if unknown := sorted(others.keys() - WATCH_ARGUMENTS):
            self.say(f"watch does not use {', '.join(unknown)}: the run has these already")
        model = models
        if isinstance(models, list | tuple) and models:
            model = models[0]
            if len(models) > 1:
                self.say(f"watch received {len(models)} models; the first one is watched")
        if self._recording is not None:
            self.say("this run watches a model already; the second call of watch changes nothing")
            return self
        watch_in(self, model, criterion if _is_optimizer(criterion) else None, layers)
        return self

    def unwatch(self, models: Any = None) -> None:  # noqa: ARG002
        """Record no more eigenvalues."""
        if self._recording is not None:
            self._recording.stop("the model is not watched any more")


def start_watch(model: Any, optimizer: Any, arguments: Arguments, layers: Mapping[str, Declared] | None) -> Run:
    """A run that records the eigenvalues of `model` at each step of `optimizer`. Raises TypeError or ValueError for a wrong
    argument."""
    prepared = _prepare(model, optimizer, layers)
    run = WatchableRun(arguments, live=_is_first_rank())
    prepared = _gather(run, prepared)
    if run.mode != "disabled":
        _end_other_run(model, run)
        run.begin(*_record(run, prepared))
        _tell(run, prepared)
        _tell_config(run)
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
    foreign: str = ""  # the class of an optimizer that is not torch's


def _prepare(model: Any, optimizer: Any, layers: Mapping[str, Declared] | None) -> _Prepared:
    from torch import nn

    from stablessm_core.outside.hook import split_optimizers
    from stablessm_core.outside.modules import Found, find_layers
    from stablessm_core.outside.sharded import is_fsdp1

    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; a torch.nn.Module is needed")
    optimizers, foreign = ([], "") if optimizer is None else split_optimizers(optimizer)
    if layers is not None and not (
        isinstance(layers, Mapping) and all(isinstance(k, str) and isinstance(v, Declared) for k, v in layers.items())
    ):
        raise TypeError("layers is no dictionary from patterns of parameter paths to stablessm.eigenvalues(...)")
    found = Found([], [FSDP1]) if is_fsdp1(model) else find_layers(model, layers)
    return _Prepared(model, optimizers, found, foreign)


def _gather(run: Run, prepared: _Prepared) -> _Prepared:
    """The same with whole copies of sharded parameters. Every process calls this, also those whose run records nothing."""
    from stablessm_core.outside.sharded import gather_sharded

    willing = run._arguments.mode != "disabled"
    found, run.gathering = gather_sharded(prepared.found, prepared.optimizers, run.say, willing=willing)
    return replace(prepared, found=found)


def _record(run: Run, prepared: _Prepared) -> tuple[Recording, dict[str, Any], list[dict[str, Any]]]:
    """The recording, how the model is trained, and the layers as the server is told of them."""
    from stablessm_core.outside.precision import precision_of
    from stablessm_core.outside.recording import Recording

    run.foreign_optimizer = prepared.foreign
    recording = Recording(
        prepared.model, prepared.optimizers, prepared.found.layers, run._sink, every=run.every, length=run.length,
        first_step=run.first_step, say=run.say, tell=run.tell, found=lambda optimizer: run.describe_training(_how(optimizer)),
        precision=lambda name: run.describe_training({"precision": name}),
    )  # fmt: skip
    how = {"precision": precision_of(prepared.model), **(_how(prepared.optimizers[0]) if prepared.optimizers else {})}
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
    return begin_without_model(WatchableRun(arguments, live=is_rank_0_of_environment()))


def begin_without_model(run: R) -> R:
    """The run, open."""
    if run.mode != "disabled":
        run.begin(None, {}, [])
        _tell_config(run)
    return run


def _tell_config(run: Run) -> None:
    for told in run._arguments.told:
        run.say(told)


def _is_first_rank() -> bool:
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return is_rank_0_of_environment()


def is_rank_0_of_environment() -> bool:
    """False in the processes of a distributed program that report nothing."""
    rank = os.environ.get("RANK", "0")
    return not rank.isdecimal() or int(rank) == 0


def _how(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    momentum, nesterov = group.get("momentum"), group.get("nesterov")
    return {
        "optimizer": type(optimizer).__name__.lower()[:60],
        "lr": "recorded",
        "momentum": float(momentum) if isinstance(momentum, int | float) else None,
        "nesterov": nesterov if isinstance(nesterov, bool) else None,
    }


def _end_other_run(model: Any, run: Run) -> None:
    """End the run of this model that is still open, and remember the new one."""
    old = _runs.get(model)
    if old is not None and old is not run and old._live:
        run.say(f"this model was watched already; its run {old.id[:8]} has ended")
        old.finish()
    _runs[model] = run


def _is_optimizer(value: Any) -> bool:
    one = value[0] if isinstance(value, list | tuple) and value else value
    return callable(getattr(one, "step", None)) and (hasattr(one, "param_groups") or hasattr(one, "optimizer"))
