"""Makes mutated archives: some values of the genuine archive are replaced, removed, repeated or moved, and the digests are
computed again, so that only the content is wrong."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
from typing import Any

import numpy as np

from server.backup.sealed_tar import MANIFEST, SEAL
from server.keep.archive import ArchiveWriter, read_json, read_parts
from stablessm_core.telemetry.blocks import RAW, encode

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 1000, 10**6, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**64, 0.0, -0.5, 0.5, 1.5, 1e-300, 1e14,
    1e300, "", " ", "0", "1", "x", "NaN", "Infinity", "-Infinity", "nan", "ssm/0", "ssm/1/weight", "ssm/x/weight", "ssm/²/weight",
    "train/loss", "dt", "gate_mean", "weight", "derived", "none", "gate", "fixed", "exp", "direct", "discrete", "continuous",
    "continue", "finished", "diverged", "failed", "running", "warning", "critical", "\0", "\ud800", "é", "<script>", "a" * 130,
    [], [0], [[0]], ["x"], [None], {}, {"a": 1}, {"step": 3}, {"map": "exp", "time": "continuous"}, {"train_loss": "NaN"},
)  # fmt: skip
MOST_CHANGES = 3
_LENGTH = struct.Struct("<I")


class Archive:
    """The content of an archive as plain values that can be changed."""

    def __init__(self, content: bytes) -> None:
        self.described: dict[str, Any] = {}
        self.blocks: dict[str, list[tuple[dict[str, Any], bytes]]] = {}
        self.manifest: dict[str, Any] = {}
        for name, data in read_parts(io.BytesIO(content)):
            if name == MANIFEST:
                self.manifest = {key: value for key, value in json.loads(data).items() if key not in ("parts", "format")}
            elif name.endswith(".json"):
                self.described[name] = read_json(name, data)
            elif name != SEAL:
                self.blocks[name] = list(_split(data))

    def sealed(self) -> bytes:
        """The archive as a file with correct digests."""
        file = io.BytesIO()
        writer = ArchiveWriter(file)
        for name, content in self.described.items():
            writer.add(name, json.dumps(content).encode())
            own = name.removesuffix("run.json")
            for part, blocks in self.blocks.items():
                if part.startswith(own):
                    writer.add(part, b"".join(_joined(head, payload) for head, payload in blocks))
        writer.close(self.manifest)
        return file.getvalue()


def mutated(genuine: Archive, seed: int) -> bytes:
    """The archive with up to MOST_CHANGES changes, which `seed` determines."""
    rng = random.Random(seed)
    archive = copy.deepcopy(genuine)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        kind = rng.choices((_change_run, _change_rows, _change_head, _change_payload, _change_order, _change_manifest),
                           (4, 5, 3, 2, 1, 1))[0]  # fmt: skip
        kind(archive, rng)
    return archive.sealed()


def _change_run(archive: Archive, rng: random.Random) -> None:
    run = rng.choice(list(archive.described.values()))["run"]
    _change_inside(run, rng)


def _change_rows(archive: Archive, rng: random.Random) -> None:
    part = rng.choice(list(archive.described.values()))
    _change_inside(part[rng.choice(("series", "series", "alerts", "history"))], rng)


def _change_manifest(archive: Archive, rng: random.Random) -> None:
    _change_inside(archive.manifest, rng)


def _change_inside(content: Any, rng: random.Random) -> None:
    """Change one value somewhere inside a list or a mapping."""
    while True:
        keys = list(range(len(content)) if isinstance(content, list) else content)
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(content[key], dict | list) and content[key] and rng.random() < 0.9:
            content = content[key]
            continue
        break
    act = rng.random()
    if act < 0.12:
        del content[key]
    elif act < 0.2 and isinstance(content, list):
        content.insert(rng.randrange(len(content) + 1), copy.deepcopy(content[key]))
    elif act < 0.28:
        content[key] = copy.deepcopy(content[rng.choice(keys)])
    elif act < 0.5 and type(content[key]) in (int, float):
        content[key] = rng.choice((content[key] + 1, content[key] - 1, -content[key], content[key] * 2, content[key] // 2))
    elif act < 0.56 and isinstance(content, dict):
        content[str(rng.choice(VALUES))[:20]] = rng.choice(VALUES)
    else:
        content[key] = rng.choice(VALUES)


def _change_head(archive: Archive, rng: random.Random) -> None:
    blocks = rng.choice(list(archive.blocks.values()))
    at = rng.randrange(len(blocks))
    head = dict(blocks[at][0])
    _change_inside(head, rng)
    blocks[at] = head, blocks[at][1]


def _change_payload(archive: Archive, rng: random.Random) -> None:
    """Damage a payload, or store other numbers under the same head."""
    blocks = rng.choice(list(archive.blocks.values()))
    at = rng.randrange(len(blocks))
    head, payload = blocks[at]
    act = rng.random()
    if act < 0.3:
        place = rng.randrange(len(payload))
        payload = payload[:place] + bytes([rng.randrange(256)]) + payload[place + 1 :]
    elif act < 0.4:
        payload = payload[: rng.randrange(1, len(payload) + 1)]
    else:
        count = head["column_count"] * head["point_count"] * (4 if head["level"] else 1)
        numbers = np.random.default_rng(rng.randrange(2**32))
        values = {0: numbers.integers(0, 2**32, count, np.uint32).view(np.float32), 1: np.full(count, np.nan, np.float32),
                  2: np.full(count, rng.choice((np.inf, -np.inf, 1e38, -1.0, 0.0)), np.float32)}[rng.randrange(3)]  # fmt: skip
        payload = bytes([RAW]) + values.tobytes() if rng.random() < 0.5 else encode(values.reshape(head["column_count"], -1))
    blocks[at] = head, payload


def _change_order(archive: Archive, rng: random.Random) -> None:
    """Remove, repeat or move blocks, or move all blocks of one run to another."""
    blocks = rng.choice(list(archive.blocks.values()))
    act, at = rng.random(), rng.randrange(len(blocks))
    if act < 0.3:
        del blocks[at]
    elif act < 0.5:
        blocks.insert(rng.randrange(len(blocks)), blocks[at])
    elif act < 0.7:
        rng.shuffle(blocks)
    else:
        blocks[:] = rng.choice(list(archive.blocks.values()))


def _split(data: bytes) -> Any:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        head = json.loads(data[at + 4 : at + 4 + length])
        size = head.pop("payload")
        yield head, data[at + 4 + length : at + 4 + length + size]
        at += 4 + length + size


def _joined(head: dict[str, Any], payload: bytes) -> bytes:
    text = json.dumps({**head, "payload": len(payload)}).encode()
    return _LENGTH.pack(len(text)) + text + payload
