"""Reads parameters of a foreign module by their paths, and checks their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

_WORD = re.compile(r"[^_]+")


class Mismatch(Exception):
    """A module has unexpected parameters or settings."""


class Missing(Mismatch):
    """A module lacks a parameter."""


def tensor_at(module: Any, path: str) -> Tensor:
    """The parameter or buffer at a path such as "dt_proj.bias", also inside a wrapped linear layer."""
    found = module
    for name in path.split("."):
        inner = getattr(found, name, None)
        if inner is None and hasattr(found, "base_layer"):
            inner = getattr(found.base_layer, name, None)
        if inner is None:
            raise Missing(f"there is no {path}")
        found = inner
    if not isinstance(found, Tensor):
        raise Missing(f"{path} is no tensor")
    return found


def has(module: Any, path: str) -> bool:
    """Whether there is a parameter or buffer at this path."""
    try:
        tensor_at(module, path)
    except Mismatch:
        return False
    return True


def shaped(tensor: Tensor, *expected: int | None) -> Tensor:
    """The tensor. Raises Mismatch if it has another shape; None stands for any length."""
    fits = tensor.dim() == len(expected) and all(e is None or e == n for e, n in zip(expected, tensor.shape, strict=True))
    if not fits:
        wanted = ", ".join("n" if e is None else str(e) for e in expected)
        raise Mismatch(f"a shape is {tuple(tensor.shape)} instead of ({wanted})")
    return tensor


def directions(module: Any, name: str) -> Iterator[tuple[str, str]]:
    """(name, word) of every own parameter that is called as `name` with one more word, such as ("A_b_log", "b") for "A_log".

    Bidirectional modules name the parameters of their further directions so.
    """
    words = _WORD.findall(name)
    for other, parameter in module.named_parameters(recurse=False):
        if not parameter.is_floating_point():
            continue
        more = _WORD.findall(other)
        for at, word in enumerate(more):
            if at and more[:at] + more[at + 1 :] == words:
                yield other, word
                break


def of_direction(module: Any, path: str, word: str) -> str:
    """The path with this word in the name of its first part, such as "dt_proj_b.bias"; `path` if there is no such parameter."""
    first, dot, rest = path.partition(".")
    words = _WORD.findall(first)
    for at in range(len(words), 0, -1):
        other = "_".join([*words[:at], word, *words[at:]]) + dot + rest
        if has(module, other):
            return other
    return path
