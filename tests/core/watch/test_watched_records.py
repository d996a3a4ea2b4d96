"""The recorder sees a layer only through its records. Weights may have any shape; a record's form tells what they mean."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.forms import Form, spread
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.telemetry.stability import lambda_bar, relative_slope, relative_step
from stablessm_core.training.optimizer import parameter_groups
from stablessm_core.training.train import train
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.watchable import Record, watched_records

GATED = Form("exp", "continuous", "zoh", gate=True)
COMPLEX = Form("exp", "continuous", "zoh", dt="dt", phase="imaginary")


class Everything(nn.Module):
    """A module with every kind of record; the values of "states" are invented."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gated = nn.Parameter(torch.randn(4, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.real = nn.Parameter(torch.randn(2, 5))
        self.imaginary = nn.Parameter(torch.randn(2, 5))
        self.log_dt = nn.Parameter(torch.randn(2))
        self.projection = nn.Parameter(torch.randn(3, 7))
        self.offset = nn.Parameter(torch.randn(3))
        self.register_buffer("decays", torch.tensor([0.1, 0.2]))
        self.last_state: Tensor | None = None

    def records(self) -> list[Record]:
        return [
            Record(GATED, self.gated, gate="dt", gates=4, gradient=True),
            Record(Form("none", "discrete", "none"), self.bias, name="dt_bias"),
            Record(COMPLEX, self.real, self.log_dt, self.imaginary, name="complex"),
            Record(
                Form("gate", "discrete", "none", gate=True),
                rows=(self.projection, self.offset),
                gate="decay",
                gates=3,
                name="rows",
            ),
            Record(Form("fixed", "discrete", "none"), self.decays, name="fixed"),  # type: ignore[arg-type]
        ]

    def gates(self) -> dict[str, Tensor]:
        return {"dt": torch.arange(12.0).view(3, 4) / 10, "decay": torch.arange(9.0).view(3, 3) / 5}

    def forward(self, x: Tensor) -> Tensor:
        self.last_state = x.detach().abs()
        parts = (self.gated, self.bias, self.real, self.imaginary, self.log_dt, self.projection, self.offset)
        return sum((part.square().sum() for part in parts), x.sum() * 0)


def columns_of(probe: Probe, row: Tensor) -> dict[str, np.ndarray]:
    ends = np.cumsum([width for _, width in probe.layout])
    assert ends[-1] == len(row)
    return {name: row[int(end) - width : int(end)].numpy()[None] for (name, width), end in zip(probe.layout, ends, strict=True)}


@pytest.fixture(params=[False, True], ids=["narrow", "wide"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Everything, Probe, dict[str, np.ndarray]]:
    if request.param:
        monkeypatch.setattr(names, "WIDE", 9)
        monkeypatch.setattr(names, "EXTREMES", 4)
    model = Everything()
    probe = Probe(model)
    weights = probe.weights()
    model(torch.randn(6, 12)).backward()
    row, _ = probe.row(weights, torch.ones(()), torch.ones(1), probe.gradients(), probe.states(), probe.gates())
    return model, probe, columns_of(probe, row)


def test_a_row_holds_every_series_that_the_records_announced(read: tuple[Everything, Probe, dict[str, np.ndarray]]) -> None:
    model, probe, columns = read
    for r in probe.records:
        for series in r.catalogue:
            assert series.derived or columns[series.name].shape == (1, series.width), series.name
    if not probe.records[0].wide:
        np.testing.assert_array_equal(columns["ssm/0/weight"][0], model.gated.detach().flatten())
        # dL/dw = 2 w, so that the ratio is 2 and the gradient itself 2 |w|
        np.testing.assert_allclose(columns["ssm/0/grad_over_weight"], 2.0, rtol=1e-6)
        np.testing.assert_allclose(columns["ssm/0/gradient"][0], 2 * model.gated.detach().abs().flatten(), rtol=1e-6)
        np.testing.assert_allclose(columns["ssm/0.complex/grad_over_phase"], 2.0, rtol=1e-6)
        np.testing.assert_array_equal(columns["ssm/0.complex/phase_weight"][0], model.imaginary.detach().flatten())
        np.testing.assert_array_equal(columns["state/0"][0], model.last_state.amax(0))
        np.testing.assert_allclose(columns["ssm/0.complex/dt"][0], model.log_dt.detach().exp(), rtol=1e-6)
    np.testing.assert_array_equal(
        [columns[f"ssm/0/{kind}"][0] for kind in ("gate_min", "gate_mean", "gate_max")], model.gates()["dt"]
    )
    np.testing.assert_array_equal(columns["ssm/0.rows/gate_mean"][0], model.gates()["decay"][1])
    row_norms = torch.cat([model.projection, model.offset[:, None]], 1).detach().norm(dim=1)
    np.testing.assert_allclose(columns["ssm/0.rows/weight"][0], row_norms, rtol=1e-6)
    np.testing.assert_allclose(columns["ssm/0.rows/grad_over_weight"], 2.0, rtol=1e-6)
    np.testing.assert_array_equal(columns["ssm/0.fixed/weight"][0], model.decays)
    assert "ssm/0.fixed/grad_over_weight" not in columns


def test_the_derived_eigenvalue_uses_the_geometric_mean_of_the_gate(
    read: tuple[Everything, Probe, dict[str, np.ndarray]],
) -> None:
    model, probe, columns = read
    forms = [LayerForm(r.layer, r.path, r.form, r.width, r.wide, r.record.name) for r in probe.records]
    columns[names.TRAIN_LOSS] = np.ones((1, 1), np.float32)
    rows, derived = ColumnReader(forms, Detectors(probe.parameter_names)).read(1, columns)
    rate = model.gated.detach().double().exp()
    exact = -torch.expm1(-model.gates()["dt"].double()[:, :, None] * rate)
    if rows.layers[0].distance.at is None:
        np.testing.assert_allclose(rows.layers[0].distance.values[0], exact[1].flatten(), rtol=1e-5)
        found = dict(zip(GATED.derived, (values[0] for values in derived["ssm/0"]), strict=True))
        np.testing.assert_allclose(found["boundary_distance_closest"], exact[0].flatten(), rtol=1e-5)
        z = (
            torch.complex(-model.real.detach().double().exp(), model.imaginary.detach().double())
            * model.log_dt.detach().double().exp()[:, None]
        )
        of = dict(zip(COMPLEX.derived, (values[0] for values in derived["ssm/0.complex"]), strict=True))
        np.testing.assert_allclose(of["eigenvalue"] * np.exp(1j * of["phase"]), z.exp().flatten(), rtol=1e-5)
        np.testing.assert_allclose(of["rate"], model.real.detach().exp().flatten(), rtol=1e-6)
    else:
        smallest = np.sort(exact[1].flatten().numpy())[:4]
        np.testing.assert_allclose(np.sort(rows.layers[0].distance.values[0]), smallest, rtol=1e-5)
    assert rows.layers[1].distance.values.shape == (1, 0)
    np.testing.assert_allclose(
        rows.layers[3].distance.values[0], -np.expm1(-model.gates()["decay"][1].numpy().astype(np.float64)), rtol=1e-6
    )
    np.testing.assert_allclose(rows.layers[4].distance.values[0], -np.expm1(-np.array([0.1, 0.2])), rtol=1e-6)
    assert "ssm/0.dt_bias" not in derived


def test_watched_weights_are_in_the_recurrent_group_and_projection_rows_in_the_matrices() -> None:
    model = Everything()
    groups = {g["name"]: {id(p) for p in g["params"]} for g in parameter_groups(model, lr=0.1)}
    assert groups["recurrent"] == {id(p) for p in (model.gated, model.bias, model.real, model.imaginary, model.log_dt)}
    assert groups["matrices"] == {id(model.projection)}


@pytest.mark.parametrize(
    "record",
    [
        Record(GATED, nn.Parameter(torch.ones(4)), gate="dt", gates=3),
        Record(GATED, nn.Parameter(torch.ones(4))),
        Record(COMPLEX, nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))),
        Record(COMPLEX, nn.Parameter(torch.ones(4)), None, nn.Parameter(torch.ones(4))),
        Record(Form.of_map("exp", "continuous"), nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(3))),
        Record(Form.of_map("best", "discrete")),
    ],
)
def test_a_record_with_inconsistent_parts_is_refused(record: Record) -> None:
    class One(nn.Module):
        last_state = None

        def records(self) -> list[Record]:
            return [record]

        def gates(self) -> dict[str, Tensor]:
            return {}

    with pytest.raises((ValueError, IndexError)):
        watched_records(One())


@pytest.mark.parametrize(
    "form",
    [
        GATED,
        COMPLEX,
        Form("softplus", "continuous", "zoh", scale=8.0, gate=True),
        Form("exp", "continuous", "bilinear", dt="dt", phase="imaginary"),
        Form("exp", "discrete", "none", phase="angle"),
        Form("exp", "discrete", "none", phase="radians"),
        Form("exp", "continuous", "zoh", gate=True, phase="half_plane", bounded=False),
        Form("gate", "discrete", "none", gate=True),
        Form("fixed", "discrete", "none"),
        Form("none", "discrete", "none"),
    ],
)
def test_a_form_survives_a_round_trip_through_json(form: Form) -> None:
    assert Form.from_data(json.loads(json.dumps(form.data))) == form


def test_forms_of_earlier_versions_are_read_and_written_unchanged() -> None:
    data = {"map": "exp", "time": "continuous", "rule": "zoh", "scale": 1.0, "a": 1.0, "b": 0.5, "dt": "dt"}
    assert Form.from_data(data).data == data
    with pytest.raises(ValueError, match="form has"):
        Form.from_data(data | {"of_a_newer_version": 1})


def test_a_fast_mode_is_closer_to_the_boundary_under_the_bilinear_rule_than_under_zero_order_hold() -> None:
    # a fast mode, which the bilinear rule maps close to -1
    recorded = {"weight": np.array([math.log(0.5)]), "dt": np.array([0.1]), "phase_weight": np.array([100.0])}
    bilinear = Form("exp", "continuous", "bilinear", dt="dt", phase="imaginary")
    assert bilinear.derive("boundary_distance", recorded)[0] == pytest.approx(0.00192, rel=3e-3)
    assert COMPLEX.derive("boundary_distance", recorded)[0] == pytest.approx(0.0488, rel=1e-3)
    z = 0.1 * (-0.5 + 100j)
    np.testing.assert_allclose(lambda_bar(bilinear, recorded), (1 + z / 2) / (1 - z / 2), rtol=1e-12)


def test_the_boundary_distance_of_a_gated_layer_has_no_cancellation_error() -> None:
    recorded = {"weight": np.float32([math.log(1e-8)]), "gate_min": np.float32([0.5]), "gate_mean": np.float32([1.0])}
    recorded["gate_max"] = np.float32([2.0])
    assert GATED.derive("boundary_distance", recorded)[0] == pytest.approx(1e-8, rel=1e-4)
    assert GATED.derive("boundary_distance_closest", recorded)[0] == pytest.approx(5e-9, rel=1e-4)


@pytest.mark.parametrize(
    "form",
    [
        GATED,
        COMPLEX,
        Form("exp", "continuous", "bilinear", dt="dt", phase="imaginary"),
        Form("exp", "discrete", "none", phase="angle"),
        Form("exp", "discrete", "none", phase="radians"),
    ],
)
def test_the_relative_slope_matches_the_effect_of_a_small_weight_change(form: Form) -> None:
    random = np.random.default_rng(0)
    recorded = {kind: random.uniform(-2, 0.5, 20) for kind in form.inputs}
    recorded |= {kind: np.exp(values) for kind, values in recorded.items() if kind.startswith(("gate", "dt"))}
    step = 1e-6
    moved = recorded | {"weight": recorded["weight"] + step}
    pair = np.stack([lambda_bar(form, recorded), lambda_bar(form, moved)])
    distance = np.stack([form.derive("boundary_distance", one) for one in (recorded, moved)])
    np.testing.assert_allclose(relative_step(pair, distance)[0] / step, relative_slope(form, recorded), rtol=1e-4)


def test_a_shared_step_size_is_repeated_for_each_of_its_eigenvalues() -> None:
    whole = spread({"dt": np.array([[1.0, 2.0]]), "weight": np.zeros((1, 6))}, 6)
    assert whole["dt"].tolist() == [[1, 1, 1, 2, 2, 2]]


def test_a_model_with_several_kinds_of_layers_trains_and_is_recorded(tmp_path: Path) -> None:
    layers = ["stable_ssm", {"name": "stable_ssm", "d_state": 5, "activation": "gelu"}]
    config = parse_config(
        {
            "task": {"name": "polynomial_memory"},
            "model": {"layers": layers, "d_model": 4, "d_state": 3},
            "train": {"steps": 3, "batch_size": 2, "device": "cpu"},
        }
    )
    sink = MemorySink()
    assert train(config, sink=sink, data_root=tmp_path, checkpoint_dir=tmp_path).status == "finished"
    widths = {s.name: s.width for s in sink.catalogue.values() if s.name.endswith("/weight")}
    assert widths == {"ssm/0/weight": 3, "ssm/1/weight": 5}


def test_a_wide_record_without_eigenvalues_is_recorded_without_a_distance_to_the_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "WIDE", 9)
    monkeypatch.setattr(names, "EXTREMES", 4)
    config = parse_config(
        {
            "task": {"name": "polynomial_memory", "length": 12},
            "model": {"layers": ["mamba"], "d_model": 8},
            "train": {"steps": 3, "batch_size": 2, "device": "cpu"},
        }
    )
    sink = MemorySink()
    assert train(config, sink=sink, data_root=tmp_path, checkpoint_dir=tmp_path).status == "finished"
    kinds = ["grad_over_weight_quantiles", "weight_quantiles", "grad_over_weight_largest", "grad_over_weight_largest_index"]
    found = [s.name.removeprefix("ssm/0.dt_bias/") for s in sink.catalogue.values() if s.name.startswith("ssm/0.dt_bias/")]
    assert found == kinds
    assert len(sink.series("ssm/0.dt_bias/grad_over_weight_largest")[0]) == 3
