"""What does `stablessm.watch` cost the training thread per step, beside other tools, in one interleaved run?

    make peers
    .venv-peers/bin/python -m benchmarks.watch [--steps 120] [--rounds 4]

Each tool in turn watches the same model for a block of steps: nothing, `stablessm.watch` into a file, `wandb.watch(log_freq=1)`
offline, and TensorBoard histograms of the watched weights and gradients. Tools that are not installed are left out and named.
A step is a backward pass that does nothing but give every parameter a gradient, and the optimizer's step. The cost is the CPU
time of the training thread, median per step, minus that of "nothing". Models have 64 to 589,824 eigenvalues. What is required is
stated below each model: at most a tenth of wandb, less than TensorBoard, and at most 40 operations, as many for 40 layers as for
4.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import stablessm
from benchmarks.service import machine

Step = Callable[[], None]
REQUIRED = {"wandb": 10, "tensorboard": 1}  # its cost is at least so many times that of stablessm
MOST_OPERATIONS = 40


class Mamba2Mixer(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.rand(heads))


class MambaMixer(nn.Module):
    def __init__(self, channels: int, d_state: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1.0)).repeat(channels, 1))
        self.dt_proj = nn.Linear(2, channels)


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "4 layers of 16": lambda: [Mamba2Mixer(16) for _ in range(4)],
    "36 layers of 32": lambda: [Mamba2Mixer(32) for _ in range(36)],
    "4 layers of 128 x 16": lambda: [MambaMixer(128, 16) for _ in range(4)],
    "24 layers of 1,536 x 16": lambda: [MambaMixer(1536, 16) for _ in range(24)],
}


@contextmanager
def nothing(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Iterator[Step]:  # noqa: ARG001
    yield lambda: None


@contextmanager
def ours(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Iterator[Step]:
    with stablessm.watch(model, optimizer, mode="offline", dir=folder) as run:
        loss = torch.tensor(1.0)
        yield lambda: run.loss(loss)


@contextmanager
def wandb(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Iterator[Step]:  # noqa: ARG001
    import wandb

    with wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True)) as run:
        run.watch(model, log_freq=1)
        yield lambda: run.log({"loss": 1.0})
        run.unwatch(model)


@contextmanager
def tensorboard(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Iterator[Step]:  # noqa: ARG001
    from torch.utils.tensorboard import SummaryWriter

    writer, count = SummaryWriter(str(folder)), 0
    watched = [(name, p) for name, p in model.named_parameters() if "A_log" in name]

    def step() -> None:
        nonlocal count
        count += 1
        for name, p in watched:
            writer.add_histogram(name, p, count)
            writer.add_histogram(f"{name}.grad", p.grad, count)

    yield step
    writer.close()


TOOLS = {"nothing": nothing, "stablessm": ours, "wandb": wandb, "tensorboard": tensorboard}


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def measure(layers: list[nn.Module], steps: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of CPU time of the training thread for each step, by tool."""
    model = nn.ModuleList(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    parameters = list(model.parameters())
    gradients: list[Tensor] = [torch.randn_like(p) * 1e-3 for p in parameters]
    found: dict[str, list[float]] = {name: [] for name in TOOLS if name in installed()}
    for _ in range(rounds):
        for name, times in found.items():
            with tempfile.TemporaryDirectory() as folder, TOOLS[name](model, optimizer, Path(folder)) as step:
                for i in range(steps + 5):
                    optimizer.zero_grad()
                    products = [(p * g).sum() for p, g in zip(parameters, gradients, strict=True)]
                    began = time.thread_time()
                    torch.autograd.backward(products)  # wandb's hooks run in it
                    step()
                    optimizer.step()
                    took = 1e3 * (time.thread_time() - began)
                    if i >= 5:
                        times.append(took)
                    time.sleep(0.005)
    return found


def operations(layers: list[nn.Module]) -> int:
    """The operations that watching adds to a step."""
    model = nn.ModuleList(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with tempfile.TemporaryDirectory() as folder, stablessm.watch(model, optimizer, mode="offline", dir=folder) as run:
        loss, counted = torch.tensor(1.0), Operations()
        for _ in range(2):
            run.loss(loss)
            optimizer.step()
        with counted:
            run.loss(loss)
            assert run._recording is not None
            run._recording.take(0, optimizer, skipped=False)
    return counted.count


def installed() -> list[str]:
    """The tools that can be measured here."""
    needs = {"wandb": "wandb", "tensorboard": "tensorboard"}
    return [name for name in TOOLS if name not in needs or importlib.util.find_spec(needs[name]) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print(f"not installed here, so not measured: {', '.join(sorted(set(TOOLS) - set(installed()))) or 'nothing'}")
    for name, make in MODELS.items():
        few = given.steps if "1,536" not in name else max(10, given.steps // 6)
        times = measure(make(), few, given.rounds)
        base = statistics.median(times.pop("nothing"))
        cost = {tool: statistics.median(t) - base for tool, t in times.items()}
        print(f"{name}: {operations(make())} operations; added CPU time of the training thread per step:")
        for tool, t in times.items():
            ratio = "" if tool == "stablessm" else f", {cost[tool] / cost['stablessm']:.1f} times that of stablessm"
            print(f"  {tool} {cost[tool]:.3f} ms (99th percentile {statistics.quantiles(t, n=100)[98] - base:.3f}){ratio}")
        for tool, factor in REQUIRED.items():
            if tool in cost:
                met = cost["stablessm"] * factor <= cost[tool]
                wanted = f"at most 1/{factor} of {tool}" if factor > 1 else f"less than {tool}"
                print(f"  {'met' if met else 'NOT MET'}: {wanted}", flush=True)
    few, many = (operations([Mamba2Mixer(16) for _ in range(layers)]) for layers in (4, 40))
    print(f"{few} operations for 4 layers, {many} for 40: {'met' if few == many <= MOST_OPERATIONS else 'NOT MET'}")


if __name__ == "__main__":
    main()
