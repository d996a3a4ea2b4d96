"""Checkpoints: one safetensors file with every tensor of a run, its JSON state in the header, and a digest over both.

Pickle is not used. No checkpoint is ever half-written: saving writes a temporary file, syncs it to disk, renames it and syncs
the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FORMAT = 1
KEEP = 2  # number of checkpoints kept in a folder: the newest, and the previous one in case the newest is damaged


class CheckpointError(ValueError):
    """The checkpoint is missing, damaged, or belongs to another run. The message gives the reason."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after steps 1..`step`: the tensors by path (`model/...`, `optimizer/...`, `rng/...`, `levels/...`),
    and the JSON state."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose path begins with `prefix/`. The keys are the rest of the path."""
        return {path.removeprefix(prefix + "/"): t for path, t in self.tensors.items() if path.startswith(prefix + "/")}


def save_checkpoint(
    directory: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, needed: Collection[int] = ()
) -> tuple[Path, str]:
    """Write `step-{step}.safetensors` into `directory`; returns the path and the SHA-256 of the file.

    A file of the same step is replaced. When the function returns, the file survives a power cut. Older files are deleted,
    except the newest KEEP files and those of the steps `needed`. Raises OSError if the disk fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    on_host = {path: t.detach().cpu().contiguous() for path, t in tensors.items()}
    header = json.dumps({"format": FORMAT, "step": step, "state": dict(state)}, sort_keys=True)
    path = directory / f"step-{step:010d}.safetensors"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(on_host, temporary, {"stablessm": header, "digest": _digest(header, on_host)})
        with temporary.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    for old in sorted(directory.glob("step-*.safetensors"))[:-KEEP]:
        if old != path and int(old.stem.removeprefix("step-")) not in needed:
            old.unlink(missing_ok=True)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path, sha256


def _write(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        system = re.search(r"\(os error (\d+)\)", str(error))
        if system is None:
            raise
        raise OSError(int(system[1]), os.strerror(int(system[1])), str(path)) from error


def load_checkpoint(path: Path, *, sha256: str | None = None) -> Checkpoint:
    """A verified checkpoint, with its tensors on the CPU. Raises CheckpointError if the file was changed after it was written.

    The digest in the file must match. If `sha256` is given, the hash of the file must also match.
    """
    try:
        if sha256 is not None:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 is {found}, recorded was {sha256}")
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    header = metadata.get("stablessm")
    if header is None:
        raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of a run")
    if metadata.get("digest") != _digest(header, tensors):
        raise CheckpointError(f"checkpoint {path} is damaged: its content does not have the digest it was written with")
    fields = json.loads(header)
    if fields["format"] != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {fields['format']}; this version reads format {FORMAT}")
    return Checkpoint(fields["step"], tensors, fields["state"])


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, levels: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """All tensors that a run needs to continue bit for bit: weights, optimizer moments, random states, and the unfinished
    points of the coarser levels.

    Batches are pure functions of (seed, step), so only dropout uses the random states.
    """
    tensors = {f"model/{path}": t for path, t in model.state_dict().items()}
    for path, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            tensors[f"optimizer/{path}/{key}"] = (
                value if value.dim() else value.clone()
            )  # step counters may be views of one tensor
    tensors["rng/cpu"] = torch.get_rng_state()
    device = next(model.parameters()).device
    if device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(device)
    return tensors | {f"levels/{path}": torch.from_numpy(np.ascontiguousarray(array)) for path, array in levels.items()}


def restore_training(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """Copy a checkpoint into the tensors of `model` and `optimizer` and into the random states. Returns the coarser levels.

    Raises CheckpointError if the tensors do not fit the model.
    """
    try:
        model.load_state_dict(checkpoint.under("model"))
    except RuntimeError as error:
        raise CheckpointError(f"checkpoint of step {checkpoint.step} does not fit the model: {error}") from None
    moments = checkpoint.under("optimizer")
    for path, p in model.named_parameters():
        # copy into the existing tensors, because a captured training step uses their addresses
        for key, tensor in optimizer.state.get(p, {}).items():
            saved = moments.get(f"{path}/{key}")
            tensor.zero_() if saved is None else tensor.copy_(saved)
    torch.set_rng_state(checkpoint.tensors["rng/cpu"])
    device = next(model.parameters()).device
    if device.type == "cuda" and "rng/cuda" in checkpoint.tensors:
        torch.cuda.set_rng_state(checkpoint.tensors["rng/cuda"], device)
    return {path: t.numpy().copy() for path, t in checkpoint.under("levels").items()}


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for path in sorted(tensors):
        t = tensors[path]
        digest.update(f"{path} {t.dtype} {tuple(t.shape)}\n".encode())
        if t.numel():  # an empty tensor may have stride 0, and `view` refuses that
            digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
