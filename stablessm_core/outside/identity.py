"""Finds out whether the recorded tensors are still those of the model.

A program may put another parameter, or another module, in the place of a recorded one. The check compares identities, so it needs
no operation on tensors, and it can run at every step. Only weak references to modules are kept, and none to tensors, because
`torch.utils.swap_tensors` refuses tensors with weak references.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from stablessm_core.outside.modules import short_path

Reference = weakref.ref[nn.Module]


@dataclass(frozen=True)
class _Edge:
    """A module that is the part `name` of another one."""

    parent: Reference
    name: str
    child: Reference


@dataclass
class _Leaf:
    """A recorded tensor, which the module `owner` calls `name`. path: in the model."""

    owner: Reference
    name: str
    path: str
    tensor: Tensor


class Identity:
    """Where each of the tensors is in the model. Tensors that the model does not hold under a name are not followed."""

    def __init__(self, model: nn.Module, tensors: Sequence[Tensor]) -> None:
        self._root = weakref.ref(model)
        self._leaves: list[_Leaf] = []
        wanted = {id(t): t for t in tensors}
        for place, module in model.named_modules():
            for name, tensor in _own(module).items():
                if tensor is not None and wanted.pop(id(tensor), None) is not None:
                    path = short_path(f"{place}.{name}".lstrip("."))
                    self._leaves.append(_Leaf(weakref.ref(module), name, path, tensor))
        owners = [leaf.owner for leaf in self._leaves]
        self._holders = owners or [weakref.ref(m) for m in model.modules() if m._parameters] or [self._root]
        self._edges = self._edges_to({id(leaf.owner()) for leaf in self._leaves})

    @property
    def alive(self) -> bool:
        """False if the program has deleted every module that holds a recorded tensor."""
        return any(holder() is not None for holder in self._holders)

    def changed(self) -> bool:
        """Whether another object is in the place of a recorded tensor, or of a module around it."""
        for edge in self._edges:
            parent = edge.parent()
            if parent is not None and ((child := edge.child()) is None or parent._modules.get(edge.name) is not child):
                return True
        for leaf in self._leaves:
            owner = leaf.owner()
            if owner is not None and _held(owner, leaf.name) is not leaf.tensor:
                return True
        return False

    def replacements(self) -> list[tuple[str, Tensor, Tensor | None]]:
        """The path, the old tensor and the new one of each recorded tensor that was replaced; None if nothing is in its place.

        Afterwards the new tensors count as recorded.
        """
        model = self._root()
        places = {} if model is None else {id(m): m for m in model.modules()}
        by_path = {} if model is None else _by_path(model)
        found: list[tuple[str, Tensor, Tensor | None]] = []
        kept: list[_Leaf] = []
        for leaf in self._leaves:
            owner, new = leaf.owner(), None
            if owner is not None and (model is None or id(owner) in places):
                new = _held(owner, leaf.name)
            if new is None and leaf.path in by_path:
                owner, leaf.name, new = by_path[leaf.path]
            if new is not leaf.tensor:
                found.append((leaf.path, leaf.tensor, new))
            if new is not None and owner is not None:
                kept.append(_Leaf(weakref.ref(owner), leaf.name, leaf.path, new))
        self._leaves = kept
        self._holders = [leaf.owner for leaf in kept] or self._holders
        self._edges = self._edges_to({id(leaf.owner()) for leaf in kept})
        return found

    def release(self) -> None:
        """Keep no tensor alive."""
        self._leaves, self._edges = [], []

    def _edges_to(self, owners: set[int]) -> list[_Edge]:
        """The edges of the model on the ways from its root to these modules."""
        model = self._root()
        found: list[_Edge] = []
        if model is None:
            return found
        seen: dict[int, bool] = {}

        def leads_to_owner(module: nn.Module) -> bool:
            if id(module) in seen:
                return seen[id(module)]
            seen[id(module)] = id(module) in owners
            for name, child in module._modules.items():
                if child is not None and leads_to_owner(child):
                    found.append(_Edge(weakref.ref(module), name, weakref.ref(child)))
                    seen[id(module)] = True
            return seen[id(module)]

        leads_to_owner(model)
        return found


def _own(module: nn.Module) -> dict[str, Tensor | None]:
    return {**module._buffers, **module._parameters}


def _held(module: nn.Module, name: str) -> Tensor | None:
    found = module._parameters.get(name)
    return module._buffers.get(name) if found is None else found


def _by_path(model: nn.Module) -> dict[str, tuple[nn.Module, str, Tensor]]:
    """The module, the name and the tensor at each path of the model."""
    found: dict[str, tuple[nn.Module, str, Tensor]] = {}
    for place, module in model.named_modules():
        for name, tensor in _own(module).items():
            if tensor is not None:
                found[short_path(f"{place}.{name}".lstrip("."))] = module, name, tensor
    return found
