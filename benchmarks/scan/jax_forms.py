"""The scan in JAX on a CPU, for `benchmarks.scan`: jitted `lax.associative_scan` and `lax.scan`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from typing import Any

import numpy as np
import torch
from torch import Tensor

Call = Callable[[], Any]


def prepare(threads: int) -> None:
    """Set the number of threads. Must be called before JAX is imported. Without this setting for one thread, JAX's pool has as
    many threads as the process has cores."""
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def calls(a: Tensor, b: Tensor, weight: Tensor) -> dict[str, Call]:
    """The functions that compute the states and the gradients of a and b, by name. Empty if JAX is not installed. a has b's
    shape or the shape (d_state,)."""
    if util.find_spec("jax") is None:
        return {}
    jax: Any = import_module("jax")
    given = [jax.numpy.asarray(x.numpy()) for x in (a, b, weight)]

    def gradients(form: Callable[[Any, Any], Any], a: Any, b: Any, weight: Any) -> Any:
        # PyTorch's gradient of a complex number is the conjugate of JAX's
        return tuple(x.conj() for x in jax.vjp(form, a, b)[1](weight.conj()))

    def call(compiled: Callable[..., Any]) -> Any:
        return jax.block_until_ready(compiled(*given))

    forms = {"JAX associative_scan": partial(associative, jax), "JAX scan": partial(sequential, jax)}
    return {name: partial(call, jax.jit(partial(gradients, form))) for name, form in forms.items()}


def associative(jax: Any, a: Any, b: Any) -> Any:
    def compose(earlier: tuple[Any, Any], later: tuple[Any, Any]) -> tuple[Any, Any]:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(compose, (jax.numpy.broadcast_to(a, b.shape), b), axis=1)[1]


def sequential(jax: Any, a: Any, b: Any) -> Any:
    def step(h: Any, now: Any) -> tuple[Any, Any]:
        h = a * h + now if a.ndim == 1 else now[0] * h + now[1]
        return h, h

    over_time = b.swapaxes(0, 1) if a.ndim == 1 else (a.swapaxes(0, 1), b.swapaxes(0, 1))
    return jax.lax.scan(step, jax.numpy.zeros_like(b[:, 0]), over_time)[1].swapaxes(0, 1)


def results(call: Call) -> list[Tensor]:
    return [torch.from_numpy(np.array(x)) for x in call()]
