"""Parameters whose names look like eigenvalues, for the sentence that lists those that nobody watches."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

SHOWN = 5
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
NAMES = ("recurrent_param", "base_params", "nu_log", "log_nu", "time_decay", "A", "lam", "a_param")
WORDS = ("lambda", "lambdas", "lambd", "eig", "eigs", "eigen", "eigenvalue", "eigenvalues", "decay", "decays", "pole", "poles")
# beside the word "a", as in A_log, log_A_real, A_re and A_diag
BESIDE_A = ("log", "real", "re", "diag", "inv")


def looks_like_eigenvalues(name: str) -> bool:
    """Whether a parameter of this name may hold eigenvalues."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return name in NAMES or any(word in WORDS for word in words) or ("a" in words and any(word in BESIDE_A for word in words))


def candidates_of(module: nn.Module, *, recurse: bool = True) -> list[str]:
    """The paths of the parameters that look like eigenvalues."""
    return [path for path, _ in module.named_parameters(recurse=recurse) if looks_like_eigenvalues(path.rpartition(".")[2])]


def unwatched(model: nn.Module, watched: Collection[int]) -> list[str]:
    """The paths of the parameters that look like eigenvalues and are not watched. watched: the ids of those that are."""
    named = dict(model.named_parameters())
    return [path for path in candidates_of(model) if id(named[path]) not in watched]


def sentence(paths: list[str]) -> str:
    """A sentence that lists these parameters and says how to declare them."""
    shown = ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")
    are = "this parameter looks like eigenvalues and is" if len(paths) == 1 else "these parameters look like eigenvalues and are"
    return f"{are} not watched: {shown}. Declare the map with layers={{pattern: stablessm.eigenvalues(...)}}"
