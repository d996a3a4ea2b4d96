"""What this machine can train with: devices, scan backends, tasks, versions. Imports torch and the trainer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from typing import Any

import torch

import stablessm_core
import stablessm_core.training.train
from stablessm_core.scan import why_not_compiled
from stablessm_core.tasks.loading import trainable_tasks


def report() -> dict[str, Any]:
    """{"devices", "backends", "tasks", "versions", "threads"}; creates no CUDA context."""
    cuda = torch.cuda.is_available()
    compiled = why_not_compiled(torch.device("cpu")) is None
    triton = importlib.util.find_spec("triton") is not None
    return {
        "devices": ["cpu", "cuda"] if cuda else ["cpu"],
        "backends": ["reference", "torch", *(["cpu"] if compiled else []), *(["triton"] if cuda and triton else [])],
        "tasks": trainable_tasks(),
        "versions": {
            "stablessm": stablessm_core.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **({"triton": importlib.metadata.version("triton")} if triton else {}),
        },
        "threads": torch.get_num_threads(),
    }


def warm_up() -> None:
    """Do once what is slow only the first time: the first optimizer step imports as much as torch itself."""
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.backward([(weight * weight).sum()])
    torch.optim.AdamW([weight]).step()
