"""The training process of `benchmarks.step.turns`. It trains with the checkout on PYTHONPATH, some steps per request.

The process is started from the path of this file and with Python's option -P, because older revisions do not contain this file.
Each input line is a JSON list with the name of a method and its arguments. The process answers each list with one line.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

Open = list[int]  # layers, d_model, d_state, batch, length


class InTorch:
    def __init__(self) -> None:
        from stablessm_core.training.environment import keep_freed_memory

        keep_freed_memory()
        self.rig: Any = None

    def where(self) -> str:
        import stablessm_core

        return str(stablessm_core.__file__)

    def computes_by(self) -> str:
        """The backend of the scan, the instruction set of the compiled kernels, and the library for matrix products if the
        revision can choose between libraries."""
        from stablessm_core.scan import resolve_backend

        backend = resolve_backend("auto", "cpu")
        found = f"{backend} scan"
        if backend == "cpu" and find_module("stablessm_core.kernels.library"):
            found += f", {importlib.import_module('stablessm_core.kernels.library').target()} kernels"
        # the module's current name, and its earlier name
        for name in ("stablessm_core.numerics.products", "stablessm_core.products"):
            if find_module(name):
                return f"{found}, {importlib.import_module(name).choose()} products"
        return found

    def open(self, shape: Open, task: str) -> None:
        """Make the model, and run a few steps first, because the first steps allocate memory."""
        if self.rig is not None:
            self.rig.recorder.close()
        self.rig = make_rig(shape, task)
        self.train(2)
        self.evaluate(1)

    def train(self, steps: int) -> float:
        """Trains `steps` steps. Returns how long they take, in seconds."""
        seconds: float = self.rig.go(steps)
        return seconds

    def evaluate(self, times: int) -> float:
        """The time of `times` evaluations of a batch, in seconds. An evaluation is the forward pass and the loss, without
        gradients."""
        import torch

        step = self.rig.step
        step.model.eval()
        began = time.perf_counter()
        with torch.no_grad():
            for _ in range(times):
                step.task.loss(step.model(step.x), step.y)
        seconds = time.perf_counter() - began
        step.model.train()
        return seconds


def make_rig(shape: Open, task: str, sink: Any = None) -> Any:
    import torch

    from benchmarks.training import Rig, Shape, images

    length, made = shape[-1], None
    if task == "polynomial_memory":
        tasks = "stablessm_core.tasks.polynomial_memory"
        now = find_module("stablessm_core.spec.tasks.polynomial_memory")
        section = importlib.import_module("stablessm_core.spec.tasks.polynomial_memory" if now else f"{tasks}.section")
        data = importlib.import_module(tasks if now else f"{tasks}.data")
        options = section.PolynomialMemory(name="polynomial_memory", length=length)
        made = data.PolynomialMemoryTask(options, Path())
    rig = Rig(made or images(length), Shape(*shape), torch.device("cpu"), sink)
    rig.prepare("auto")
    return rig


def find_module(name: str) -> bool:
    """True if this checkout has the module. In older revisions, some modules have other names."""
    import stablessm_core

    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    # an editable installation of another checkout offers its modules, too
    return found is not None and str(found.origin).startswith(str(Path(stablessm_core.__file__).parent))


def serve(trainer: Any) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # send all other output to stderr, so that stdout contains only the answers
    for line in sys.stdin:
        name, *given = json.loads(line)
        print(json.dumps(getattr(trainer, name)(*given)), file=answers, flush=True)


if __name__ == "__main__":
    serve(InTorch())
