"""What a verdict says about a layer whose map only the names of its parameters suggest, and of which only a part is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stablessm_core import verdict
from stablessm_core.telemetry.assumptions import reservation
from stablessm_core.telemetry.how import How
from tests.core.verdict.recorded import CALM, FORM, NAN, run_of

NOTES = {
    "by parameter name, unconfirmed": "if layer 0 (ssm.A_log) has the map that the names of its parameters suggest",
    "decay factor only, at gate zero": "counting only the decay factor of layer 0 (ssm.A_log)",
    "of the diagonal part only, without the low-rank part": "counting only the diagonal part of layer 0 (ssm.A_log)",
}


def judged(note: str | None, last: float, *, dies: bool = False, layers: int = 1) -> dict[str, Any]:
    loss = [*CALM[:-1], NAN] if dies else CALM
    one = verdict.Layer(0, 2, FORM, reservation=reservation(note))
    run, source = run_of(
        loss, eigenvalue=[0.9] * (len(loss) - 1) + [last], reported=How(optimizer="adamw", length=100), paths=("ssm.A_log",),
        layers=tuple(replace(one, index=i) for i in range(layers)),
    )  # fmt: skip
    return verdict.judge(run, source)


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize(("last", "where"), [(0.99, "inside"), (1.0, "on the stability boundary"), (1.2, "outside")])
def test_a_sentence_about_the_boundary_says_what_it_takes_for_granted(note: str, last: float, where: str) -> None:
    summary = judged(note, last)["summary"]
    assert where in summary
    assert NOTES[note] in summary
    assert ("its map is assumed" in summary) == ("unconfirmed" in note)


def test_a_confirmed_layer_is_said_to_be_inside_without_a_condition() -> None:
    summary = judged("at gate zero", 0.99)["summary"]
    assert "All 2 recorded eigenvalues are inside the stability boundary; the nearest, eigenvalue 0" in summary
    assert "assumed" not in summary


def test_every_text_about_the_eigenvalue_of_an_assumed_map_says_so() -> None:
    found = judged("by parameter name, unconfirmed", 3.0, dies=True)
    texts = [*(e["text"] for e in found["evidence"]), *(e["text"] for e in found["events"]), found["summary"]]
    about = [text for text in texts if "eigenvalue 0" in text.lower()]
    assert about
    assert all("its map is assumed" in text for text in about), about
    assert found["confidence"] != "measured"
    budget = next(text for text in texts if text.startswith("Overflow budget"))
    assert "if the assumed map is right" in budget


def test_several_layers_are_counted() -> None:
    run, _ = run_of(CALM, layers=tuple(verdict.Layer(i, 2, FORM, reservation="assumed" if i else None) for i in range(3)))
    from stablessm_core.verdict.words import reserved

    assert reserved(run) == ", if 2 of the layers have the maps that their parameters suggest"
