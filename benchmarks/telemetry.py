"""What does recording every eigenvalue at every step cost? `python -m benchmarks.telemetry [--output FILE]`

Part 1 trains one model in several ways that take short turns, launched as the trainer launches it on this device (`--execution`):
without telemetry; with ours (ratio and weight of each eigenvalue, loss, rates, norms; blocks encoded as they are stored); with a
plain `.item()` per value, which is what scalar loggers need; and with histograms of ratio and weight per layer in
`torch.utils.tensorboard`. One that is not installed is named as absent. Part 2 is a workload without a model: 257 values a step,
2,000 steps, as fast as the loop goes.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training import EncodingSink, Rig, Shape, images, machine, table
from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.recorder import FLUSH_SECONDS, FLUSH_STEPS, Recorder
from stablessm_core.training.environment import keep_freed_memory, pick_device
from stablessm_core.training.execution import prepare
from stablessm_core.training.step import TrainingStep

CUDA_SHAPES = (Shape(2, 128, 64, 50), Shape(8, 512, 256, 16))
CPU_SHAPES = (
    Shape(2, 128, 64, 50),
    Shape(8, 512, 256, 2),
    Shape(2, 128, 64, 4),
    Shape(4, 64, 64, 32, 100),
    Shape(4, 32, 64, 16, 100),
    Shape(2, 16, 32, 8, 64),
)
OFF, AGAIN, OURS, TENSORBOARD = "off", "off, once more", "ours", "tensorboard histograms"
RARELY = 8  # the other ways take part in one round of so many: what they cost is no promise of ours
# of several steps, where one is shorter. On a CPU they are short, so that a busy machine is the same to all ways; on a GPU, which
# has to be waited for after each, they are long
TURN_SECONDS = {"cpu": 0.01, "cuda": 5 * FLUSH_SECONDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0, help="of measuring, all shapes together")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--shapes", type=int, default=99, help="only so many shapes, the first")
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile", "graph"])
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    keep_freed_memory()  # as the process that trains does
    device = pick_device(args.device)
    lines = [
        "# What telemetry costs",
        "",
        f"`python -m benchmarks.telemetry --device {device.type} --minutes {args.minutes:g} --execution {args.execution}`, "
        f"{time.strftime('%Y-%m-%d')}",
        "",
        f"{machine(device)}.",
        "",
        "## Training",
        "",
        "Without telemetry, with ours and a second time without take turns in random order; a turn is one step, or",
        f"{1e3 * TURN_SECONDS[device.type]:.0f} ms of shorter ones. A round is so many that the next flush of ours is due; the",
        f"other ways take part in one of {RARELY}. Times are medians. An overhead is the mean of the middle half of the",
        "quotients, one per round, of a way's time and the mean of the two without telemetry; in brackets what holds 95 % of",
        "2,000 such means, each of as many rounds drawn with replacement. It is given in wall time and, steadier on a busy",
        "machine, in CPU time of the whole process. The two ways without telemetry, compared in the same way, say what this is",
        "worth: their interval should hold 0. A round ends with the flush, until its last number is encoded: all of it counts",
        "as time of ours, though in training it runs beside, and ours takes the next turn. What our calls take in the training",
        "thread is also measured by itself (of the recorder alone where the rest is inside a graph), and so is the flush thread",
        "(copies, blocks, coarser levels, detectors, compression): CPU time per flush, of which one is due every",
        f"{1e3 * FLUSH_SECONDS:.0f} ms. All ways train the same model, whose tensors stay where they are.",
        "",
    ]
    rows: list[list[str]] = []
    shapes = CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES
    shapes = shapes[: args.shapes]
    for shape in shapes:
        rows += training(shape, device, 60 * args.minutes / len(shapes), args.execution)
    head = [
        "layers x (d_model, d_state)",
        "telemetry",
        "rounds",
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
    probe.gradients = probe.states = probe.gates = list  # type: ignore[method-assign]
    step = TrainingStep(full.model, full.task, full.optimizer, probe, full.ring, batch=(full.x, full.y))
    step.weights, step.record, step.record_in_one_pass = (lambda: None), (lambda *_: None), (lambda: None)  # type: ignore[method-assign]
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


def overhead(quotients: Sequence[float]) -> str:
    """By how much the quotients exceed 1 in percent: the mean of their middle half, and its 95 % interval."""
    values = np.array(quotients)
    drawn = np.random.default_rng(0).choice(values, (2_000, len(values)))
    cut = len(values) // 4
    means = np.sort(np.vstack([values, drawn]), axis=1)[:, cut : len(values) - cut].mean(axis=1)
    mean, low, high = 100 * (np.array([means[0], *np.quantile(means[1:], [0.025, 0.975])]) - 1)
    return f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def spent(function: Callable[..., Any], *args: Any) -> np.ndarray:
    """Seconds that a call takes: of wall time, and of CPU time of the whole process."""
    wall, cpu = time.perf_counter(), time.process_time()
    function(*args)
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def lengths(step: float, device: torch.device) -> tuple[int, int]:
    """Steps in a turn and turns in a round, of a step that takes so many seconds."""
    turn = max(1, round(TURN_SECONDS[device.type] / step))
    if device.type == "cuda":
        return turn, 1
    # with more steps a flush would be due before
    return turn, max(1, min(math.floor(FLUSH_SECONDS / step), FLUSH_STEPS - 1) // turn)


def training(shape: Shape, device: torch.device, seconds: float, execution: str) -> list[list[str]]:
    rig = Rig(images(shape.length), shape, device)
    without = bare(rig)
    got = rig.prepare(execution)
    prepare(without, execution, steps=1 << 30)
    watched = [r.record.weight for r in rig.step.probe.records]
    numbers = itertools.count(1)
    calls = [Timed(lambda: rig.recorder.recorded(next(numbers)))]
    if not got.mode.startswith("cuda_graph"):
        if rig.step.one_pass is not None:
            calls.append(Timed(rig.step.one_pass.write))
            rig.step.one_pass.write = calls[1]  # type: ignore[method-assign]
        else:
            calls += [
                Timed(part) for part in (rig.step.weights, rig.step.record, rig.step.probe.gradients, rig.step.probe.states)
            ]
            _, rig.step.weights, rig.step.record, rig.step.probe.gradients, rig.step.probe.states = calls  # type: ignore[method-assign]

    flush = Timed(lambda: rig.recorder.flush(force=True))
    calls.append(flush)

    def flushed() -> None:
        flush()
        rig.recorder.drain()

    ends: dict[str, Callable[[], Any]] = {OURS: flushed}  # what a way still has to do after a round
    ways: dict[str, Callable[[int], float]] = dict.fromkeys((OFF, AGAIN), lambda n: rig.go(n, lambda: None, without))
    ways |= {OURS: lambda n: rig.go(n, calls[0]), "`.item()` per value": lambda n: rig.go(n, lambda: items(watched), without)}
    absent: list[list[str]] = []
    folder = tempfile.TemporaryDirectory()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        absent.append([str(shape), TENSORBOARD, f"absent: {error}", *[""] * 6])
    else:
        writer = SummaryWriter(folder.name)

        ways[TENSORBOARD] = lambda n: rig.go(n, lambda: histograms(watched, writer, rig.done), without)
        ends[TENSORBOARD] = writer.flush

    for way in ways:
        ways[way](2)
    turn, turns = lengths(ways[OFF](4) / 4, device)
    each = turn * turns
    if device.type == "cpu":
        rig.recorder.flush_seconds = math.inf  # `flushed` is the one that is due
    rig.recorder.drain()
    times: dict[str, list[np.ndarray]] = {way: [] for way in ways}  # per round: wall and CPU ms of a step
    over: dict[str, list[np.ndarray]] = {way: [] for way in ways}  # both over those without telemetry
    inside: list[float] = []  # per round: CPU ms of a step in our calls
    order = random.Random(0)
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times[OFF]) <= RARELY:
        among = list(ways) if len(times[OFF]) % RARELY == 0 else [OFF, AGAIN, OURS]
        took = {way: np.zeros(2) for way in among}
        for call in calls:
            call.seconds = 0.0
        for i in range(turns):
            for way in sorted(order.sample(among, len(among)), key=lambda way: i == 0 < turns - 1 and way != OURS):
                took[way] += spent(ways[way], turn)
        for way in ends.keys() & took.keys():
            took[way] += spent(ends[way])
        inside.append(1e3 * sum(call.seconds for call in calls) / each)
        for way, both in took.items():
            bases = [took[OFF]] if way == AGAIN else [took[OFF], took[AGAIN]]
            times[way].append(1e3 * both / each)
            over[way].append(both / np.mean(bases, axis=0))
    rig.recorder.drain()
    assert isinstance(rig.sink, EncodingSink)
    per_flush = 1e3 * time.clock_gettime(time.pthread_getcpuclockid(rig.recorder.thread_id)) / rig.sink.flushes
    rig.recorder.close()
    folder.cleanup()
    assert rig.recorder.dropped == rig.recorder.errors == 0
    rows = []
    for way in ways:
        wall, cpu = np.median(times[way], axis=0)
        shown = ["", ""] if way == OFF else [overhead(of) for of in zip(*over[way], strict=True)]
        own = thread = ""
        if way == OURS:
            calls_ms = np.median(inside)
            own = f"{calls_ms:.3f} ms = {100 * calls_ms / np.median(times[OFF], axis=0)[0]:.1f} %"
            # a flush is due every 200 ms, or with every step if that takes longer
            thread = f"{per_flush:.2f} ms = {100 * per_flush / max(1e3 * FLUSH_SECONDS, wall):.1f} %"
        rounds = str(len(times[way]))
        rows.append([f"{shape}, {got.mode}", way, rounds, f"{wall:.3f}", shown[0], f"{cpu:.3f}", shown[1], own, thread])
    return rows + absent


def workload(device: torch.device) -> list[str]:
    catalogue = [names.scalar(names.TRAIN_LOSS)]
    for layer in range(4):
        catalogue += [
            s for s in names.layer_catalogue(layer, 64, Form.of_map("best", "discrete")) if s.name.endswith("grad_over_weight")
        ]
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
