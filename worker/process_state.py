"""Decides whether a training process may train another run: only if the ended run has left the process as it found it.

A run must have the same bits in a process that has trained other runs as in a fresh process. Built-in tasks, layers and maps seed
every random number and keep no state between runs. Nothing is known about the code of other packages, and a GPU keeps memory and
errors. `why_unfit` gives such a process no further run. It also compares the settings of torch, numpy and the process that could
change the bits of a run, its threads, and its memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from pydantic import BaseModel

from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig
from worker.pipe import Message

MOST_RUNS = 50  # maximum number of runs of one process
MOST_GROWTH_BYTES = 256 << 20  # maximum growth of a process's memory over all its runs
OUR_PACKAGE = "stablessm_core."
LASTING_THREADS = ("notify",)  # threads that start when they are first needed and then serve every run


@dataclass(frozen=True)
class ProcessState:
    """What a run could change in its process. settings: values that could change the bits of a run, by name."""

    settings: dict[str, Any]
    threads: frozenset[int | None]
    memory_bytes: int

    @classmethod
    def now(cls) -> ProcessState:
        threads = (thread.ident for thread in threading.enumerate() if thread.name not in LASTING_THREADS)
        return cls(_settings(), frozenset(threads), psutil.Process().memory_info().rss)  # type: ignore[no-untyped-call]

    def difference_to(self, before: ProcessState) -> str | None:
        """How this state differs from an earlier state so much that no further run may begin; None if it does not."""
        for name, value in self.settings.items():
            if value != before.settings[name]:
                return f"{name} was changed"
        if self.threads - before.threads:
            return "a thread of the run has not ended"
        if (growth := self.memory_bytes - before.memory_bytes) > MOST_GROWTH_BYTES:
            return f"its memory has grown by {growth >> 20} MiB"
        return None


def why_unfit(config: RunConfig, assignment: Message, status: str, runs: int, before: ProcessState) -> str | None:
    """Why a process trains no further run; None if it may.

    config, assignment, status: the run that has just ended. runs: how many runs the process has trained. before: the state of the
    process before its first run.
    """
    if status not in ("finished", "diverged"):
        return f"its run is {status}"
    if assignment["checkpoints"] or assignment.get("origin"):
        return "its run continued from a checkpoint, and may have chosen other matrix products than a new run"
    if (foreign := _foreign_code(config)) is not None:
        return f"its run used {foreign}"
    if config.train.execution == "compile":
        return "its run started a compiler"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "its run used a GPU"
    if runs >= MOST_RUNS:
        return f"it has trained {runs} runs"
    return ProcessState.now().difference_to(before)


def _foreign_code(config: RunConfig) -> str | None:
    """The code of another package that trained the run: a task, a layer or a map. None if all are built in."""
    for section in _sections(config):
        if not type(section).__module__.startswith(OUR_PACKAGE):
            return f"{getattr(section, 'name', '')!r} of {type(section).__module__}"
    map_ = MAPS.get(config.model.name_of_map)
    for form in map_.forms.values() if map_ is not None else ():
        if not form.__module__.startswith(OUR_PACKAGE):
            return f"the map {config.model.name_of_map!r} of {form.__module__}"
    return None


def _sections(value: Any) -> Iterator[BaseModel]:
    """Every section of a configuration, including layers inside other layers."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _sections(getattr(value, name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _sections(part)


def _settings() -> dict[str, Any]:
    smallest = torch.tensor([torch.finfo(torch.float32).tiny]) / 2  # subnormal
    return {
        "torch.get_num_threads": torch.get_num_threads(),
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.get_default_device": torch.get_default_device(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(),
        "torch.is_autocast_enabled": torch.is_autocast_enabled("cpu"),
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "torch.set_flush_denormal": bool(smallest.item() == 0),
        "torch.get_rng_state": torch.get_rng_state().numpy().tobytes(),
        "numpy.geterr": np.geterr(),
        "numpy.random.get_state": np.random.get_state(legacy=True)[1].tobytes(),  # type: ignore[index]
        "the working directory": os.getcwd(),
        "the environment": dict(os.environ),
    }
