"""The process that trains in `benchmarks.step.turns`: a run of the checkout that PYTHONPATH names, in slices that are asked for.

Run by its path, with Python's -P: older revisions know nothing of it. One JSON list per line, the name of a method and what it is
given, is answered by one line.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
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
        """The scan's backend, and what multiplies matrices, of which older revisions have no choice."""
        from stablessm_core.scan import resolve_backend

        found = f"{resolve_backend('auto', 'cpu')} scan"
        if importlib.util.find_spec("stablessm_core.products"):
            found += f", {importlib.import_module('stablessm_core.products').choose()} products"
        return found

    def open(self, shape: Open, task: str) -> None:
        """Make the model, and take the steps in which memory is asked for the first time."""
        if self.rig is not None:
            self.rig.recorder.close()
        self.rig = make_rig(shape, task)
        self.train(2)
        self.evaluate(1)

    def train(self, steps: int) -> float:
        """Seconds."""
        seconds: float = self.rig.go(steps)
        return seconds

    def evaluate(self, times: int) -> float:
        """Seconds of the forward pass and the loss of a batch, without gradients."""
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
    from stablessm_core.tasks.polynomial_memory.data import PolynomialMemoryTask
    from stablessm_core.tasks.polynomial_memory.section import PolynomialMemory

    length, made = shape[-1], None
    if task == "polynomial_memory":
        from pathlib import Path

        made = PolynomialMemoryTask(PolynomialMemory(name="polynomial_memory", length=length), Path())
    rig = Rig(made or images(length), Shape(*shape), torch.device("cpu"), sink)
    rig.prepare("auto")
    return rig


def serve(trainer: Any) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what anything else prints is no answer
    for line in sys.stdin:
        name, *given = json.loads(line)
        print(json.dumps(getattr(trainer, name)(*given)), file=answers, flush=True)


if __name__ == "__main__":
    serve(InTorch())
