"""Compares the scan on a GPU with its floor and with scans of other packages: the part of `benchmarks.scan` that needs a CUDA
device.

Times are medians of device time between CUDA events. Before each call the L2 cache is flushed, and the device waits, so that
the host's time is not measured. Our scan and the floors are timed first, then the scans of other packages (peers) until
`minutes` have passed. A peer's result is compared with ours before the peer is timed. The report names the peers whose results
differ from ours and the peers that fail.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.scan.floor import floor
from benchmarks.scan.peers import PEERS, Form, Peer
from stablessm_core.scan import linear_scan

SHAPES = {
    "S1": (8, 4096, 1024),
    "S2": (64, 784, 256),
    "S3": (1, 131_072, 1024),
    "S4": (16, 1024, 4096),
    "S5": (256, 1024, 64),
    "small": (8, 100, 32),
}
VARIANTS = (("LTV", torch.float32), ("LTI", torch.float32), ("LTV", torch.bfloat16), ("LTI", torch.bfloat16))
COMPLEX_VARIANTS = (("LTV", torch.complex64), ("LTI", torch.complex64))
TOLERANCE = {torch.float32: 1e-3, torch.complex64: 1e-3, torch.bfloat16: 3e-2}
Timed = tuple[float, float]  # times of forward and of forward + backward, in milliseconds


@dataclass
class Case:
    """One shape and variant. `tensors` makes the tensors on demand, so that only one case at a time uses memory."""

    shape_name: str
    variant: str
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, length, d_state). d_state is halved for complex tensors, so that they have as many bytes as real tensors."""
        batch, length, d_state = SHAPES[self.shape_name]
        return batch, length, d_state // 2 if self.dtype.is_complex else d_state

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """a, b and the gradient of h."""
        random = torch.Generator("cuda").manual_seed(0)
        size = self.shape if self.variant == "LTV" else self.shape[2:]
        a = 0.5 + 0.49 * torch.rand(size, device="cuda", generator=random)
        b, weight = (torch.randn(self.shape, device="cuda", generator=random, dtype=self.dtype) for _ in range(2))
        return a.to(self.dtype).requires_grad_(), b.requires_grad_(), weight


def report(rounds: int, minutes: float) -> Iterator[str]:
    deadline = time.monotonic() + 60 * minutes
    cases = [Case(name, variant, dtype) for name in SHAPES for variant, dtype in VARIANTS + COMPLEX_VARIANTS]
    yield "| shape | scan | form (layout) | forward ms | forward + backward ms | floor / it, forward | both | it / ours, both |"
    yield "|---|---|---|---|---|---|---|---|"
    ours: dict[tuple[str, str, torch.dtype], Timed] = {}
    floors: dict[tuple[str, str, torch.dtype], Timed] = {}
    for case in cases:
        key = (case.shape_name, case.variant, case.dtype)
        a, b, weight = case.tensors()
        bound = floor(b.detach(), case.variant == "LTI")
        floors[key] = median(bound[0], rounds), median(bound[1], rounds)
        ours[key] = timed(linear_scan, a, b, weight, rounds)
        yield row(case, "floor", floors[key], floors[key], ours[key])
        yield row(case, "ours (BTN)", ours[key], floors[key], ours[key])
    for case in cases:
        key = (case.shape_name, case.variant, case.dtype)
        for peer in PEERS:
            if case.variant == "LTI" or peer.complex != case.dtype.is_complex or not peer.installed():
                continue
            form = f"{peer.name} ({peer.layout})"
            if time.monotonic() > deadline:
                yield row(case, form, f"not reached in {minutes:g} minutes")
                continue
            yield row(case, form, against_ours(peer, case, rounds), floors[key], ours[key])
    yield ""
    yield from launches()


def row(case: Case, form: str, result: Timed | str, bound: Timed = (0.0, 0.0), ours: Timed = (0.0, 1.0)) -> str:
    head = f"| {case.shape_name} {case.shape} | {case.variant} {str(case.dtype).removeprefix('torch.')} | {form} |"
    if isinstance(result, str):
        return f"{head} {result} | | | | |"
    forward, both = result
    shares = f"{bound[0] / forward:.2f} | {bound[1] / both:.2f} | {both / ours[1]:.2f}"
    return f"{head} {forward:.3f} | {both:.3f} | {shares} |"


def against_ours(peer: Peer, case: Case, rounds: int) -> Timed | str:
    """The peer's times, or the reason why it could not be timed. An LTI case has no peer, because no package supports a
    constant a."""
    a, b, weight = case.tensors()
    truth = results(linear_scan, a, b, weight)
    if peer.layout == "BNT":
        a, b, weight = (x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (a, b, weight))
    try:
        found = results(peer.form, a, b, weight.detach())
        if peer.layout == "BNT":
            found = [x.transpose(1, 2) for x in found]
        error = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(found, truth, strict=True))
        if not error < TOLERANCE[case.dtype]:
            return f"values or gradients differ by {error:.0e}"
        return timed(peer.form, a, b, weight.detach(), rounds)
    except Exception as reason:  # noqa: BLE001  (a peer may fail in any way; that is a result)
        return f"fails: {(str(reason) or type(reason).__name__).splitlines()[0][:70]}"


def results(form: Form, a: Tensor, b: Tensor, weight: Tensor) -> list[Tensor]:
    a.grad = b.grad = None
    h = form(a, b)
    h.backward(weight)
    assert a.grad is not None
    assert b.grad is not None
    return [h.detach(), a.grad, b.grad]


def timed(form: Form, a: Tensor, b: Tensor, weight: Tensor, rounds: int) -> Timed:
    def forward() -> None:
        with torch.no_grad():
            form(a, b)

    def both() -> None:
        a.grad = b.grad = None
        form(a, b).backward(weight)

    return median(forward, rounds), median(both, rounds)


def median(call: Callable[[], object], rounds: int) -> float:
    for _ in range(3):
        call()
    return statistics.median(device_milliseconds(call) for _ in range(rounds))


def device_milliseconds(call: Callable[[], object]) -> float:
    torch.empty(1 << 28, dtype=torch.int8, device="cuda").zero_()  # evict the scan's data from the cache
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(10_000_000)  # the device waits some milliseconds, so that the host runs ahead and is not measured
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def launches() -> Iterator[str]:
    """The lines about the host time of a call, measured with tensors so small that device time is negligible."""
    a, b, weight = Case("small", "LTI", torch.float32).tensors()
    out = torch.empty_like(b)

    def two_elementwise() -> None:
        torch.mul(b, b, out=out)
        torch.mul(b, out, out=out)

    with torch.no_grad():
        pair, forward = host_microseconds(two_elementwise), host_microseconds(lambda: linear_scan(a, b))

    def both() -> None:
        a.grad = b.grad = None
        linear_scan(a, b).backward(weight)

    yield f"Host time per call at {SHAPES['small']}, microseconds: two elementwise kernels {pair:.1f}, our forward"
    yield f"{forward:.1f}, forward + backward {host_microseconds(both):.1f}. A CUDA graph removes this time."


def host_microseconds(call: Callable[[], object], calls: int = 200) -> float:
    samples = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return min(samples[1:])
