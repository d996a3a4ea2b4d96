"""What does a layer that keeps no states cost, and save? `python -m benchmarks.layer [--table] [--output FILE]`

The unfused and the fused StableSSM layer, forward and backward, in turns: best time of the rounds, most memory held beyond input
and weights, and the error of y and of all gradients together against the layer in float64. `--table` prints the rows of
`stablessm_core.fused.choice` that follow: fused where it takes less time at an error of at most twice.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.scan.__main__ import milliseconds, processor, version
from benchmarks.scan.cuda import device_milliseconds
from stablessm_core.fused.operator import why_not_triton
from stablessm_core.layers import StableSSM
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.training.environment import keep_freed_memory

SIZES = (64, 128, 256)
CPU_SHAPES = ((50, 200), (1, 4096))
CUDA_SHAPES = ((50, 784), (8, 4096), (256, 1024), (1, 131_072))
FORMS = ("unfused", "fused")


class Measured(NamedTuple):
    d: int
    batch: int
    length: int
    ms: dict[str, float]
    mib: dict[str, float]
    error: dict[str, tuple[float, float]]  # of y, of the gradients

    @property
    def won(self) -> bool:
        good = all(f <= 2 * u for f, u in zip(self.error["fused"], self.error["unfused"], strict=True))
        return good and self.ms["fused"] < self.ms["unfused"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6.5, help="what is not begun by then is left out")
    parser.add_argument("--table", action="store_true", help="print the rows for stablessm_core/fused/choice.py as well")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    keep_freed_memory()  # as the process that trains does
    shapes = CPU_SHAPES if arguments.device == "cpu" else CUDA_SHAPES
    deadline, measured, left_out = time.monotonic() + 60 * arguments.minutes, [], []
    for d, shape in itertools.product(SIZES, shapes):
        if time.monotonic() < deadline:
            measured.append(measure(d, *shape, arguments.device, arguments.rounds))
        else:
            left_out.append(f"| {d} | {shape[0]}, {shape[1]} | not reached in {arguments.minutes:g} minutes" + " |" * 8)
    lines = [*heading(arguments.device), *table(measured), *left_out]
    if arguments.table:
        lines += ["", "```python", *rows(measured, arguments.device), "```"]
    report = "\n".join(lines) + "\n"
    print(report)
    if arguments.output:
        arguments.output.write_text(report)


def measure(d: int, batch: int, length: int, device: str, rounds: int) -> Measured:
    torch.manual_seed(0)
    plain = StableSSM(d, d, reparameterization=get_reparameterization("best", time="discrete"), fused="off").to(device)
    layers = {"unfused": plain, "fused": copy.deepcopy(plain)}
    layers["fused"].fused = "on"
    x = torch.randn(batch, length, d, device=device, requires_grad=True)
    grad = torch.randn(batch, length, d, device=device)
    few = slice(0, max(1, 65_536 // length))  # the float64 layer needs twice the memory and the error needs no more rows
    truth = solve(copy.deepcopy(plain).double(), x[few].detach().double().requires_grad_(), grad[few].double())
    error = {form: errors(solve(layer, x[few].detach().requires_grad_(), grad[few]), truth) for form, layer in layers.items()}
    mib = {form: most_held(layer, x, grad, device) / 2**20 for form, layer in layers.items()}
    ms = dict.fromkeys(FORMS, float("inf"))
    clock = device_milliseconds if device == "cuda" else milliseconds
    for _ in range(rounds):
        for form, layer in layers.items():
            ms[form] = min(ms[form], clock(lambda layer=layer: solve(layer, x, grad)))
    return Measured(d, batch, length, ms, mib, error)


def solve(layer: StableSSM, x: Tensor, grad: Tensor) -> list[Tensor]:
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], grad)]


def errors(found: list[Tensor], truth: list[Tensor]) -> tuple[float, float]:
    """Relative L2 error of y; the largest of the gradients'."""
    each = [float((one.double() - true).norm() / true.norm()) for one, true in zip(found, truth, strict=True)]
    return each[0], max(each[1:])


def most_held(layer: StableSSM, x: Tensor, grad: Tensor, device: str) -> float:
    """Bytes."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        solve(layer, x, grad)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        solve(layer, x, grad)
    assert seen.profiler is not None
    alive = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


def heading(device: str) -> list[str]:
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {torch.get_num_threads()} thread(s)"
    missing = why_not_triton(torch.device(device), max(SIZES), torch.float32)
    form = "pieces of time in PyTorch" if missing else "Triton kernels"
    return [
        "# Layer: keeping the states beside making them again",
        "",
        f"`OMP_NUM_THREADS={torch.get_num_threads()} python -m benchmarks.layer --device {device}`, {time.strftime('%Y-%m-%d')}",
        "",
        f"{machine}; torch {torch.__version__}, triton {version('triton')}, python {platform.python_version()}; float32; fused: "
        f"{form}; load average at the start {os.getloadavg()[0]:.1f}.",
        "" if device == "cuda" else "\nNo GPU has been measured: on CUDA the choice `auto` stays unfused.\n",
    ]


def table(measured: list[Measured]) -> list[str]:
    lines = [
        "| d_model = d_state | batch, length | unfused ms | fused ms | ratio | unfused MiB | fused MiB | ratio | error of y, of "
        "the gradients: unfused | fused |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for m in measured:
        (slow, fast), (much, little) = ((kind["unfused"], kind["fused"]) for kind in (m.ms, m.mib))
        shown = [f"{m.error[form][0]:.1e}, {m.error[form][1]:.1e}" for form in FORMS]
        lines.append(
            f"| {m.d} | {m.batch}, {m.length} | {slow:.2f} | {fast:.2f} | {slow / fast:.2f} | {much:.1f} | {little:.1f} "
            f"| {little / much:.2f} | {shown[0]} | {shown[1]} |"
        )
    return lines


def rows(measured: list[Measured], device: str) -> list[str]:
    """Per size, fused from the fewest steps on at which it and everything larger won; nothing else is claimed."""
    lines = []
    for d in SIZES:
        steps = None
        for m in sorted((m for m in measured if m.d == d), key=lambda m: -m.batch * m.length):
            if not m.won:
                break
            steps = m.batch * m.length
        lines += [] if steps is None else [f"    Row({d}, {d}, {steps}, fused=True),"]
        lines.append(f"    Row({d}, {d}, 0, fused=False),")
    return [f'"{torch.cuda.get_device_name() if device == "cuda" else device}": (', *lines, "),"]


if __name__ == "__main__":
    main()
