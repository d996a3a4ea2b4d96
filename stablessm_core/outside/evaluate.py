"""Evaluates a copy of a foreign module, so that neither the module nor any random number of the program changes."""

from __future__ import annotations

import copy
import inspect
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MOST_NUMBERS = 1 << 21  # in a module that is copied
MOST_ITEMS = 1000  # in a list or dictionary that a module holds
LENGTHS = ("l", "length", "seq_len", "seqlen", "seq_length", "sequence_length", "kernel_length", "t", "n_steps", "steps")
STATES = re.compile(r"_?(get|compute|calc|make)?_?(discret\w*|(a|lambdas?)_?bar|decays?|transitions?)", re.IGNORECASE)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, np.number)


def copy_of(module: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """A copy in float64 or float32 on the CPU, without hooks and in evaluation mode; None if the module is too large, has no
    numbers yet, is sharded, or holds objects that may belong to the whole program."""
    tensors = [*module.parameters(), *module.buffers()]
    if sum(t.numel() for t in tensors) > MOST_NUMBERS or any(t.is_meta or hasattr(t, "full_tensor") for t in tensors):
        return None
    for part in module.modules():
        if not all(_is_plain(value) for name, value in vars(part).items() if name not in vars(nn.Module())):
            return None
    # hooks may reach the whole program, so they are not copied
    hooks = [v for p in module.modules() for name, v in vars(p).items() if "_hooks" in name and isinstance(v, dict)]
    found: nn.Module = copy.deepcopy(module, {id(v): type(v)() for v in hooks})
    moved: nn.Module = found.cpu()._apply(lambda t: _cast(t, dtype))  # type: ignore[no-untyped-call]
    return moved.eval().requires_grad_(False)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _is_plain(value: Any, depth: int = 3) -> bool:
    """Whether a copy of this value costs little and shares nothing that can change."""
    if isinstance(value, (*_PLAIN, type)) or inspect.isroutine(value):
        return True
    if isinstance(value, Tensor):
        return value.numel() <= MOST_NUMBERS and not value.is_meta
    if depth and isinstance(value, dict):
        return len(value) <= MOST_ITEMS and all(_is_plain(one, depth - 1) for one in value.values())
    if depth and isinstance(value, tuple | list | set | frozenset):
        return len(value) <= MOST_ITEMS and all(_is_plain(one, depth - 1) for one in value)
    return depth > 0 and hasattr(value, "__dict__") and _is_plain(dict(vars(value)), depth - 1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the random numbers of Python, numpy and torch, and computes without gradients, autocast and warnings."""
    python, of_numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)


def has_functions(module: nn.Module) -> bool:
    """Whether the module has a function of the length of a kernel, or one that returns its decays."""
    functions = (module.forward, *_methods(module, "kernel"))
    return any(_only_length(one) is not None for one in functions) or any(STATES.fullmatch(name) for name in dir(type(module)))


def kernels(module: nn.Module, length: int) -> Tensor | None:
    """The convolution kernels that the module computes from its parameters alone, (kernels, length); None if it has none."""
    for function in (module.forward, *_methods(module, "kernel")):
        if (name := _only_length(function)) is not None:
            found = function(**{name: length})
            found = next((part for part in found if isinstance(part, Tensor)), None) if isinstance(found, tuple) else found
            if isinstance(found, Tensor) and found.dim() and found.shape[-1] == length:
                return found.reshape(-1, length)
    return None


def responses(module: nn.Module, length: int) -> Tensor | None:
    """How the outputs answer to an impulse at the first step, (outputs, length); None if the module takes no sequence."""
    needed = _needed(module.forward)
    if len(needed) != 1:
        return None
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float64)
    sizes = {n for p in module.parameters() for n in p.shape}
    for size in sorted(sizes, reverse=True)[:6]:
        for shape in ((1, length, size), (length, size), (1, size, length)):
            try:
                x = torch.zeros(shape, dtype=dtype)
                rest = _output(module(x))
                at = (0, slice(None), 0) if shape[-1] == length else (..., 0, slice(None))
                x[at] = torch.linspace(0.5, 1.0, size, dtype=dtype)
                found = _output(module(x)) - rest
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue
            axis = next((i for i, n in enumerate(found.shape) if n == length), None)
            if axis is not None:
                return found.movedim(axis, -1).reshape(-1, length)
    return None


def factors(module: nn.Module) -> list[Tensor]:
    """The tensors that the module's own methods return as its decays or discrete eigenvalues."""
    found: list[Tensor] = []
    for name in dir(type(module)):
        function = getattr(module, name, None) if STATES.fullmatch(name) else None
        if function is not None and inspect.ismethod(function) and not _needed(function):
            values = function()
            found += [v for v in (values if isinstance(values, tuple) else (values,)) if isinstance(v, Tensor)]
    return found


def _output(value: Any) -> Tensor:
    first = value[0] if isinstance(value, tuple | list) else value
    if not isinstance(first, Tensor):
        raise TypeError("the module returns no tensor")
    return first


def _methods(module: nn.Module, word: str) -> list[Callable[..., Any]]:
    names = [name for name in dir(type(module)) if word in name.lower() and not name.startswith("__")]
    return [function for name in names if inspect.ismethod(function := getattr(module, name, None))]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _needed(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [n for n, p in _parameters(function).items() if p.default is p.empty and p.kind not in kinds]


def _only_length(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is the length of a sequence, if nothing else is needed."""
    name = next((n for n in _parameters(function) if n.lower() in LENGTHS), None)
    return name if name is not None and set(_needed(function)) <= {name} else None
