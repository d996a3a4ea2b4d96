"""How well and how fast does a small StableSSM learn MNIST, pixel by pixel, here?

    python -m benchmarks.mnist [--steps 2000] [--batch-size 20] [--device auto] [--scan-backend auto] [--threads 1] [--write FILE]

Trains with full telemetry (every eigenvalue at every step) into memory, tests on all 10,000 test images, prints one table.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path

import torch

from stablessm_core.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.recorder import MemorySink
from stablessm_core.training.train import pick_device, train

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--scan-backend", default="auto", choices=["auto", "torch", "triton", "reference"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reparameterization", default="best")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("STABLESSM_DATA", "../shared/data")))
    parser.add_argument("--write", type=Path, help="also write the table to this file under benchmarks/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = parse_config(
        {
            "task": {"name": "mnist"},
            "model": {
                "n_layers": 2,
                "d_model": 64,
                "d_state": 64,
                "reparameterization": {"name": args.reparameterization},
            },
            "optimizer": {"lr": args.lr, "schedule": "cosine", "warmup_steps": 20, "grad_clip": 1.0},
            "train": {
                "steps": args.steps,
                "batch_size": args.batch_size,
                "eval_every": 0,
                "checkpoint_every": 0,
                "device": args.device,
                "scan_backend": args.scan_backend,
            },
        }
    )
    sink, environment = MemorySink(), {}
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(
            config, sink=sink, data_root=args.data, checkpoint_dir=Path(folder), on_ready=lambda e: environment.update(e)
        )
    table = report(args, config, sink, environment, outcome)
    print(table)
    if args.write:
        (HERE / args.write).write_text(table, encoding="utf-8")


def report(args: argparse.Namespace, config, sink: MemorySink, environment: dict, outcome) -> str:
    _, losses = sink.series(names.TRAIN_LOSS)
    _, seconds = sink.series(names.STEP_TIME)
    marks = [i for i in (1, 50, 100, 200, 300, 400, 500, 750, 1000, 1500, 2000, 3000) if i <= len(losses)]
    device = pick_device(config.train.device)
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{args.threads} CPU thread(s), {platform.machine()}"
    )
    load = f"; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end" if device.type == "cpu" else ""
    lines = [
        "# MNIST, pixel by pixel",
        "",
        f"`python -m benchmarks.mnist --steps {args.steps} --batch-size {args.batch_size} --device {args.device} "
        f"--threads {args.threads} --lr {args.lr:g} --reparameterization {args.reparameterization} "
        f"--scan-backend {args.scan_backend}`",
        "",
        "2 layers, d_model 64, d_state 64, sequences of 784 grey values, AdamW with cosine schedule; every eigenvalue",
        "recorded at every step. Accuracy is that of the final weights on the standard 10,000 test images; one seed.",
        "",
        "| | |",
        "| --- | --- |",
        f"| machine | {machine}; torch {environment['versions']['torch']}, scan backend {environment['scan_backend']}{load} |",
        f"| status, steps | {outcome.status}, {outcome.step} ({outcome.step * args.batch_size / 60_000:.2f} epochs) |",
        f"| parameters | {environment['parameters']:,} |",
        f"| test accuracy | {fraction(outcome.result['eval_accuracy'])} |",
        f"| test loss | {outcome.result['eval_loss']} |",
        f"| wall time, test included | {outcome.result['seconds']:.1f} s |",
        f"| median step time | {float(sorted(seconds[:, 0])[len(seconds) // 2]):.3f} s |",
        f"| alerts | {', '.join(f'{a.kind} at step {a.step}' for a in sink.alerts) or 'none'} |",
        "| training loss (mean of 20 steps up to) | "
        + ", ".join(f"{i}: {losses[max(0, i - 20) : i].mean():.3f}" for i in marks)
        + " |",
        "",
    ]
    return "\n".join(lines)


def fraction(accuracy: float | None) -> str:
    return "none" if accuracy is None else f"{100 * accuracy:.2f} %"


if __name__ == "__main__":
    main()
