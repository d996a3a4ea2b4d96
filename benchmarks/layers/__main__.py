"""How long does a training step through each layer take on a CPU, compared with public implementations of the layer?

    make references; .venv-references/bin/python -m benchmarks.layers [--checkouts FOLDER] [--layers NAME ...] [--output FILE]

Times the forward and backward pass, including the gradients of the input and of every weight, at (batch 8, length 256, d_model
64) with our default options. Before a pair is timed, the outputs and the input gradients of its two layers are compared. The
two layers take turns in one process, so that other load on the machine affects both. A reported ratio is the median of the
ratios in the single turns. state-spaces/s4 and ag1988/dss are not packages. FOLDER contains their clones, named `s4` and `dss`.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.layers import of_checkouts, of_fla, of_packages, of_transformers
from benchmarks.layers.pair import Pair, ours
from benchmarks.scan.__main__ import milliseconds, processor, version
from stablessm_core.spec.layers import LAYERS
from stablessm_core.training.environment import keep_freed_memory

BATCH, LENGTH, D_MODEL = 8, 256, 64
# layer options that a run takes from the section `model` of its configuration
OPTIONS = {"stable_ssm": {"d_state": D_MODEL, "activation": "tanh"}}
# for each layer: the name of an attribute, and two values of this attribute that give the same outputs; the first is the
# default
FORMS = {
    "s4": ("kernel", ("powers", "cauchy")),
    "s4d": ("form", ("convolution", "scan")),
    "dss": ("form", ("convolution", "scan")),
    **dict.fromkeys(("mamba2", "retnet", "gla", "rwkv6", "gated_deltanet"), ("scan_backend", ("auto", "reference"))),
}
SLOW = 1.2  # a layer is slow if it takes more than SLOW times as long as the fastest public layer
DISTRIBUTIONS = ("transformers", "fla-core", "mambapy", "s5-pytorch", "LRU-pytorch", "neural-ssm", "minGRU-pytorch")
CLONES = {"s4": "state-spaces/s4", "dss": "ag1988/dss"}
Make = Callable[[int], Pair]


def pairs(checkouts: Path | None) -> dict[str, dict[str, Make]]:
    """For each layer, the functions that build a pair with a public implementation, by the implementation's name in the
    table."""
    transformers, fla, packages, of_files = of_transformers, of_fla, of_packages, of_checkouts
    found: dict[str, dict[str, Make]] = {
        "mamba": {
            "transformers": transformers.mamba,
            "transformers, mambapy's scan": partial(transformers.mamba, use_mambapy=True),
            "mambapy, scan": packages.mamba_of_mambapy,
            "mambapy, loop": partial(packages.mamba_of_mambapy, pscan=False),
        },
        "mamba2": {"transformers": transformers.mamba2},
        "rg_lru": {"transformers": transformers.rg_lru},
        "rwkv4": {"transformers": transformers.rwkv4},
        "gated_deltanet": {"transformers": transformers.gated_deltanet, "fla's reference": fla.gated_deltanet},
        "s5": {"s5-pytorch": packages.s5_of_s5_pytorch},
        "lru": {
            "neural-ssm, scan": packages.lru_of_neural_ssm,
            "neural-ssm, convolution": partial(packages.lru_of_neural_ssm, mode="conv"),
            "neural-ssm, loop": partial(packages.lru_of_neural_ssm, mode="loop"),
            "LRU-pytorch": packages.lru_of_lru_pytorch,
        },
        "l2ru": {"neural-ssm, loop": packages.l2ru, "neural-ssm, scan": partial(packages.l2ru, mode="scan")},
        "min_gru": {"minGRU-pytorch": packages.min_gru},
        "retnet": {"fla's reference": fla.retnet},
        "gla": {"fla's reference": fla.gla},
        "hgrn": {"fla's reference": fla.hgrn},
        "rwkv6": {"fla's reference": fla.rwkv6},
    }
    if checkouts:
        found["s4"] = {CLONES["s4"]: partial(of_files.s4, checkouts=checkouts)}
        found["s4d"] = {CLONES["s4"]: partial(of_files.s4d, checkouts=checkouts)}
        found["dss"] = {CLONES["dss"]: partial(of_files.dss, checkouts=checkouts)}
    return found


class Row(NamedTuple):
    """The results of one pair. The keys of the dictionaries are numbers of threads. ms: the median times of our layer and of
    the public layer. ratio: the median of the ratios (our time / public time) in the single turns. of_least: the ratio of the
    two shortest times."""

    layer: str
    public: str
    difference: float
    ms: dict[int, tuple[float, float]]
    ratio: dict[int, float]
    of_least: dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, help="folder with clones of state-spaces/s4 and ag1988/dss, as s4 and dss")
    parser.add_argument("--layers", nargs="+", choices=sorted(LAYERS), default=list(LAYERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=10.0, help="time per pair and number of threads; at least 5 rounds")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    keep_freed_memory()  # the training process also does this
    lines = []
    for line in report(arguments):
        print(line, flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def report(arguments: argparse.Namespace) -> Iterator[str]:
    yield from heading(arguments)
    for model in of_transformers.MODELS:  # transformers must be imported before fla
        of_transformers.modeling(model)
    public, rows = pairs(arguments.checkouts), []
    for name in arguments.layers:
        for title, make in public.get(name, {}).items():
            row = measure(name, title, make, arguments)
            rows.append(row)
            yield shown(row)
        if name not in public:
            cloned = name not in of_checkouts.__dict__ or arguments.checkouts
            yield alone(name, "none that runs here" if cloned else "not cloned", arguments)
    yield from conclusion(rows, arguments)
    yield from forms([name for name in arguments.layers if name in FORMS], arguments)
    yield f"\nLoad average at the end {os.getloadavg()[0]:.1f}."


def heading(limits: argparse.Namespace) -> Iterator[str]:
    versions = ", ".join([*(f"{name} {version(name)}" for name in DISTRIBUTIONS), *commits(limits.checkouts)])
    yield "# Layers: a training step compared with public implementations"
    yield f"\n`python -m benchmarks.layers{' --checkouts FOLDER' if limits.checkouts else ''}`, {time.strftime('%Y-%m-%d')}\n"
    yield (
        f"{processor()}, {os.cpu_count()} cores; torch {torch.__version__}, python {platform.python_version()}; {versions}; load "
        f"average at the start {os.getloadavg()[0]:.1f}."
    )
    yield (
        f"\nForward and backward in float32 at (batch {BATCH}, length {LENGTH}, d_model {D_MODEL}), in turns. Milliseconds are "
        "medians. A ratio is the median of the ratios in the single turns, followed by the ratio of the two shortest times. "
        "Below 1, our layer is faster. LRU and S5 are timed without the gated readout of their blocks, because the public "
        "packages do not contain this readout. fla's kernels run only on GPUs, so fla's PyTorch references are timed instead.\n"
    )
    columns = " | ".join(f"{n} thread{'s'[: n - 1]}: ours, public ms | **ratio**, of minima" for n in limits.threads)
    yield f"| layer | public implementation | outputs differ by | {columns} |"
    yield "|---|---|---|" + "---|---|" * len(limits.threads)


def commits(checkouts: Path | None) -> Iterator[str]:
    for name, repository in CLONES.items() if checkouts else ():
        done = subprocess.run(
            ["git", "-C", str(checkouts / name), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        yield f"{repository} {done.stdout.strip()}"


def measure(layer: str, title: str, make: Make, limits: argparse.Namespace) -> Row:
    torch.manual_seed(0)
    pair = make(D_MODEL)
    x = torch.randn(BATCH, LENGTH, D_MODEL, requires_grad=True)
    grad = torch.randn(BATCH, LENGTH, D_MODEL)
    difference = differs_by(pair, x, grad)
    if not difference < 1e-2:  # a large tolerance, because the public L2RU computes its matrices in float32
        raise ValueError(f"{layer} and that of {title} differ by {difference:.1e}: they are not the same function")
    steps = (training_step(pair.ours, list(pair.ours.parameters()), x, grad), training_step(pair.call, list(pair.given), x, grad))
    ms, ratio, of_least = {}, {}, {}
    for threads in limits.threads:
        mine, theirs = in_turns(steps, threads, limits)
        ms[threads] = statistics.median(mine), statistics.median(theirs)
        ratio[threads] = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        of_least[threads] = min(mine) / min(theirs)
    return Row(layer, title, difference, ms, ratio, of_least)


def differs_by(pair: Pair, x: Tensor, grad: Tensor) -> float:
    """The relative difference between the two layers' outputs, or between their input gradients, whichever is larger."""
    last = LENGTH - pair.lag
    results = []
    for y in (pair.ours(x)[:, :last], pair.call(x)[:, pair.lag :]):
        results.append((y.detach(), torch.autograd.grad(y, x, grad[:, :last])[0]))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))


def training_step(call: Callable[[Tensor], Tensor], weights: list[nn.Parameter], x: Tensor, grad: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(call(x), [x, *weights], grad)


def in_turns(steps: tuple[Callable[[], object], ...], threads: int, limits: argparse.Namespace) -> tuple[list[float], ...]:
    """For each training step, its time in each turn, in milliseconds. The order of the steps alternates. One warm-up call of
    each step is not timed."""
    torch.set_num_threads(threads)
    for step in steps:
        step()
    deadline = time.monotonic() + limits.seconds
    times: tuple[list[float], ...] = tuple([] for _ in steps)
    for turn in range(limits.rounds):
        if turn >= 5 and time.monotonic() > deadline:
            break
        for which in range(len(steps)) if turn % 2 else reversed(range(len(steps))):
            times[which].append(milliseconds(steps[which]))
    return times


def alone(name: str, why: str, limits: argparse.Namespace) -> str:
    torch.manual_seed(0)
    layer = ours(name, D_MODEL, **OPTIONS.get(name, {}))
    x = torch.randn(BATCH, LENGTH, D_MODEL, requires_grad=True)
    step = training_step(layer, list(layer.parameters()), x, torch.randn(BATCH, LENGTH, D_MODEL))
    ms = [statistics.median(in_turns((step,), threads, limits)[0]) for threads in limits.threads]
    return f"| {name} | {why} | | " + " | ".join(f"{each:.1f} | " for each in ms) + "|"


def shown(row: Row) -> str:
    cells = (f"{row.ms[n][0]:.1f}, {row.ms[n][1]:.1f} | **{row.ratio[n]:.2f}**, {row.of_least[n]:.2f}" for n in row.ms)
    return f"| {row.layer} | {row.public} | {row.difference:.0e} | {' | '.join(cells)} |"


def conclusion(rows: list[Row], limits: argparse.Namespace) -> Iterator[str]:
    """A line that names our layers that take more than SLOW times as long as their fastest public implementation."""
    slow = []
    for threads in limits.threads:
        for name in dict.fromkeys(row.layer for row in rows):
            best = max((row for row in rows if row.layer == name), key=lambda row: row.ratio[threads])
            if best.ratio[threads] > SLOW:
                slow.append(f"{name} ({best.ratio[threads]:.2f} times {best.public}, {threads} thread{'s'[: threads - 1]})")
    yield f"\nLayers that take more than {SLOW} times as long as the fastest public layer: {', '.join(slow) or 'none'}."


def forms(names: list[str], limits: argparse.Namespace) -> Iterator[str]:
    yield "\n## Two forms of the same layer\n"
    yield "For each of our layers with two forms, the table compares the default form with the other form. The ratio is defined"
    yield "as above. The form `reference` computes one step after another.\n"
    columns = " | ".join(f"{n} thread{'s'[: n - 1]}: ms | **ratio**, of minima" for n in limits.threads)
    yield f"| layer | form | {columns} |"
    yield "|---|---|" + "---|---|" * len(limits.threads)
    for name in names:
        torch.manual_seed(0)
        attribute, values = FORMS[name]
        x, grad = torch.randn(BATCH, LENGTH, D_MODEL, requires_grad=True), torch.randn(BATCH, LENGTH, D_MODEL)
        layers = [copy.deepcopy(layer) for layer in [ours(name, D_MODEL)] for _ in values]
        for layer, value in zip(layers, values, strict=True):
            setattr(layer, attribute, value)
        first, second = (training_step(layer, list(layer.parameters()), x, grad) for layer in layers)
        cells = []
        for threads in limits.threads:
            default, other = in_turns((first, second), threads, limits)
            ratio = statistics.median(a / b for a, b in zip(default, other, strict=True))
            cells.append(f"{statistics.median(default):.1f}, {statistics.median(other):.1f}")
            cells.append(f"**{ratio:.2f}**, {min(default) / min(other):.2f}")
        yield f"| {name} | {values[0]}, {values[1]} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
