"""How long does a long convolution take with all products in C, compared with Fourier transforms?

    python -m benchmarks.convolution [--threads 1] [--output FILE]

The benchmark times the forward and backward pass of `long_convolution`. The two ways take turns, and a ratio is the median of
the ratios of the single turns. The lengths up to which the products are faster give DIRECT_LENGTH in
stablessm_core/layers/parts/long_convolution.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.scan.__main__ import milliseconds, processor, version
from stablessm_core.kernels import library
from stablessm_core.layers.parts.long_convolution import _DirectConvolution, _FourierConvolution
from stablessm_core.training.environment import keep_freed_memory

CHANNELS = 16
SHAPES = [(32, 49), (32, 98), (32, 196), (32, 256), (32, 384), (16, 512), (16, 784), (8, 1024)]  # batch, length
TURNS = 41


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # the training process also does this
    lines = []
    for line in report():
        print(line, flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def report() -> Iterator[str]:
    threads = torch.get_num_threads()
    yield f"## {library.target()} kernels, {threads} thread{'s' * (threads > 1)}\n"
    yield (
        f"{processor()}; torch {version('torch')}; {time.strftime('%Y-%m-%d')}; {CHANNELS} channels; load average at the start "
        f"{os.getloadavg()[0]:.1f}.\n"
    )
    yield "| batch, length | all products, ms | Fourier transforms, ms | transforms / products |"
    yield "| --- | ---: | ---: | ---: |"
    for batch, length in SHAPES:
        direct, fourier, ratio = turns(batch, length)
        yield f"| {batch}, {length} | {direct:.3f} | {fourier:.3f} | {ratio:.2f} |"


def turns(batch: int, length: int) -> tuple[float, float, float]:
    """The median times of both ways in milliseconds, and the median of the ratios."""
    x = torch.randn(batch, length, CHANNELS, requires_grad=True)
    kernel = torch.randn(CHANNELS, length, requires_grad=True)
    upstream = torch.randn(batch, length, CHANNELS)

    def step(way: Any) -> None:
        torch.autograd.grad(way.apply(x, kernel), (x, kernel), upstream)

    times = [[milliseconds(partial(step, way)) for way in (_DirectConvolution, _FourierConvolution)] for _ in range(TURNS)]
    direct, fourier = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return direct, fourier, statistics.median(b / a for a, b in times[1:])


if __name__ == "__main__":
    main()
