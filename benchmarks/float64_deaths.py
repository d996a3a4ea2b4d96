"""Do runs die because of their training, or because of our arithmetic? Repeats the fatal step of every death in float64.

    python -m benchmarks.float64_deaths [--layers mamba,s5] [--rates 0.3 1] [--seeds 0 1 2 3 4] [--steps 60]
        [--minutes 20] [--records FILE] [--only-table]

Trains every layer with its native map and with `best` at each learning rate and seed, without a service: the same model, batches,
optimizer and kernels as a run, on one thread. A run dies at the first step with a non-finite loss, gradient, state or weight.
This step is then repeated in float64 from the same weights and the same batch, and the largest numbers are measured. A death is
called

- *dynamics* if the step is non-finite in float64 too,
- *range* if the step is finite in float64, but a true number does not fit float32: a module's input, output or gradient, a final
  state or a gradient of a weight beyond 3.4e38, or an input of a norm or an error of the output beyond 1.8e19, because it is
  squared,
- *arithmetic* if the step is finite in float64 and all these numbers fit. Such a death is a fault of this project.

Each finished run is one line of FILE, so a second call continues where the first call stopped. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.model import Network, build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.layers import LAYERS
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.training.optimizer import build_optimizer
from studies.systems import QUICK, models, parse_layers

RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
KINDS = ("dynamics", "range", "arithmetic")
BATCH = 16
LARGEST = float(torch.finfo(torch.float32).max)
ROOT = math.sqrt(LARGEST)  # 1.8e19
RECORDS = Path(__file__).parent / "results" / "float64_deaths.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=parse_layers, default=list(LAYERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--only-table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.only_table:
        measure(options.records, options.layers, options.rates, options.seeds, options.steps, options.minutes)
    print("\n".join(table(read(options.records))))


def measure(
    records: Path, layers: list[str], rates: list[float], seeds: list[int], steps: int, minutes: float = math.inf
) -> None:
    """Train every cell that FILE lacks, all layers of a seed before the next seed, until the minutes have passed."""
    ends = time.monotonic() + 60 * minutes
    done = {(r["layer"], r["map"], r["lr"], r["seed"]) for r in read(records)}
    with records.open("a") as file:
        for seed in seeds:
            for section in models(QUICK, layers):
                for lr in rates:
                    map_ = section["reparameterization"]["name"]
                    if (section["layer"], map_, lr, seed) in done:
                        continue
                    if time.monotonic() > ends:
                        return
                    run = trained(config_of(section, lr, seed, steps))
                    record = {"layer": section["layer"], "map": map_, "lr": lr, "seed": seed, "steps": steps, **run}
                    file.write(json.dumps(json_safe(record)) + "\n")
                    file.flush()


def read(records: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []


def config_of(model: dict[str, Any], lr: float, seed: int, steps: int) -> RunConfig:
    task = {"name": "polynomial_memory", "length": 32}
    train = {"steps": steps, "batch_size": BATCH, "seed": seed, "device": "cpu"}
    return parse_config({"task": task, "model": model, "optimizer": {"lr": lr}, "train": train})


def trained(config: RunConfig) -> dict[str, Any]:
    """Train until the run dies or ends. Returns {died, loss}; for a death also the repeat in float64 (see `repeated`)."""
    task = get_task(config.task, Path())
    model = build_model(config, task)
    optimizer = build_optimizer(model, config.optimizer)
    loss = torch.zeros(())
    for step in range(1, config.train.steps + 1):
        x, y = task.batch(step, BATCH, config.train.seed, "cpu")
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.zero_grad(set_to_none=True)
        loss = task.loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        bad = nonfinite(model, loss)
        if not bad:
            optimizer.schedule()
            optimizer.update()
            bad = [f"{name} after the update" for name, p in model.named_parameters() if not p.isfinite().all()]
        if bad:
            return {"died": step, "loss": float(loss.detach()), "first": bad[0], **repeated(config, task, before, x, y)}
    return {"died": None, "loss": float(loss.detach())}


def nonfinite(model: Network, loss: Tensor) -> list[str]:
    """The loss, states and gradients that are not finite, by name."""
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    tensors = {"loss": loss} | {f"{name}.state": state for name, state in states(model)} | gradients
    if torch.cat([t.detach().reshape(-1).float() for t in tensors.values()]).isfinite().all():
        return []
    return [name for name, tensor in tensors.items() if not tensor.isfinite().all()]


def states(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        state = getattr(module, "last_state", None)
        if isinstance(state, Tensor):
            yield name, state


def repeated(config: RunConfig, task: Task, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Any]:
    """The step in float64, without compiled nodes: {kind, loss64, beyond}.

    beyond: the true numbers that do not fit float32, as [place, largest magnitude, limit], in the order of computation.
    """
    model = build_model(config, task, scan_backend="torch").double()
    model.load_state_dict(weights)
    sizes: list[tuple[str, float, float]] = []
    for name, module in model.named_modules():
        limit = ROOT if "Norm" in type(module).__name__ else LARGEST
        module.register_forward_hook(_forward_hook(sizes, name or "output", limit))
        module.register_full_backward_hook(_backward_hook(sizes, name or "output"))
    output = model(x.double().requires_grad_())  # so that the hooks also see the gradient of the first module
    loss = functional.mse_loss(output, y.double())
    sizes.append(("error of the output", _largest(output - y), ROOT))
    sizes += [(f"{name}.state", _largest(state), LARGEST) for name, state in states(model)]
    loss.backward()  # type: ignore[no-untyped-call]
    sizes += [(f"{name}.grad", _largest(p.grad), LARGEST) for name, p in model.named_parameters() if p.grad is not None]
    finite = math.isfinite(float(loss.detach())) and all(math.isfinite(size) for _, size, _ in sizes)
    beyond = [list(size) for size in sizes if not size[1] < size[2]]
    kind = "dynamics" if not finite else "range" if beyond else "arithmetic"
    nearest = max(sizes, key=lambda size: size[1] / size[2] if math.isfinite(size[1]) else math.inf)
    return {"kind": kind, "loss64": float(loss.detach()), "beyond": beyond[:4], "nearest": list(nearest)}


def _forward_hook(sizes: list[tuple[str, float, float]], name: str, limit: float) -> Any:
    def hook(module: nn.Module, given: Any, output: Any) -> None:  # noqa: ARG001
        sizes.append((f"{name} input", _largest(*given), limit))
        sizes.append((f"{name} output", _largest(*(output if isinstance(output, tuple) else (output,))), LARGEST))

    return hook


def _backward_hook(sizes: list[tuple[str, float, float]], name: str) -> Any:
    def hook(module: nn.Module, inner: Any, outer: Any) -> None:  # noqa: ARG001
        sizes.append((f"{name} gradient", _largest(*inner, *outer), LARGEST))

    return hook


def _largest(*tensors: Any) -> float:
    """The largest magnitude; NaN if a number is NaN."""
    found = [t.detach().abs().amax() for t in tensors if isinstance(t, Tensor) and t.numel() and t.dtype != torch.int64]
    return float(torch.stack([t.double() for t in found]).amax()) if found else 0.0


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """One row per layer and map. Each cell: finite / all runs, the kinds of the deaths, and the median last loss if all live."""
    rates = sorted({r["lr"] for r in records})
    yield "| layer | map | " + " | ".join(f"lr {lr:g}" for lr in rates) + " |"
    yield "|" + " --- |" * (2 + len(rates))
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault((record["layer"], record["map"]), []).append(record)
    for layer, map_ in sorted(rows, key=lambda row: (list(LAYERS).index(row[0]), row[1] != "native")):
        cells = [_cell([r for r in rows[layer, map_] if r["lr"] == lr]) for lr in rates]
        yield f"| {layer} | {map_} | " + " | ".join(cells) + " |"
    deaths = [r for r in records if r["died"] is not None]
    kinds = [f"{sum(r['kind'] == kind for r in deaths)} {kind}" for kind in KINDS]
    yield ""
    yield f"{len(records)} runs, {len(deaths)} deaths: {', '.join(kinds)}."


def _cell(runs: list[dict[str, Any]]) -> str:
    deaths = [r["kind"] for r in runs if r["died"] is not None]
    if not deaths:
        return f"{len(runs)}/{len(runs)}" + (f", {statistics.median(float(r['loss']) for r in runs):.2g}" if runs else "")
    kinds = ", ".join(f"{deaths.count(kind)} {kind}" for kind in KINDS if kind in deaths)
    return f"{len(runs) - len(deaths)}/{len(runs)} ({kinds})"


if __name__ == "__main__":
    main()
