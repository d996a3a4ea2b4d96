"""Bodies of posts, right and wrong: samples of each kind of record, and a seeded source of mutations of them."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np

from stablessm_core.report.frames import HEAD, pack
from stablessm_core.report.messages import (
    CatalogueMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    TelemetryMessage,
    TruncateMessage,
)
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, layer_catalogue, layer_group, scalar
from stablessm_core.telemetry.sink import Flush

FORM = Form("exp", "continuous", "zoh", dt="dt")
WIDTH = 4
CATALOGUE = [scalar(TRAIN_LOSS), *layer_catalogue(0, WIDTH, FORM)]
HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, -(2**70), 10**400, 1e308, float("nan"), float("inf"), -0.0, "", "x",
    "\x00", "\ud800", "../../etc/passwd", "ssm/0", "ssm/999999999/weight", "metrics/0", "x" * 5000, [], {}, [[]], [[[[]]]],
    {"a": {"b": []}}, ["a"] * 50, {"kind": "Flush"}, "CheckpointRecord", "queued", "lost", "__class__", "<script>",
)  # fmt: skip


def flush(first: int = 1, count: int = 64, *, seed: int = 0, alerts: int = 1) -> Flush:
    """A flush of `count` steps from `first` on, with the blocks of CATALOGUE and their coarse levels."""
    rng = np.random.default_rng(seed)
    scalars = rng.random((1, count), np.float32)
    layer = np.exp(rng.standard_normal((3 * WIDTH, count))).astype(np.float32)
    derived = np.concatenate([layer, layer[: 2 * WIDTH]])  # any numbers: the readers do not compare them
    blocks = [Block(SCALARS, 0, first, 1, scalars), *LevelBuilder(SCALARS, 1).feed(first, scalars)]
    blocks += [Block(layer_group(0), 0, first, 1, layer), *LevelBuilder(layer_group(0), 1).feed(first, derived)]
    kind = KINDS["nonfinite_gradient"]
    raised = [kind.alert(step=first + i, message="it is NaN", layer=0, eigenvalue=i, value=float("nan")) for i in range(alerts)]
    return Flush(blocks, raised, first + count - 1, 12.5, {"largest_ratio": 3.5, "nearest_distance": float("-inf")})


def messages() -> list[TelemetryMessage]:
    """One message of each kind that a program may send, in an order in which a server stores them."""
    return [
        CatalogueMessage(CATALOGUE),
        EnvironmentMessage({"device": "cpu", "data": {"length": 128}, "parameters": 4096}),
        flush(1, 320),
        MetricsMessage([1, 64], {"val/acc": [0.5, None], "val/loss": [float("nan"), float("inf")]}),
        TruncateMessage(300, "went back to a checkpoint"),
        EndMessage("diverged", "a gradient became NaN", {"train_loss": float("nan")}, {"step": 300, "layer": 0, "value": "NaN"}),
    ]


def mutate(rng: random.Random, records: list[bytes]) -> bytes:
    """A body of some of these records, damaged in one to three ways."""
    chosen = [rng.choice(records) for _ in range(rng.randint(1, 3))]
    kind = rng.randrange(6)
    if kind == 0:  # a fault of the wire: the checksum finds it
        return _flip(rng, pack(chosen))
    if kind == 1:
        body = pack(chosen)
        return body[: rng.randrange(len(body))]
    at = rng.randrange(len(chosen))
    for _ in range(rng.randint(1, 3)):
        chosen[at] = _flip(rng, chosen[at]) if kind == 2 else _with_other_value(rng, chosen[at])
    if kind == 3:
        chosen[at] = chosen[at][: rng.randrange(len(chosen[at]) + 1)]
    if kind == 4:
        body = pack(chosen)
        return body + HEAD.pack(rng.choice((0, 7, 2**31, 2**32 - 1)), rng.randrange(2**32)) + rng.randbytes(rng.randrange(20))
    return pack(chosen)


def _flip(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _with_other_value(rng: random.Random, record: bytes) -> bytes:
    """The record with a value somewhere in its head replaced, removed, or added."""
    try:
        (length,) = struct.unpack_from("<I", record)
        head = json.loads(record[4 : 4 + length])
    except (ValueError, struct.error):
        return record
    place, key = _place(rng, head)
    if place is None:
        head = rng.choice(HOSTILE)
    elif rng.random() < 0.1 and isinstance(place, dict):
        place.pop(key, None)
    elif rng.random() < 0.1 and isinstance(place, dict):
        place[f"new{rng.randrange(9)}"] = rng.choice(HOSTILE)
    elif isinstance(place[key], int) and rng.random() < 0.5:
        place[key] += rng.choice((-16, -1, 1, 16, 4096, 2**32))
    else:
        place[key] = rng.choice(HOSTILE)
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + record[4 + length :]


def _place(rng: random.Random, head: Any) -> tuple[Any, Any]:
    place, key = None, None
    while isinstance(head, dict | list) and head and (place is None or rng.random() < 0.8):
        place, key = head, rng.choice(list(head)) if isinstance(head, dict) else rng.randrange(len(head))
        head = head[key]
    return place, key
