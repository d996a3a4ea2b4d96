"""Where a run happens: its device, and the facts about machine, versions, model and data that are kept with its numbers."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stablessm_core
from stablessm_core.config import RunConfig
from stablessm_core.fused.choice import Choice
from stablessm_core.layers import StableSSM
from stablessm_core.tasks.base import Task
from stablessm_core.training.execution import Execution
from stablessm_core.training.numerics import Numerics
from stablessm_core.training.optimizer import describe_groups

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, to the end of its life; False where that cannot be asked for (no glibc).

    glibc hands large freed blocks back to the kernel, which clears their pages again when the next step asks for as much: on a
    CPU that is up to a third of a training step (docs/performance.md). For processes whose job is training.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def pick_device(name: str) -> torch.device:
    """The device of a run: "auto" is CUDA where there is one. ValueError when "cuda" is asked for and absent."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda'; this machine has no usable CUDA device, 'cpu' and 'auto' would work")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def describe(
    config: RunConfig,
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    execution: Execution,
    numerics: Numerics,
) -> dict[str, Any]:
    """The environment of a run: what a reader needs to judge, or repeat, its numbers. Plain JSON."""
    return {
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {
            "stablessm": stablessm_core.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **numerics.described(),
        "layers": _layers(config, task, model, device),
        "precision": config.train.precision,
        "execution": execution.described(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_groups": describe_groups(optimizer),
        "data": {"kind": task.kind, "length": task.length, "output_size": task.output_size} | task.facts,
    }


def _layers(config: RunConfig, task: Task, model: nn.Module, device: torch.device) -> dict[str, str]:
    """Fused or not, and why; the StableSSM layers of a run are all of one size, others have no fused form."""
    layer = next((module for module in model.modules() if isinstance(module, StableSSM)), None)
    choice = (
        Choice(None, "only StableSSM has a fused form")
        if layer is None
        else layer.choice(device, config.train.batch_size * task.length)
    )
    return choice.described()


def device_name(device: torch.device) -> str:
    """What the maker calls the GPU, or this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processors = Path("/proc/cpuinfo")
    if processors.exists():
        for line in processors.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
