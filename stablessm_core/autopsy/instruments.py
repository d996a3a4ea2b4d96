"""Observes every operation of a training step, and finds the first non-finite result that reached the loss or the gradients.

A dispatch mode sees each operation on tensors, with its inputs and results. It follows the non-finite values through memory: for
each piece of memory it knows which operations wrote a non-finite result there. So it can walk back from a non-finite loss or
gradient to the earliest non-finite result of finite inputs. Infinities that are meant do not count as long as they stay
infinities: a mask filled with -inf, or log 0. A NaN that an operation makes of them counts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stablessm_core.layers.parts import long_convolution
from stablessm_core.network import small_blocks
from stablessm_core.scan import autograd
from stablessm_core.watch.watchable import Watchable

Stage = Literal["forward", "loss", "backward", "update"]
LOSS_MODULE = "loss"  # the module of operations outside the model
ROOT_MODULE = "model"  # the module of operations of the model itself, outside its parts
# memory that nothing has been written to: its contents are garbage
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
# operations whose results do not depend on a tensor's values
CONSTANTS = (
    "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor",
    "arange", "linspace", "fill_", "zero_",
)  # fmt: skip
OVERWRITING = ("copy_", "fill_", "zero_")  # operations that do not read the tensor that they change
LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}  # the input whose logarithm is -inf
NARROW = (torch.float16, torch.bfloat16, torch.float32)
# PyTorch's call of a custom operator imports the compiler, which takes seconds
UNWRAPPED = {
    torch.ops.stablessm.scan_states.default: autograd.states,
    torch.ops.stablessm.scan_adjoints.default: autograd.adjoints,
    torch.ops.stablessm.convolution.default: long_convolution.convolution,
    torch.ops.stablessm.convolution_gradients.default: long_convolution.convolution_gradients,
}
BEFORE = 1 << 30  # what existed before the step has numbers from -BEFORE on
LARGE_CONSTANT = 1e6  # a scalar argument of at least this size may be a mark, such as -1e38 for "nothing yet", not a magnitude

# names of the results of operations that have several, or whose only result has a usual name
RESULT_NAMES: dict[str, tuple[str, ...]] = {
    "scan_states": ("h",),
    "scan_adjoints": ("gradient of h", "gradient of lambda", "gradient of h0"),
    "convolution_gradients": ("gradient of the input", "gradient of the kernel"),
    "native_layer_norm": ("normalised input", "mean", "reciprocal standard deviation"),
    "native_layer_norm_backward": ("gradient of the input", "gradient of the weight", "gradient of the bias"),
}


@dataclass(frozen=True, eq=False)
class Result:
    """A non-finite result of an operation.

    number: the operation's place in the order of computation; negative for what existed before. first: True if no input of
    the operation was non-finite, apart from infinities that are meant. meant: True for infinities that are meant. parents: the
    results that made the non-finite inputs. scan_coefficients: the number of dimensions of the scan's first argument. dtype,
    input_dtypes: the names of the types of the result and of the inputs, such as "float32".
    """

    number: int
    stage: Stage
    operation: str
    module: str
    tensor: str
    shape: tuple[int, ...]
    first: bool
    meant: bool
    parents: tuple[Result, ...] = ()
    index: tuple[int, ...] = ()
    count: int = 0
    value: float = math.nan
    largest_input: float = 0.0
    largest_before: float = 0.0
    scan_coefficients: int = 0
    dtype: str = ""
    input_dtypes: tuple[str, ...] = ()


class _Write(NamedTuple):
    """A non-finite result in the bytes start..end of a piece of memory."""

    result: Result
    start: int
    end: int


@dataclass
class Magnitudes:
    """What was seen of a module's results: the largest finite magnitude, and the most non-finite values in one result.

    Infinities that are meant do not count. A residual block has a new entry each time that its own operations go on after those
    of a part of it.
    """

    module: str
    stage: Stage
    largest: float = 0.0
    nonfinite: int = 0


class _Input(NamedTuple):
    """What is known of an input before its operation. parents: the results that made its non-finite values."""

    finite: bool
    parents: tuple[Result, ...]
    largest: float | None


@dataclass(frozen=True)
class _Signature:
    """How an operation treats its arguments. written: the arguments that it changes, by position or by name."""

    name: str
    written: tuple[int | str, ...]
    returns_new: tuple[bool, ...]


class OperationByOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes nothing. But while a dispatch mode is active, compiled networks and fused layers take themselves apart."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return UNWRAPPED.get(func, func)(*args, **(kwargs or {}))


class Instruments(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes the operations in its `with` block. Set `stage` before each pass, and use `watch_modules` around the model.

    modules: the magnitudes of each module's results, in the order of the first operation of the forward pass; the loss comes
    last. narrow: the operations with float results of 32 bits or less. largest: the largest finite
    magnitude of any result. names: the names of parameters, by the address of their first element. compiled_norms: the paths of
    the norms that the run computes with its own kernel, whose squares overflow at other magnitudes than PyTorch's. states: for
    each module with a scan, the largest |h| of each column over batch and time, and the dimensions of the scan's coefficients.
    """

    def __init__(self, names: Mapping[int, str] | None = None, compiled_norms: Collection[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage: Stage = "forward"
        self.modules: list[Magnitudes] = []
        self._entries: dict[str, Magnitudes] = {}  # the newest entry of each module
        self._blocks: set[str] = {ROOT_MODULE}
        self.narrow: dict[str, None] = {}
        self.largest = 0.0
        self.states: dict[str, tuple[Tensor, int]] = {}
        self.operations = 0
        self._names = dict(names or {})
        self._compiled_norms = frozenset(compiled_norms)
        self._stack: list[str] = []
        self._node_modules: dict[int, str] = {}
        self._backward_module = LOSS_MODULE
        self._memory: dict[int, list[_Write]] = {}  # for each known piece of memory, what is non-finite in it
        self._constants: set[float] = set()
        self._known = 0

    # ---- before and after the step ----

    def know(
        self, tensor: Tensor, operation: str, name: str, stage: Stage = "forward", module: str = ROOT_MODULE
    ) -> Result | None:
        """Register a tensor that exists before the step. Returns a Result if it is not finite."""
        self._known += 1
        writes = self._memory.setdefault(_memory_of(tensor), [])
        if not _has_values(tensor):
            return None
        seen = _Seen(tensor, ())
        if seen.finite:
            return None
        result = self._described(
            Result(self._known - BEFORE, stage, operation, module, name, tuple(tensor.shape), first=True, meant=False),
            tensor,
            seen.largest,
            0.0,
        )
        writes.append(_Write(result, *_extent(tensor)))
        return result

    def first_behind(self, tensors: Iterable[Tensor | None]) -> Result | None:
        """The earliest result behind the non-finite values of these tensors; None if all are finite or nothing is known."""
        waiting = [result for t in tensors if t is not None and _has_values(t) for result in self._read(t).parents]
        seen: dict[int, Result] = {}
        while waiting:
            result = waiting.pop()
            if id(result) not in seen:
                seen[id(result)] = result
                waiting += result.parents
        found = [r for r in seen.values() if r.first and not r.meant] or [r for r in seen.values() if not r.parents]
        return min(found, key=lambda r: r.number, default=None)

    def wrote(self, result: Result, tensor: Tensor) -> bool:
        """True if the tensor still holds this result."""
        return any(w.result is result for w in self._memory.get(_memory_of(tensor), ()))

    @contextmanager
    def watch_modules(self, model: nn.Module) -> Iterator[None]:
        """Attribute the operations of the model's forward pass to its modules."""
        hooks: list[Any] = []

        def enter(path: str) -> None:
            self._stack.append(path)

        def leave(_module: nn.Module, _given: Any, _output: Any) -> None:
            self._stack.pop()

        for path, module in model.named_modules():
            name = path or ROOT_MODULE
            if isinstance(module, Watchable):
                self._blocks.add(path.rpartition(".")[0] or ROOT_MODULE)
            hooks.append(module.register_forward_pre_hook(lambda _m, _x, name=name: enter(name)))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._stack.clear()

    # ---- each operation ----

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch wraps the method below, and the wrapper imports the compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        signature = _signature(func)
        module = self._module()
        if signature.name in ALLOCATIONS:
            made = func(*args, **kwargs)
            self._memory[_memory_of(made)] = []
            return made
        self._note_constants(args, kwargs)
        changed = _changed(signature, args, kwargs)
        written_only = changed if signature.name in OVERWRITING else _changed_by_name(signature, kwargs)
        inputs = [
            (t, self._read(t, measure=any(t is c for c in changed)))
            for t in _leaves((args, kwargs))
            if isinstance(t, Tensor) and _has_values(t) and not any(t is w for w in written_only)
        ]
        if signature.name == "native_layer_norm" and module in self._compiled_norms and _fits_kernel(*args):
            made = _compiled_norm(*args, **kwargs)
        else:
            made = UNWRAPPED.get(func, func)(*args, **kwargs)
        self.operations += 1
        self._note_results(signature, module, args, kwargs, inputs, changed, made)
        return made

    def _module(self) -> str:
        """The module that the current operation belongs to."""
        if self.stage != "backward":
            module = LOSS_MODULE if self.stage == "loss" else (self._stack[-1] if self._stack else ROOT_MODULE)
            # the node that autograd has just made for this operation has the newest number
            self._node_modules.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            return module
        node = torch._C._current_autograd_node()
        if node is not None:
            self._backward_module = self._node_modules.get(node._sequence_nr(), self._backward_module)
        return self._backward_module

    def _note_results(
        self,
        signature: _Signature,
        module: str,
        args: Any,
        kwargs: Any,
        inputs: list[tuple[Tensor, _Input]],
        changed: list[Tensor],
        made: Any,
    ) -> None:
        results = [made] if len(signature.returns_new) == 1 else _listed(made)
        fresh = [t for value, new in zip(results, signature.returns_new, strict=False) if new for t in _tensors(value)]
        for t in fresh:
            self._memory[_memory_of(t)] = []
        constant = signature.name in CONSTANTS
        names = RESULT_NAMES.get(signature.name, ())
        for i, t in enumerate((*fresh, *changed)):
            if not _has_values(t):
                continue
            if t.dtype in NARROW and not constant and any(x.dim() for x, _ in inputs):
                self.narrow[f"{signature.name} in {module}"] = None
            seen = _Seen(t, self._constants)
            if signature.name == "scan_states" and t.dim() == 3:
                self.states[module] = t.detach().abs().nan_to_num(nan=0.0, posinf=math.inf).amax((0, 1)), args[0].dim()
            magnitudes = None if constant else self._note_magnitude(module, seen)
            if seen.finite:
                self._forget(t)
                continue
            name = self._names.get(t.data_ptr(), "") or (names[i] if i < len(names) else "result")
            result = self._result(signature.name, module, name, t, seen, args, kwargs, inputs)
            self._memory.setdefault(_memory_of(t), []).append(_Write(result, *_extent(t)))
            if magnitudes is not None and not result.meant:
                magnitudes.nonfinite = max(magnitudes.nonfinite, seen.nonfinite)

    def _note_magnitude(self, module: str, seen: _Seen) -> Magnitudes | None:
        """The module's entry, with this result; None in the passes after the loss."""
        self.largest = max(self.largest, seen.largest)
        if self.stage not in ("forward", "loss"):
            return None
        entry = self._entries.get(module)
        if entry is None or (module in self._blocks and self.modules[-1] is not entry):
            entry = self._entries[module] = Magnitudes(module, self.stage)
            self.modules.append(entry)
        entry.largest = max(entry.largest, seen.largest)
        return entry

    def _result(
        self, operation: str, module: str, name: str, t: Tensor, seen: _Seen, args: Any, kwargs: Any,
        inputs: list[tuple[Tensor, _Input]],
    ) -> Result:  # fmt: skip
        parents = tuple({id(r): r for _, given in inputs for r in given.parents}.values())
        bad = any(not r.meant for r in parents)
        infinite_inputs = any(not given.finite for _, given in inputs)
        if bad:
            meant = False
        elif seen.has_nan:
            meant = False  # made here: no input is NaN because of an earlier operation
        else:
            meant = infinite_inputs or _meant(operation, t, args, kwargs)
        coefficients = args[0].dim() if operation in ("scan_states", "scan_adjoints") and isinstance(args[0], Tensor) else 0
        result = Result(
            self.operations, self.stage, operation, module, name, tuple(t.shape), first=not bad, meant=meant, parents=parents,
            scan_coefficients=coefficients, dtype=_type_of(t), input_dtypes=tuple(_type_of(x) for x, _ in inputs),
        )  # fmt: skip
        if bad:
            return result
        given = [_Seen(x, self._constants).largest if known.largest is None else known.largest for x, known in inputs]
        largest_input = max(given, default=0.0)
        before = max((m.largest for m in self.modules if m is not self._entries.get(module)), default=0.0)
        backwards = operation == "scan_adjoints"
        return self._described(result, t, largest_input, max(before, largest_input), backwards)

    def _described(
        self, result: Result, t: Tensor, largest_input: float, largest_before: float, backwards: bool = False
    ) -> Result:
        """The result with the place of its first non-finite value. In the states of a scan, first means first in time."""
        values = _real(t)
        bad = (~torch.isfinite(values)).nonzero()
        at = 0
        if result.scan_coefficients and bad.shape[1] >= 3:
            at = int(bad[:, 1].argmax() if backwards else bad[:, 1].argmin())
        index = tuple(bad[at].tolist())
        return Result(
            result.number, result.stage, result.operation, result.module, result.tensor, result.shape, result.first, result.meant,
            result.parents, index[: t.dim()], len(bad), float(values[index]), largest_input, largest_before,
            result.scan_coefficients, _type_of(t), result.input_dtypes,
        )  # fmt: skip

    # ---- memory ----

    def _read(self, t: Tensor, *, measure: bool = False) -> _Input:
        """What is known of a tensor's values. Memory without a non-finite write is finite and is not read again."""
        writes = self._memory.get(_memory_of(t))
        if writes is None:  # made where no operation was seen, such as a constant; its infinities are meant
            seen = _Seen(t, self._constants)
            return _Input(seen.finite, (), seen.largest)
        if not writes and not measure:
            return _Input(True, (), None)
        seen = _Seen(t, self._constants)
        if seen.finite:
            return _Input(True, (), seen.largest)
        start, end = _extent(t)
        parents = tuple(w.result for w in writes if w.start < end and start < w.end)
        return _Input(not parents, parents, seen.largest)  # without a write, the memory holds garbage

    def _forget(self, t: Tensor) -> None:
        """Finite values replace what was non-finite there."""
        writes = self._memory.get(_memory_of(t))
        if writes and t.is_contiguous():
            start, end = _extent(t)
            writes[:] = [w for w in writes if w.start < start or w.end > end]

    def _note_constants(self, args: Any, kwargs: Any) -> None:
        for value in _leaves((args, kwargs)):
            if isinstance(value, float | int) and LARGE_CONSTANT <= abs(value) < math.inf:
                self._constants.add(abs(float(value)))


def _fits_kernel(x: Tensor, _shape: Any, *weights: Any) -> bool:
    """True if the kernel can read these tensors; it does not check them itself."""
    tensors = (x, *(w for w in weights if isinstance(w, Tensor)))
    readable = all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return readable and len(tensors) == 3 and x.shape[-1] % small_blocks.VECTOR == 0


def _compiled_norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`native_layer_norm`, computed by the kernel of small blocks."""
    z, norms = small_blocks.layer_norm(x.contiguous(), (weight, bias, eps))
    rows = x.shape[: x.dim() - len(shape)]
    mean, rstd = (part.reshape(*rows, 1).contiguous() for part in norms.unbind(1))
    return z, mean, rstd


class _Seen:
    """The largest finite magnitude of a tensor, and what is non-finite in it. Values equal to a constant do not count."""

    def __init__(self, t: Tensor, constants: Iterable[float]) -> None:
        values = _real(t)
        top = float(torch.linalg.vector_norm(values, math.inf, dtype=_accumulated(values)))
        self.finite = math.isfinite(top)
        self.has_nan, self.nonfinite = False, 0
        self.largest = top
        if not self.finite:
            finite = values.isfinite()
            self.nonfinite = int(finite.numel() - finite.sum())
            self.has_nan = bool(values.isnan().any())
            self.largest = float(values[finite].abs().max()) if self.nonfinite < values.numel() else 0.0
        if any(math.isclose(self.largest, c, rel_tol=1e-3) for c in constants):
            magnitudes = values[values.isfinite()].abs()
            for c in constants:
                magnitudes = magnitudes[(magnitudes - c).abs() > 1e-3 * c]
            self.largest = float(magnitudes.max()) if magnitudes.numel() else 0.0


def _accumulated(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _real(t: Tensor) -> Tensor:
    t = t.detach()
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _type_of(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _has_values(t: Tensor) -> bool:
    return (t.is_floating_point() or t.is_complex()) and t.numel() > 0 and t.layout == torch.strided


def _memory_of(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _extent(t: Tensor) -> tuple[int, int]:
    """The first byte of the tensor in its memory, and the byte after its last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    start = int(t.storage_offset())
    return start * t.element_size(), (start + int(span)) * t.element_size()


def _meant(operation: str, t: Tensor, args: Any, kwargs: Any) -> bool:
    """True if finite inputs give these infinities by definition: an infinite scalar argument, or the logarithm of 0."""
    if any(isinstance(value, float) and math.isinf(value) for value in _leaves((args, kwargs))):
        return True
    name = operation.rstrip("_")
    if name not in LOGARITHMS or operation.endswith("_"):
        return False
    zeros = int((args[0].detach().abs() == 0).sum()) if name != "log1p" else int((args[0].detach() == -1).sum())
    return zeros == int((~torch.isfinite(_real(t))).sum())


def _leaves(value: Any) -> Iterator[Any]:
    """The values in nested arguments."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        yield from _leaves(tuple(value.values()))
    else:
        yield value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in _listed(value) if isinstance(t, Tensor)]


def _changed(signature: _Signature, args: Any, kwargs: Any) -> list[Tensor]:
    given = [args[i] if isinstance(i, int) and i < len(args) else kwargs.get(i) for i in signature.written]
    return [t for value in given for t in _tensors(value)]


def _changed_by_name(signature: _Signature, kwargs: Any) -> list[Tensor]:
    """The tensors given as `out=`, which an operation does not read."""
    return [t for name in signature.written if isinstance(name, str) for t in _tensors(kwargs.get(name))]


@functools.cache
def _signature(func: Any) -> _Signature:
    schema = func._schema
    changed = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    written = tuple(argument.name if argument.kwarg_only else i for i, argument in changed)
    name = schema.name.removeprefix("aten::").removeprefix("stablessm::")
    return _Signature(name, written, tuple(r.alias_info is None for r in schema.returns))
