"""Finds the parameters with eigenvalues in a foreign model.

Classes are known by their names, so that no framework is imported. A module of an unknown class is matched by the names and
shapes of its parameters. Such a match is labelled as unconfirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from stablessm_core.outside.eigenvalues import UNCONFIRMED, Declared, Eigenvalues, StepSize, parse_step
from stablessm_core.outside.tables import CLASSES, PATTERNS, Mismatch, other_decay, tensor_at
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Watchable

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "base_model.model.")


@dataclass(frozen=True)
class Layer:
    """One module with eigenvalues. path: of the weight in the model. name: the module's class."""

    name: str
    path: str
    eigenvalues: Eigenvalues
    paths: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The layers of a model, and sentences about modules that cannot be watched."""

    layers: list[Layer]
    sentences: list[str]


def find_layers(model: nn.Module, declared: Mapping[str, Declared] | None = None) -> Found:
    """The layers with eigenvalues in `model`, in the order of its modules.

    declared: what the user says about parameters, by patterns of their paths. It comes before everything else, then the
    protocol `Watchable`, then the class, then the parameters' names. Raises ValueError if a pattern matches no parameter.
    """
    paths = {id(p): short_path(path) for path, p in (*model.named_buffers(), *model.named_parameters())}
    layers: list[Layer] = []
    sentences: list[str] = []
    seen: set[int] = set()
    used: set[str] = set()
    inside: set[int] = set()
    for place, module in model.named_modules():
        if id(module) in inside:
            continue
        ours = isinstance(module, Watchable)
        for what in _of_module(module, short_path(place), declared or {}, used, sentences):
            if ours:
                inside |= {id(part) for part in module.modules()}
            if id(what.weight) in seen:
                continue  # tied
            trouble = what.problem() or next((why for t in what.tensors if (why := unreadable(t))), None)
            if trouble is not None:
                sentences.append(f"{short_path(place) or type(module).__name__}: {trouble}; it is not watched")
                continue
            seen.add(id(what.weight))
            own = f"{short_path(place)}.weight".lstrip(".")
            more = {"dt": what.step.weight if what.step and what.form.dt else None, "phase_weight": what.imag}
            others = {kind: paths[id(p)] for kind, p in more.items() if p is not None and id(p) in paths}
            layers.append(Layer(type(module).__name__, paths.get(id(what.weight), own), what, others))
    if declared and (unused := sorted(declared.keys() - used)):
        raise ValueError(f"layers has the patterns {unused}, which match no parameter of the model")
    return Found(layers, sentences)


def _of_module(
    module: nn.Module, place: str, declared: Mapping[str, Declared], used: set[str], sentences: list[str]
) -> Iterator[Eigenvalues]:
    own = list(_declared(module, place, declared, used))
    if own:
        yield from own
        return
    if isinstance(module, Watchable):
        yield from _of_protocol(module)
        return
    known = next((CLASSES[base.__name__] for base in type(module).__mro__ if base.__name__ in CLASSES), None)
    if isinstance(known, str):
        sentences.append(f"{place} ({type(module).__name__}): nothing to watch here, {known}")
        return
    found: Eigenvalues | None = None
    try:
        found = known(module) if known is not None else _by_pattern(module, place, sentences)
    except (Mismatch, AttributeError, TypeError, ValueError) as error:
        sentences.append(f"{place} ({type(module).__name__}): its parameters are not as expected ({error}); it is not watched")
    if found is not None:
        yield found


def _declared(module: nn.Module, place: str, declared: Mapping[str, Declared], used: set[str]) -> Iterator[Eigenvalues]:
    for name, parameter in module.named_parameters(recurse=False):
        path = f"{place}.{name}".lstrip(".")
        for pattern, what in declared.items():
            if fnmatchcase(path, pattern):
                used.add(pattern)
                step = None
                if isinstance(what.step, str):
                    kind, of = parse_step(what.step)
                    step = StepSize(tensor_at(module, of), kind)
                imag = tensor_at(module, what.imag) if what.imag else None
                yield Eigenvalues(parameter, what.form, step, imag, pairs=what.imag == "")
                break


def _of_protocol(module: Any) -> Iterator[Eigenvalues]:
    for record in module.records():
        if record.weight is None or record.name:
            continue
        if record.gate:
            form = Form("none", "discrete", "none")
            yield Eigenvalues(record.weight, form, note="the eigenvalues depend on the input; only the weights are recorded")
        else:
            step = None if record.log_dt is None else StepSize(record.log_dt, "exp")
            yield Eigenvalues(record.weight, record.form, step, record.phase)


def _by_pattern(module: nn.Module, place: str, sentences: list[str]) -> Eigenvalues | None:
    for names, find in PATTERNS:
        if not all(_has(module, name) for name in names):
            continue
        if setting := other_decay(module):
            sentences.append(
                f"{place} ({type(module).__name__}): {setting} is set, so {names[0]} need not mean what its name says; it is not "
                "watched"
            )
            return None
        found = find(module)
        assert found is not None
        return replace(found, note=UNCONFIRMED)
    return None


def _has(module: Any, path: str) -> bool:
    try:
        tensor_at(module, path)
    except Mismatch:
        return False
    return True


def unreadable(tensor: Tensor) -> str | None:
    """Why the numbers of this tensor cannot be recorded; None if they can."""
    if tensor.is_meta:
        return "the parameter has no values yet"
    return None if tensor.is_floating_point() or tensor.is_complex() else f"the parameter has the type {tensor.dtype}"


def short_path(path: str) -> str:
    """The path without the names of wrappers such as DistributedDataParallel and torch.compile."""
    for wrapper in WRAPPERS:
        path = path.removeprefix(wrapper).replace(f".{wrapper}", ".")
        if path == wrapper.rstrip("."):
            return ""
    return path
