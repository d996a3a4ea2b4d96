"""Live charts, alerts and verdicts for each eigenvalue of a state-space model, from one line in any PyTorch loop.

    import stablessm

    with stablessm.watch(model, optimizer, project="hybrid", config=config) as run:
        for batch in loader:
            loss = step(batch)
            run.loss(loss)
            run.log({"val/acc": accuracy})

Importing this package does not import torch, and imports nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stablessm_core import __version__
from stablessm_core.outside.options import RunOptions, list_options

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

    from stablessm_core.outside.eigenvalues import Declared, StepSize
    from stablessm_core.outside.run import Run
    from stablessm_core.outside.wandb_names import define_metric, finish, init, log, login

__all__ = [
    "__version__", "define_metric", "eigenvalues", "exp", "finish", "init", "log", "log_only", "login", "sigmoid", "softplus",
    "watch",
]  # fmt: skip


@list_options
def watch(
    model: Any,
    optimizer: Any = None,
    *,
    layers: Mapping[str, Declared] | None = None,
    every: int = 1,
    **options: Unpack[RunOptions],
) -> Run:
    """Watch the eigenvalues of `model` at each step of `optimizer`, and report them to a server or a file.

    optimizer: a torch optimizer, or a list of them; None finds the one that trains the model at its first step. layers:
    eigenvalues that no table knows, by patterns of parameter paths. every: store every n-th step. options: those of
    `stablessm_core.outside.options.RunOptions`. After `init`, the model is watched in the run of `init`, and the arguments of
    W&B's function of this name are accepted.
    Raises TypeError or ValueError for a wrong argument. Nothing raises afterwards.
    """
    from stablessm_core.outside.wandb_names import run_of_init

    if (run := run_of_init()) is not None:
        known = () if optimizer is None else (optimizer,)
        return run.watch(model, *known, layers=layers, **options, **({} if every == 1 else {"every": every}))
    from stablessm_core.outside.arguments import check_arguments
    from stablessm_core.outside.start import start_watch

    return start_watch(model, optimizer, check_arguments(every=every, **options), layers)


@list_options
def log_only(**options: Unpack[RunOptions]) -> Run:
    """Report numbers without watching a model. Does not need torch. options: as those of `watch`."""
    from stablessm_core.outside.arguments import check_arguments
    from stablessm_core.outside.start import start_log_only

    return start_log_only(check_arguments(**options))


def __getattr__(name: str) -> Any:
    """The names of W&B, for `import stablessm as wandb`: `init`, `log`, `config` and so on."""
    if name.startswith("_"):
        raise AttributeError(f"module 'stablessm' has no attribute {name!r}")
    from stablessm_core.outside.wandb_missing import is_asked_for

    if not is_asked_for(sys._getframe(1)):
        raise AttributeError(f"module 'stablessm' has no attribute {name!r}")
    from stablessm_core.outside.wandb_names import find_name

    return find_name(name)


class _Module(ModuleType):
    """This module, in which `stablessm.config = {...}` changes the configuration of the run."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "config":
            return super().__setattr__(name, value)
        from stablessm_core.outside.wandb_names import set_config

        return set_config(value)


sys.modules[__name__].__class__ = _Module


def eigenvalues(
    map: str, time: str, *, step: str | float | None = None, imag: str | None = None, a: float = 1.0, b: float = 0.5
) -> Declared:
    """How eigenvalues follow from a parameter that no table knows, for the argument `layers` of `watch`.

    map, time: a map of StableSSM in "continuous" or "discrete" time. step: in continuous time the step size, as a number or as
    "softplus(name)" or "exp(name)" with the name of a parameter of the same module. imag: the name of the parameter with the
    imaginary parts ("" if the weight itself is complex). a, b: constants of the map.
    Raises ValueError if an argument is wrong; the message names the argument.
    """
    from stablessm_core.outside.eigenvalues import declare

    return declare(map, time, step=step, imag=imag, a=a, b=b)


def softplus(parameter: Tensor) -> StepSize:
    """The step sizes softplus(parameter), for `Run.eigenvalues`."""
    from stablessm_core.outside.eigenvalues import StepSize

    return StepSize(parameter, "softplus")


def exp(parameter: Tensor) -> StepSize:
    """The step sizes e^parameter, for `Run.eigenvalues`."""
    from stablessm_core.outside.eigenvalues import StepSize

    return StepSize(parameter, "exp")


def sigmoid(parameter: Tensor) -> StepSize:
    """The step sizes sigmoid(parameter), for `Run.eigenvalues`."""
    from stablessm_core.outside.eigenvalues import StepSize

    return StepSize(parameter, "sigmoid")
