"""Comparisons: the settings that differ, ranges that equal numpy's, and groups that never hide a lost run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from server.compare import comparison as comparison
from server.compare.comparison import Comparison, settings_json
from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import layer_catalogue
from tests.server.recording import Recording, claimed, submitted
from tests.server.storing import store_catalogue, store_flush


def ended(
    database: Database, status: str, loss: float | None, *, points: tuple[int, ...] = (40,), **changes: object
) -> Recording:
    recording = Recording(database, claimed(database, **changes), layers=2, seed=int(str(changes.get("train__seed", 0))))
    for n in points:
        recording.write(n)
    with database.write() as session:
        lifecycle.finish(session, recording.claim.run_id, recording.claim.attempt, status, "", {"train_loss": loss})
    return recording


def compared(database: Database, run_ids: list[int], **options: object) -> Comparison:
    with database.read() as session:
        runs = [run for i in run_ids if (run := session.get(Run, i)) is not None]
        return comparison.compare(session, runs, **options)  # type: ignore[arg-type]


def ratios(recording: Recording) -> np.ndarray:
    return np.concatenate([recording.truth[f"ssm/{layer}/grad_over_weight"] for layer in (0, 1)], axis=1)


def test_a_comparison_lists_only_settings_that_differ(database: Database) -> None:
    first = submitted(database, optimizer__lr=0.1, name="a", tags=["x"])
    second = submitted(database, optimizer__lr=0.2, task__name="digits", name="b")
    third = submitted(database, optimizer__lr=0.1)
    found = compared(database, [first, second, third]).differences
    assert {d["field"]: d["values"] for d in found} == {
        "optimizer.lr": [0.1, 0.2, 0.1],
        "task.name": ["polynomial_memory", "digits", "polynomial_memory"],
        "task.kernel": ["paper", None, "paper"],
        "task.length": [100, None, 100],
        "task.permuted": [None, False, None],
    }


def test_ranges_and_curves_equal_those_of_the_recorded_ratios(database: Database) -> None:
    recording = ended(database, "finished", 0.5, points=(100, 60))
    run_id, truth = recording.claim.run_id, ratios(recording)
    found = compared(database, [run_id])
    finite = truth[np.isfinite(truth)]
    span = found.ranges[0]
    assert (span["run_id"], span["reparameterization"]) == (run_id, "best")
    assert (span["min"], span["max"]) == (finite.min(), finite.max())
    assert (span["finite"], span["total"]) == (len(finite), truth.size)
    assert [span["q05"], span["median"], span["q95"]] == pytest.approx(np.quantile(finite, [0.05, 0.5, 0.95]).tolist())
    curve = found.curves[run_id]["max_grad_over_weight"]
    shown = np.where(np.isfinite(truth), truth, np.nan)
    np.testing.assert_array_equal(curve.max[:, 0], np.fmax.reduce(shown, axis=1))
    np.testing.assert_array_equal(curve.nonfinite[:, 0], (~np.isfinite(truth)).sum(axis=1))
    np.testing.assert_array_equal(curve.last[:, 0], truth.max(axis=1))
    loss = found.curves[run_id]["train/loss"]
    np.testing.assert_array_equal(loss.value.view(np.uint32), recording.truth["train/loss"].view(np.uint32))


def test_the_range_of_a_long_run_has_the_exact_minimum_and_maximum(sqlite: Database) -> None:
    recording = ended(sqlite, "finished", 0.5, points=(3000, 4000))
    truth = ratios(recording)
    finite = truth[np.isfinite(truth)]
    found = compared(sqlite, [recording.claim.run_id], points=100)
    span = found.ranges[0]
    assert (span["min"], span["max"], span["finite"], span["total"]) == (finite.min(), finite.max(), len(finite), truth.size)
    assert span["median"] == pytest.approx(np.median(finite), rel=0.3)
    curve = found.curves[recording.claim.run_id]["max_grad_over_weight"]
    assert len(curve.step) <= 100
    assert curve.max.max() == finite.max()
    assert curve.count.sum() == 7000


def test_fields_missing_from_an_older_configuration_count_as_their_defaults(sqlite: Database) -> None:
    ids = [submitted(sqlite), submitted(sqlite, optimizer__lr=0.2), submitted(sqlite, train__seed=1)]
    with sqlite.write() as session:
        for run_id in ids[1:]:
            run = session.get_one(Run, run_id)
            without = {name: value for name, value in run.config["optimizer"].items() if name in ("name", "lr")}
            run.config = run.config | {"optimizer": without}
        foreign = session.get_one(Run, ids[2])
        foreign.config = foreign.config | {"task": {"name": "of another program"}}
    assert [d["field"] for d in compared(sqlite, ids[:2]).differences] == ["optimizer.lr"]
    found = {d["field"] for d in compared(sqlite, [ids[0], ids[2]]).differences}
    assert {path for path in found if not path.startswith("task.")} == {"train.seed"}


def test_groups_count_lost_runs_and_average_the_other_runs(database: Database) -> None:
    direct = {"model__reparameterization__name": "direct"}
    runs = [
        ended(database, "finished", 0.5, train__seed=1),
        ended(database, "finished", 0.7, train__seed=2),
        ended(database, "diverged", math.nan, train__seed=3),
        ended(database, "diverged", 0.1, train__seed=1, **direct),
        ended(database, "finished", math.inf, train__seed=2, **direct),
        ended(database, "cancelled", 0.01, train__seed=3, **direct),
    ]
    ids = [r.claim.run_id for r in runs]
    found = compared(database, ids)
    best, other = found.groups
    assert best["key"] == {"model.reparameterization.name": "best"}
    assert (best["runs"], best["finite"], best["total"]) == (ids[:3], 2, 3)
    spread = {"median": 0.6, "q25": 0.55, "q75": 0.65, "min": 0.5, "max": 0.7, "mean": 0.6, "std": 0.2 / 2**0.5}
    assert best["final_loss"] == pytest.approx(spread)
    assert (best["stable"], best["unknown"], best["lost"], best["rank"], best["outcome"]) == (0, 2, 1, 1, "lost")
    assert (other["finite"], other["lost"], other["total"], other["final_loss"]) == (0, 3, 3, dict.fromkeys(spread))
    assert [end["outcome"] for end in found.ends] == ["unknown", "unknown", *["lost"] * 4]
    assert found.paired is not None
    assert found.paired["against"] == "best"
    [row] = found.paired["rows"]
    assert (row["label"], row["of"], row["pairs"], row["only_reference"], row["median"]) == ("direct", 3, 0, 2, None)
    values = np.concatenate([ratios(r) for r in runs[:3]])
    finite = values[np.isfinite(values)]
    assert best["grad_over_weight"] == {"min": finite.min(), "max": finite.max(), "finite": len(finite), "total": values.size}
    pairs = compared(database, ids, group_by=["model.reparameterization.name", "train.seed"]).groups
    assert [tuple(g["key"].values()) for g in pairs] == [
        *(("best", i) for i in (1, 2, 3)), *(("direct", i) for i in (1, 2, 3)),
    ]  # fmt: skip
    assert compared(database, ids, group_by=[]).groups == []


def test_a_running_run_is_drawn_and_counted_as_open(database: Database) -> None:
    recording = Recording(database, claimed(database), weird=False)
    recording.write(30)
    found = compared(database, [recording.claim.run_id])
    assert found.curves[recording.claim.run_id]["train/loss"].value[-1, 0] == recording.truth["train/loss"][-1, 0]
    group = found.groups[0]
    assert (group["finite"], group["open"], group["total"]) == (0, 1, 1)
    assert group["final_loss"]["median"] is None


def test_runs_without_recorded_numbers_can_be_compared(database: Database) -> None:
    run_id = submitted(database)
    found = compared(database, [run_id])
    assert found.ranges[0] | {"run_id": None} == {
        "run_id": None, "reparameterization": "best", "min": None, "q05": None, "median": None, "q95": None, "max": None,
        "finite": 0, "total": 0, "at_zero": 0,
    }  # fmt: skip
    assert found.curves == {run_id: {}}
    assert compared(database, []) == Comparison([], [], 0, [], [], None, [], [], {}, [], [], [], None)


def test_ranges_name_the_maps_that_are_stored_with_the_layers(database: Database) -> None:
    run_id = submitted(database)
    with database.write() as session:
        maps = [Form.of_map("exp", "discrete").data, Form.of_map("tanh", "discrete").data, Form.of_map("exp", "continuous").data]
        session.get_one(Run, run_id).forms = maps
    assert compared(database, [run_id]).ranges[0]["reparameterization"] == "exp, tanh"
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.forms, run.config = None, {"task": {"name": "foreign"}}
    assert compared(database, [run_id], group_by=[]).ranges[0]["reparameterization"] == ""


def test_grouping_by_an_unknown_field_is_refused(sqlite: Database) -> None:
    run_id = submitted(sqlite)
    with pytest.raises(
        ValueError,
        match=r"group_by has 'optimizer\.speed'; did you mean optimizer\.schedule\?; allowed: alerts\.max_grad_over_weight, ",
    ):
        compared(sqlite, [run_id], group_by=["optimizer.speed"])


def test_paired_differences_use_the_requested_reference_group(sqlite: Database) -> None:
    maps = {"best": (0.2, 0.4, 0.3), "direct": (0.1, 0.1, math.nan)}
    for name, losses in maps.items():
        for seed, loss in enumerate(losses):
            status = "finished" if math.isfinite(loss) else "diverged"
            ended(sqlite, status, loss, points=(4,), train__seed=seed, model__reparameterization__name=name)
    found = compared(sqlite, [1, 2, 3, 4, 5, 6], against="direct").paired
    assert found is not None
    [row] = found["rows"]
    assert (found["against"], row["label"], row["pairs"], row["of"], row["higher"]) == ("direct", "best", 2, 3, 2)
    assert (row["median"], row["only_this"]) == (pytest.approx(0.2), 1)
    with pytest.raises(ValueError, match="against is 'exp'; allowed: best, direct"):
        compared(sqlite, [1, 4], against="exp")


def test_infinite_ratios_of_zero_weights_are_counted_separately(sqlite: Database) -> None:
    recording = Recording(sqlite, claimed(sqlite), weird=False)
    recording.write(30)
    values = np.ones((8, 10), np.float32)
    values[1], values[5] = np.inf, 0  # ratio and weight of eigenvalue 1
    values[2, 3] = np.nan  # a ratio of NaN with a weight that is not 0
    with sqlite.write() as session:
        block = Block("ssm/0", 0, recording.next, 1, values)
        store_flush(session, recording.claim.run_id, recording.claim.attempt, [block], step=recording.next + 9)
    span = compared(sqlite, [1]).ranges[0]
    assert (span["total"] - span["finite"], span["at_zero"]) == (11, 10)
    pooled = compared(sqlite, [1]).pooled
    assert [(p["reparameterization"], p["runs"], p["at_zero"], p["max"]) for p in pooled] == [("best", 1, 10, span["max"])]


def test_changed_settings_are_shown_with_their_defaults_and_the_parent_s_values() -> None:
    parent = parse_config({"task": {"name": "polynomial_memory"}, "optimizer": {"lr": 0.5}}).model_dump(mode="json")
    child = parse_config({"name": "mine", "task": {"name": "polynomial_memory"}, "train": {"seed": 3}}).model_dump(mode="json")
    usual = parse_config({"task": {"name": "polynomial_memory"}}).optimizer.lr
    assert settings_json(parse_config({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")) == []
    assert settings_json(parent) == [{"field": "optimizer.lr", "value": 0.5, "default": usual, "parent": None}]
    assert settings_json(child, parent) == [
        {"field": "optimizer.lr", "value": usual, "default": usual, "parent": {"value": 0.5}},
        {"field": "train.seed", "value": 3, "default": 0, "parent": {"value": 0}},
    ]


MAMBA, EXP = {"model__layer": "mamba", "model__d_model": 16}, {"name": "exp", "time": "continuous"}


def test_layers_are_compared_by_name_in_every_notation_of_the_configuration(database: Database) -> None:
    ids = [
        submitted(database),
        submitted(database, **MAMBA),
        submitted(database, model__layer={"name": "mamba", "d_state": 4}, model__d_model=16),
        submitted(database, model__layers=["lru", "mamba"], model__n_layers=2, model__d_model=16),
    ]
    found = compared(database, ids, group_by=["model.layer"])
    differing = {d["field"]: d["values"] for d in found.differences}
    assert differing["model.layer"] == ["stable_ssm", "mamba", "mamba", "lru, mamba"]
    assert differing["model.layer.d_state"] == [None, 16, 4, None]
    assert "model.layer.name" not in differing
    assert [(group["label"], group["runs"]) for group in found.groups] == [
        ("stable_ssm", ids[:1]), ("mamba", ids[1:3]), ("lru, mamba", ids[3:]),
    ]  # fmt: skip


def test_the_default_groups_are_the_layers_and_maps_of_which_there_are_several(database: Database) -> None:
    runs = [submitted(database), submitted(database, **MAMBA), submitted(database, **MAMBA, model__reparameterization=EXP)]
    with database.read() as session:
        usual = [
            comparison.default_groups([session.get_one(Run, i) for i in ids]) for ids in (runs[:1], runs[:2], runs, runs[1:])
        ]
    by_map, by_layer = "model.reparameterization.name", "model.layer"
    assert usual == [by_map, by_layer, f"{by_layer},{by_map}", by_map]
    groups = compared(database, runs, group_by=[by_layer, by_map]).groups
    assert [group["label"] for group in groups] == ["stable_ssm, best", "mamba, native", "mamba, exp"]


def test_changed_settings_are_those_that_differ_from_the_layer_s_own_defaults() -> None:
    def beside(model: dict[str, object]) -> dict[str, object]:
        config = parse_config({"task": {"name": "digits"}, "model": model}).model_dump(mode="json")
        return {row["field"]: (row["value"], row["default"]) for row in settings_json(config)}

    assert beside({"layer": "mamba"}) == {"model.layer": ("mamba", "stable_ssm")}
    changed = beside({"layer": {"name": "mamba", "d_state": 4}, "reparameterization": {"name": "exp"}})
    assert changed == {
        "model.layer": ("mamba", "stable_ssm"),
        "model.layer.d_state": (4, 16),
        "model.reparameterization.name": ("exp", "native"),
    }
    assert beside({"layers": ["lru", "s4d"]}) == {"model.layer": ("lru, s4d", "stable_ssm")}
    assert beside({}) == {}


def test_layers_with_different_options_are_paired_by_seed(database: Database) -> None:
    best = {"model__reparameterization": {"name": "best", "time": "continuous", "b": 0.03}}
    kinds: list[tuple[dict[str, object], float]] = [({"model__d_model": 16}, 0.5), ({**MAMBA, **best}, 0.2)]
    ids = [
        ended(database, "finished", loss + seed, train__seed=seed, **changes).claim.run_id
        for changes, loss in kinds
        for seed in (0, 1)
    ]
    for group_by in (["model.layer"], ["model.layer", "model.reparameterization.name"]):
        found = compared(database, ids, group_by=group_by)
        assert found.paired is not None
        [row] = found.paired["rows"]
        assert (row["pairs"], row["of"], row["higher"], row["unmatched"]) == (2, 2, 2, 0)
    rates = [ended(database, "finished", 0.1, optimizer__lr=0.3, **changes).claim.run_id for changes, _ in kinds]
    found = compared(database, [ids[0], rates[1]], group_by=["model.layer"])
    assert found.paired is not None
    assert found.paired["rows"][0]["pairs"] == 0, "runs with different learning rates must not be paired"


def test_weights_without_eigenvalues_are_not_part_of_a_range(sqlite: Database) -> None:
    recording = Recording(sqlite, claimed(sqlite), weird=False)
    bias = layer_catalogue("0.bias", 2, Form("none", "discrete", "none"))
    with sqlite.write() as session:
        store_catalogue(session, recording.claim.run_id, recording.claim.attempt, [*recording.catalogue, *bias])
    recording.write(30)
    values = np.full((len([one for one in bias if not one.derived]) * 2, 30), 1e6, np.float32)
    with sqlite.write() as session:
        block = Block("ssm/0.bias", 0, 1, 1, values)
        store_flush(session, recording.claim.run_id, recording.claim.attempt, [block], [], 30, 100.0)
    found = compared(sqlite, [recording.claim.run_id])
    assert found.ranges[0]["max"] == recording.truth["ssm/0/grad_over_weight"].max()
    assert found.ranges[0]["reparameterization"] == "best"
