"""The trouble of a run begins at a step whose state is still good: a replay from there can go either way."""

from __future__ import annotations

from typing import Any

import pytest

from stablessm_core.verdict.beginning import trouble_start
from tests.core.verdict.recorded import CALM, NAN, run_of


def start(*given: Any, **named: Any) -> tuple[int, str, int, bool] | None:
    found = trouble_start(*run_of(*given, **named))
    return None if found is None else (found.step, found.kind, found.shown, found.exact)


def test_the_update_before_the_crossing_is_the_trouble() -> None:
    assert start([*CALM, NAN], eigenvalue=[0.9, 0.9, 0.95, 1.2, 2.0, 2.4, 2.5]) == (3, "crossing", 4, True)


def test_a_crossing_that_came_back_is_not_the_trouble() -> None:
    assert start([*CALM, NAN], eigenvalue=[0.9, 1.01, 0.95, 0.99, 0.99, 2.4, 2.5]) == (5, "crossing", 6, True)


def test_the_loss_that_never_came_back_is_the_trouble() -> None:
    assert start([*CALM, 3.0, 8.0, 1e3, 1e9, NAN]) == (6, "loss", 7, True)


def test_a_loss_that_came_back_is_not_the_trouble() -> None:
    assert start([1.0, 0.9, 1e3, 0.8, *CALM, NAN]) == (11, "fatal", 11, True)


def test_losses_below_zero_are_compared_by_their_spread() -> None:
    assert start([-3.5, -3.9, -3.7, -3.8, -3.9, 5.0, 400.0, NAN]) == (5, "loss", 6, True)
    assert start([-3.5, -3.9, -3.7, -3.8, -3.9, -3.1, -2.9, NAN]) == (8, "fatal", 8, True)


def test_a_gradient_norm_far_above_its_level_comes_before_the_loss() -> None:
    assert start([*CALM, 0.5, 50.0, NAN], grad_norm=[1, 1, 1, 1, 1, 1, 1e6, 1e9, NAN]) == (6, "gradient", 7, True)


def test_the_batch_of_a_step_is_part_of_this_step() -> None:
    loss = [*CALM, 1e8, 1e9, NAN]
    assert start(loss, largest=[1, 1.1, 0.9, 1, 1, 1, 1e4, 1, 1]) == (7, "batch", 7, True)
    assert start(loss, largest=[1, 1.1, 0.9, 1, 1, 1, 1, 1, 1]) == (6, "loss", 7, True)


def test_with_gaps_in_the_record_the_trouble_begins_at_the_recorded_row_before() -> None:
    assert start([*CALM, 1e6, NAN], every=10) == (51, "loss", 61, False)
    assert start([*CALM, NAN], every=10) == (51, "fatal", 61, False)


def test_a_finished_run_has_trouble_only_if_its_loss_rose_for_good() -> None:
    assert start(CALM) is None
    assert start([*CALM, 20.0, 1e12, 7e31]) == (6, "loss", 7, True)


def test_a_bad_batch_after_a_gap_may_not_have_been_the_first() -> None:
    loss = [*CALM, 1e8, 1e9, NAN]
    assert start(loss, every=5, largest=[1, 1.1, 0.9, 1, 1, 1, 1e4, 1, 1]) == (27, "batch", 31, False)


def test_growing_batches_are_a_trouble_from_the_first_one_that_grew() -> None:
    loss = [*CALM, 3.0, 12.0, 50.0, 200.0, 900.0, NAN]
    assert start(loss, largest=[1, 1.1, 0.9, 1, 1.1, 1, 2, 4, 8, 16, 32, 64], name="sgd") == (6, "batch", 6, True)


@pytest.mark.slow
def test_a_frozen_recurrence_can_go_either_way_from_before_the_trouble() -> None:
    from tests.core.verdict.planted import configured, trained

    run, source = trained(configured(optimizer__lr=0.1, train__steps=20, model__activation="gelu"))
    found = trouble_start(run, source)
    assert run.fatal is not None
    assert found is not None
    assert found.kind == "crossing"
    distance = source.layers[0].distance
    assert (distance[found.step - 1] >= 0).all(), "the state before the update of this step has no eigenvalue outside"
    assert (distance[found.shown - 1] < 0).any()
