"""What W&B has and StableSSM has not.

What only records something, such as a table, is left out with one sentence. What should give the program something back, such as
a sweep's next configuration, raises NotImplementedError. Every other name is one sentence and an object that stands for None, but
does not end a program that calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from opcode import opname
from types import FrameType, FunctionType
from typing import Any

NOT_RECORDED = frozenset({
    "Table", "Image", "Audio", "Video", "Histogram", "Html", "Object3D", "Molecule", "Plotly", "Graph", "Artifact", "Settings",
    "plot", "log_artifact", "log_model", "log_code", "link_artifact", "link_model", "save", "mark_preempting", "display",
})  # fmt: skip
NEEDS_RESULT = frozenset({"Api", "sweep", "agent", "controller", "use_artifact", "use_model", "restore", "launch"})
WITHOUT_EFFECT = frozenset({"setup", "teardown", "require", "termsetup", "ensure_configured"})
SUBMODULES = frozenset({"command", "doctor", "integrations"})  # of the package stablessm, which exist after their import
ATTRIBUTE_CODES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})  # the instructions of `wandb.name` and its import
LOOK_UP = frozenset({"getattr", "hasattr", "attrgetter"})  # a program that uses these may ask for any name
_told: set[str] = set()
_made: dict[str, Any] = {}


class Error(Exception):
    """Stands for W&B's exceptions, so that programs can name them. Never raised."""


def missing_name(name: str, where: str, known: Iterable[str] = ()) -> Any:
    """A stand-in for what W&B has and StableSSM has not. where: what has no such attribute. known: names to suggest instead.

    Raises AttributeError for a name that begins with _, because Python and its tools ask for such names.
    """
    if name.startswith("_") or (name in SUBMODULES and where.startswith("module")):
        raise AttributeError(f"{where} has no attribute {name!r}" + ("" if name[0] == "_" else f"; import stablessm.{name}"))
    if name in WITHOUT_EFFECT:
        return lambda *_, **__: Nothing(name)
    if name in NEEDS_RESULT:
        return _made.setdefault(name, _raising(name))
    if name.endswith(("Error", "Exception", "Warning")) and name[0].isupper():
        return _made.setdefault(name, type(name, (Error,), {"__doc__": "One of W&B's exceptions. Never raised."}))
    if name in NOT_RECORDED or (name[0].isupper() and not name.isupper()):
        if name not in _made:
            sentence = f"W&B's {name} is not recorded by StableSSM; the program goes on without it"
            kind: Any = _Kind(name, (NotRecorded,), {"why_not_recorded": sentence})
            _made[name] = kind if name[0].isupper() else _quiet_instance(kind)
        if name not in NOT_RECORDED:
            tell(_made[name].why_not_recorded)
        return _made[name]
    close = get_close_matches(name, list(known), 1, 0.8)
    meant = f" (do you mean {close[0]}?)" if close else ""
    tell(f"{where} has no {name}{meant}; the program gets None and goes on")
    return Nothing(name)


def is_asked_for(frame: FrameType) -> bool:
    """True if the code of this frame asks for an attribute; False if Python itself tries a name on every module, as pickle does
    for an object that does not know its module."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    if opname[code.co_code[frame.f_lasti]] in ATTRIBUTE_CODES:
        return True
    in_library = module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"
    return not in_library and "modules" not in code.co_names and not LOOK_UP.isdisjoint(code.co_names)


def _raising(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"StableSSM has nothing in place of W&B's {name} (docs/watch/wandb.md)")

    return type(name, (), {"__init__": refuse}) if name[0].isupper() else refuse


def _quiet_instance(kind: type[NotRecorded]) -> Any:
    """A function or a module of W&B, such as `plot`: each use of it makes an object of the kind."""

    class Use:
        def __call__(self, *args: Any, **kwargs: Any) -> NotRecorded:
            return kind(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return kind

    return Use()


class Nothing:
    """None, except that a program may call it, ask it for attributes and items, iterate over it, and use it in `with`."""

    why_not_recorded = ""  # `log` leaves such a value out, because a sentence has been said already

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | type):
            return args[0]  # used as a decorator: the function stays as it is
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Nothing:
        return self

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def __delitem__(self, _: Any) -> None:
        pass

    def __contains__(self, _: Any) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or type(other) is type(self)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "None"

    def __format__(self, _: str) -> str:
        return "None"

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Kind(type):
    """A class of W&B, whose other attributes, such as `Object3D.from_numpy`, do nothing either."""

    why_not_recorded: str

    def __getattr__(cls, name: str) -> Nothing:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        tell(cls.why_not_recorded)
        return Nothing(name)


class NotRecorded(Nothing, metaclass=_Kind):
    """Stands for an object of W&B that StableSSM does not record. It accepts every call and attribute, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        tell(self.why_not_recorded)

    def __bool__(self) -> bool:
        return True

    __eq__ = object.__eq__
    __hash__ = object.__hash__
    __repr__ = object.__repr__


class Names:
    """A module of W&B, such as `wandb.util`. known: what StableSSM has of it. deep: modules of W&B lie inside it.

    Other names are found as those of `stablessm` itself are, so that `wandb.data_types.Image` is `wandb.Image`.
    """

    def __init__(self, path: str, known: dict[str, Any], find: Any, *, deep: bool = False) -> None:
        self._path, self._known, self._find, self._deep = path, known, find, deep

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self._path} has no attribute {name!r}")
        if name in self._known:
            return self._known[name]
        if name[0].isupper() and not name.isupper():
            return self._find(name)
        if self._deep:
            return Names(f"{self._path}.{name}", self._known, self._find, deep=True)
        return missing_name(name, self._path, self._known)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A function that looked like a module."""
        tell(f"W&B's {self._path} is not in StableSSM; the program gets None and goes on")
        return Nothing(self._path)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self._path}, as far as StableSSM has it>"


def tell(sentence: str) -> None:
    """One sentence on the terminal, once per process."""
    if sentence not in _told:
        _told.add(sentence)
        write(f"stablessm: {sentence}")


def write(text: str, end: str = "\n") -> None:
    """Text on the terminal."""
    try:
        sys.stderr.write(text + end)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # a closed terminal
        pass
