"""A report shows what was lost in every format, and the same runs give the same bytes."""

from __future__ import annotations

import json

import pytest

from studies.paper.formats import html_text, latex, markdown
from studies.paper.judge import UNKNOWN
from studies.paper.outcomes import collect
from studies.paper.registry import load
from studies.paper.report import against_registry, dumps, trained_report
from tests.studies.paper.planted import collected, planted

REGISTRY = load()


def one_death(variant: str, rate: float, seed: int) -> str:
    return "died" if (variant, rate, seed) == ("softplus", 0.05, 3) else "finite"


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    return trained_report(collected(one_death), REGISTRY)


def test_one_death_among_twelve_is_eleven_of_twelve_in_every_format(report: dict[str, object]) -> None:
    text = "11/12 finite, 11 learnt, 0.506 [0.503, 0.5085]"
    for write in (markdown, html_text, latex):
        written = write(report, REGISTRY)
        assert written.count("11/12 finite") == 1, write
        assert text in written, write
    cells = [cell for cell in report["cells"] if cell["finite"] < cell["ended"]]  # type: ignore[attr-defined]
    assert [(cell["finite"], cell["ended"], cell["died"], cell["trained"]) for cell in cells] == [(11, 12, 1, 11)]
    assert cells[0]["finite_interval"] == pytest.approx([0.6461, 0.9851], abs=1e-3)


def test_deaths_without_proof_are_shown_beside_the_count() -> None:
    fates = {3: "arithmetic", 4: "unchecked"}
    found = trained_report(collected(lambda variant, rate, seed: fates.get(seed, "finite") if rate == 5 else "finite"), REGISTRY)
    assert "10/12 finite (1 arithmetic, 1 unchecked), 10 learnt" in markdown(found, REGISTRY)


def test_the_same_runs_reported_twice_give_the_same_bytes() -> None:
    source, plan, group = planted(one_death)
    first, second = (trained_report(collect(source, plan, group), REGISTRY) for _ in range(2))
    for rows in source.rows.values():
        rows.reverse()
    third = trained_report(collect(source, plan, group), REGISTRY)
    assert dumps(first) == dumps(second) == dumps(third)
    assert html_text(first, REGISTRY) == html_text(third, REGISTRY)


def test_a_report_states_seeds_versions_machine_commit_and_hash(report: dict[str, object]) -> None:
    written = markdown(report, REGISTRY)
    for part in ("12 seeds", "a CPU, 1 thread a run", "stablessm 1.0, torch 2.0", "commit abc123", REGISTRY.sha256, "504 runs"):
        assert part in written, part
    assert json.loads(dumps(report))["configurations"][0]["grid"]["train.seed"] == list(range(12))


def test_a_committed_report_of_other_claims_judges_nothing(report: dict[str, object]) -> None:
    assert against_registry(report, REGISTRY) == report
    old = against_registry(report | {"claims_sha256": "0" * 64}, REGISTRY)
    assert old["claims_changed"]
    assert {one["verdict"] for one in old["verdicts"]} == {UNKNOWN}
