"""The options that `stablessm.watch`, `stablessm.log_only` and `stablessm.init` share: their names, types and meanings."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class RunOptions(TypedDict, total=False):
    """What is not given is None, and the environment fills it in: STABLESSM_URL, STABLESSM_TOKEN, STABLESSM_PROJECT,
    STABLESSM_MODE and STABLESSM_DIR. Only `resume` has another default, "never"."""

    # how the run is found
    project: str | None
    name: str | None
    tags: Sequence[str] | None
    notes: str | None
    # a dictionary, or an object such as that of argparse
    config: Any
    # a UUID, for a run that goes on in a later process
    id: str | None
    # "never", "allow" or "must", for an id that the server knows
    resume: str
    # the number of optimizer steps that the run has done; later steps of an earlier process are replaced
    from_step: int | None
    # of the whole training, for the progress
    total_steps: int | None
    # of the sequences over which a state runs, for the overflow budget
    length: int | None
    # "online", "offline" (a file in `dir`) or "disabled"; without a server "offline"
    mode: str | None
    dir: str | os.PathLike[str] | None
    # of the server
    url: str | None
    token: str | None


DEFAULTS: RunOptions = {"resume": "never"}


def list_options(function: F) -> F:
    """Show the options one by one in the function's signature, for `help` and notebooks; editors read them from RunOptions."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = []
    for name, kind in RunOptions.__annotations__.items():
        if name not in signature.parameters:
            written = getattr(kind, "__forward_arg__", kind)
            more.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=written))
    function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return function
