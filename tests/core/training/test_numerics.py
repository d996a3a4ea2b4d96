"""A run keeps the code that computes it: its backend and its library of products, whatever another process would choose."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stablessm_core import products
from stablessm_core.compiled import library
from stablessm_core.training import checkpoint as files
from stablessm_core.training.numerics import choose_numerics, saved_before
from tests.core.training.test_train import go, losses, small

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _products_as_they_were():
    before = products.chosen()["library"]
    yield
    products.use(before)


def test_a_new_run_takes_the_compiled_kernels_and_says_which_products() -> None:
    found = choose_numerics("auto", CPU)
    assert found.described() == {"scan_backend": "cpu", "products": products.chosen()}
    assert choose_numerics("torch", CPU).described() == {"scan_backend": "torch"}


def test_without_kernels_the_environment_says_why(monkeypatch) -> None:
    monkeypatch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
    assert choose_numerics("auto", CPU).described() == {"scan_backend": "torch", "scan_backend_reason": "there was no C compiler"}


def test_what_a_checkpoint_does_not_say_was_torch() -> None:
    found = choose_numerics("auto", CPU, saved_before(CPU))
    assert (found.scan_backend, found.reason) == ("torch", "the run began with it")


def test_a_backend_that_is_gone_is_replaced_with_a_word(monkeypatch) -> None:
    monkeypatch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
    found = choose_numerics("auto", CPU, {"scan_backend": "cpu", "products": "onednn"})
    assert found.scan_backend == "torch"
    assert found.reason == (
        "the run began with another, but backend 'cpu' cannot run here: there was no C compiler; backend 'torch' works on cpu"
    )


def test_a_resumed_run_takes_up_the_products_it_began_with() -> None:
    assert choose_numerics("auto", CPU, {"scan_backend": "cpu", "products": "mm"}).products["library"] == "mm"
    assert products.choose() == "mm"


def test_a_run_that_began_on_torch_keeps_its_bits_where_the_kernels_are_faster_now(tmp_path: Path, monkeypatch) -> None:
    config = small({"train.steps": 20, "train.checkpoint_every": 10, "train.eval_every": 0})
    with monkeypatch.context() as patch:
        patch.setattr(library, "why_not_compiled", lambda: "there was no C compiler")
        _, straight = go(config, tmp_path / "straight")
    path = next(path for step, path, _ in straight.checkpoints if step == 10)
    assert files.load_checkpoint(path).state["numerics"] == {"scan_backend": "torch"}
    _, resumed = go(config, tmp_path / "resumed", resume=path)
    assert losses(resumed).tolist() == losses(straight)[10:].tolist()
