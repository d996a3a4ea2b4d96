"""Trains the same model in JAX, in a process that `benchmarks.step.turns` starts. The argument names a scan of `jax.lax`.

Forward, backward and AdamW form one jitted step, to which the buffers of weights and moments are donated. The process uses our
initial weights and our batches, and its first losses must equal ours. All batches are made in advance, and nothing is recorded.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.scan import jax_forms
from benchmarks.step.process import Open, make_rig, serve
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.sink import MemorySink

BATCHES = 8
LR, DECAY, BETAS, EPS = 1e-3, 0.01, (0.9, 0.999), 1e-8


class InJax:
    def __init__(self, form: str) -> None:
        jax_forms.prepare(torch.get_num_threads())
        self.jax: Any = import_module("jax")
        self.form = {"scan": jax_forms.sequential, "associative_scan": jax_forms.associative}[form]

    def open(self, shape: Open, task: str) -> None:
        jax, rig = self.jax, make_rig(shape, task, MemorySink())
        weights = {name: jax.numpy.asarray(p.detach().numpy().copy()) for name, p in rig.step.model.named_parameters()}
        layers = [block.ssm for block in rig.step.model.blocks]
        fixed = [(layer.gamma.numpy(), layer.reparameterization.form.a, layer.reparameterization.form.b) for layer in layers]
        loss = partial(loss_of, jax, self.form, fixed, rig.step.task.kind)
        self.batches = [tuple(jax.numpy.asarray(t.numpy()) for t in rig.feed(step)) for step in range(1, BATCHES + 1)]
        zeros = {name: jax.numpy.zeros_like(p) for name, p in weights.items()}
        self.state = weights, zeros, jax.tree.map(jax.numpy.copy, zeros), jax.numpy.zeros(())
        self.step = jax.jit(partial(update, jax, loss), donate_argnums=0)
        self.done = 0
        first = [float(self.one()) for _ in range(3)]
        check(first, losses_of(rig, len(first)))

    def one(self) -> Any:
        self.state, loss = self.step(self.state, *self.batches[self.done % BATCHES])
        self.done += 1
        return loss

    def train(self, steps: int) -> float:
        """Trains `steps` steps. Returns how long they take, in seconds."""
        began = time.perf_counter()
        for _ in range(steps):
            loss = self.one()
        self.jax.block_until_ready((self.state, loss))
        return time.perf_counter() - began


def update(jax: Any, loss: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
    weights, means, squares, count = state
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    count = count + 1
    means = {n: BETAS[0] * m + (1 - BETAS[0]) * gradients[n] for n, m in means.items()}
    squares = {n: BETAS[1] * s + (1 - BETAS[1]) * gradients[n] ** 2 for n, s in squares.items()}
    rate, root = LR / (1 - BETAS[0] ** count), jax.numpy.sqrt(1 - BETAS[1] ** count)
    weights = {
        n: p * (1 - LR * DECAY * (p.ndim > 1)) - rate * means[n] / (jax.numpy.sqrt(squares[n]) / root + EPS)
        for n, p in weights.items()
    }
    return (weights, means, squares, count), value


def loss_of(jax: Any, scan: Any, fixed: list[tuple[Any, float, float]], kind: str, weights: Any, x: Any, y: Any) -> Any:
    def norm(name: str, z: Any) -> Any:
        z = z - z.mean(-1, keepdims=True)
        return z * jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(name: str, z: Any) -> Any:
        return z @ weights[f"{name}.weight"].T

    h = linear("encoder", x) + weights["encoder.bias"]
    for index, (gamma, a, b) in enumerate(fixed):
        block = f"blocks.{index}"
        w, B, C, D = (weights[f"{block}.ssm.{name}"] for name in "wBCD")
        z = norm(f"{block}.norm", h)
        states = scan(jax, 1 - 1 / (a * w * w + b), z @ (gamma[:, None] * B).T)
        h = h + jax.numpy.tanh(states) @ C.T + D * z
        z = norm(f"{block}.mlp.norm", h)
        h = h + linear(f"{block}.mlp.down", jax.nn.silu(linear(f"{block}.mlp.gate", z)) * linear(f"{block}.mlp.up", z))
    h = norm("norm", h)
    if kind == "regression":
        return ((linear("head", h) + weights["head.bias"] - y) ** 2).mean()
    logits = jax.nn.log_softmax(linear("head", h.mean(1)) + weights["head.bias"])
    return -jax.numpy.take_along_axis(logits, y[:, None], 1).mean()


def losses_of(rig: Any, steps: int) -> list[float]:
    rig.go(steps)
    rig.recorder.close()
    return [float(value) for value in rig.sink.series(names.TRAIN_LOSS)[1][:, 0]]


def check(found: list[float], truth: list[float]) -> None:
    for mine, theirs in zip(found, truth, strict=True):
        if not abs(mine / theirs - 1) < 1e-4:
            raise ValueError(f"JAX's losses {found} are not ours, {truth}")


if __name__ == "__main__":
    serve(InJax(sys.argv[1]))
