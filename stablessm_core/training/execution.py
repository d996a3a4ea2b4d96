"""How the training step is launched: as one CUDA graph of compiled code, as compiled code, or operation by operation.

Every way runs the same step (`step.TrainingStep`). Getting ready for one needs trial steps; whatever they changed is put back,
so a run does not depend on how it came to be ready, and a way that fails leaves nothing behind but its reason.
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

COMPILING_PAYS = 5_000  # steps; a shorter run is over before compiling, half a minute and more, has paid for itself
TRIALS = 3  # steps before capturing, in which libraries make their plans and allocate what they keep
MODELS_PER_PROCESS = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Execution:
    """How the steps of a run are launched, and why not in a faster way (or why this one was chosen)."""

    mode: Mode
    reason: str

    def described(self) -> dict[str, str]:
        return asdict(self)


def prepare(step: TrainingStep, wanted: str, *, steps: int, loop: bool = False) -> Execution:
    """Make `step.run` the fastest way to run it that is wanted and works here; numbers stay as they were.

    wanted: "auto", "eager", "compile" or "graph", as in the configuration. steps: how many are ahead. loop: the scan backend is
    a loop over time, whose thousands of operations no compiler should meet.
    """
    ways, reasons = _ways(wanted, step.x.device, steps, loop)
    parts = step.forward, step.weights, step.record
    step.one_pass = None
    for mode in ways:
        try:
            with _put_back(step):
                READY[mode](step)
        except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; the reason goes into the run's record
            traceback.clear_frames(error.__traceback__)  # what they hold, a graph and its memory, the next way needs
            step.forward, step.weights, step.record = parts
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
    """What to try in turn, and why it is not more."""
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
        # the eager random numbers: dropout is then the same in every way, and after resuming in another one
        return torch.compile(function, fullgraph=True, dynamic=False, options={"fallback_random": True})

    step.forward, step.weights, step.record = compiled(step.forward), compiled(step.weights), compiled(step.record)
    # by default the ninth run of one process would find the compiler refusing the same functions of yet another model
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
        with _waiting_refused():
            step.eager()
    main.wait_stream(trial)
    graph, failure = torch.cuda.CUDAGraph(), None
    step.optimizer.zero_grad(set_to_none=True)  # gradients get their addresses inside the graph's memory
    gc.collect()  # a dead graph that is freed during the capture would break it
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            try:
                step.eager()
            except Exception as error:  # noqa: BLE001 - out of memory, say: raised again when the capture has ended in order
                failure = error
                step.join()
    finally:
        torch.cuda.set_stream(main)  # a capture that cannot be ended leaves its own stream behind as the current one
    if failure is not None:
        raise failure
    step.run = graph.replay


@contextmanager
def _waiting_refused() -> Iterator[None]:
    """What waits for the device raises here: it cannot be captured, and a capture that meets it breaks off and leaves ruins."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this mode does not see everything
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
    "eager": lambda step: step.record_in_one_pass(),
}


@contextmanager
def _put_back(step: TrainingStep) -> Iterator[None]:
    """Whatever is done inside, weights, moments, random numbers and the ring's cursor are afterwards what they were."""
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
    # a capture that broke off leaves the generator believing that it is still captured; a copy of its state does not
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(generator.clone_state())
    torch.cuda.empty_cache()


def _brief(error: BaseException) -> str:
    # compilers say where it happened first and what on the next line
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"
