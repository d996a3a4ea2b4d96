"""Calls a function at each optimizer step, at the moment when the gradients of the step are final and the weights are still old.

Closures: the gradients exist only after the closure has run, so the hook wraps the closure. Fused optimizers under a gradient
scaler receive scaled gradients. A scaler that finds an infinite gradient does not call a plain optimizer at all; a wrapper around
the scaler's private method sees this step, and is left out where torch has no such method.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_METHOD = "_maybe_opt_step"


class Taken(Protocol):
    """Receives a step: the optimizer's number, the optimizer, and whether a scaler skipped the step."""

    def __call__(self, owner: int, optimizer: Optimizer, *, skipped: bool) -> None: ...


class StepHooks:
    """The hooks on the optimizers of one run. take: never raises. failed: receives an error of the hook itself."""

    def __init__(self, optimizers: Sequence[Optimizer], take: Taken, failed: Callable[[BaseException], None]) -> None:
        self._take, self._failed = take, failed
        self._handles = []
        self.ahead: set[int] = set()  # the optimizers whose gradients were taken before their step
        self.calls: dict[int, int] = {}
        for number, optimizer in enumerate(optimizers):
            self.calls[id(optimizer)] = 0
            self._handles.append(optimizer.register_step_pre_hook(self._hook_of(number)))
        self._optimizers = {id(o): (n, weakref.ref(o)) for n, o in enumerate(optimizers)}
        _scalers.add(self)

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
    """Waits for the first step of an optimizer that trains some of the parameters, if the program does not name its optimizer.

    parameters: those that are looked for. found: receives the optimizers before the step is done, so that hooks that it adds see
    this step. searching: False after that. take: as in StepHooks, for a first step that a scaler skips. failed: receives an error
    of the hook itself.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        found: Callable[[list[Optimizer]], None],
        take: Taken,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._wanted = {id(p) for p in parameters}
        self._found, self._take, self._failed = found, take, failed
        self.searching = True
        self.calls: dict[int, int] = {}  # for the scalers, which count calls of known optimizers
        self.ahead: set[int] = set()  # always empty, see `number_of`
        self._handle = register_optimizer_step_pre_hook(self._hook())
        _scalers.add(self)

    def remove(self) -> None:
        """Stop waiting. Not called inside a hook, because torch reads its hooks then."""
        self.searching = False
        _scalers.discard(self)
        self._handle.remove()

    def number_of(self, optimizer: Optimizer) -> int | None:  # noqa: ARG002
        """None, because no optimizer is known yet: its gradients are taken in its step."""
        return None

    def skipped_by_scaler(self, optimizer: Any, calls_before: int) -> None:  # noqa: ARG002
        """A scaler's step of this optimizer has ended. If nobody has found the optimizer meanwhile, it was not called."""
        if self.search(optimizer):
            self._take(0, optimizer, skipped=True)

    def _hook(self) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
        def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            self.search(optimizer)

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        return before_step

    def search(self, optimizer: Any) -> bool:
        """True if this call has found the optimizers, because this one trains some of the parameters."""
        if not self.searching:
            return False
        try:
            trained = self._trained(optimizer)
            if not trained:
                return False
            self.searching = False
            self._found([optimizer, *self._others(self._wanted - trained)])
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self.searching = False
            self._failed(error)
            return False
        return True

    def _trained(self, optimizer: Any) -> set[int]:
        groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else ()
        return self._wanted & {id(p) for group in groups for p in group["params"]}

    def _others(self, missing: set[int]) -> list[Optimizer]:
        """Living optimizers of the missing parameters. Looks at all objects, once, if there are any."""
        found: list[Optimizer] = []
        for one in gc.get_objects() if missing else ():
            if issubclass(type(one), Optimizer) and hasattr(one, "param_groups") and (trained := self._trained(one) & missing):
                missing = missing - trained
                found.append(one)
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
        result = original(scaler, optimizer, *args, **kwargs)
        for hooks, calls in before:
            hooks.skipped_by_scaler(optimizer, calls)
        return result

    return step


_scalers = _Scalers()


def _inner(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper such as that of accelerate."""
    inner = optimizer
    for _ in range(4):
        wrapped = getattr(inner, "optimizer", None)
        if not isinstance(wrapped, Optimizer):
            break
        inner = wrapped
    return inner


def torch_optimizers(optimizer: Any) -> list[Optimizer]:
    """The torch optimizers behind the argument `optimizer`. Raises TypeError if it is none."""
    several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    found = [_inner(one) for one in several]
    for one in found:
        if not isinstance(one, Optimizer):
            raise TypeError(f"optimizer is a {type(one).__name__}; a torch optimizer, or a list of them, is needed")
    if not found:
        raise ValueError("optimizer is an empty list; at least one torch optimizer is needed")
    return found
