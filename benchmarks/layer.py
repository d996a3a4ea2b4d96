"""How much longer does a layer take if it recomputes its states, and how much memory does the recomputation save?

  python -m benchmarks.layer [--table] [--output FILE]

Runs the forward and backward pass of the unfused and of the fused StableSSM layer alternately. Reports the shortest time over
all rounds, the peak memory beyond that of the input and the weights, and the errors of y and of the gradients relative to the
layer in float64. `--table` also prints the resulting rows for `stablessm_core.fused.choice`. These rows choose the fused layer
where it is faster than the unfused layer and its errors are at most twice those of the unfused layer.
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
    error: dict[str, tuple[float, float]]  # relative error of y, and the largest relative error of any gradient

    @property
    def won(self) -> bool:
        good = all(f <= 2 * u for f, u in zip(self.error["fused"], self.error["unfused"], strict=True))
        return good and self.ms["fused"] < self.ms["unfused"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6.5, help="after these, skip the remaining sizes")
    parser.add_argument("--table", action="store_true", help="print the rows for stablessm_core/fused/choice.py as well")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    keep_freed_memory()  # the training process also does this
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
    # the float64 layer needs twice the memory, so the error is measured on only a few sequences of the batch
    few = slice(0, max(1, 65_536 // length))
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
    """The relative L2 error of y, and the largest relative L2 error of any gradient."""
    each = [float((one.double() - true).norm() / true.norm()) for one, true in zip(found, truth, strict=True)]
    return each[0], max(each[1:])


def most_held(layer: StableSSM, x: Tensor, grad: Tensor, device: str) -> float:
    """The peak memory that one call of `solve` allocates, in bytes."""
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
    obstacle = why_not_triton(torch.device(device), max(SIZES), torch.float32)
    form = "chunks of time in PyTorch" if obstacle else "Triton kernels"
    return [
        "# Layer: saving the states compared with recomputing them",
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
    """The rows for choice.TABLE: for each layer size, the smallest batch * length at and above which the fused layer always
    won."""
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
