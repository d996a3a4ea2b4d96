"""Finds the parameters with eigenvalues in a foreign model.

Classes are known by their names, so that no framework is imported. A module of an unknown class is matched by the names and
shapes of its parameters. Such a match is labelled as unconfirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from stablessm_core.outside.candidates import candidates_of, unwatched
from stablessm_core.outside.confirm import NOTHING, confirm
from stablessm_core.outside.confirm import Found as Confirmation
from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, UNCONFIRMED, Declared, Eigenvalues, StepSize, parse_step
from stablessm_core.outside.parameters import Mismatch, Missing, has, tensor_at
from stablessm_core.outside.settings import choosing_setting, fingerprint, settings_read
from stablessm_core.outside.tables import CLASSES, PATTERNS, Find
from stablessm_core.telemetry.assumptions import DECAY_ONLY
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Watchable

# packages whose classes are what their names say
TRUSTED = ("transformers", "mamba_ssm", "fla", "s5", "mambapy", "LRU_pytorch")
DECLARE = "Declare its map with layers={...: stablessm.eigenvalues(...)}"
# notes that are worth keeping when the layer is matched by names alone
KEPT_NOTES = (DECAY_ONLY,)
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
    """The layers of a model, sentences about modules that cannot be watched, and the paths of the parameters that look like
    eigenvalues and are not watched."""

    layers: list[Layer]
    sentences: list[str]
    unwatched: list[str] = field(default_factory=list)


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
    confirmed: dict[Any, Confirmation] = {}
    for place, module in model.named_modules():
        if id(module) in inside:
            continue
        ours = isinstance(module, Watchable)
        for what in _of_module(module, short_path(place), declared or {}, used, sentences, confirmed):
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
    watched = {id(tensor) for layer in layers for tensor in layer.eigenvalues.tensors}
    return Found(layers, sentences, [short_path(path) for path in unwatched(model, watched)])


def _of_module(
    module: nn.Module,
    place: str,
    declared: Mapping[str, Declared],
    used: set[str],
    sentences: list[str],
    confirmed: dict[Any, Confirmation],
) -> Iterator[Eigenvalues]:
    own = list(_declared(module, place, declared, used))
    if own:
        yield from own
        return
    if isinstance(module, Watchable):
        yield from _of_protocol(module)
        return
    name = next((base.__name__ for base in type(module).__mro__ if base.__name__ in CLASSES), None)
    known = None if name is None else CLASSES[name]
    if isinstance(known, str):
        sentences.append(f"{place} ({type(module).__name__}): nothing to watch here, {known}")
        return
    finder, missing = known, None
    try:
        found = [] if known is None else _plain(known(module))
    except Missing as error:
        found, finder, missing = [], None, error
    except (Mismatch, AttributeError, TypeError, ValueError) as error:
        sentences.append(_not_as_expected(module, place, error))
        return
    if not found and finder is None:
        finder = next((find for names, find in PATTERNS if all(has(module, one) for one in names)), None)
        try:
            found = [] if finder is None else [_named(one) for one in _plain(finder(module))]
        except (Mismatch, AttributeError, TypeError, ValueError) as error:
            sentences.append(_not_as_expected(module, place, error))
            return
    if missing is not None and not found and not _contains_layers(module):
        sentences.append(_not_as_expected(module, place, missing))
    if finder is not None and found:
        yield from _checked(module, place, found, finder, sentences, confirmed)


def _plain(found: Eigenvalues | Sequence[Eigenvalues] | None) -> list[Eigenvalues]:
    return [] if found is None else [found] if isinstance(found, Eigenvalues) else list(found)


def _named(found: Eigenvalues) -> Eigenvalues:
    """The eigenvalues of a module that only the names of its parameters suggest."""
    return replace(found, note=f"{UNCONFIRMED}; {found.note}" if found.note in KEPT_NOTES else UNCONFIRMED)


def _not_as_expected(module: nn.Module, place: str, error: Exception) -> str:
    return f"{_named_place(module, place)}: its parameters are not as expected ({error}); it is not watched"


def _named_place(module: nn.Module, place: str) -> str:
    return f"{place} ({type(module).__name__})" if place else type(module).__name__


def _contains_layers(module: nn.Module) -> bool:
    """Whether the module has the name of a layer but contains the layers, as the whole model Mamba of several projects does."""
    return not candidates_of(module, recurse=False) and bool(candidates_of(module, recurse=True))


def _checked(
    module: nn.Module,
    place: str,
    found: list[Eigenvalues],
    finder: Find,
    sentences: list[str],
    confirmed: dict[Any, Confirmation],
) -> Iterator[Eigenvalues]:
    """The eigenvalues, unless the module itself contradicts them or a setting may have chosen another map."""
    setting, trusted = None, type(module).__module__.partition(".")[0] in TRUSTED
    if not trusted:
        setting = choosing_setting(module, found[0], settings_read(finder))
    for one in found:
        key = type(module), fingerprint(module), one.form, one.note, getattr(one.step, "kind", None)
        if key not in confirmed:
            skipped = trusted and AT_GATE_ZERO in (one.note or "")  # a large module, whose kernel depends on its input
            confirmed[key] = NOTHING if skipped else confirm(module, one)
        answer = confirmed[key]
        if answer.same is False and answer.sizes is not None:
            sizes = f"|lambda| {answer.sizes[0]:.4g} where {one.form.map} gives {answer.sizes[1]:.4g}"
            sentences.append(f"{_named_place(module, place)}: it computes {sizes}; it is not watched. {DECLARE}")
        elif answer.same:
            yield one if UNCONFIRMED not in (one.note or "") else replace(one, note=_without_unconfirmed(one.note))
            continue
        elif setting is not None:
            sentences.append(
                f"{_named_place(module, place)}: {setting}, which may choose another map than {one.form.map}; it is not watched. "
                f"{DECLARE}"
            )
        else:
            yield one
            continue
        return


def _without_unconfirmed(note: str | None) -> str | None:
    return (note or "").removeprefix(UNCONFIRMED).removeprefix("; ") or None


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
