"""Scans of other packages on a GPU for `benchmarks.scan`. The report lists packages that are not installed as absent."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

Form = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """The scan of another package. layout: BTN is our layout, (batch, length, d_state). BNT is (batch, d_state, length). Each
    peer is timed on tensors in its own layout.
    """

    name: str
    distribution: str
    module: str
    layout: str
    form: Form
    complex: bool = False

    def installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False


def accelerated_scan(kind: str) -> Form:
    return lambda a, b: importlib.import_module(f"accelerated_scan.{kind}").scan(a, b)


def chunk_hgrn(a: Tensor, b: Tensor) -> Tensor:
    """fla's scan, which takes log a instead of a."""
    h: Tensor = importlib.import_module("fla.ops.hgrn").chunk_hgrn(b, a.log())[0]
    return h


def fused_recurrent_hgrn(a: Tensor, b: Tensor) -> Tensor:
    h: Tensor = importlib.import_module("fla.ops.hgrn").fused_recurrent_hgrn(b, a.log())[0]
    return h


@cache
def associative_scan(dim: int) -> Form:
    scan = importlib.import_module("torch._higher_order_ops.associative_scan").associative_scan

    def compose(earlier: tuple[Tensor, Tensor], later: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    torch._dynamo.config.recompile_limit = 256  # one compiled version per shape and dtype; the default limit is 8
    return torch.compile(lambda a, b: scan(compose, (a, b), dim=dim)[1], dynamic=False)


PEERS = (
    Peer("accelerated_scan.scalar", "accelerated-scan", "accelerated_scan.scalar", "BNT", accelerated_scan("scalar")),
    Peer("accelerated_scan.warp", "accelerated-scan", "accelerated_scan.warp", "BNT", accelerated_scan("warp")),
    Peer("accelerated_scan.complex", "accelerated-scan", "accelerated_scan.complex", "BNT", accelerated_scan("complex"), True),
    Peer("fla chunk_hgrn", "flash-linear-attention", "fla.ops.hgrn", "BTN", chunk_hgrn),
    Peer("fla fused_recurrent_hgrn", "flash-linear-attention", "fla.ops.hgrn", "BTN", fused_recurrent_hgrn),
    Peer(
        "torch associative_scan, compiled",
        "torch",
        "torch._higher_order_ops.associative_scan",
        "BTN",
        lambda a, b: associative_scan(1)(a, b),
    ),
    Peer(
        "torch associative_scan, compiled",
        "torch",
        "torch._higher_order_ops.associative_scan",
        "BNT",
        lambda a, b: associative_scan(2)(a, b),
    ),
)
