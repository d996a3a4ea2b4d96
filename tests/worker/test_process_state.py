"""A training process gets no further run if its last run has left anything that could change the bits of another run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import parse_config
from worker.process_state import MOST_GROWTH_BYTES, MOST_RUNS, ProcessState, why_unfit

CONFIG = parse_config({"task": {"name": "polynomial_memory"}})
NEW_RUN: dict[str, Any] = {"checkpoints": [], "origin": None}
SAVED = {"checkpoints": [[10, "runs/1/checkpoints/10", "0"]], "origin": None}
FORK = {"checkpoints": [], "origin": {"step": 3}}


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what the tests change."""
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setenv("CHANGED_BY_A_RUN", "no")
    threads, dtype, precision, errors = (
        torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision(), np.geterr(),
    )  # fmt: skip
    numpy_state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    np.seterr(**errors)
    np.random.set_state(numpy_state)


def test_a_process_trains_another_run_if_its_run_has_left_no_trace() -> None:
    before = ProcessState.now()
    assert why_unfit(CONFIG, NEW_RUN, "finished", 1, before) is None
    assert why_unfit(CONFIG, NEW_RUN, "diverged", 1, before) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "torch.get_num_threads"),
        (lambda: torch.set_default_dtype(torch.float64), "torch.get_default_dtype"),
        (lambda: torch.set_grad_enabled(False), "torch.is_grad_enabled"),
        (lambda: torch.use_deterministic_algorithms(True), "torch.are_deterministic_algorithms_enabled"),
        (lambda: torch.set_float32_matmul_precision("medium"), "torch.get_float32_matmul_precision"),
        (lambda: torch.set_flush_denormal(True), "torch.set_flush_denormal"),
        (lambda: torch.manual_seed(123), "torch.get_rng_state"),
        (lambda: np.random.seed(123), "numpy.random.get_state"),
        (lambda: np.seterr(all="ignore"), "numpy.geterr"),
        (lambda: os.chdir("/"), "the working directory"),
        (lambda: os.environ.update(CHANGED_BY_A_RUN="yes"), "the environment"),
    ],
)
def test_a_changed_setting_ends_the_process(change: Callable[[], object], name: str) -> None:
    before = ProcessState.now()
    change()
    assert why_unfit(CONFIG, NEW_RUN, "finished", 1, before) == f"{name} was changed"


def test_a_thread_that_outlives_its_run_ends_the_process() -> None:
    before = ProcessState.now()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-over")
    thread.start()
    assert why_unfit(CONFIG, NEW_RUN, "finished", 1, before) == "a thread of the run has not ended"
    release.set()
    thread.join()


def test_memory_may_grow_only_up_to_the_limit() -> None:
    before = ProcessState.now()
    grown = replace(before, memory_bytes=before.memory_bytes + MOST_GROWTH_BYTES)
    assert grown.difference_to(before) is None
    larger = replace(grown, memory_bytes=grown.memory_bytes + 1)
    assert larger.difference_to(before) == f"its memory has grown by {MOST_GROWTH_BYTES >> 20} MiB"


@pytest.mark.parametrize("status", ["cancelled", "queued"])
def test_a_stopped_run_is_the_last_of_its_process(status: str) -> None:
    before = ProcessState.now()
    assert why_unfit(CONFIG, NEW_RUN, status, 1, before) == f"its run is {status}"


@pytest.mark.parametrize("assignment", [SAVED, FORK])
def test_a_run_from_a_checkpoint_is_the_last_of_its_process(assignment: dict[str, Any]) -> None:
    before = ProcessState.now()
    assert "continued from a checkpoint" in str(why_unfit(CONFIG, assignment, "finished", 1, before))


def test_a_compiled_run_is_the_last_of_its_process() -> None:
    before = ProcessState.now()
    compiled = parse_config({"task": {"name": "polynomial_memory"}, "train": {"execution": "compile"}})
    assert why_unfit(compiled, NEW_RUN, "finished", 1, before) == "its run started a compiler"


def test_a_process_trains_a_bounded_number_of_runs() -> None:
    before = ProcessState.now()
    assert why_unfit(CONFIG, NEW_RUN, "finished", MOST_RUNS - 1, before) is None
    assert why_unfit(CONFIG, NEW_RUN, "finished", MOST_RUNS, before) == f"it has trained {MOST_RUNS} runs"
