"""Compares the scan with its floor and with other implementations: `python -m benchmarks.scan [--output FILE]`.

On a CUDA device this command runs `benchmarks.scan.cuda`, which takes less than 8 minutes. With `--tune [--kinds WORDS]` it
searches for fast tiles of the kernel instead. On a CPU it runs `benchmarks.scan.cpu`, which takes about 4 minutes for one
number of threads. `make peers` installs the packages for the comparison. Then `.venv-peers/bin/python -m benchmarks.scan
--device cpu --threads 1` includes these packages.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import torch

from benchmarks.scan import cpu, jax_forms, peers
from stablessm_core.scan import configurations, resolve_backend
from stablessm_core.training.environment import keep_freed_memory

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15, help="on a GPU")
    parser.add_argument("--minutes", type=float, help="after these, skip the remaining peers (on a GPU 6.5, on a CPU 4)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="on a CPU: threads, and cores to run on")
    parser.add_argument("--seconds", type=float, default=3.0, help="on a CPU: time for one case")
    parser.add_argument("--tune", action="store_true", help="on a GPU: print rows for stablessm_core/scan/configurations.py")
    parser.add_argument("--walk", action="store_true", help="on a GPU: no tiles of few long chains at once (S3), for comparison")
    parser.add_argument("--kinds", default="", help="with --tune: only kinds that contain this, such as 'adjoints ltv'")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    if arguments.tune and arguments.device != "cuda":
        parser.error("--tune needs a CUDA device, and this PyTorch sees none")
    if arguments.device == "cpu":
        pin(arguments.threads)
    keep_freed_memory()  # the training process also does this; otherwise the kernel spends CPU time on clearing pages
    lines = []
    for line in chain(heading(arguments.device), body(arguments)):
        print(line, flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def body(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.device != "cuda":
        return cpu.report(arguments.seconds, arguments.minutes or 4)
    if arguments.walk:
        configurations.FEW_PROGRAMS = 0
    if arguments.tune:
        return importlib.import_module("benchmarks.scan.tune").rows(arguments.minutes or 6.5, arguments.kinds)
    return importlib.import_module("benchmarks.scan.cuda").report(arguments.rounds, arguments.minutes or 6.5)


def pin(threads: int) -> None:
    """Use `threads` cores, and the same number of threads in each library. Must be called before any library starts a
    thread."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])  # the first core handles interrupts
    torch.set_num_threads(threads)
    jax_forms.prepare(threads)


def heading(device: str) -> list[str]:
    """The lines with the command, the machine, and the versions of the packages. A missing package is listed as absent."""
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {torch.get_num_threads()} thread(s)"
    command = " ".join(["python -m benchmarks.scan", *(word for word in sys.argv[1:] if not word.endswith(".md"))])
    distributions = dict.fromkeys(peer.distribution for peer in peers.PEERS) if device == "cuda" else ("jax", "mambapy")
    return [
        "# Scan: our scan compared with its floor and with other implementations",
        "",
        f"`{command.removesuffix(' --output')}`, {time.strftime('%Y-%m-%d')}",
        "",
        f"{machine}; torch {torch.__version__}, triton {version('triton')}, python {platform.python_version()}; "
        f"`auto` is the {resolve_backend('auto', device)} backend; load average at the start {os.getloadavg()[0]:.1f}.",
        "",
        f"Peers: {', '.join(f'{name} {version(name)}' for name in distributions)}.",
        "",
    ]


def milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def processor() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
