"""A wrong backward pass is proven by a slope that converges, and by the norm that the run recorded; else nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import Trouble
from stablessm_core.layers.lru import LRU
from stablessm_core.model import Network
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory
from tests.core.autopsy.faulty_tasks import Inflated
from tests.core.autopsy.runs import config_of, request_of, trained

pytestmark = [pytest.mark.spread, pytest.mark.slow]

SGD: dict[str, Any] = {
    "task.length": 20, "train.steps": 40, "train.batch_size": 4, "model.reparameterization.name": "best",
    "optimizer": {"name": "sgd", "lr": 0.02, "weight_decay": 0.0},
}  # fmt: skip
LRU_LAYER: dict[str, Any] = {"model": {"d_model": 16, "reparameterization": {"name": "native"}, "layer": "lru"}}


def gradient_of(folder: Path, changes: Mapping[str, Any], trouble: Trouble | None = None, **given: Any) -> dict[str, Any]:
    """What the autopsy says of the gradient of a run with these changes of its configuration."""
    config = config_of(changes)
    found = perform(request_of(config, *trained(config, folder), trouble=trouble, **given))
    assert found["refused"] is None
    gradient: dict[str, Any] = found["gradient"]
    return gradient


@pytest.mark.parametrize(("task", "times"), [("ThreefoldGradient", 3), ("TenfoldGradient", 10), ("ThousandfoldGradient", 1000)])
def test_a_backward_pass_that_was_wrong_from_the_first_step_is_found_whatever_its_factor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, times: float
) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", f"tests.core.autopsy.faulty_tasks:{task}")
    wrong = gradient_of(tmp_path, SGD | {"optimizer.lr": 0.5 / times}, Trouble(2, "loss", 3), step=6)
    assert (wrong["converged"], wrong["agrees"], wrong["differs"]) == (True, False, None)
    assert wrong["norm"] == pytest.approx(times * wrong["slope"], rel=0.02)
    assert wrong["recorded"] == pytest.approx(wrong["norm"], rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(SGD | LRU_LAYER | {"task.length": 48, "optimizer.lr": 1.0}, id="lru"),
        pytest.param(
            SGD | LRU_LAYER | {"task.length": 100, "train.batch_size": 16, "optimizer.lr": 0.1, "optimizer.momentum": 0.9},
            id="lru with momentum",
        ),
        pytest.param(SGD | {"optimizer.lr": 0.25, "task.length": 100}, id="best"),
        pytest.param({"optimizer.lr": 0.2, "model.dropout": 0.3}, id="dropout"),
        pytest.param({"optimizer.lr": 0.25, "optimizer.recurrent_weight_decay": 10.0}, id="decay"),
    ],
)
def test_a_right_backward_pass_is_not_called_wrong_however_the_run_dies(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = config_of(changes)
    dead = trained(config, tmp_path)
    assert dead[0].status == "diverged"
    for shown in {2, dead[0].step - 1, dead[0].step}:
        found = perform(request_of(config, *dead, trouble=Trouble(shown - 1, "loss", shown)))["gradient"]
        assert found["agrees"] is not False, found
        assert found["differs"] in (None, "precision"), found


def test_dropout_drops_the_same_units_in_every_evaluation(tmp_path: Path) -> None:
    right = gradient_of(tmp_path, SGD | {"model.dropout": 0.5}, Trouble(4, "loss", 5), step=8)
    assert (right["step"], right["agrees"], right["differs"]) == (5, True, None)
    assert right["recorded"] == pytest.approx(right["norm"], rel=1e-3)


def test_a_backward_pass_that_is_wrong_only_in_training_mode_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LRU.forward

    def wrong(self: LRU, x: Tensor) -> Tensor:
        y = forward(self, x)
        return Inflated.apply(y, 1e3) if self.training else y  # type: ignore[no-any-return, no-untyped-call]

    monkeypatch.setattr(LRU, "forward", wrong)
    found = gradient_of(tmp_path, SGD | LRU_LAYER | {"optimizer.lr": 1e-5}, Trouble(2, "loss", 3), step=6)
    assert (found["agrees"], found["differs"]) == (False, "training_mode")
    assert found["norm"] > 100 * found["slope"]


def test_a_gradient_that_is_wrong_only_in_the_fused_kernels_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_one_node = Network._in_one_node

    def wrong(self: Network, x: Tensor) -> Tensor | None:
        made = in_one_node(self, x)
        return made if made is None else Inflated.apply(made, 50.0)  # type: ignore[no-any-return, no-untyped-call]

    monkeypatch.setattr(Network, "_in_one_node", wrong)
    found = gradient_of(tmp_path, SGD | {"optimizer.lr": 1e-4}, Trouble(2, "loss", 3), step=6)
    assert (found["agrees"], found["differs"]) == (True, "kernels")
    assert found["recorded"] == pytest.approx(50 * found["repeated"], rel=0.02)
    assert found["repeated"] == pytest.approx(found["norm"], rel=1e-3)


def test_a_gradient_that_is_meant_to_differ_from_the_slope_is_not_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PolynomialMemory, "trained_by", "tests.core.autopsy.faulty_tasks:RoundedOutput")
    found = gradient_of(tmp_path, SGD, Trouble(2, "loss", 3), step=6)
    assert (found["converged"], found["agrees"]) == (False, None)
