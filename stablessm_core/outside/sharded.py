"""Whole copies of the watched parameters that FSDP2 or tensor parallelism shards over several processes.

`full_tensor` is a collective: every process must call it, or those that do wait for ever. So every process that calls `watch`
gathers the watched weights and gradients just before each optimizer step, and the first one records the copies. Before that, the
processes agree that all of them will, through the store of the process group.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stablessm_core.outside.eigenvalues import Eigenvalues
from stablessm_core.outside.hook import StepHooks
from stablessm_core.outside.modules import Found

AGREE_SECONDS = 20.0  # that `watch` waits for the other processes
_numbers = count()


def is_sharded(tensor: Tensor) -> bool:
    """True if this process holds only a part of the tensor."""
    return type(tensor).__name__ == "DTensor"


def is_fsdp1(model: nn.Module) -> bool:
    """True if FSDP1 wraps a part of the model."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


class Gathering:
    """Whole copies of sharded parameters, with their gradients, brought up to date before each optimizer step.

    failed: receives an error of a collective; the copies then keep their values.
    """

    def __init__(
        self, sharded: Sequence[Tensor], optimizers: Sequence[Optimizer], failed: Callable[[BaseException], None]
    ) -> None:
        self.copies = {id(t): _copy_of(t) for t in sharded}
        owners = {id(p): number for number, o in enumerate(optimizers) for g in o.param_groups for p in g["params"]}
        self._pairs: list[list[tuple[weakref.ref[Tensor], Tensor]]] = [[] for _ in optimizers]
        for t in sharded:
            self._pairs[owners.get(id(t), 0)].append((weakref.ref(t), self.copies[id(t)]))
        self._failed = failed
        self._hooks = StepHooks(optimizers, self._gather, failed)

    @torch.no_grad()
    def _gather(self, owner: int, optimizer: Optimizer, *, skipped: bool) -> None:  # noqa: ARG002
        try:
            for reference, copy in self._pairs[owner]:
                tensor: Any = reference()
                if tensor is None:  # the model was deleted
                    continue
                copy.data.copy_(tensor.full_tensor())
                copy.grad = None if tensor.grad is None else tensor.grad.full_tensor()
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self._failed(error)

    def remove(self) -> None:
        """Gather no more. Every process must do so after the same step."""
        self._hooks.remove()


def _copy_of(tensor: Any) -> Tensor:
    copy = nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), tensor.requires_grad)
    setattr(copy, "origin", id(tensor))  # noqa: B010 - names the optimizer's parameter
    return copy


def origin(tensor: Tensor) -> int:
    """The identity of the parameter whose values this tensor holds: its own, or that of the sharded parameter."""
    found: int = getattr(tensor, "origin", id(tensor))
    return found


def with_copies(found: Found, gathering: Gathering) -> Found:
    """The layers, with whole copies in the place of their sharded parameters."""

    def copied(of: Eigenvalues) -> Eigenvalues:
        step = None if of.step is None else replace(of.step, weight=whole(of.step.weight))
        return replace(of, weight=whole(of.weight), imag=None if of.imag is None else whole(of.imag), step=step)

    def whole(tensor: Tensor) -> Tensor:
        return gathering.copies.get(id(tensor), tensor)

    return replace(found, layers=[replace(layer, eigenvalues=copied(layer.eigenvalues)) for layer in found.layers])


def gather_sharded(
    found: Found, optimizers: Sequence[Optimizer], say: Callable[[str], None], *, willing: bool
) -> tuple[Found, Gathering | None]:
    """The layers as they can be recorded, and what gathers them. Every process of the group calls this, also those that record
    nothing.

    say: receives a sentence if a collective fails. willing: False if this process is not to watch.
    """
    sharded = sharded_tensors(found)
    if not sharded:
        return found, None
    if not optimizers:
        return without_sharded(found, "name the optimizer in `watch`"), None
    if why_not := all_agree(willing=willing):
        return without_sharded(found, why_not), None

    def failed(error: BaseException) -> None:
        say(f"the sharded weights cannot be gathered ({type(error).__name__}: {error})")

    gathering = Gathering(sharded, optimizers, failed)
    return with_copies(found, gathering), gathering


def sharded_tensors(found: Found) -> list[Tensor]:
    """The sharded tensors of the layers, in the same order in every process."""
    tensors = {id(t): t for layer in found.layers for t in layer.eigenvalues.tensors if is_sharded(t)}
    return list(tensors.values())


def without_sharded(found: Found, why: str) -> Found:
    """The layers that are whole in this process, and a sentence about the others."""
    whole = [layer for layer in found.layers if not any(map(is_sharded, layer.eigenvalues.tensors))]
    return Found(whole, [*found.sentences, f"{len(found.layers) - len(whole)} layers are sharded over several processes: {why}"])


def all_agree(*, willing: bool) -> str:
    """ "" if every process of the group calls this and is willing; otherwise why not. Each process gets the same answer.

    The first process that knows the answer puts it into the group's store, and the others follow it, even if they came too late.
    """
    from torch.distributed import distributed_c10d as group

    name, size, rank = f"stablessm/{next(_numbers)}", group.get_world_size(), group.get_rank()
    store = group._get_default_store()
    answer = "" if willing else "one of the processes does not watch"
    if willing:
        store.set(f"{name}/{rank}", "here")
        try:
            store.wait([f"{name}/{i}" for i in range(size)], timedelta(seconds=AGREE_SECONDS))
        except Exception:  # noqa: BLE001 - each kind of store raises an error of its own
            answer = f"not every process called watch within {AGREE_SECONDS:g} seconds"
    agreed: bytes = store.compare_set(f"{name}/answer", "", answer or "yes")
    return "" if agreed == b"yes" else agreed.decode()
