"""A checkpoint is read exactly as it was written, or is refused with its name and the reason."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stablessm_core.training.checkpoint import KEEP, CheckpointError, load_checkpoint, save_checkpoint

TENSORS = {
    "model/w": torch.tensor([1.0, float("nan"), float("-inf"), -0.0]),
    "model/half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "optimizer/w/step": torch.tensor(7.0),
    "rng/cpu": torch.arange(32, dtype=torch.uint8),
    "levels/empty": torch.zeros((3, 0)),
    "view": torch.arange(12.0).reshape(3, 4).T,
}


def test_a_loaded_checkpoint_holds_every_saved_tensor_and_number(tmp_path: Path) -> None:
    path, sha256 = save_checkpoint(tmp_path / "new" / "folder", 500, TENSORS, {"lr_scale": 0.1 + 0.2, "config": {"a": None}})
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    checkpoint = load_checkpoint(path, sha256=sha256)
    assert checkpoint.step == 500
    assert checkpoint.state == {"lr_scale": 0.1 + 0.2, "config": {"a": None}}
    assert checkpoint.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        got = checkpoint.tensors[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got.reshape(-1).view(torch.uint8), tensor.reshape(-1).contiguous().view(torch.uint8))
    assert checkpoint.under("model").keys() == {"w", "half"}


def test_any_flipped_bit_in_a_checkpoint_is_detected(tmp_path: Path) -> None:
    path, sha256 = save_checkpoint(tmp_path, 1, TENSORS, {"seconds": 12.5})
    good = path.read_bytes()
    for at in [*range(8, len(good), 7), len(good) - 1]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointError):
            load_checkpoint(path, sha256=sha256)
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            assert str(path) in str(error)  # noqa: PT017 - a flip in the header's padding alone is harmless
        else:
            assert good[at : at + 1] in b' ,:{}"'


def test_missing_truncated_foreign_and_newer_checkpoints_are_refused_with_the_reason(tmp_path: Path) -> None:
    path, _ = save_checkpoint(tmp_path, 1, TENSORS, {})
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "nothing.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(path)


def test_only_the_newest_checkpoints_are_kept_and_no_half_written_file_remains(tmp_path: Path) -> None:
    for step in (0, 5, 10, 100, 1000):
        save_checkpoint(tmp_path, step, TENSORS, {})
    assert [int(p.stem.removeprefix("step-")) for p in sorted(tmp_path.iterdir())] == [100, 1000][-KEEP:]


def test_a_failed_write_leaves_the_old_checkpoint_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = save_checkpoint(tmp_path, 1, TENSORS, {"version": "old"})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 1, TENSORS, {"version": "new"})
    assert load_checkpoint(path, sha256=sha256).state == {"version": "old"}
    assert list(tmp_path.iterdir()) == [path]


def test_checkpoints_needed_for_a_resume_are_kept_in_addition_to_the_newest(tmp_path: Path) -> None:
    # While the database is unreachable, only the checkpoints of steps 2 and 3 are recorded in it.
    for step in range(1, 8):
        save_checkpoint(tmp_path, step, TENSORS, {}, needed=[2, 3])
    assert [int(p.stem.removeprefix("step-")) for p in sorted(tmp_path.iterdir())] == [2, 3, 6, 7]


def test_a_failed_checkpoint_write_raises_an_os_error_with_its_errno(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, TENSORS, {})
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            save_checkpoint(tmp_path, 2, TENSORS, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert refused.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.safetensors"], "a half-written file remains"
