"""The registered family: every claim is complete, and every test can be made with the runs of its study."""

from __future__ import annotations

import json
from typing import Any

import pytest

from studies.paper.catalogue import COMPUTED, TRAINED, design
from studies.paper.computed import CHECKS
from studies.paper.judge import UNTESTABLE, without_test
from studies.paper.measures import UNITS
from studies.paper.registry import Claim, folder, load, parse

REGISTRY = load()
PAIRED = [claim for claim in REGISTRY.claims if claim.test and claim.test["kind"] == "paired"]


def test_twelve_agreeing_seeds_are_enough_for_the_size_of_the_family() -> None:
    assert REGISTRY.family_size * 2**-11 < REGISTRY.alpha
    assert all(claim.test and claim.test["min_seeds"] >= 12 for claim in PAIRED)


@pytest.mark.parametrize("claim", PAIRED, ids=lambda claim: claim.id)
def test_every_paired_test_names_variants_and_rates_that_its_study_trains(claim: Claim) -> None:
    test = claim.test or {}
    assert test["measure"] in UNITS
    assert test["margin"] > 0
    if claim.study in COMPUTED:
        return
    plan = design(str(claim.study), claim.preset)
    part = next(part for part in plan.parts if part.name == test["part"])
    if test["measure"] == "first_ratio":
        part = next(part for part in plan.parts if part.name == "start")
    assert {*test["better"], *test["than"]} <= set(part.variants)
    assert test.get("rate", part.rates[0]) in part.rates
    assert not part.exploratory


def test_every_exact_test_has_a_computation_and_every_study_a_claim() -> None:
    checks = {claim.test["check"] for claim in REGISTRY.claims if claim.test and claim.test["kind"] == "exact"}
    assert checks == set(CHECKS)
    assert {claim.study for claim in REGISTRY.claims if claim.study} == {*COMPUTED, *(study for study, _ in TRAINED)}


def test_tables_4_and_6_cannot_be_tested_here_and_say_why() -> None:
    for name in ("table4-lra", "table6-3b"):
        claim = next(claim for claim in REGISTRY.claims if claim.id == name)
        found = without_test(claim)
        assert found is not None
        assert (found.verdict, found.why) == (UNTESTABLE, claim.untestable)
        assert len(found.why) > 60


def test_what_is_not_the_papers_data_is_labelled_and_has_no_registered_test() -> None:
    labelled = {claim.id: claim.label for claim in REGISTRY.claims if claim.label}
    assert "not CIFAR-10" in labelled["table3-rates"]
    assert "not at 131,072" in labelled["table7-131k"]
    assert not any(claim.family for claim in REGISTRY.claims if claim.label)


def test_a_damaged_registry_is_refused_by_claim_and_field() -> None:
    text = (folder() / "claims.json").read_text()

    def changed(**fields: Any) -> bytes:
        data = json.loads(text)
        data["claims"][0] |= fields
        return json.dumps(data).encode()

    assert parse(text.encode()).sha256 == REGISTRY.sha256
    assert parse(changed(sentence="another")).sha256 != REGISTRY.sha256
    for wrong, why in (
        (b"[]", "expected {alpha, claims"),
        (changed(odd=1), "expected"),
        (changed(id="table4-lra"), "twice"),
        (changed(test={"kind": "vote"}), "allowed: paired, exact"),
        (changed(family=True), "only a paired test has a p-value"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            parse(wrong)
        assert why in str(error.value)
