"""How much time does it cost to record every eigenvalue at every step? `python -m benchmarks.telemetry [--output FILE]`

Part 1 trains one model in several ways, which take short turns. The steps are launched as the trainer launches them on this
device (`--execution`). The first way has no telemetry. The second way has our telemetry: it records the ratio and weight of
each eigenvalue, the loss, rates and norms, and encodes the blocks as for storage. The third way calls `.item()` for each value,
as scalar loggers do. The fourth way writes histograms of ratio and weight per layer with `torch.utils.tensorboard`. If
tensorboard is not installed, the table lists this way as absent. Part 2 is a workload without a model: 2,000 steps of 257
values at full speed.
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
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form
from stablessm_core.training.environment import keep_freed_memory, pick_device
from stablessm_core.training.execution import prepare
from stablessm_core.training.step import TrainingStep
from stablessm_core.watch.recorder import FLUSH_SECONDS, FLUSH_STEPS, Recorder

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
RARELY = 8  # `.item()` and tensorboard run only in every eighth round, because we promise nothing about their cost
# A turn has several steps if one step takes less time than this. On a CPU turns are short, so that other load on the machine
# affects all ways equally. On a GPU turns are long, because the host waits for the device after each turn.
TURN_SECONDS = {"cpu": 0.01, "cuda": 5 * FLUSH_SECONDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0, help="time for measuring all shapes together")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--shapes", type=int, default=99, help="measure only the first N shapes")
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile", "graph"])
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    keep_freed_memory()  # the training process also does this
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
        "Three ways take turns in random order: without telemetry, with our telemetry, and without telemetry a second time.",
        f"The other ways take part in only one of {RARELY} rounds. A turn is one step, or "
        f"{1e3 * TURN_SECONDS[device.type]:.0f} ms of shorter",
        "steps. A round has as many turns as fit between two flushes of our telemetry. Times are medians. For each way, a round",
        "gives the quotient of the way's time and the mean time of the two ways without telemetry. The overhead is the mean of",
        "the middle half of these quotients. The brackets show the 95 % interval of this mean from 2,000 bootstrap samples of",
        "the rounds. The overhead is given in wall time and in CPU time of the whole process. CPU time varies less on a busy",
        "machine. As a check, the two ways without telemetry are compared in the same way: their interval should contain 0. A",
        "round ends with the flush and waits until the last value of the flush is encoded. The whole flush counts as time of our",
        "telemetry, although during a training run the flush runs concurrently. The first turn after the flush is one with our",
        "telemetry. Our calls in the training thread are also timed separately (only the recorder's calls if the other calls are",
        "inside a graph). The CPU time of the flush thread (copies, blocks, coarser levels, detectors, compression) is given",
        f"per flush. One flush is due every {1e3 * FLUSH_SECONDS:.0f} ms. All ways train the same model with the same tensors.",
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
    """The rig's step with the same model and optimizer, but without recording."""
    probe, full = copy.copy(rig.step.probe), rig.step
    probe.gradients = probe.states = probe.gates = list  # type: ignore[method-assign]
    step = TrainingStep(full.model, full.task, full.optimizer, probe, full.ring, batch=(full.x, full.y))
    step.read_weights, step.write_row, step.use_compiled_row_writer = (lambda: None), (lambda *_: None), (lambda: None)  # type: ignore[method-assign]
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
    """Wraps a function and adds up the CPU time that the calling thread spends in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        began = time.thread_time()
        out = self.function(*args)
        self.seconds += time.thread_time() - began
        return out


def overhead(quotients: Sequence[float]) -> str:
    """How much the quotients exceed 1, in percent: the mean of the middle half of the quotients, and the 95 % confidence
    interval of this mean."""
    values = np.array(quotients)
    drawn = np.random.default_rng(0).choice(values, (2_000, len(values)))
    cut = len(values) // 4
    means = np.sort(np.vstack([values, drawn]), axis=1)[:, cut : len(values) - cut].mean(axis=1)
    mean, low, high = 100 * (np.array([means[0], *np.quantile(means[1:], [0.025, 0.975])]) - 1)
    return f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def spent(function: Callable[..., Any], *args: Any) -> np.ndarray:
    """The wall time of a call and the CPU time of the whole process during the call, in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    function(*args)
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def lengths(step: float, device: torch.device) -> tuple[int, int]:
    """The number of steps in a turn and the number of turns in a round, if a step takes `step` seconds."""
    turn = max(1, round(TURN_SECONDS[device.type] / step))
    if device.type == "cuda":
        return turn, 1
    # with more turns in a round, a flush would be due before the round ends
    return turn, max(1, min(math.floor(FLUSH_SECONDS / step), FLUSH_STEPS - 1) // turn)


def training(shape: Shape, device: torch.device, seconds: float, execution: str) -> list[list[str]]:
    rig = Rig(images(shape.length), shape, device)
    without = bare(rig)
    got = rig.prepare(execution)
    prepare(without, execution, steps=1 << 30)
    watched = [r.record.weight for r in rig.step.probe.records]
    numbers = itertools.count(1)
    calls = [Timed(lambda: rig.recorder.count_row(next(numbers)))]
    if not got.mode.startswith("cuda_graph"):
        if rig.step.row_writer is not None:
            calls.append(Timed(rig.step.row_writer.write))
            rig.step.row_writer.write = calls[1]  # type: ignore[method-assign]
        else:
            calls += [
                Timed(part)
                for part in (rig.step.read_weights, rig.step.write_row, rig.step.probe.gradients, rig.step.probe.states)
            ]
            _, rig.step.read_weights, rig.step.write_row, rig.step.probe.gradients, rig.step.probe.states = calls  # type: ignore[method-assign]

    flush = Timed(lambda: rig.recorder.flush(force=True))
    calls.append(flush)

    def flushed() -> None:
        flush()
        rig.recorder.drain()

    ends: dict[str, Callable[[], Any]] = {OURS: flushed}  # for each way: what it does at the end of a round
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
        rig.recorder.flush_seconds = math.inf  # flush only when `flushed` is called
    rig.recorder.drain()
    times: dict[str, list[np.ndarray]] = {way: [] for way in ways}  # per round: wall and CPU time of a step, in ms
    over: dict[str, list[np.ndarray]] = {way: [] for way in ways}  # wall and CPU time relative to the turns without telemetry
    inside: list[float] = []  # per round: CPU time that a step spends in our recording calls, in ms
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
            # a flush is due every 200 ms, or at every step if a step takes longer than that
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
