"""The designs: the server accepts every run, maps start at the same eigenvalues, and shorter sequences are rescaled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.model import Model
from studies.paper.catalogue import TRAINED, checked_preset, design
from studies.paper.designs import SIZES
from studies.paper.groups import Group, newest_group, read_tags, tags
from studies.progress import left

KEYS = [(study, preset, size) for study, preset in TRAINED for size in SIZES]


@pytest.mark.parametrize(("study", "preset", "size"), KEYS)
def test_every_run_of_a_design_is_valid(study: str, preset: str | None, size: str) -> None:
    plan = design(study, preset, size)
    for part in plan.parts:
        for section in part.variants.values():
            for rate in part.rates:
                optimizer = {**part.base.get("optimizer", {}), "lr": rate}
                parse_config({**part.base, "model": dict(section), "optimizer": optimizer})
    assert plan.departures
    assert plan.seeds >= 12 or size == "quick"


@pytest.mark.parametrize(("study", "preset", "size"), KEYS)
def test_all_variants_of_a_part_start_at_the_same_eigenvalues_except_the_labelled_one(
    study: str, preset: str | None, size: str
) -> None:
    for part in design(study, preset, size).parts:
        starts = {}
        for label, section in part.variants.items():
            model = Model.model_validate(section)
            layer = model.sections()[0]
            starts[label] = model.eigenvalue_range or layer.initial_range(model.d_model)
        odd = {label for label, start in starts.items() if start != starts["best"]}
        assert odd <= {"direct, unstable start"}, part.name


def test_a_shorter_sequence_rescales_what_depends_on_the_length_and_says_so() -> None:
    plan = design("table2", "released")
    by_name = {part.name: part for part in plan.parts}
    assert by_name["main"].base["task"]["pool"] == 2
    short, long = (by_name[name].variants["best"]["layer"] for name in ("main", "784 pixels"))
    assert (short["dt_min"], short["dt_max"]) == pytest.approx((4 * long["dt_min"], 4 * long["dt_max"]))
    assert "multiplied by 4" in plan.departures[0]
    quick, full = design("table2", "paper", "quick"), design("table2", "paper")
    ranges = [np.array(plan.parts[0].variants["best"]["eigenvalue_range"]) for plan in (quick, full)]
    np.testing.assert_allclose(ranges[0] ** 196, ranges[1] ** 784)
    assert any("196 steps instead of 784" in one for one in quick.departures)


def test_a_fair_direct_stands_beside_the_unstable_one() -> None:
    variants = design("table2", "released").parts[0].variants
    assert variants["direct, unstable start"]["layer"]["real_start"] == 0.5
    assert "real_start" not in variants["direct"]["layer"], "the default is -0.5"


def test_the_signature_changes_with_the_runs_but_not_with_the_number_of_seeds() -> None:
    plan = design("fig3")
    assert plan.signature == plan.with_seeds(3).signature
    assert plan.signature != design("fig4").signature
    assert plan.signature != design("fig3", size="quick").signature or plan.size == "quick"


def test_unknown_names_are_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match="preset is 'mine'; allowed: paper, released"):
        checked_preset("table2", "mine")
    with pytest.raises(ValueError, match="fig3 has no presets"):
        checked_preset("fig3", "paper")
    with pytest.raises(ValueError, match="study is 'table9'"):
        design("table9")
    with pytest.raises(ValueError, match="size is 'huge'; allowed: full, quick"):
        design("fig3", size="huge")


def test_the_time_left_follows_from_the_runs_that_have_ended() -> None:
    assert left(0, 10, 60) == ""
    assert left(10, 0, 60) == ""
    assert left(10, 5, 60) == ", about 30 s left"
    assert left(10, 50, 60) == ", about 5 min left"


def test_the_tags_of_a_sweep_say_what_it_belongs_to() -> None:
    plan = design("table2", "released")
    group = Group("table2", "released", "full", plan.signature, "0123456789ab", "abc+", "feedbeef")
    assert read_tags({"tags": tags(group, plan.parts[1])}) == (group, "784 pixels")
    assert all(len(tag) <= 50 for part in plan.parts for tag in tags(group, part))
    assert read_tags({"tags": ["paper"]}) is None, "somebody's own tag"
    assert read_tags({}) is None
    sweeps = [{"id": i, "base": {"tags": tags(replace(group, size=size, group=name), plan.parts[0])}, "grid": {}}
              for i, (size, name) in enumerate([("full", "a"), ("full", "b"), ("quick", "c")])]  # fmt: skip
    newest = newest_group(sweeps, "table2", "released")
    assert newest is not None
    assert newest.group == "b", "the newest full one, although a quick one is newer"
    assert newest_group(sweeps, "table2", "paper") is None
