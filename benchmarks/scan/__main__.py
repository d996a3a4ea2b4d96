"""How long the scan takes, beside its bound and its alternatives: `python -m benchmarks.scan [--output FILE]`.

On a CUDA device: `benchmarks.scan.cuda`, under 8 minutes; `--tune [--kinds WORDS]` searches tiles for the kernel instead.
On a CPU: forms of the same recurrence in PyTorch. Before anything is timed, its result is compared with ours; a form that
differs is reported as wrong and not timed. The forms are timed in turns within each round, so that a slow moment of the machine
hits all of them; the best of the rounds is printed, since other work on the machine can only add.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks.scan import forms, peers
from stablessm_core.scan import autograd, configurations, linear_scan, resolve_backend
from stablessm_core.training.environment import keep_freed_memory

CPU_SHAPES = ((64, 784, 64), (8, 4096, 256), (8, 100, 32))
Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=6.5, help="on a GPU: what is not begun by then is left out")
    parser.add_argument("--tune", action="store_true", help="on a GPU: print rows for stablessm_core/scan/configurations.py")
    parser.add_argument("--walk", action="store_true", help="on a GPU: no tiles of few long chains at once (S3), for comparison")
    parser.add_argument("--kinds", default="", help="with --tune: only kinds that contain this, such as 'adjoints ltv'")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    arguments = parser.parse_args()
    if arguments.tune and arguments.device != "cuda":
        parser.error("--tune needs a CUDA device, and this PyTorch sees none")
    keep_freed_memory()  # as the process that trains does; a CPU would else be timed at clearing pages, too
    lines = []
    for line in chain(heading(arguments.device), body(arguments)):
        print(line, flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def body(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.device != "cuda":
        return chain(table(arguments.rounds), dispatch())
    if arguments.walk:
        configurations.FEW_PROGRAMS = 0
    if arguments.tune:
        return importlib.import_module("benchmarks.scan.tune").rows(arguments.minutes, arguments.kinds)
    return importlib.import_module("benchmarks.scan.cuda").report(arguments.rounds, arguments.minutes)


def heading(device: str) -> list[str]:
    """Machine, versions, and which peers are missing."""
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {torch.get_num_threads()} thread(s)"
    lines = [
        "# Scan: ours beside its bound and its alternatives",
        "",
        f"`OMP_NUM_THREADS={torch.get_num_threads()} python -m benchmarks.scan --device {device}`, {time.strftime('%Y-%m-%d')}",
        "",
        f"{machine}; torch {torch.__version__}, triton {version('triton')}, python {platform.python_version()}; "
        f"`auto` is the {resolve_backend('auto', device)} backend; load average at the start {os.getloadavg()[0]:.1f}.",
        "",
    ]
    distributions = dict.fromkeys(peer.distribution for peer in peers.PEERS)
    return [*lines, f"Peers on a GPU: {', '.join(f'{name} {version(name)}' for name in distributions)}.", ""]


def table(rounds: int) -> Iterator[str]:
    yield "| shape (batch, length, d_state) | form | forward ms | forward + backward ms | forward + backward / ours |"
    yield "|---|---|---|---|---|"
    for shape in CPU_SHAPES:
        for lti in (True, False):
            forward, both, wrong = calls(shape, lti)
            forward_ms, both_ms = best(forward, rounds), best(both, rounds)
            kind, ours = "LTI" if lti else "LTV", both_ms["ours"]
            for name in forward:
                yield f"| {shape} | {kind} {name} | {forward_ms[name]:.2f} | {both_ms[name]:.2f} | {both_ms[name] / ours:.2f} |"
            for name, reason in wrong.items():
                yield f"| {shape} | {kind} {name} | {reason} | | |"


def dispatch() -> Iterator[str]:
    """What a small call costs the host beside its backend, which here makes room for the results and does nothing else."""
    a, b, weight = torch.rand(32, requires_grad=True), torch.randn(8, 100, 32, requires_grad=True), torch.randn(8, 100, 32)
    out = torch.empty_like(b)
    room = SimpleNamespace(
        states=lambda _a, b, _h0, _reverse: torch.empty_like(b),
        adjoints=lambda a, h, *_others: (torch.empty_like(h), torch.empty_like(a), None),
    )

    def both(h: Callable[[], Tensor]) -> None:
        a.grad = b.grad = None
        h().backward(weight)

    kept, autograd.backend_module = autograd.backend_module, lambda _name: room  # type: ignore[assignment, return-value]
    try:
        with torch.no_grad():
            forward = microseconds(lambda: linear_scan(a, b))
        backward = microseconds(lambda: both(lambda: linear_scan(a, b)))
    finally:
        autograd.backend_module = kept
    with torch.no_grad():
        pair = microseconds(lambda: torch.mul(torch.mul(b, b, out=out), b, out=out))
    pair_backward = microseconds(lambda: both(lambda: b * b * b))
    yield ""
    yield f"Host time of a call at {tuple(b.shape)} beside its backend: forward {forward:.1f} microseconds, forward + backward"
    yield f"{backward:.1f}; two elementwise operations, their work included, {pair:.1f} and {pair_backward:.1f}."


def microseconds(call: Callable[[], object], count: int = 500) -> float:
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def calls(shape: tuple[int, int, int], lti: bool) -> tuple[dict[str, Call], dict[str, Call], dict[str, str]]:
    """What to time, forward and forward + backward, and what is not timed because it fails or differs from ours."""
    random = torch.Generator().manual_seed(0)
    size = (shape[2],) if lti else shape
    a = (0.5 + 0.49 * torch.rand(size, generator=random)).requires_grad_()
    b = torch.randn(shape, generator=random).requires_grad_()
    weight = torch.randn(shape, generator=random)

    def both(form: forms.Form) -> Call:
        def call() -> None:
            a.grad = b.grad = None
            form(a, b).backward(weight)

        return call

    def forward(form: forms.Form) -> Call:
        def call() -> Tensor:
            with torch.no_grad():
                return form(a, b)

        return call

    def results(form: forms.Form) -> list[Tensor]:
        both(form)()
        assert a.grad is not None
        assert b.grad is not None
        return [form(a, b).detach(), a.grad, b.grad]

    forms: dict[str, forms.Form] = {"ours": linear_scan}
    wrong: dict[str, str] = {}
    truth = results(linear_scan)
    for name, form in forms.alternatives(lti).items():
        try:
            error = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(results(form), truth, strict=True))
        except Exception as reason:  # noqa: BLE001  (a peer may fail in any way; that is a result)
            wrong[name] = f"fails: {(str(reason) or type(reason).__name__).splitlines()[0][:80]}"
            continue
        if error < 1e-3:
            forms[name] = form
        else:
            wrong[name] = f"values or gradients differ by {error:.0e}"
    floor_forward, floor_both = forms.floor(a.detach(), b.detach())
    return (
        {"floor": floor_forward} | {name: forward(form) for name, form in forms.items()},
        {"floor": floor_both} | {name: both(form) for name, form in forms.items()},
        wrong,
    )


def best(timed: dict[str, Call], rounds: int) -> dict[str, float]:
    """Milliseconds; the slow forms get fewer rounds."""
    samples: dict[str, list[float]] = {name: [] for name in timed}
    first = {name: milliseconds(call) for name, call in timed.items()}  # warm-up
    for turn in range(rounds):
        for name, call in timed.items():
            if first[name] < 1000 or turn < 2:
                samples[name].append(milliseconds(call))
    return {name: min(values) for name, values in samples.items()}


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
