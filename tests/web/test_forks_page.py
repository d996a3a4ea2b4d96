"""The part of the run page that tests the cause of a divergence: buttons, forks with their outcome, surviving siblings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stablessm_core.maps import MAPS
from tests.web.test_templates import CHARTS, EVIL, LOST, PAST, SERIES, Tags, a_run, render

FORK: dict[str, Any] = {
    "id": 9, "url": "/runs/9", "name": EVIL, "status": "finished", "from_step": 40, "changes": {"optimizer.recurrent_lr": 0},
    "said": EVIL, "step": 1000, "steps": 1000, "loss": 0.25, "unstable": None, "outcome": "lives", "text": EVIL,
    "compare_url": "/compare?runs=7,9",
}  # fmt: skip
SIBLING: dict[str, Any] = {
    "id": 5, "url": "/runs/5", "name": EVIL, "status": "finished", "step": 1000, "differs": {}, "said": "seed 1",
    "same_sweep": True,
    "survived": True, "loss": 0.1, "unstable": {"eigenvalues": 2}, "compare_url": "/compare?runs=7,5",
}  # fmt: skip


OFFERED: dict[str, Any] = {"fork_maps": [name for name in MAPS if name != "best"], "freezable": True}


def shown(
    run: dict[str, Any], *, died: int | None = 58, forks: tuple[Any, ...] = (), siblings: tuple[Any, ...] = (),
    offered: dict[str, Any] = OFFERED,
) -> Tags:  # fmt: skip
    found = {"run_id": 7, "died_at": died, "begins_at": 40, "forks": list(forks)}
    context = {"series": SERIES, "alerts": {"alerts": []}, "forks": found, "fork_summary": "recurrent_lr 0"} | offered
    return render("run.html", run=run, siblings={"run_id": 7, "siblings": list(siblings)}, **context, **CHARTS, **PAST)


@pytest.mark.slow
def test_the_page_of_a_diverged_run_offers_forks_that_remove_the_cause() -> None:
    tags = shown(a_run(status="diverged", divergence=LOST), forks=(FORK,), siblings=(SIBLING,))
    text = re.sub(r"\s+", " ", tags.text)
    assert "starts a run from step 40, the last good checkpoint, with the same batches and one thing changed" in text
    offered = [json.loads(attrs["data-changes"] or "") for attrs in tags.all("data-changes")]
    assert offered == [{"optimizer.recurrent_lr": 0}, {}, {"optimizer.lr": 0.001}, {"optimizer.name": "sgd"}, {}]
    assert "The same steps in siblings that survived" in text
    assert "with seed 1, loss 0.1, ended with eigenvalues outside" in text
    assert {"/compare?runs=7,9", "/compare?runs=7,5"} <= {attrs["href"] for attrs in tags.all("href")}
    assert EVIL in text
    confirmed = next(attrs for attrs in tags.all("data-confirm") if "repeats the same numbers" in (attrs["data-confirm"] or ""))
    assert "hidden" not in confirmed


def test_forks_offer_no_map_change_or_freezing_for_layers_that_support_neither() -> None:
    tags = shown(a_run(status="diverged", divergence=LOST), offered={"fork_maps": [], "freezable": False})
    offered = [json.loads(attrs["data-changes"] or "") for attrs in tags.all("data-changes")]
    assert offered == [{"optimizer.lr": 0.001}, {"optimizer.name": "sgd"}, {}]
    assert not list(tags.all("data-map-choice"))
    assert "These layers have no map from a weight to an eigenvalue" in re.sub(r"\s+", " ", tags.text)


@pytest.mark.slow
def test_a_healthy_run_is_offered_no_forks_and_a_fork_shows_its_origin() -> None:
    assert "Test the cause" not in shown(a_run(status="finished"), died=None).text
    fork = shown(a_run(status="running", forked_from=3, forked_at_step=400), died=None)
    assert "forked from run 3 at step 400 with recurrent_lr 0" in re.sub(r"\s+", " ", fork.text)
    assert "/compare?runs=3,7" in {attrs["href"] for attrs in fork.all("href")}
