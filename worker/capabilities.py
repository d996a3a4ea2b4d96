"""The capabilities of this machine: devices, scan backends, tasks, versions. Imports torch and the trainer."""

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
    """The capabilities {"devices", "backends", "tasks", "versions", "threads"}, determined without creating a CUDA context."""
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
    """Run one backward pass in advance. The first backward pass in a process is slow, because autograd starts its threads."""
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.backward([(weight * weight).sum()])
