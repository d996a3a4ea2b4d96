"""From the forms of a layer, the run page derives its charts and the notes that a reader needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import layer_catalogue, measured_catalogue
from web import records
from web.charts import CHARTS

EXP = Form.of_map("exp", "continuous")
GATED = replace(EXP, dt=None, gate=True)


def record(form: Form, id_: str = "0", *, eigenvalues: int = 8, gates: int = 0, **more: Any) -> dict[str, Any]:
    known = layer_catalogue(id_, eigenvalues, form, gates=gates, gradient=more.pop("gradient", False))
    known += measured_catalogue("", dict.fromkeys(more.pop("measured", ()), 1))
    return {
        "id": id_, "layer": int(id_[0]), "name": "mamba", "eigenvalues": eigenvalues, "form": form.data,
        "gates": gates or None, "kinds": [s.name.rpartition("/")[2] for s in known],
    } | more  # fmt: skip


def drawn(one: dict[str, Any]) -> set[str]:
    return {name for name, chart in CHARTS.items() if chart.scope == "layer" and records.draws(name, one)}


def test_records_are_titled_by_layer_and_counted_in_the_composition() -> None:
    found = [record(GATED, gates=4), record(EXP, "0.dt_bias"), record(GATED, "1", gates=4), record(EXP, "2", name="s4d")]
    assert [records.title(one) for one in found] == ["0 · mamba", "0 · mamba: dt_bias", "1 · mamba", "2 · s4d"]
    assert records.composition(found) == "2 × mamba of 8 eigenvalues, s4d of 8"
    assert records.composition([record(EXP, eigenvalues=1)]) == "mamba of 1 eigenvalue"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (record(Form("fixed", "discrete", "none")), "fixed"),
        (record(Form("gate", "discrete", "none", gate=True), gates=8), "norm of the row"),
        (record(GATED, gates=4), "8 eigenvalues share 4 gates"),
        (record(GATED, gates=4), "geometric mean"),
        (record(replace(GATED, phase="half_plane", bounded=False), gates=1), "not a stability boundary"),
        (record(replace(GATED, phase="half_plane"), gates=1), "at the mean step size"),
        (record(replace(EXP, phase="imaginary")), "the eigenvalue above the real axis"),
        (record(replace(EXP, phase="imaginary", rule="bilinear")), "towards −1"),
        (record(GATED, gates=8, gradient=True), "infinite: weight is 0"),
        (record(EXP, measured=["true_eigenvalue"]), "whole transition"),
        (record(Form("gate", "discrete", "none", gate=True), gates=1, measured=["certified_gain"]), "spectral radius"),
        (record(Form("none", "discrete", "none"), "0.dt_bias"), "no eigenvalues themselves"),
    ],
)  # fmt: skip
def test_the_notes_of_a_record_follow_from_its_form(one: dict[str, Any], said: str) -> None:
    assert said in " ".join(records.notes(one))


def test_a_match_by_parameter_names_and_the_gradient_of_a_reported_layer_are_stated() -> None:
    matched = record(EXP, gradient=True, note="by parameter name, unconfirmed; at gate zero")
    assert "declare it with layers=" in " ".join(records.notes(matched))
    assert "values at a zero input" in " ".join(records.notes(matched))
    assert records.composition([matched]) == "mamba of 8 eigenvalues, by parameter name, unconfirmed"
    assert records.composition([record(EXP, note="at gate zero")]) == "mamba of 8 eigenvalues"
    assert records.gradient_state(matched, {"gradient": "clipped"}) == "gradient: clipped"
    for environment in (None, {}, {"gradient": ["raw"]}, {"gradient": "of a kind"}):
        assert records.gradient_state(matched, environment) == ""
    assert records.gradient_state(record(Form("fixed", "discrete", "none")), {"gradient": "raw"}) == ""


def test_a_record_that_needs_no_explanation_has_no_notes() -> None:
    assert records.notes(record(Form.of_map("best", "discrete"))) == []
    assert records.notes(record(EXP) | {"form": None}) == []


def test_a_record_shows_only_charts_whose_series_are_recorded() -> None:
    fixed = drawn(record(Form("fixed", "discrete", "none")))
    assert {"eigenvalue", "boundary_distance"} <= fixed
    assert not {"grad_over_weight", "grad_over_weight_heatmap", "relative_step"} & fixed
    assert "eigenvalue" not in drawn(record(Form("none", "discrete", "none"), "0.dt_bias"))
    waiting = drawn(record(EXP) | {"kinds": []})
    assert "grad_over_weight" in waiting
    assert not {name for name in waiting if CHARTS[name].optional}


def test_only_records_with_a_map_report_the_map_for_slopes() -> None:
    assert records.map_of(record(GATED, gates=2)) == "exp"
    assert records.map_of(record(Form("fixed", "discrete", "none"))) == records.map_of(record(EXP) | {"form": None}) == ""
