"""Compares our training step on a CPU with the step of another revision and with a step in JAX (`benchmarks.step --against`).

Each of these steps runs in its own long-lived process on the same cores. The processes take turns of a fraction of a second in
random order, so that other load on the machine affects all of them. Both revisions of StableSSM record telemetry. JAX runs the
same model, loss and AdamW as one jitted step, with `lax.scan` and with `lax.associative_scan`. The JAX processes record
nothing, and their batches are made in advance. An evaluation is the forward pass and the loss of one batch, without gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.scan.__main__ import processor, version
from benchmarks.step import process
from benchmarks.training import Shape, table

ROOT = Path(__file__).parents[2]
# the models and their tasks; C has the size of the demo runs of `make run`
SHAPES = {
    "A": (Shape(2, 128, 64, 50), "images"),
    "B": (Shape(2, 128, 64, 4), "images"),
    "C": (Shape(1, 32, 32, 32, 100), "polynomial_memory"),
    "D": (Shape(2, 32, 16, 8, 64), "images"),
}
NAMES = "".join(SHAPES)
SLICE = 0.25  # duration of a turn in seconds; a turn has at least one step
ROUNDS = 6, 60  # minimum and maximum number of rounds
OURS, BEFORE, JAX = "ours", "before", ("JAX scan", "JAX associative_scan")
Seconds = dict[str, list[float]]  # for each trainer: the time per step in each turn, in seconds


class Trainer:
    """A training process that waits for requests."""

    def __init__(self, command: list[str], root: Path, threads: int) -> None:
        environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, *command], cwd=root, env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def begin(self, name: str, *given: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *given]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, name: str, *given: Any) -> Any:
        self.begin(name, *given)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Compared(NamedTuple):
    ms: float  # minimum time of a step, in milliseconds
    quotient: float  # median over the turns of the quotient (time of this step / time of our step)
    of_least: float  # quotient of the minimum times of the two steps


def report(arguments: argparse.Namespace) -> Iterator[str]:
    threads, before = arguments.threads, arguments.against.resolve()
    if hasattr(os, "sched_setaffinity"):  # Linux; child processes inherit the affinity
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    trainers = started(before, threads)
    try:
        yield from heading(arguments, before, {who: trainers[who].ask("computes_by") for who in (OURS, BEFORE)})
        rows = []
        for name in arguments.shapes:
            shape, task = SHAPES[name]
            rows += measured(trainers, name, shape, task, arguments)
        yield from table(["step", "cores", "ours, ms", "before, ms", "before / ours", "JAX, ms", "JAX / ours"], rows)
        yield f"\nLoad average at the end {os.getloadavg()[0]:.1f}."
    finally:
        for trainer in trainers.values():
            trainer.end()


def started(before: Path, threads: int) -> dict[str, Trainer]:
    alone = ["-P", str(Path(process.__file__).resolve())]
    trainers = {OURS: Trainer(alone, ROOT, threads), BEFORE: Trainer(alone, before, threads)}
    for name, root in ((OURS, ROOT), (BEFORE, before)):
        if not Path(trainers[name].ask("where")).is_relative_to(root):
            raise RuntimeError(f"the process of {root} runs {trainers[name].ask('where')}")
    if util.find_spec("jax"):
        for name in JAX:
            trainers[name] = Trainer(["-m", "benchmarks.step.in_jax", name.removeprefix("JAX ")], ROOT, threads)
    return trainers


def heading(arguments: argparse.Namespace, before: Path, by: dict[str, str]) -> Iterator[str]:
    cores = "one core" if arguments.threads == 1 else f"{arguments.threads} cores"
    yield "# Training steps compared with another revision and with JAX\n"
    yield f"`python -m benchmarks.step --against FOLDER --threads {arguments.threads}`, {time.strftime('%Y-%m-%d')}\n"
    yield (
        f"{processor()}, {cores}; torch {torch.__version__}, jax {version('jax')}, python {platform.python_version()}; ours is "
        f"revision {revision(ROOT)} ({by[OURS]}), before is {revision(before)} ({by[BEFORE]}); load "
        f"average at the start {os.getloadavg()[0]:.1f}.\n"
    )
    yield (
        "float32, with telemetry. Each time in milliseconds is that of the fastest turn. A quotient is the median of the "
        "quotients in the single turns, followed by the quotient of the two shortest times. Above 1, our step is faster. The JAX "
        "column shows the faster of JAX's two scans."
        "\n"
    )


def revision(root: Path) -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def measured(trainers: dict[str, Trainer], name: str, shape: Shape, task: str, arguments: argparse.Namespace) -> list[list[str]]:
    """The rows of one shape in the table: the training step and the evaluation."""
    for trainer in trainers.values():
        trainer.begin("open", list(shape), task)
    for who, trainer in list(trainers.items()):
        try:
            trainer.answer()
        except ChildProcessError as error:
            if who not in JAX:
                raise
            print(f"{who} is left out from {name} on: {error}", file=sys.stderr)  # the process has already printed details
            del trainers[who]
    trained = in_turns(trainers, "train", arguments.seconds)
    evaluated = in_turns({who: trainers[who] for who in (OURS, BEFORE)}, "evaluate", arguments.seconds / 3)
    rows = []
    for what, seconds in (("train", trained), ("evaluate", evaluated)):
        cells = [f"{1e3 * min(seconds[OURS]):.3f}"]
        fastest = min((who for who in seconds if who in JAX), key=lambda who: min(seconds[who]), default=None)
        for who in (BEFORE, fastest):
            if who is None:
                cells += ["", ""]
                continue
            ms, quotient, of_least = compared(seconds, who)
            cells += [
                f"{ms:.3f}" + (f" ({who.removeprefix('JAX ')})" if who in JAX else ""),
                f"**{quotient:.2f}**, {of_least:.2f}",
            ]
        rows.append([f"{name}, {what}: {shape}", str(arguments.threads), *cells])
    return rows


def in_turns(trainers: dict[str, Trainer], what: str, seconds: float) -> Seconds:
    """For each trainer, the time per step in each turn, in seconds."""
    steps = {who: max(1, round(SLICE / (trainer.ask(what, 2) / 2))) for who, trainer in trainers.items()}
    found: Seconds = {who: [] for who in trainers}
    order, deadline, least = random.Random(0), time.monotonic() + seconds, min(ROUNDS)
    for turn in range(max(ROUNDS)):
        if turn >= least and time.monotonic() > deadline:
            break
        for who in order.sample(sorted(trainers), len(trainers)):
            found[who].append(trainers[who].ask(what, steps[who]) / steps[who])
    return found


def compared(seconds: Seconds, who: str) -> Compared:
    turns = zip(seconds[who], seconds[OURS], strict=True)
    least = min(seconds[who])
    return Compared(1e3 * least, statistics.median(it / ours for it, ours in turns), least / min(seconds[OURS]))
