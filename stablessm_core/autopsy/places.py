"""Names the place of a non-finite result: its layer and eigenvalue, in the form of the findings."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from stablessm_core.autopsy.instruments import Instruments, Result
from stablessm_core.telemetry.nonfinite import as_text
from stablessm_core.watch.watchable import WatchedRecord, watched_records

MOST_INPUTS = 20  # an update of all weights has many
SCANS = ("scan_states", "scan_adjoints")


def describe(result: Result | None, model: nn.Module, instruments: Instruments, step: int) -> dict[str, Any] | None:
    """The result as findings show it; None if there is none. step: the step whose computation made it."""
    if result is None:
        return None
    tensor, module = result.tensor, result.module
    paths = {id(p): path for path, p in model.named_parameters()}
    for path, p in model.named_parameters():
        if result.stage == "backward" and p.grad is not None and instruments.wrote(result, p.grad):
            tensor, module = f"{path}.grad", path.rpartition(".")[0]
    if tensor in paths.values():
        module = tensor.rpartition(".")[0]
    layer, eigenvalue = _place(result, tensor, module, model)
    return {
        "step": step,
        "pass": result.stage,
        "operation": result.operation,
        "module": module,
        "tensor": f"{tensor} {result.shape}",
        "index": list(result.index),
        "count": result.count,
        "dtype": result.dtype or None,
        "inputs": list(result.input_dtypes[:MOST_INPUTS]),
        "value": as_text(result.value if not math.isfinite(result.value) else math.nan),
        "largest_input": result.largest_input,
        "largest_before": result.largest_before,
        "layer": layer,
        "eigenvalue": eigenvalue,
    }


def largest_states(model: nn.Module, instruments: Instruments) -> list[dict[str, Any]]:
    """[{layer, eigenvalue, largest}]: for each layer with a scan, the eigenvalue with the largest |h| over batch and time."""
    places = {id(part): path for path, part in model.named_modules()}
    found = []
    for watched in watched_records(model, all_eigenvalues=True):
        own = places[id(watched.module)]
        inside = [name for name in instruments.states if _within(name, own)]
        if not watched.first or not inside:
            continue
        largest, coefficients = instruments.states[inside[0]]
        if len(largest) != watched.width:
            continue
        column = int(largest.argmax())
        eigenvalue = _scanned(column, watched.record.weight, varying=coefficients == 3)
        found.append({"layer": watched.layer, "eigenvalue": eigenvalue, "largest": float(largest[column])})
    return found


def _place(result: Result, tensor: str, module: str, model: nn.Module) -> tuple[int | None, int | None]:
    """The layer of the block that contains the module, and the eigenvalue that the result's index belongs to, if any."""
    places = {id(part): path for path, part in model.named_modules()}
    for watched in watched_records(model, all_eigenvalues=True):
        own = places[id(watched.module)]
        block = own.rpartition(".")[0]
        if not (_within(module, own) or (block and _within(module, block))):
            continue
        if not watched.first:
            continue
        return watched.layer, _eigenvalue(result, tensor, watched) if _within(module, own) else None
    return None, None


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")


def _eigenvalue(result: Result, tensor: str, watched: WatchedRecord) -> int | None:
    width, weight, index = watched.width, watched.record.weight, result.index
    if not index:
        return None
    if result.operation in SCANS and result.shape[-1] == width:
        return _scanned(index[-1], weight, varying=result.scan_coefficients == 3)
    if tensor.removesuffix(".grad") in (watched.path, *watched.paths.values()) and math.prod(result.shape) == width:
        return _flat(index, result.shape)
    if result.stage == "forward" and result.shape == (width,) and weight is not None and weight.shape == (width,):
        return index[0]
    return None


def _scanned(column: int, weight: Tensor | None, *, varying: bool) -> int:
    """The eigenvalue of a column of a scan. The selective scan of layers with weights (channels, states) has channels last."""
    if weight is None or weight.dim() != 2 or not varying:
        return column
    channels, states = weight.shape
    state, channel = divmod(column, channels)
    return channel * states + state


def _flat(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    flat = 0
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return flat
