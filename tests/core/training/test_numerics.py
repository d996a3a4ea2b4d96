"""A run keeps its backend and its library for matrix products, even if another process would choose others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stablessm_core.kernels import build, library
from stablessm_core.numerics import products
from stablessm_core.training import checkpoint as files
from stablessm_core.training.numerics import choose_numerics, saved_by_default
from tests.core.training.test_train import losses, run_training, small_config

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _restore_library():
    before = products.choice_facts()["library"]
    yield
    products.use(before)


def test_a_new_run_uses_the_compiled_kernels_and_records_their_instruction_set_and_its_matrix_product_library() -> None:
    found = choose_numerics("auto", CPU)
    kernels = f"{build.machine()}-{library.target()}"
    assert found.described() == {"scan_backend": "cpu", "kernels": kernels, "products": products.choice_facts()}
    assert choose_numerics("torch", CPU).described() == {"scan_backend": "torch"}


def test_a_run_without_compiled_kernels_records_the_reason(monkeypatch) -> None:
    monkeypatch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
    assert choose_numerics("auto", CPU).described() == {"scan_backend": "torch", "scan_backend_reason": "there was no C compiler"}


def test_a_checkpoint_without_a_recorded_backend_is_resumed_with_torch() -> None:
    found = choose_numerics("auto", CPU, saved_by_default(CPU))
    assert (found.scan_backend, found.reason) == ("torch", "the run began with it")


def test_an_unavailable_backend_is_replaced_by_torch_with_a_reason(monkeypatch) -> None:
    monkeypatch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
    found = choose_numerics("auto", CPU, {"scan_backend": "cpu", "products": "onednn"})
    assert found.scan_backend == "torch"
    assert found.reason == (
        "the run began with another, but backend 'cpu' cannot run here: there was no C compiler; backend 'torch' works on cpu"
    )


def test_a_resumed_run_uses_the_matrix_product_library_of_its_start() -> None:
    assert choose_numerics("auto", CPU, {"scan_backend": "cpu", "products": "mm"}).products["library"] == "mm"
    assert products.choose() == "mm"


def test_a_run_that_began_on_torch_keeps_its_bits_after_the_kernels_become_available(tmp_path: Path, monkeypatch) -> None:
    config = small_config({"train.steps": 20, "train.checkpoint_every": 10, "train.eval_every": 0})
    with monkeypatch.context() as patch:
        patch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
        _, straight = run_training(config, tmp_path / "straight")
    path = next(path for step, path, _ in straight.checkpoints if step == 10)
    assert files.load_checkpoint(path).state["numerics"] == {"scan_backend": "torch"}
    _, resumed = run_training(config, tmp_path / "resumed", resume=path)
    assert losses(resumed).tolist() == losses(straight)[10:].tolist()
