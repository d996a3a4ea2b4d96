"""Whether an optimizer bounds its steps follows from its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stablessm_core.telemetry.detectors import Setup
from stablessm_core.telemetry.detectors.steps import steps_of


@pytest.mark.parametrize(
    ("optimizers", "clips", "expected"),
    [
        (["AdamW"], False, "bounded"),
        (["adamw8bit", "Muon"], False, "bounded"),
        (["SGD"], False, "growing"),
        (["LBFGS"], False, "growing"),
        (["Muon", "SGD"], False, "growing"),
        (["SignSGD"], False, "bounded"),
        (["AdamW", "Odd"], False, "unknown"),
        (["Odd"], False, "unknown"),
        ([], False, "unknown"),
        (["SGD"], True, "bounded"),
        (["Odd"], True, "bounded"),
    ],
)
def test_steps_grow_with_the_gradient_if_one_optimizer_lets_them(optimizers: list[str], clips: bool, expected: str) -> None:
    assert steps_of(optimizers, clips=clips) == expected


def test_the_setup_of_a_run_tells_whether_its_steps_are_bounded() -> None:
    setup = Setup(length=10, limits=[1.0])
    assert setup.steps == "bounded"
    assert replace(setup, optimizer="sgd").steps == "growing"
    assert replace(setup, optimizer="sgd", grad_clip=1.0).steps == "bounded"
