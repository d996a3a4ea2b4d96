"""Trains on MNIST, pixel by pixel, on a CPU as a user would: submits one run to the service, follows it, and reads it back.

    python -m benchmarks.mnist [--steps N] [--set optimizer.lr=0.01 ...] [--folder FOLDER] [--write results/mnist_cpu.md]

Starts `stablessm up` with its state in FOLDER (SQLite, one worker on this machine), submits CONFIG by REST and waits. Then it
reports the service's answers about the run: status, accuracy on the 10,000 test images, times and verdict. It also reads back
every eigenvalue at every step and checks that none is missing. With --folder the state is kept. The same command then resumes
an interrupted run after its last checkpoint, or reports an ended run at once. --steps 50 is a short test that takes a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.service import installation
from stablessm_core.client import FINAL, Client
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry import series as names

HERE = Path(__file__).parent
TRAINING_IMAGES, TEST_IMAGES = 60_000, 10_000
POLL_SECONDS = 5.0
# On the machine of results/mnist_cpu.md, bfloat16 halves the time of a step. The activation is gelu because tanh would
# saturate: grey values stay similar for many steps, so states with a long memory grow to 30 times their usual size.
CONFIG: dict[str, Any] = {
    "name": "mnist pixel by pixel",
    "task": {"name": "mnist"},
    "model": {
        "n_layers": 2,
        "d_model": 64,
        "d_state": 64,
        "reparameterization": {"name": "best"},
        "eigenvalue_range": [0.5, 0.998],
        "activation": "gelu",
    },
    "optimizer": {"lr": 0.004, "schedule": "cosine", "warmup_steps": 200, "grad_clip": 1.0},
    "train": {
        "steps": 28_800,  # 12 epochs
        "batch_size": 25,
        "precision": "bfloat16",
        "device": "cpu",
        "eval_every": 4800,
        "checkpoint_every": 1200,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help=f"default: {CONFIG['train']['steps']:,}")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="another value of the configuration")
    parser.add_argument("--threads", type=int, default=1, help="number of threads of the training process")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("STABLESSM_DATA", "../shared/data")))
    parser.add_argument("--folder", type=Path, help="keep the service's state here, and continue from it")
    parser.add_argument("--write", type=Path, help="also write the report to this file under benchmarks/")
    args = parser.parse_args()
    config = with_settings(CONFIG, dict(map(change, args.set)))
    config["train"]["steps"] = args.steps or config["train"]["steps"]
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stablessm-mnist-")))
        threads = {name: str(args.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        data = ("--data-root", str(args.data.resolve()))
        client = stack.enter_context(installation(folder.resolve() / "state", *data, **threads))
        run = follow(client, submit(client, config))
        text = report(client, run, " ".join(["python -m benchmarks.mnist", *shown_options(args)]))
    print(text)
    if args.write:
        (HERE / args.write).write_text(text, encoding="utf-8")
    sys.exit(run["status"] != "finished")


def change(text: str) -> tuple[str, Any]:
    path, _, value = text.partition("=")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def shown_options(args: argparse.Namespace) -> list[str]:
    steps = [f"--steps {args.steps}"] if args.steps else []
    return steps + [f"--set {one}" for one in args.set] + [f"--threads {args.threads}"]


def submit(client: Client, config: dict[str, Any]) -> dict[str, Any]:
    """The run with this configuration: a new run, or the run already in the folder, which is resumed if it was interrupted."""
    whole = parse_config(config).model_dump(mode="json")
    found = next((run for run in client.runs() if client.run(run["id"])["config"] == whole), None)
    if found is None:
        return client.submit(config)
    return client.resume(found["id"]) if found["status"] in ("failed", "cancelled") else found


def follow(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    """Waits until the run has ended and returns it. Prints a line for every evaluation."""
    number, printed = run["id"], ""
    print(f"run {number} at {client.url}/runs/{number}", flush=True)
    while True:
        with contextlib.suppress(httpx.TransportError):  # retry while a server restarts
            run = client.run(number)
            if (reached := accuracies(client, run)) != printed or run["status"] in FINAL:
                printed = reached
                print(f"{time.strftime('%H:%M:%S')} {run['status']}, step {run['step']:,}: {reached}", flush=True)
            if run["status"] in FINAL:
                return run
        time.sleep(POLL_SECONDS)


def accuracies(client: Client, run: dict[str, Any]) -> str:
    """The test accuracies so far, each with the number of epochs trained."""
    if not any(one["name"] == names.EVAL_ACCURACY for one in client.catalogue(run["id"])):
        return ""
    found = client.series(run["id"], names.EVAL_ACCURACY)
    each = run["config"]["train"]["batch_size"] / TRAINING_IMAGES
    return ", ".join(f"{step * each:.3g}: {100 * value:.2f} %" for step, value in zip(found.step, found.value, strict=True))


def report(client: Client, run: dict[str, Any], command: str) -> str:
    """The service's answers about the run, as Markdown."""
    config, environment, result, number = run["config"], run["environment"], run["result"] or {}, run["id"]
    model, training = config["model"], config["train"]
    alerts, verdict = list(client.alerts(number)), client.verdict(number)
    attempts = client.history(number)["attempts"]
    assert environment["data"]["evaluation_images"] == TEST_IMAGES
    seconds = client.series(number, names.STEP_TIME).value
    losses = client.series(number, names.TRAIN_LOSS).value
    marks = [mark for mark in (100, 300, 1000, 3000, 10_000, 30_000, len(losses)) if mark <= len(losses)]
    scan = environment["scan_backend"]
    epochs = run["step"] * training["batch_size"] / TRAINING_IMAGES
    rows = {
        "machine": f"{environment['device_name']}, {environment['threads']} thread(s) of {os.cpu_count()} cores; load "
        f"{os.getloadavg()[1]:.1f} at the end",
        "versions": f"Python {environment['versions']['python']}, torch {environment['versions']['torch']}",
        "how steps ran": f"scan backend {scan}, {environment['precision']}, {environment['execution']['mode']}",
        "status": f"{run['status']}, {run['step']:,} of {run['steps']:,} steps ({epochs:.2f} epochs)",
        "parameters": f"{environment['parameters']:,}",
        f"**accuracy on the {TEST_IMAGES:,} test images**, final weights": f"**{percent(result.get('eval_accuracy'))}**",
        "test loss": f"{result.get('eval_loss')}",
        "wall time of training, evaluations included": f"{result.get('seconds', 0) / 60:.1f} min in {len(attempts)} attempt(s)",
        "from the first claim to the end": f"{(run['finished_at'] - min(one['started_at'] for one in attempts)) / 60:.1f} min",
        "median step time": f"{1e3 * float(np.median(seconds)):.0f} ms",
        "test accuracy after so many epochs": accuracies(client, run),
        "training loss, mean of 100 steps up to": ", ".join(f"{n:,}: {losses[max(0, n - 100) : n].mean():.3f}" for n in marks),
        "alerts": ", ".join(f"{a['kind']} at step {a['step']}" for a in alerts) or "none",
        "verdict": verdict["summary"],
        "telemetry": f"{result.get('telemetry_dropped')} steps dropped, {result.get('telemetry_errors')} errors; "
        f"{run['bytes_stored'] / 1e6:.0f} MB stored, checkpoints included",
    }
    for layer in range(model["n_layers"]):
        rows[f"eigenvalues of layer {layer}"] = eigenvalues(client, number, layer)
    return "\n".join(
        [
            "# MNIST, pixel by pixel, through the service",
            "",
            f"`{command}`, {time.strftime('%Y-%m-%d', time.gmtime(run['finished_at']))}",
            "",
            "Sequences of 784 grey values, one at a time. The run was submitted by REST to `stablessm up` (SQLite, one worker),",
            "and everything below was read back from the service. Each accuracy is that of the weights at the given step, not",
            "the best of several. One seed was trained.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in rows.items()),
            "",
            "The whole configuration, as stored:",
            "",
            "```json",
            "{" + ",\n ".join(f'"{name}": {json.dumps(part)}' for name, part in config.items()) + "}",
            "```",
            "",
        ]
    )


def eigenvalues(client: Client, run_id: int, layer: int) -> str:
    """A line about the recorded eigenvalues of a layer, which are read back from the service for every step."""
    found = client.series(run_id, names.layer_series(layer, "eigenvalue"))
    steps, width = found.value.shape
    whole = np.array_equal(found.step, np.arange(1, steps + 1)) and bool(np.isfinite(found.value).all())
    first, last = (np.sort(found.value[row]) for row in (0, -1))
    return (
        f"{steps:,} steps x {width} recorded, {'none missing, all finite' if whole else 'NOT all of them, or not all finite'}; "
        f"{first[0]:.3f} to {first[-1]:.4f} at step 1, {last[0]:.3f} to {last[-1]:.4f} at the end"
    )


def percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"


if __name__ == "__main__":
    main()
