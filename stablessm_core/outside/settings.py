"""Finds settings of a foreign module that could choose another map or another discretisation than the one that is assumed.

A setting is a text, a truth value or a function that the module, its class or its configuration holds. It counts if its name or
its value speaks of maps, step sizes or decays, unless it says just what is assumed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from torch import nn

from stablessm_core.outside.eigenvalues import Eigenvalues


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# beginnings of words in a name; a setting with one of them may choose how the eigenvalues follow from the parameters
CHOOSES = _words("""
    param reparam transform discr decay gate gating map nonlin act kind mode type variant flavo rule method scheme integrat
    softplus sigmoid tanh relu clip clamp bound stab posit negat neg constrain eig spectr timescale lambda pole retention
    forget squash
""")
# whole words of the same kind, too short to be beginnings
CHOOSES_WHOLE = _words("""
    disc form exp log dt delta step rate real imag a fn func function zoh hurwitz
""")
# a configuration is full of settings for other purposes, so only these beginnings count there
OF_CONFIGURATION = _words("""
    reparam transform disc decay softplus eig spectr lambda pole timescale nonlin safe bound parametri parameteri
""")
# a name with one of these words is about something else
ORDINARY = _words("""
    training weight grad lr optim init bias dropout norm conv path attn attention tie tied cache device dtype backend
    checkpoint checkpointing compile verbose fused out output loss mlp ffn glu embed embedding embeddings pos position layer
    block model name id return use_cache hidden problem torch rope router scan forward kernel mem
""")
# functions that no eigenvalue is mapped by, because they are neither positive nor bounded
HARMLESS = ("silu", "swish", "gelu", "glu", "mish", "identity", "dropout", "leakyrelu", "prelu", "hardswish", "selu")
MAPS = _words("""
    exp softplus sigmoid relu tanh direct linear none square squared abs clip clamp best stable zoh bilinear tustin euler
    forward_euler backward_euler dss sin cos cosh log log1p expm1 sqrt reciprocal elu hardtanh hardsigmoid logsigmoid
    softsign relu6
""")
CONFIGURATIONS = ("config", "args", "cfg", "hparams", "options", "opt", "params")
# a number may change the decay, too
NUMBERS = _words("""
    lower_bound linear_lower_bound kda_lower_bound safe_gate_lower_bound upper_bound decay_bound dt_limit time_step_limit
    gate_logit_normalizer min_decay max_decay clip_eigs
""")
# a False that takes away what is assumed
TAKEN_AWAY = ("softplus", "exp", "log", "disc", "transform", "param", "reparam", "parametri", "map", "neg", "posit")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def choosing_setting(module: Any, found: Eigenvalues, read: Collection[str] = ()) -> str | None:
    """ "name is value" of a setting that could choose another map than that of `found`; None if there is none.

    read: the names of the settings that were read to get `found`.
    """
    for name, value, own in _settings(module):
        if name not in read and _chooses(name, value, found, own=own):
            return f"{name} is {_shown(value)}"
    return None


def _settings(module: Any) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, whether the module itself holds it) of every setting."""
    children = {n: child for n, child in getattr(module, "_modules", {}).items() if child is not None}
    own = {n: v for n, v in vars(module).items() if not n.startswith("_") and n not in ("training", *CONFIGURATIONS)}
    for name, value in {**_of_class(type(module)), **own, **children}.items():
        yield name, value, True
    for at in CONFIGURATIONS:
        held = getattr(module, at, None)
        if held is None or isinstance(held, str | int | float | nn.Module) or callable(held):
            continue
        for name, value in held.items() if isinstance(held, Mapping) else getattr(held, "__dict__", {}).items():
            if isinstance(name, str) and not name.startswith("_"):
                yield name, value, False


def fingerprint(module: Any) -> tuple[Any, ...]:
    """Equal for two modules of a class with the same texts, truth values and functions."""
    held = {name: value for name, value in vars(module).items() if isinstance(value, str | bool | Enum) or callable(value)}
    return tuple((name, value if isinstance(value, str | bool) else id(value)) for name, value in sorted(held.items()))


def _of_class(kind: type) -> dict[str, Any]:
    """Plain values that the class and its bases define, up to torch's own."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, nn.Module) and base is not nn.Module and not base.__module__.startswith("torch."):
            plain = {n: v for n, v in vars(base).items() if isinstance(v, str | bool | Enum) and not n.startswith("_")}
            found |= plain
    return found


def _chooses(name: str, value: Any, found: Eigenvalues, *, own: bool) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if name in NUMBERS:
        return value not in (None, False) and not _without_limit(value)
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str) else value.name
    if isinstance(value, bool):
        return _truth_chooses(words, value, own=own)
    if isinstance(value, str):
        return _text_chooses(words, value.lower(), found, own=own)
    function = _function(value)
    if function is None or not own:
        return False
    if function in HARMLESS or _is_ordinary(words) or _is_assumed(words, function, found):
        return False
    if found.step is not None and function == found.step.kind and not _of_map(words):
        return False
    return function in MAPS or (not isinstance(value, nn.Module) and (function == "<lambda>" or _speaks(words)))


def _truth_chooses(words: list[str], value: bool, *, own: bool) -> bool:
    if _is_ordinary(words):
        return False
    if not value:
        return any(word.startswith(TAKEN_AWAY[3:]) or word in TAKEN_AWAY[:3] for word in words)
    assumed = any(word in ("softplus", "log") for word in words)  # what every table assumes
    return not assumed and (_speaks(words) if own else _begins(words, OF_CONFIGURATION))


def _text_chooses(words: list[str], value: str, found: Eigenvalues, *, own: bool) -> bool:
    if value in HARMLESS or _is_ordinary(words) or _is_assumed(words, value, found):
        return False
    return (value in MAPS or _speaks(words)) if own else _begins(words, OF_CONFIGURATION)


def _is_assumed(words: list[str], value: str, found: Eigenvalues) -> bool:
    """Whether this value is just what is assumed: of the step sizes if the name speaks of them, else of map and rule."""
    of_step = any(word in ("dt", "delta", "step", "timescale") for word in words)
    if of_step:
        return found.step is not None and value == found.step.kind
    if value in ("zoh", "bilinear"):
        return value == found.form.rule
    if value != found.form.map or value not in ("exp", "softplus", "sigmoid"):
        return False
    return found.step is None or _of_map(words) or value == found.step.kind


def _of_map(words: list[str]) -> bool:
    return _begins(words, ("real", "decay", "param", "reparam", "eig", "lambda", "transform")) or "a" in words


def _speaks(words: list[str]) -> bool:
    return _begins(words, CHOOSES) or any(word in CHOOSES_WHOLE for word in words)


def _begins(words: list[str], beginnings: tuple[str, ...]) -> bool:
    return any(word.startswith(beginnings) for word in words)


def _is_ordinary(words: list[str]) -> bool:
    return any(word in ORDINARY for word in words)


def _function(value: Any) -> str | None:
    """The name of a function, or of the class of a module without parameters such as nn.Softplus; None for anything else."""
    if isinstance(value, nn.Module):
        plain = type(value).__module__.startswith("torch.nn.modules.") and next(value.parameters(), None) is None
        return type(value).__name__.lower() if plain else None
    if isinstance(value, functools.partial):
        return _function(value.func) or "<lambda>"
    if isinstance(value, type) or not callable(value):
        return None
    name = getattr(value, "__name__", None)
    return str(name).lower() if name is not None else None


def _without_limit(value: Any) -> bool:
    """Whether this range (low, high) excludes no step size."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return value[0] in (None, 0, 0.0) and value[1] in (None, float("inf"))


def _shown(value: Any) -> str:
    if isinstance(value, nn.Module):
        return type(value).__name__
    if (name := getattr(value, "__name__", None)) is not None and callable(value):
        return str(name)
    return repr(value)[:60]


Reader = Callable[[Any], Any]
_READ: dict[Any, tuple[str, ...]] = {}


def reads(*names: str) -> Callable[[Reader], Reader]:
    """Declare which settings a finder reads."""

    def remember(find: Reader) -> Reader:
        _READ[find] = names
        return find

    return remember


def settings_read(find: Reader) -> tuple[str, ...]:
    """The settings that this finder reads."""
    return _READ.get(find, ())
