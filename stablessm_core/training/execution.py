"""How the training step is launched: as one CUDA graph of compiled code, as compiled code, or operation by operation.

Every way runs the same step (`step.TrainingStep`). Preparing a way needs trial steps, whose changes are undone. So the result
of a run does not depend on the preparation. If a way fails, only the reason for its failure is kept.
"""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from stablessm_core.training.step import TrainingStep

Mode = Literal["cuda_graph+compile", "cuda_graph", "compile", "eager"]

COMPILING_PAYS = 5_000  # minimum number of steps for which compiling (half a minute or more) saves more time than it takes
TRIALS = 3  # number of trial steps before the capture, in which libraries plan and allocate their workspaces
MODELS_PER_PROCESS = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Execution:
    """How the steps of a run are launched, and why: the reasons against faster ways, or the reason for this way."""

    mode: Mode
    reason: str

    def described(self) -> dict[str, str]:
        return asdict(self)


def prepare(step: TrainingStep, wanted: str, *, steps: int, loop: bool = False) -> Execution:
    """Set `step.run` to the fastest way that `wanted` allows and this device supports. The tensors of the step do not change.

    wanted: "auto", "eager", "compile" or "graph", as in the configuration. steps: the number of remaining steps. loop: True if
    the scan backend is a loop over time, which has too many operations (thousands) for a compiler.
    """
    ways, reasons = _ways(wanted, step.x.device, steps, loop)
    parts = step.forward, step.read_weights, step.write_row
    step.row_writer = None
    for mode in ways:
        try:
            with _restore_afterwards(step):
                READY[mode](step)
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; the reason goes into the run's record
            traceback.clear_frames(error.__traceback__)  # the frames keep a graph alive, whose memory the next attempt needs
            step.forward, step.read_weights, step.write_row = parts
            step.run, step.side = step.eager, None
            step.optimizer.zero_grad(set_to_none=True)
            if step.x.is_cuda:
                _forget_capture(step.x.device)
            reasons.append(f"{mode} failed: {_brief(error)}")
            log.warning("%s; training goes on without", reasons[-1])
        else:
            return Execution(mode, "; ".join(reasons))
    raise AssertionError("the eager way cannot fail")


def _ways(wanted: str, device: torch.device, steps: int, loop: bool) -> tuple[list[Mode], list[str]]:
    """The ways to run the step, in the order in which they are tried, and the reasons why faster ways are left out."""
    if steps == 0:
        return ["eager"], ["no step is left to run"]
    if wanted == "eager":
        return ["eager"], ["asked for"]
    if loop:
        return ["eager"], ["the reference scan is a loop over time"]
    if wanted == "compile":
        return ["compile", "eager"], ["asked for"]
    if device.type != "cuda":
        return ["eager"], [f"CUDA graphs need a CUDA device, this is {device.type}"]
    if wanted == "graph":
        return ["cuda_graph+compile", "cuda_graph", "eager"], ["asked for"]
    if steps < COMPILING_PAYS:
        return ["cuda_graph", "eager"], [f"compiling does not pay for fewer than {COMPILING_PAYS:,} steps"]
    return ["cuda_graph+compile", "cuda_graph", "eager"], ["the fastest way on this device"]


def _compile(step: TrainingStep) -> None:
    def compiled(function: Callable[..., object]) -> Callable[..., object]:
        # use the random numbers of eager mode, so that dropout is the same in every mode, even if a resumed run changes the
        # mode
        return torch.compile(function, fullgraph=True, dynamic=False, options={"fallback_random": True})

    step.forward, step.read_weights, step.write_row = (
        compiled(step.forward),
        compiled(step.read_weights),
        compiled(step.write_row),
    )
    # with the default limit of recompilations, the compiler would reject these functions for the ninth model in a process
    with torch._dynamo.config.patch(recompile_limit=MODELS_PER_PROCESS):
        step.eager()


def _capture(step: TrainingStep) -> None:
    step.side = torch.cuda.Stream(step.x.device)  # type: ignore[no-untyped-call]
    main = torch.cuda.current_stream(step.x.device)
    trial = torch.cuda.Stream(step.x.device)  # type: ignore[no-untyped-call]
    trial.wait_stream(main)
    with torch.cuda.stream(trial):
        for _ in range(TRIALS - 1):
            step.eager()
        with _raise_on_wait():
            step.eager()
    main.wait_stream(trial)
    graph, failure = torch.cuda.CUDAGraph(), None
    step.optimizer.zero_grad(set_to_none=True)  # so that the capture allocates the gradients in the graph's memory
    gc.collect()  # freeing a dead graph during the capture would break the capture
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            try:
                step.eager()
            except Exception as error:  # noqa: BLE001 - for example out of memory; raised again after the capture has ended
                failure = error
                step.join()
    finally:
        torch.cuda.set_stream(main)  # needed if ending the capture fails, because the capture's stream then remains current
    if failure is not None:
        raise failure
    step.run = graph.replay


@contextmanager
def _raise_on_wait() -> Iterator[None]:
    """Raise an error for every operation that waits for the device, because a capture would then abort in an undefined
    state."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch warns that this mode does not detect every operation
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _compile_and_capture(step: TrainingStep) -> None:
    _compile(step)
    _capture(step)


READY: dict[Mode, Callable[[TrainingStep], None]] = {
    "cuda_graph+compile": _compile_and_capture,
    "cuda_graph": _capture,
    "compile": _compile,
    "eager": lambda step: step.use_compiled_row_writer(),
}


@contextmanager
def _restore_afterwards(step: TrainingStep) -> Iterator[None]:
    """Restore weights, moments, random states and the ring's cursor after the `with` block."""
    kept: list[Tensor] = [*step.model.parameters(), *step.model.buffers(), step.ring.cursor, step.optimizer.rates]
    kept += [tensor for state in step.optimizer.state.values() for tensor in state.values()]
    copies = [tensor.detach().clone() for tensor in kept]
    device = step.x.device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        with torch.no_grad():
            for tensor, copy in zip(kept, copies, strict=True):
                tensor.copy_(copy)


def _forget_capture(device: torch.device) -> None:
    # after a failed capture the random generator is still marked as captured, but a copy of its state has no such mark
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(generator.clone_state())
    torch.cuda.empty_cache()


def _brief(error: BaseException) -> str:
    # compilers print the location on the first line and the problem on the next line
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"
