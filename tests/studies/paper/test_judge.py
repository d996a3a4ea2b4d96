"""Planted reproductions get the verdicts that their outcomes allow, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.paper.judge import FAILS, HOLDS, UNKNOWN
from studies.paper.outcomes import Collected, collect
from studies.paper.registry import load
from studies.paper.report import CHANGED, trained_report
from tests.studies.paper.planted import Fate, all_finite, collected, planted

REGISTRY = load()


def verdicts(found: Collected) -> dict[str, tuple[str, str]]:
    return {one["claim"]: (one["verdict"], one["why"]) for one in trained_report(found, REGISTRY)["verdicts"]}


def direct_dies(variant: str, rate: float, _seed: int) -> str:
    return "died" if variant == "direct" and rate >= 5e-3 else "finite"


def test_twelve_of_twelve_holds_and_three_of_three_cannot_tell() -> None:
    assert verdicts(collected(direct_dies))["table2-paper-direct"][0] == HOLDS
    verdict, why = verdicts(collected(direct_dies, seeds=3))["table2-paper-direct"]
    assert (verdict, why) == (UNKNOWN, "3 seeds; 12 were registered.")


@pytest.mark.parametrize(
    "fate", [all_finite, lambda _variant, rate, _seed: "died" if rate == 5.0 else "finite"], ids=["all live", "all die at 5"]
)
def test_equal_maps_never_hold(fate: Fate) -> None:
    found = verdicts(collected(fate))
    assert HOLDS not in {verdict for verdict, _ in found.values()}
    assert found["table2-paper-best-exp"][0] == FAILS, "12 differences of 0 are below the margin"


def test_a_map_that_is_worse_than_claimed_does_not_hold() -> None:
    found = verdicts(collected(lambda variant, rate, _seed: "died" if variant == "best" and rate == 5.0 else "finite"))
    assert found["table2-paper-best-exp"][0] == FAILS


def test_a_few_seeds_cannot_tell() -> None:
    found = verdicts(collected(lambda variant, rate, seed: "died" if variant == "exp" and rate == 5 and seed < 5 else "finite"))
    assert found["table2-paper-best-exp"][0] == UNKNOWN


@pytest.mark.parametrize("fate", ["arithmetic", "unchecked"])
def test_deaths_that_float64_does_not_confirm_decide_nothing(fate: str) -> None:
    found = verdicts(collected(lambda variant, rate, _: fate if variant == "direct" and rate >= 5e-3 else "finite"))
    verdict, why = found["table2-paper-direct"]
    assert verdict == UNKNOWN
    assert why.startswith("The answer depends on 48 deaths that float64 does not confirm: holds if they count as deaths")


def test_a_half_deleted_sweep_is_named_and_nothing_is_judged() -> None:
    source, plan, group = planted(direct_dies)
    source.rows[1] = source.rows[1][: len(source.rows[1]) // 2]
    found = verdicts(collect(source, plan, group))
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}
    assert "252 of 504 runs of the part “main” do not exist any more." in found["table2-paper-direct"][1]


def test_runs_of_another_version_are_named_and_nothing_is_judged() -> None:
    source, plan, group = planted(direct_dies)
    source.rows[1][7]["environment"] = {"versions": {"stablessm": "0.9", "torch": "2.0"}}
    verdict, why = verdicts(collect(source, plan, group))["table2-paper-direct"]
    assert verdict == UNKNOWN
    assert "Runs of several versions are mixed: stablessm 0.9, torch 2.0; stablessm 1.0, torch 2.0." in why


def test_runs_that_have_not_ended_or_failed_are_named() -> None:
    found = verdicts(collected(lambda variant, rate, seed: {0: "open", 1: "failed"}.get(seed, "finite")))
    assert "42 of 504 runs of the part “main” have not ended." in found["table2-paper-direct"][1]
    assert "42 of 504 runs of the part “main” failed or were cancelled." in found["table2-paper-direct"][1]


def test_claims_that_changed_after_the_runs_are_not_judged() -> None:
    source, plan, group = planted(direct_dies)
    report = trained_report(collect(source, plan, replace(group, claims="0" * 12)), REGISTRY)
    assert report["claims_changed"]
    assert {one["verdict"] for one in report["verdicts"]} == {UNKNOWN}
    assert CHANGED in report["problems"]


def test_a_changed_design_is_named() -> None:
    source, plan, group = planted(direct_dies)
    found = collect(source, plan, replace(group, design="0" * 12))
    assert "The design of this study has changed since its runs were submitted." in found.problems


def test_missing_sweeps_are_named() -> None:
    source, plan, group = planted(all_finite, preset="released")
    source.listed = source.listed[:1]
    found = collect(source, plan, group)
    assert [one for one in found.problems if "does not exist" in one] == [
        "The sweep of the part “784 pixels” does not exist.",
        "The sweep of the part “4 layers” does not exist.",
    ]
