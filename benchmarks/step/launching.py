"""How fast is a training step, and does the training wait for data? A part of `benchmarks.step`.

Each way to launch a step (`train.execution`) trains the same model from the same seed, with telemetry recorded and encoded. The
ways take turns within each round, so that other load on the machine affects all of them. Before timing, the losses of each way
are compared with the eager losses over 200 steps (fewer on a CPU). A way that this machine does not support is listed with the
reason.

The column `busy` shows, on CUDA, the share of wall time in which a kernel or a copy runs, from the profiler. On a CPU it shows
the share of wall time that is not spent on making the batch.

On a CPU a second table shows the gain from keeping freed memory in the process (`environment.keep_freed_memory`). Eager steps
are timed with freed memory kept and with freed memory returned to the kernel, in separate processes that take turns.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.training import Rig, Shape, images, machine, table
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.environment import keep_freed_memory, pick_device

CUDA_SHAPES = (Shape(2, 128, 64, 50), Shape(8, 512, 256, 16))
CPU_SHAPES = (Shape(2, 128, 64, 50), Shape(2, 128, 64, 4), Shape(2, 32, 16, 8, 64))
# expected execution mode: (train.execution, number of steps of the run that the measurement represents)
WAYS = {
    "eager": ("eager", 1 << 30),
    "compile": ("compile", 1 << 30),
    "cuda_graph": ("auto", 1),
    "cuda_graph+compile": ("graph", 1 << 30),
}
ROUND_SECONDS = 0.5
MEMORY = ("given back", "kept")


def report(arguments: argparse.Namespace) -> Iterator[str]:
    keep_freed_memory()  # the training process also does this
    device, rounds = pick_device(arguments.device), arguments.rounds
    yield "# Training steps\n"
    yield f"`python -m benchmarks.step --device {device.type} --rounds {rounds}`, {time.strftime('%Y-%m-%d')}\n"
    yield f"{machine(device)}. float32, one grey value at a time, ten classes; medians of {rounds} rounds in turns.\n"
    rows: list[list[str]] = []
    deadline = time.monotonic() + 60 * arguments.minutes
    for shape in CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES:
        rows += measured(shape, device, rounds, deadline)
    head = [
        "layers x (d_model, d_state)",
        "launched as",
        "ms",
        "steps/s",
        "x eager",
        "loss differs by",
        "batch, ms",
        "busy",
        "ready",
    ]
    yield from table(head, rows)
    if device.type == "cpu":
        yield "\n## Freed memory kept in the process or returned to the kernel\n"
        yield from freed_memory()


def measured(shape: Shape, device: torch.device, rounds: int, deadline: float) -> list[list[str]]:
    task = images(shape.length)
    rigs: dict[str, Rig] = {}
    ready: dict[str, float] = {}
    refused: list[list[str]] = []
    losses: dict[str, np.ndarray] = {}
    for way, (execution, steps) in WAYS.items():
        if rigs and time.monotonic() > deadline:  # the first way, eager, is never skipped: the others are compared with it
            refused.append([str(shape), way, "not reached in time", *[""] * 6])
            continue
        began = time.perf_counter()
        rig = Rig(task, shape, device)
        got = rig.prepare(execution, steps)
        ready[way] = time.perf_counter() - began
        if got.mode != way:
            refused.append([str(shape), way, f"absent: {got.reason}", *[""] * 6])
            rig.recorder.close()
            continue
        rigs[way] = rig
        losses[way] = recorded_losses(Rig(task, shape, device, MemorySink()), execution, steps)
    each = max(1, round(ROUND_SECONDS / rigs["eager"].go(1)))
    times: dict[str, list[float]] = {way: [] for way in rigs}
    order = random.Random(0)
    for turn in range(rounds + 1):
        for way in order.sample(sorted(rigs), len(rigs)):
            seconds = rigs[way].go(each) / each
            if turn:
                times[way].append(1e3 * seconds)
    rows = []
    for way, rig in rigs.items():
        ms, made = statistics.median(times[way]), batch_ms(rig)
        faster = statistics.median(a / b for a, b in zip(times["eager"], times[way], strict=True))
        differs = np.abs(losses[way] / losses["eager"] - 1).max()
        busy = busy_ms(rig) / ms if device.type == "cuda" else 1 - made / ms
        shown = [f"{ms:.3f}", f"{1e3 / ms:.1f}", f"{faster:.2f}", f"{differs:.1e}", f"{made:.3f}", f"{100 * busy:.0f} %"]
        rows.append([str(shape), way, *shown, f"{ready[way]:.1f} s"])
        rig.recorder.close()
    return rows + refused


def freed_memory() -> list[str]:
    rows = []
    for shape in CPU_SHAPES:
        found: dict[str, list[tuple[float, float]]] = {memory: [] for memory in MEMORY}
        for _ in range(3):
            for memory in MEMORY:
                command = [sys.executable, "-m", "benchmarks.step", "--alone", memory, *map(str, tuple(shape))]
                found[memory].append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        best = {memory: min(pairs) for memory, pairs in found.items()}
        for memory, (ms, pages) in best.items():
            rows.append([str(shape), memory, f"{ms:.1f}", f"{best['given back'][0] / ms:.2f}", f"{pages:,.0f}"])
    return table(["layers x (d_model, d_state)", "freed memory", "ms, best of 3", "x given back", "pages cleared per step"], rows)


def alone(memory: str, shape: Shape) -> tuple[float, float]:
    """The median time of an eager step in this process, in milliseconds, and the number of pages that the kernel cleared per
    step."""
    if memory == "kept":
        keep_freed_memory()
    rig = Rig(images(shape.length), shape, torch.device("cpu"))
    rig.go(5)
    before, times = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
    while sum(times) < 4:
        times.append(rig.go(1))
    pages = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / len(times)
    rig.recorder.close()
    return 1e3 * statistics.median(times), pages


def print_alone(memory: str, *shape: str) -> None:
    print(json.dumps(alone(memory, Shape(*map(int, shape)))))


def recorded_losses(rig: Rig, execution: str, steps: int) -> np.ndarray:
    rig.prepare(execution, steps)
    rig.go(200 if rig.device.type == "cuda" else 20)
    rig.recorder.close()
    assert isinstance(rig.sink, MemorySink)
    return rig.sink.series(names.TRAIN_LOSS)[1][:, 0].astype(np.float64)


def batch_ms(rig: Rig) -> float:
    """The host time to make one batch, in milliseconds. On CUDA the operations of a batch run in parallel with the training."""
    times = []
    for _ in range(50):
        rig.done += 1
        began = time.perf_counter()
        rig.feed(rig.done)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def busy_ms(rig: Rig, steps: int = 20) -> float:
    """The time per step in which the device is busy, in milliseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            rig.done += 1
            rig.step.feed(*rig.feed(rig.done), 1.0)
            rig.step.run()
        torch.cuda.synchronize()
    spans = sorted((e.time_range.start, e.time_range.end) for e in recorded.events() if e.device_type == DeviceType.CUDA)
    total, until = 0.0, 0.0
    for start, end in spans:  # if several kernels overlap, count their common time only once
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1e3 / steps
