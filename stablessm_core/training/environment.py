"""The device of a run, and the facts about machine, versions, model and data that are stored with the run."""

from __future__ import annotations

import ctypes
import math
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stablessm_core
from stablessm_core.fused.choice import Choice
from stablessm_core.layers import StableSSM
from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.base import IGNORED, Task
from stablessm_core.training.execution import Execution
from stablessm_core.training.optimizer import describe_groups
from stablessm_core.training.run import Run

CONSTANT_TARGETS = 4096  # number of targets that tell the loss of a constant prediction
CONSTANT_BATCH = 64  # sequences that are read at once for them
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_freed_memory() -> bool:
    """Let this process keep freed memory until it ends. Returns False if the C library does not support this (only glibc does).

    By default glibc returns large freed blocks to the kernel. When the next step allocates the same amount, the kernel clears
    the pages again. On a CPU, clearing takes up to a third of a training step (docs/performance.md). Call this only in
    processes whose job is training.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Give the freed memory that `keep_freed_memory` keeps back to the kernel, once. Only glibc supports this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def pick_device(name: str) -> torch.device:
    """The device of a run: "auto" means CUDA if a CUDA device is available. Raises ValueError for "cuda" if no CUDA device is
    available."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda'; this machine has no usable CUDA device; use 'cpu' or 'auto'")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def environment_json(run: Run, execution: Execution) -> dict[str, Any]:
    """The environment of a run, as plain JSON: the facts that a reader needs to judge or reproduce the run."""
    config, task, model = run.config, run.task, run.model
    environment = {
        "device": str(run.device),
        "device_name": device_name(run.device),
        "threads": torch.get_num_threads(),
        "versions": {
            "stablessm": stablessm_core.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **run.numerics.described(),
        "layers": _layers(config, task, model, run.device),
        "precision": config.train.precision,
        "execution": execution.described(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_groups": describe_groups(run.optimizer),
        "data": {"kind": task.kind, "length": task.length, "output_size": task.output_size, "constant_loss": constant_loss(task)}
        | task.facts,
    }
    return environment | {"fork": run.fork} if run.fork else environment


def constant_loss(task: Task) -> float | None:
    """The loss of the best constant prediction on at least CONSTANT_TARGETS targets of the evaluation set (on fewer, if it is
    smaller). None if the task has a loss function of its own, or if its targets are not finite.

    Squared error: the variance of the targets. Cross-entropy: the entropy of the classes' shares, in nats.
    """
    if type(task).loss is not Task.loss:
        return None
    targets, count = [], 0
    for _, y in task.evaluation_batches(CONSTANT_BATCH, "cpu"):
        scored = y.flatten().double() if task.kind == "regression" else y[y != IGNORED]
        targets.append(scored)
        count += len(scored)
        if count >= CONSTANT_TARGETS:
            break
    if not count:
        return None
    values = torch.cat(targets)
    if task.kind == "regression":
        loss = float(values.var(correction=0))
    else:
        share = torch.bincount(values).double() / count
        loss = float(-torch.special.xlogy(share, share).sum())
    return loss if math.isfinite(loss) else None


def _layers(config: RunConfig, task: Task, model: nn.Module, device: torch.device) -> dict[str, str]:
    """Whether the run uses fused or unfused layers, and the reason. All StableSSM layers of a run have the same size. Layers of
    other kinds have no fused form.
    """
    layer = next((module for module in model.modules() if isinstance(module, StableSSM)), None)
    choice = (
        Choice(None, "only StableSSM has a fused form")
        if layer is None
        else layer.choice(device, config.train.batch_size * task.length)
    )
    return choice.described()


def device_name(device: torch.device) -> str:
    """The model name of the GPU, or of this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processors = Path("/proc/cpuinfo")
    if processors.exists():
        for line in processors.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
