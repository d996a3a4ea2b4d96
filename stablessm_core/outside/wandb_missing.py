"""What W&B has and StableSSM has not.

What only records something, such as a table, is left out with one sentence. What should give the program something back, such as
a sweep's next configuration, raises NotImplementedError.
"""

from __future__ import annotations

import sys
from typing import Any

NOT_RECORDED = frozenset({
    "Table", "Image", "Audio", "Video", "Histogram", "Html", "Object3D", "Molecule", "Plotly", "Graph", "Artifact", "Settings",
    "plot", "log_artifact", "log_model", "log_code", "link_artifact", "link_model", "save", "mark_preempting", "display",
})  # fmt: skip
NEEDS_RESULT = frozenset({"Api", "sweep", "agent", "controller", "use_artifact", "use_model", "restore", "launch"})
WITHOUT_EFFECT = frozenset({"setup", "teardown", "require"})
_told: set[str] = set()
_made: dict[str, Any] = {}


def missing_name(name: str, where: str) -> Any:
    """A stand-in for what W&B has and StableSSM has not. Raises AttributeError for a name that W&B has not either."""
    if name in WITHOUT_EFFECT:
        return lambda *_, **__: None
    if name in NOT_RECORDED:
        if name not in _made:
            sentence = f"W&B's {name} is not recorded by StableSSM; the program goes on without it"
            kind = type(name, (NotRecorded,), {"why_not_recorded": sentence})
            _made[name] = kind if name[0].isupper() else _quiet_instance(kind)
        return _made[name]
    if name in NEEDS_RESULT:

        def raising(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"StableSSM has nothing in place of W&B's {name} (docs/watch/wandb.md)")

        return raising
    raise AttributeError(f"{where} has no attribute {name!r}")


def _quiet_instance(kind: type[NotRecorded]) -> Any:
    """A function or a module of W&B, such as `plot`: each use of it makes an object of the kind."""

    class Use:
        def __call__(self, *args: Any, **kwargs: Any) -> NotRecorded:
            return kind(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return kind

    return Use()


class NotRecorded:
    """Stands for an object of W&B that StableSSM does not record. It accepts every call and attribute, and does nothing."""

    why_not_recorded = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        tell(self.why_not_recorded)

    def __call__(self, *_: Any, **__: Any) -> NotRecorded:
        return self

    def __getattr__(self, name: str) -> NotRecorded:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> NotRecorded:
        return self

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> NotRecorded:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def tell(sentence: str) -> None:
    """One sentence on the terminal, once per process."""
    if sentence not in _told:
        _told.add(sentence)
        sys.stderr.write(f"stablessm: {sentence}\n")
