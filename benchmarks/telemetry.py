"""What does recording every eigenvalue at every step cost? `python -m benchmarks.telemetry [--output FILE]`

Part 1 trains one model in several ways that take turns, launched as the trainer launches it on this device (`--execution`):
without telemetry; with ours (ratio and weight of each eigenvalue, loss, rates, norms; blocks encoded as they are stored); with a
plain `.item()` per value, which is what scalar loggers need; and with histograms of ratio and weight per layer in
`torch.utils.tensorboard`. One that is not installed is named as absent. Part 2 is a workload without a model: 257 values a step,
2,000 steps, as fast as the loop goes.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training import EncodingSink, Rig, Shape, images, machine, table
from stablessm_core.environment import pick_device
from stablessm_core.execution import prepare
from stablessm_core.step import TrainingStep
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.recorder import FLUSH_SECONDS, Recorder

CUDA_SHAPES = (Shape(2, 128, 64, 50), Shape(8, 512, 256, 16))
CPU_SHAPES = (
    Shape(2, 128, 64, 50),
    Shape(8, 512, 256, 2),
    Shape(2, 128, 64, 4),
    Shape(4, 64, 64, 32, 100),
    Shape(4, 32, 64, 16, 100),
    Shape(2, 16, 32, 8, 64),
)
AGAIN = "off, once more"
ROUND_SECONDS = {"cpu": 0.1, "cuda": 0.3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--shapes", type=int, default=99, help="only so many shapes, the first")
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile", "graph"])
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    device = pick_device(args.device)
    lines = [
        "# What telemetry costs",
        "",
        f"`python -m benchmarks.telemetry --device {device.type} --rounds {args.rounds} --execution {args.execution}`, "
        f"{time.strftime('%Y-%m-%d')}",
        "",
        f"{machine(device)}.",
        "",
        "## Training",
        "",
        f"Medians of {args.rounds} rounds in turns; an overhead is the median of the quotients within a round, in wall time and,",
        "because on a busy machine that is noise of several percent, in CPU time of the training thread. What our calls take in",
        "that thread is also measured by itself (of the recorder alone where the rest is inside a graph), and so is the flush",
        "thread (copies, blocks, coarser levels, detectors, compression): CPU time per flush, of which one is due every",
        f"{1e3 * FLUSH_SECONDS:.0f} ms. All ways train the same model, whose tensors stay where they are: a second one of its",
        "shape takes up to 5 % more or less, as its memory lies. A second turn without telemetry says what the comparison is",
        "worth.",
        "",
    ]
    rows: list[list[str]] = []
    for shape in (CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES)[: args.shapes]:
        rows += training(shape, device, args.rounds, args.execution)
    head = [
        "layers x (d_model, d_state)",
        "telemetry",
        "ms",
        "overhead",
        "CPU ms",
        "overhead (CPU)",
        "in our calls",
        "flush thread",
    ]
    report = "\n".join([*lines, *table(head, rows), "", *workload(device), ""])
    print(report)
    if args.output:
        args.output.write_text(report, encoding="utf-8")


def bare(rig: Rig) -> TrainingStep:
    """The rig's step, of the same model and optimizer, with nothing recorded."""
    probe, full = copy.copy(rig.step.probe), rig.step
    probe.gradients = probe.states = list  # type: ignore[method-assign]
    step = TrainingStep(full.model, full.task, full.optimizer, probe, full.ring, batch=(full.x, full.y))
    step.weights, step.record = (lambda: None), (lambda *_: None)
    return step


def items(watched: Sequence[torch.Tensor]) -> None:
    for w in watched:
        ratio = (w.grad / w).abs()  # type: ignore[operator, arg-type]
        [x.item() for x in ratio.detach()] + [x.item() for x in w.detach()]


def histograms(watched: Sequence[torch.Tensor], writer: Any, step: int) -> None:
    for i, w in enumerate(watched):
        writer.add_histogram(names.layer_series(i, "grad_over_weight"), (w.grad / w).abs().detach(), step)  # type: ignore[operator, arg-type]
        writer.add_histogram(names.layer_series(i, "weight"), w.detach(), step)


class Timed:
    """Calls of a function, and the CPU time of this thread that they took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        began = time.thread_time()
        out = self.function(*args)
        self.seconds += time.thread_time() - began
        return out


def training(shape: Shape, device: torch.device, rounds: int, execution: str) -> list[list[str]]:
    rig = Rig(images(shape.length), shape, device)
    without = bare(rig)
    got = rig.prepare(execution)
    prepare(without, execution, steps=1 << 30)
    watched = [layer.watched.weight for layer in rig.step.probe.layers]
    numbers = itertools.count(1)
    calls = [Timed(lambda: rig.recorder.recorded(next(numbers)))]
    if not got.mode.startswith("cuda_graph"):
        calls += [Timed(part) for part in (rig.step.weights, rig.step.record, rig.step.probe.gradients, rig.step.probe.states)]
        _, rig.step.weights, rig.step.record, rig.step.probe.gradients, rig.step.probe.states = calls  # type: ignore[method-assign]
    ways: dict[str, Callable[[int], float]] = {"ours": lambda n: rig.go(n, calls[0])}
    ways |= dict.fromkeys(("off", AGAIN), lambda n: rig.go(n, lambda: None, without))
    ways |= {"`.item()` per value": lambda n: rig.go(n, lambda: items(watched), without)}
    absent: list[list[str]] = []
    folder = tempfile.TemporaryDirectory()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        absent.append([str(shape), "tensorboard histograms", f"absent: {error}", *[""] * 5])
    else:
        writer = SummaryWriter(folder.name)
        ways["tensorboard histograms"] = lambda n: rig.go(n, lambda: histograms(watched, writer, rig.done), without)

    each = max(1, round(ROUND_SECONDS[device.type] / ways["off"](2) * 2))
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for turn in range(rounds + 2):
        if turn == 2:
            for call in calls:
                call.seconds = 0.0
        for way in order.sample(sorted(ways), len(ways)):
            began = time.thread_time()
            seconds = ways[way](each)
            if turn >= 2:
                cpu[way].append((time.thread_time() - began) * 1e3 / each)
                wall[way].append(seconds * 1e3 / each)
    rig.recorder.drain()
    assert isinstance(rig.sink, EncodingSink)
    per_flush = 1e3 * time.clock_gettime(time.pthread_getcpuclockid(rig.recorder.thread_id)) / rig.sink.flushes
    rig.recorder.close()
    folder.cleanup()
    assert rig.recorder.dropped == rig.recorder.errors == 0
    rows = []
    for way in sorted(ways, key=["off", AGAIN, "ours", *ways].index):
        medians = statistics.median(wall[way]), statistics.median(cpu[way])
        more = [statistics.median(a / b - 1 for a, b in zip(of[way], of["off"], strict=True)) for of in (wall, cpu)]
        shown = ["", ""] if way == "off" else [f"{100 * m:+.1f} %" for m in more]
        own = thread = ""
        if way == "ours":
            inside = sum(call.seconds for call in calls) * 1e3 / (rounds * each)
            own = f"{inside:.3f} ms = {100 * inside / statistics.median(wall['off']):.1f} %"
            # a flush is due every 200 ms, or with every step if that takes longer
            thread = f"{per_flush:.2f} ms = {100 * per_flush / max(1e3 * FLUSH_SECONDS, medians[0]):.1f} %"
        rows.append([f"{shape}, {got.mode}", way, f"{medians[0]:.3f}", shown[0], f"{medians[1]:.3f}", shown[1], own, thread])
    return rows + absent


def workload(device: torch.device) -> list[str]:
    catalogue = [names.scalar(names.TRAIN_LOSS)]
    for layer in range(4):
        catalogue += [s for s in names.layer_catalogue(layer, 64, "discrete") if s.name.endswith("grad_over_weight")]
    sink = EncodingSink()
    recorder = Recorder(catalogue, sink, layout=[(s.name, s.width) for s in catalogue], device=device)
    walk = np.cumsum(np.random.default_rng(0).standard_normal((2000, 257)) * 0.02, axis=0)
    rows = torch.from_numpy(np.exp(walk).astype(np.float32)).to(device)
    blocked = []
    began = time.perf_counter()
    for step in range(1, 2001):
        row = rows[step - 1]
        at = time.perf_counter()
        recorder.record(step, row)
        blocked.append(time.perf_counter() - at)
    looped = time.perf_counter()
    recorder.close()
    ended = time.perf_counter()
    assert recorder.dropped == 0
    assert sink.values == 2000 * 257
    ms, loop, all_ = np.sort(np.array(blocked)) * 1e3, looped - began, ended - began
    return [
        "## 257 values a step, 2,000 steps at full speed, no model",
        "",
        "| blocked per step, mean | p99 | largest | loop | all encoded after | bytes a value, coarser levels included |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {ms.mean():.3f} ms | {ms[int(0.99 * len(ms))]:.3f} ms | {ms[-1]:.2f} ms | {loop:.3f} s | {all_:.3f} s "
        f"| {sink.stored / sink.values:.2f} |",
    ]


if __name__ == "__main__":
    main()
