"""A verdict on records of which parts are missing or damaged says what it can, and never fails."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stablessm_core.telemetry.how import How
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.verdict import CAUSES, SENTENCES, judge
from stablessm_core.verdict.memory_source import MemorySource
from tests.core.verdict.recorded import run_of
from tests.core.verdict.test_autopsied import counterfactual, findings, first, modules

INF, NAN = float("inf"), float("nan")
ODD = (NAN, INF, -INF, 0.0, -1.0, 1e-30, 1e30, 3e38)


def damaged(draw: random.Random) -> tuple[Any, MemorySource]:
    """A run of 2 to 40 steps whose numbers are drawn, with holes, odd values, and without some columns."""
    count = draw.randint(2, 40)
    loss = [draw.choice((1.0, 0.5, 2.0, *ODD)) if draw.random() < 0.3 else 1 / (i + 1) for i in range(count)]
    if draw.random() < 0.6:
        loss[-1] = draw.choice((NAN, INF))
    run, source = run_of(
        loss, every=draw.choice((1, 1, 5)), name=draw.choice(("adamw", "sgd")),
        eigenvalue=[draw.choice((0.9, 1.1, 2.4, *ODD)) for _ in range(count)],
        grad_norm=[draw.choice((1.0, 1e6, *ODD)) for _ in range(count)],
        largest=draw.choice((None, [draw.choice((1.0, 1.1, 1e4, *ODD)) for _ in range(count)])),
    )  # fmt: skip
    rows, layer = source.rows, source.layers[0]
    kept = np.array(sorted(draw.sample(range(count), draw.randint(0 if draw.random() < 0.2 else 1, count))), int)
    optional = (
        {"batch": None} if draw.random() < 0.5 else {"weight_norm": np.array([draw.choice((1.0, *ODD)) for _ in range(count)])}
    )
    rows = replace(rows, **optional)
    if draw.random() < 0.5:  # some rows of the scalars are lost
        rows = shortened(rows, kept)
    if draw.random() < 0.3:  # the layer's last rows are lost
        layer = shortened(layer, slice(0, draw.randint(0, count)))
    autopsy = None
    if run.divergence is not None and draw.random() < 0.5:
        autopsy = findings(
            run.divergence["step"], modules=draw.choice((None, [], modules(1e39))),
            float64=draw.choice((None, findings(1)["float64"])),
            first_nonfinite=draw.choice((None, first("loss"), first("backward", layer=0), first(largest_input=None))),
            counterfactuals=draw.choice((None, [counterfactual("recurrence_frozen", True)])), batch=draw.choice((None, {})),
        )  # fmt: skip
    reported = How(optimizer="adamw", every=1) if draw.random() < 0.2 else None
    run = replace(run, autopsy=autopsy, reported=reported, environment=draw.choice((None, {}, {"data": {"constant_loss": 1.0}})))
    return run, MemorySource(rows, {0: layer})


def shortened(table: Any, kept: Any) -> Any:
    """The table with only these rows."""

    def part(values: Any) -> Any:
        if isinstance(values, dict):
            return {kind: column[kept] for kind, column in values.items()}
        return None if values is None else values[kept]

    return replace(table, **{name: part(getattr(table, name)) for name in table.__dataclass_fields__})


@pytest.mark.parametrize("seed", range(300))
def test_damaged_records_still_get_a_verdict(seed: int) -> None:
    run, source = damaged(random.Random(seed))
    with np.errstate(all="ignore"):
        found = judge(run, source)
    assert found["cause"] in (None, *CAUSES)
    assert found["summary"]
    assert (found["cause"] is None) == (found["confidence"] is None)
    said = [one["sentence"] for one in found["sentences"] + found["evidence"]]
    assert set(said) <= set(SENTENCES)
    json_safe(found)
