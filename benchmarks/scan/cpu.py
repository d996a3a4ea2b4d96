"""Compares the scan on a CPU with its floor and with scans of other packages: the part of `benchmarks.scan` for a machine
without a GPU.

The floor is the time of elementwise PyTorch operations that read and write as much data as the scan. Their outputs are
allocated in advance. For LTI (one vector a), these operations are `mul` and `addcmul`. For LTV (a has b's shape), there is one
more `mul`. Complex cases use the same operations on complex tensors. Our scan and the other PyTorch forms go through autograd
and allocate their outputs. The JAX forms are jitted functions of existing arrays that compute h and both gradients in one call.
Before a form is timed, its result is compared with that of the torch backend. The report names the forms whose results differ
and the forms that fail. The forms run alternately in one process. The report uses the minimum time, because other work on the
machine can only add time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.scan import forms, jax_forms
from stablessm_core.scan import BACKENDS, linear_scan, resolve_backend

SHAPES = ((64, 784, 64), (8, 4096, 256), (8, 100, 32), (1, 16384, 256), (1, 20000, 200))
OTHER_DTYPES = (torch.float64, torch.bfloat16, torch.float16)
OF_OTHER_DTYPES = (8, 4096, 256)  # shape (batch, length, d_state) for timing dtypes other than float32
SMALL = (8, 100, 32)
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
SHORTEST = 2e-4  # minimum duration of a sample, in seconds; a shorter call is repeated within the sample
Call = Callable[[], object]


@dataclass
class Timed:
    """A form. ms: the minimum times so far of its forward pass and of forward + backward, in milliseconds."""

    name: str
    forward: Call | None
    both: Call
    ms: tuple[float, float] = (float("inf"), float("inf"))
    peak: int = 0  # peak memory of forward + backward in addition to the arguments, in bytes


def report(seconds: float, minutes: float) -> Iterator[str]:
    """The lines of the report. seconds: total measuring time of one case. minutes: after this time, the remaining cases are
    timed without the scans of other packages."""
    deadline = time.monotonic() + 60 * minutes
    short = []
    yield "| shape (batch, length, d_state) | scan | form | forward, ms | forward + backward | floor / it | both | peak MB |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for shape, dtype in [
        *((shape, torch.float32) for shape in SHAPES),
        *((shape, torch.complex64) for shape in SHAPES),
        *((OF_OTHER_DTYPES, dtype) for dtype in OTHER_DTYPES),
    ]:
        for lti in (True, False):
            head = f"| {shape} | {'LTI' if lti else 'LTV'} {str(dtype).removeprefix('torch.')} |"
            timed, wrong = case(shape, lti, dtype, with_peers=time.monotonic() < deadline)
            in_turns(timed, seconds)
            yield from (f"{head} {cells(form, timed[0])} |" for form in timed)
            yield from (f"{head} {name} | {reason} | | | | |" for name, reason in wrong.items())
            short.append(f"{head} {in_short(timed)} |")
    names = backends()
    yield "\n## Summary of forward + backward\n"
    yield "Times are in milliseconds. The brackets show the floor's time divided by ours. For the fastest other form, they show"
    yield "its time divided by that of our first form. MB: the peak memory that PyTorch allocates in addition to the arguments.\n"
    yield f"| shape | scan | floor | {' | '.join(f'ours, {name}' for name in names)} | fastest other | ours, MB |"
    yield "|---|---|---:|" + "---:|" * (len(names) + 2)
    yield from short
    yield ""
    yield from host_times()


def cells(form: Timed, floor: Timed) -> str:
    forward, share = ("", "") if form.forward is None else (f"{form.ms[0]:.3f}", f"{floor.ms[0] / form.ms[0]:.2f}")
    peak = f"{form.peak / 1e6:.1f}" if form.peak else ""
    return f"{form.name} | {forward} | {form.ms[1]:.3f} | {share} | {floor.ms[1] / form.ms[1]:.2f} | {peak}"


def in_short(timed: list[Timed]) -> str:
    floor, *others = timed
    ours = [form for form in others if form.peak]
    public = [form for form in others if not form.peak]
    shown = [f"{floor.ms[1]:.3f}", *(f"{form.ms[1]:.3f} ({floor.ms[1] / form.ms[1]:.2f})" for form in ours)]
    best = min(public, key=lambda form: form.ms[1], default=None)
    shown.append("" if best is None else f"{best.name} {best.ms[1]:.3f} ({best.ms[1] / ours[0].ms[1]:.1f})")
    return " | ".join([*shown, ", ".join(f"{form.peak / 1e6:.1f}" for form in ours)])


def backends() -> list[str]:
    """Our backends on a CPU, starting with the backend that `auto` chooses. The loop backend is left out, because the report
    lists it with the other forms.
    """

    def runs(name: str) -> bool:
        try:
            return resolve_backend(name, "cpu") == name
        except ValueError:
            return False

    auto = resolve_backend("auto", "cpu")
    return [auto, *(name for name in BACKENDS if name not in ("auto", "reference", auto) and runs(name))]


def case(shape: tuple[int, int, int], lti: bool, dtype: torch.dtype, *, with_peers: bool) -> tuple[list[Timed], dict[str, str]]:
    """The forms to time, starting with the floor. Also the reasons why the remaining forms are left out, by name."""
    a, b, weight = arguments(shape, lti, dtype)
    candidates: dict[str, forms.Form] = {f"ours, {name}": partial(linear_scan, backend=name) for name in backends()}
    if with_peers and dtype == torch.float32:
        candidates |= forms.alternatives(lti, shape[1])
    timed = [Timed("floor", *forms.floor(a.detach(), b.detach(), weight))]
    wrong: dict[str, str] = {}
    truth = results(partial(linear_scan, backend="torch"), a, b, weight)
    for name, form in candidates.items():
        reason = difference(partial(results, form, a, b, weight), truth, dtype)
        if reason is None:
            timed.append(Timed(name, partial(without_grad, form, a, b), partial(gradients, form, a, b, weight)))
            timed[-1].peak = peak(timed[-1].both) if name.startswith("ours") else 0
        else:
            wrong[name] = reason
    if with_peers and dtype in (torch.float32, torch.complex64):
        for name, both in jax_forms.calls(a.detach(), b.detach(), weight).items():
            reason = difference(partial(jax_forms.results, both), truth, dtype)
            if reason is None:
                timed.append(Timed(name, None, both))
            else:
                wrong[name] = reason
    return timed, wrong


def arguments(shape: tuple[int, int, int], lti: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and the gradient of h. |a| is 0.5 to 0.99; a complex a also has an angle."""
    random = torch.Generator().manual_seed(0)
    size = shape[2:] if lti else shape
    a = 0.5 + 0.49 * torch.rand(size, generator=random)
    if dtype.is_complex:
        a = torch.polar(a, 3 * torch.rand(size, generator=random))
    b, weight = (torch.randn(shape, generator=random, dtype=dtype if dtype.is_complex else None) for _ in range(2))
    return a.to(dtype).requires_grad_(), b.to(dtype).requires_grad_(), weight.to(dtype)


def without_grad(form: forms.Form, a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        return form(a, b)


def gradients(form: forms.Form, a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(form(a, b), [a, b], weight)


def results(form: forms.Form, a: Tensor, b: Tensor, weight: Tensor) -> list[Tensor]:
    h = form(a, b)
    return [h.detach(), *torch.autograd.grad(h, [a, b], weight)]


def difference(found: Callable[[], list[Tensor]], truth: list[Tensor], dtype: torch.dtype) -> str | None:
    """A message if the values or gradients of a form are wrong, otherwise None. Some forms return only gradients."""
    try:
        given = found()
        error = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(given, truth[-len(given) :], strict=True))
    except Exception as reason:  # noqa: BLE001  (a peer may fail in any way; that is a result)
        return f"fails: {(str(reason) or type(reason).__name__).splitlines()[0][:80]}"
    return None if error < TOLERANCE.get(dtype, 1e-3) else f"values or gradients differ by {error:.0e}"


def in_turns(timed: list[Timed], seconds: float) -> None:
    """Time the forms in turns until `seconds` have passed. A form that has used its share of the time is no longer called after
    three turns. A slow form is no longer called after two turns.

    The order is random, so that cache contents left by the previous call affect all forms equally.
    """
    order = random.Random(0)
    passes = [(form, which, call) for form in timed for which, call in enumerate((form.forward, form.both)) if call is not None]
    # the first call is a warm-up; most forms have already been called once, when their results were compared
    first = [duration(call, 1) for _, _, call in passes]
    repeats = [max(1, round(SHORTEST / each)) for each in first]
    spent, deadline, turn = [0.0] * len(passes), time.monotonic() + seconds, 0
    while turn < 3 or time.monotonic() < deadline:
        for number in order.sample(range(len(passes)), len(passes)):
            form, which, call = passes[number]
            if turn >= (3 if first[number] < 0.5 else 2) and spent[number] > seconds / len(passes):
                continue
            took = duration(call, repeats[number])
            spent[number] += took * repeats[number]
            best = min(form.ms[which], 1e3 * took)
            form.ms = (best, form.ms[1]) if which == 0 else (form.ms[0], best)
        turn += 1
        if all(each > seconds / len(passes) for each in spent):
            break


def duration(call: Call, repeats: int) -> float:
    """The mean time of one call, in seconds."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def peak(call: Call) -> int:
    """The peak number of bytes that a call allocates in PyTorch, from the profiler's events."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    held = worst = 0
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            worst = max(worst, held)
    return worst


def host_times() -> Iterator[str]:
    """The lines about the overhead of a call, which is measured with almost nothing to compute."""
    yield "## A small call\n"
    yield f"The time of one call at {SMALL} in float32, in microseconds, including the computation. `mul` allocates its output:"
    yield ""
    yield "| scan | form | forward | forward + backward |"
    yield "|---|---|---:|---:|"
    for lti in (True, False):
        a, b, weight = arguments(SMALL, lti, torch.float32)
        called: dict[str, forms.Form] = {f"ours, {name}": partial(linear_scan, backend=name) for name in backends()}
        called["one `mul`"] = lambda a, b: a * b
        called["two `mul`"] = lambda a, b: a * b * b
        for name, form in called.items():
            times = (microseconds(partial(without_grad, form, a, b)), microseconds(partial(gradients, form, a, b, weight)))
            yield f"| {'LTI' if lti else 'LTV'} | {name} | {times[0]:.1f} | {times[1]:.1f} |"


def microseconds(call: Call, count: int = 300) -> float:
    return 1e6 * min(duration(call, count) for _ in range(9))
