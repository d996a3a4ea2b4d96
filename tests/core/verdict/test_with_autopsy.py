"""A real run, its real autopsy, and the verdict that rests on both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import Trouble
from stablessm_core.verdict import judge, trouble_start
from tests.core.autopsy.runs import request_of
from tests.core.autopsy.runs import trained as trained_with_sink
from tests.core.verdict.planted import configured, trained

pytestmark = pytest.mark.slow


def test_an_explosion_is_measured_by_its_autopsy(tmp_path: Path) -> None:
    config = configured(
        optimizer__name="sgd", optimizer__lr=0.25, optimizer__weight_decay=0.0, train__steps=8, train__eval_every=0,
        train__checkpoint_every=0, model__reparameterization__name="best",
    )  # fmt: skip
    run, source = trained(config)
    start = trouble_start(run, source)
    assert start is not None
    request = request_of(config, *trained_with_sink(config, tmp_path), trouble=Trouble(start.step, start.kind), seconds=60)
    findings = perform(request)
    assert findings["refused"] is None
    found = judge(replace(run, autopsy=findings), source)
    assert (judge(run, source)["confidence"], found["confidence"]) == ("cannot_tell", "measured")
    assert found["cause"] == "explosion"
    assert f"Trained again from step {start.step - 1} with the recurrence frozen, the run dies too" in found["summary"]
    assert found["try"][0]["change"] == {"optimizer.lr": 0.025}
    assert found["try"][0]["because"].startswith("tried: from step ")
    assert any("It is where the overflow shows, and not why" in one["text"] for one in found["evidence"])
