"""Calls a function at each optimizer step, at the moment when the gradients of the step are final and the weights are still old.

Closures: the gradients exist only after the closure has run, so the hook wraps the closure. Fused optimizers under a gradient
scaler receive scaled gradients. A scaler that finds an infinite gradient does not call a plain optimizer at all; a wrapper around
the scaler's private method sees this step, and is left out where torch has no such method.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_METHOD = "_maybe_opt_step"
LOOK_SECONDS = 1.0  # an optimizer that trained no watched weight is looked at again after this time
WRAPPED = ("optimizer", "base_optimizer", "optim", "_optimizer", "inner")  # where other wrappers have the optimizer inside them
_current = threading.local()  # scale: the factor of the scaler whose step runs in this thread


class Taken(Protocol):
    """Receives a step: the optimizer's number, the optimizer, and whether a scaler skipped the step."""

    def __call__(self, owner: int, optimizer: Optimizer, *, skipped: bool) -> None: ...


class StepHooks:
    """The hooks on the optimizers of one run. take: never raises. failed: receives an error of the hook itself."""

    def __init__(self, optimizers: Sequence[Optimizer], take: Taken, failed: Callable[[BaseException], None]) -> None:
        self._take, self._failed = take, failed
        self._handles: list[Any] = []
        self.ahead: set[int] = set()  # the optimizers whose gradients were taken before their step
        self.calls: dict[int, int] = {}
        self._optimizers: dict[int, tuple[int, weakref.ref[Optimizer]]] = {}
        for optimizer in optimizers:
            self.add(optimizer)
        _scalers.add(self)

    def add(self, optimizer: Optimizer) -> None:
        """Hook one more optimizer; its number is the number of those before it."""
        number = len(self._handles)
        self.calls[id(optimizer)] = 0
        self._optimizers[id(optimizer)] = number, weakref.ref(optimizer)
        self._handles.append(optimizer.register_step_pre_hook(self._hook_of(number)))

    def remove(self) -> None:
        """Leave the optimizers as they were."""
        _scalers.discard(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def number_of(self, optimizer: Optimizer) -> int | None:
        """The number of this optimizer; None if it has no hook."""
        known = self._optimizers.get(id(optimizer))
        return known[0] if known is not None and known[1]() is optimizer else None

    def skipped_by_scaler(self, optimizer: Optimizer, calls_before: int) -> None:
        """A scaler's step of this optimizer has ended; if the optimizer was not called, the step was skipped."""
        number = self.number_of(optimizer)
        if number is not None and self.calls[id(optimizer)] == calls_before:
            self._take(number, optimizer, skipped=True)

    def _hook_of(self, number: int) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], Any]:
        def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                self.calls[id(optimizer)] += 1
                in_args = len(args) > 1 and args[1] is not None
                closure = args[1] if in_args else kwargs.get("closure")
                if closure is None or not callable(closure):
                    self._take(number, optimizer, skipped=False)
                    return None
                self.ahead.discard(number)  # what was taken before belongs to an earlier call of a closure
                wrapped = self._after(closure, number, optimizer)
                if in_args:
                    return (args[0], wrapped, *args[2:]), kwargs
                return args, {**kwargs, "closure": wrapped}
            except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
                self._failed(error)
                return None

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        return before_step

    def _after(self, closure: Callable[[], Any], number: int, optimizer: Optimizer) -> Callable[[], Any]:
        """The closure, with the row taken after its first call. Optimizers such as L-BFGS call it several times a step."""
        taken = False

        def call() -> Any:
            nonlocal taken
            result = closure()
            if not taken:
                taken = True
                self._take(number, optimizer, skipped=False)
            return result

        return call


class OptimizerFinder:
    """Notices the steps of optimizers that nobody has named: the first one of the model, or one that takes over in mid-run.

    wanted: gives the identities of the parameters that are looked for. known: the hooks on the optimizers that are known. found:
    receives the optimizers before the step is done, so that hooks that it adds see this step. take: as in StepHooks, for a first
    step that a scaler skips. failed: receives an error of the hook itself.
    """

    def __init__(
        self,
        wanted: Callable[[], set[int]],
        known: StepHooks,
        found: Callable[[list[Optimizer]], None],
        take: Taken,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._wanted, self._known, self._found, self._take, self._failed = wanted, known, found, take, failed
        self._active = True
        self._others: dict[int, tuple[weakref.ref[Optimizer], float]] = {}  # that train nothing that is wanted
        self.calls: dict[int, int] = {}  # for the scalers, which count calls of known optimizers
        self._handle = register_optimizer_step_pre_hook(self._hook())
        _scalers.add(self)

    def remove(self) -> None:
        """Stop looking. Not called inside a hook, because torch reads its hooks then."""
        self._active = False
        _scalers.discard(self)
        self._handle.remove()

    def forget(self) -> None:
        """Look at every optimizer again, because other parameters are wanted."""
        self._others.clear()

    def skipped_by_scaler(self, optimizer: Any, calls_before: int) -> None:  # noqa: ARG002
        """A scaler's step of this optimizer has ended. If nobody has found the optimizer meanwhile, it was not called."""
        if self.search(optimizer):
            number = self._known.number_of(optimizer)
            self._take(number or 0, optimizer, skipped=True)

    def _hook(self) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
        def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            self.search(optimizer)

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        return before_step

    def search(self, optimizer: Any) -> bool:
        """True if this call has found the optimizer, because it trains some of the parameters and was not known."""
        if not self._active or not isinstance(optimizer, Optimizer) or self._known.number_of(optimizer) is not None:
            return False
        other = self._others.get(id(optimizer))
        if other is not None and other[0]() is optimizer and monotonic() - other[1] < LOOK_SECONDS:
            return False
        try:
            wanted = self._wanted()
            trained = wanted & parameters_of(optimizer)
            if not trained:
                self._others[id(optimizer)] = weakref.ref(optimizer), monotonic()
                return False
            self._found([optimizer, *([] if self._known.calls else _trainers_of(wanted - trained))])
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self._active = False
            self._failed(error)
            return False
        return True


def parameters_of(optimizer: Optimizer) -> set[int]:
    """The identities of the parameters that an optimizer trains."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _trainers_of(missing: set[int]) -> list[Optimizer]:
    """Living optimizers of the missing parameters. Looks at all objects, once, if there are any."""
    found: list[Optimizer] = []
    for one in gc.get_objects() if missing else ():
        if issubclass(type(one), Optimizer) and hasattr(one, "param_groups") and (trained := parameters_of(one) & missing):
            missing = missing - trained
            found.append(one)
    return found


def scale_of_scaler() -> Tensor | None:
    """The factor of the gradient scaler whose step runs in this thread; None outside such a step."""
    found: Tensor | None = getattr(_current, "scale", None)
    return found


class _Scalers:
    """Wraps the method of every gradient scaler while at least one run needs it."""

    def __init__(self) -> None:
        self._hooks: list[StepHooks | OptimizerFinder] = []
        self._original: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def add(self, hooks: StepHooks | OptimizerFinder) -> None:
        with self._lock:
            self._hooks.append(hooks)
            scaler = getattr(torch.amp, "GradScaler", None)
            if self._original is None and scaler is not None and hasattr(scaler, _METHOD):
                self._original = getattr(scaler, _METHOD)
                setattr(scaler, _METHOD, _noticing(self._original, self._hooks))

    def discard(self, hooks: StepHooks | OptimizerFinder) -> None:
        with self._lock:
            if hooks in self._hooks:
                self._hooks.remove(hooks)
            scaler = getattr(torch.amp, "GradScaler", None)
            if not self._hooks and self._original is not None and getattr(scaler, _METHOD, None) is not None:
                setattr(scaler, _METHOD, self._original)
                self._original = None


def _noticing(original: Callable[..., Any], all_hooks: list[StepHooks | OptimizerFinder]) -> Callable[..., Any]:
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = [(hooks, hooks.calls.get(id(optimizer), 0)) for hooks in all_hooks]
        _current.scale = getattr(scaler, "_scale", None)
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            for hooks, calls in before:
                hooks.skipped_by_scaler(optimizer, calls)
        finally:
            _current.scale = None
        return result

    return step


_scalers = _Scalers()


def _inner(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper such as that of accelerate."""
    inner = optimizer
    for _ in range(4):
        names = ("optimizer",) if isinstance(inner, Optimizer) else WRAPPED
        wrapped = next((one for name in names if isinstance(one := getattr(inner, name, None), Optimizer)), None)
        if wrapped is None:
            break
        inner = wrapped
    return inner


def split_optimizers(optimizer: Any) -> tuple[list[Optimizer], str]:
    """The torch optimizers behind the argument `optimizer`, and the class of one that is not torch's and could train a model, ""
    if there is none. Raises TypeError or ValueError for anything else."""
    several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    found, foreign = [], ""
    for one in map(_inner, several):
        if isinstance(one, Optimizer):
            found.append(one)
        elif callable(getattr(one, "step", None)) and not isinstance(one, type):
            foreign = type(one).__name__
        else:
            raise TypeError(f"optimizer is a {type(one).__name__}; a torch optimizer, or a list of them, is needed")
    if not several:
        raise ValueError("optimizer is an empty list; at least one torch optimizer is needed")
    return found, foreign


def torch_optimizers(optimizer: Any) -> list[Optimizer]:
    """The torch optimizers behind the argument `optimizer`. Raises TypeError if it is none."""
    found, foreign = split_optimizers(optimizer)
    if foreign:
        raise TypeError(f"optimizer is a {foreign}; a torch optimizer, or a list of them, is needed")
    return found
