"""The part of the run page that tests the cause of a divergence: buttons, forks with their outcome, surviving siblings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stablessm_core.maps import MAPS
from tests.web.test_templates import CHARTS, EVIL, LOST, PAST, SERIES, VERDICT, Tags, a_run, render

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
    offered: dict[str, Any] = OFFERED, **found_too: Any,
) -> Tags:  # fmt: skip
    found = {"run_id": 7, "died_at": died, "begins_at": 40, "forks": list(forks)} | found_too
    context = {"series": SERIES, "alerts": {"alerts": []}, "forks": found, "fork_summary": "recurrent_lr 0"} | offered
    return render("run.html", run=run, siblings={"run_id": 7, "siblings": list(siblings)}, **CHARTS, **(PAST | context))


@pytest.mark.slow
def test_the_page_of_a_diverged_run_offers_forks_that_remove_the_cause() -> None:
    tags = shown(a_run(status="diverged", divergence=LOST), forks=(FORK,), siblings=(SIBLING,))
    text = re.sub(r"\s+", " ", tags.text)
    assert "Each button starts a run from the step chosen here, with the same batches and one thing changed" in text
    offered = [json.loads(attrs["data-changes"] or "") for attrs in tags.all("data-changes")]
    assert offered == [{"optimizer.recurrent_lr": 0}, {}, {"optimizer.lr": 0.001}, {"optimizer.name": "sgd"}, {}]
    assert "The same steps in siblings that survived" in text
    assert "with seed 1, loss 0.1, ended with eigenvalues outside" in text
    assert {"/compare?runs=7,9", "/compare?runs=7,5"} <= {attrs["href"] for attrs in tags.all("href")}
    assert EVIL in text
    confirmed = next(attrs for attrs in tags.all("data-confirm") if "repeats the same numbers" in (attrs["data-confirm"] or ""))
    assert "hidden" not in confirmed


def steps_to_fork_from(tags: Tags) -> list[tuple[str | None, bool]]:
    """(step, whether it is chosen) of each step that the page offers for a fork."""
    names = [tag for tag, _ in tags.tags]
    begin = next(i for i, (_, attrs) in enumerate(tags.tags) if "data-from-step" in attrs)
    options = tags.tags[begin + 1 : begin + 1 + next(i for i, name in enumerate(names[begin + 1 :]) if name != "option")]
    return [(attrs["value"], "selected" in attrs) for _, attrs in options]


def test_a_fork_starts_from_the_chosen_step_which_is_the_newest_before_the_trouble() -> None:
    checkpoints = [
        PAST["checkpoints"][0] | {"step": step, "before_trouble": before}
        for step, before in ((50, False), (40, True), (20, True))
    ]
    run = a_run(status="diverged", divergence=LOST)
    trouble = {"trouble": {"step": 45, "kind": "crossing"}, "fork_from": 40}
    tags = shown(run, offered=OFFERED | {"checkpoints": checkpoints}, **trouble)
    assert steps_to_fork_from(tags) == [("0", False), ("20", False), ("40", True), ("50", False)]
    text = re.sub(r"\s+", " ", tags.text)
    assert "The trouble begins at step 45, where an eigenvalue leaves the stability boundary." in text
    assert "step 40, before the trouble" in text
    assert "step 50, inside the trouble" in text
    assert "inside the trouble" in text[text.index("would resume from") :], "the list of checkpoints marks them too"
    assert "inside the trouble" not in shown(run).text
    none_before = shown(run, offered=OFFERED | {"checkpoints": checkpoints}, trouble={"step": 10, "kind": "loss"}, fork_from=0)
    assert steps_to_fork_from(none_before)[0] == ("0", True)
    assert ("40", True) in steps_to_fork_from(shown(run)), "a server that knows no trouble proposes the last good checkpoint"


@pytest.mark.parametrize(
    ("cause", "text"),
    [("eigenvalue_overflow", "Freeze the recurrence"), ("explosion", "Freeze the recurrence"), ("lr_too_large", "With lr 0.001"),
     ("bad_input", None), ("unknown", None)],
)  # fmt: skip
def test_the_button_that_stands_out_is_the_test_of_the_cause(cause: str, text: str | None) -> None:
    tags = shown(a_run(status="diverged", divergence=LOST), offered=OFFERED | {"verdict": VERDICT | {"cause": cause}})
    chosen = [json.loads(attrs["data-changes"] or "") for attrs in tags.all("data-changes") if attrs.get("class") == "primary"]
    changes = {"Freeze the recurrence": [{"optimizer.recurrent_lr": 0}], "With lr 0.001": [{"optimizer.lr": 0.001}], None: []}
    assert chosen == changes[text]


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
