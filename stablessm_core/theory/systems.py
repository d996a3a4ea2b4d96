"""Facts about every layer before training: its map, its initial eigenvalues, and G_f/|w| at these eigenvalues.

The server does not import torch. So the initial eigenvalues come from initial_eigenvalues.json, which
docs/initial_eigenvalues.py computes from real layers. A layer that is missing from that file gets no chart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stablessm_core.maps import formulas
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.possible_maps import PossibleMap, layer_of, options_of, possible_maps, small_model
from stablessm_core.telemetry.forms import NO_MAP, Form
from stablessm_core.theory.slopes import gradient_over_weight

Array = NDArray[np.float64]
BEST = "best"


@cache
def systems() -> list[dict[str, Any]]:
    """The SystemAnswer of every layer, in the order of LAYERS."""
    return [_system(name) for name in LAYERS]


def small_run(name: str) -> dict[str, Any]:
    """A configuration that trains this layer within a minute. The button on the systems page submits this configuration."""
    config = {
        "name": f"{LAYERS[name].title}, small",
        "tags": ["systems"],
        "task": {"name": "polynomial_memory"},
        "model": small_model(name),
        "train": {"steps": 300, "batch_size": 16, "eval_every": 100},
    }
    RunConfig.model_validate(config)
    return config


@cache
def map_choices() -> dict[str, list[dict[str, Any]]]:
    """The maps that each layer can have, for the form of a new run. For each layer: [{when, native, maps: {name: {times, b}}}].

    `when` contains values of the layer's options. The first entry whose `when` matches applies. The last entry always matches.
    """
    return {name: _choices(name) for name in LAYERS}


@cache
def section_defaults() -> dict[str, dict[str, Any]]:
    """Every layer's section of the configuration, with its defaults."""
    return {name: section.model_validate({"name": name}).model_dump(mode="json") for name, section in LAYERS.items()}


def _choices(name: str) -> list[dict[str, Any]]:
    usual = _choice({"name": name})
    found = []
    for option, value in options_of(LAYERS[name]):
        *outer, last = option.split(".")
        section: dict[str, Any] = {"name": name}
        inside = section
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
        try:
            one = _choice(section)
        except ValidationError:  # this value of the option is valid only with other options
            continue
        found += [{"when": {option: value}, **one}] * (one != usual)
    return [*found, {"when": {}, **usual}]


def _choice(section: Mapping[str, Any]) -> dict[str, Any]:
    layer = layer_of({"layer": section})
    maps: dict[str, dict[str, Any]] = {}
    for one in possible_maps(layer):
        maps.setdefault(one.name, {"times": [], "b": one.b})["times"].append(one.time)
    return {"native": layer.native if maps else "", "maps": maps}


def width() -> int:
    """The `d_model` of the layers for which sizes and initial eigenvalues are shown."""
    return int(_initial_eigenvalues()["d_model"])


def _system(name: str) -> dict[str, Any]:
    section = layer_of({"layer": name, "d_model": width()})
    found = _initial_eigenvalues()["layers"].get(name)
    maps = possible_maps(section, width())
    form = Form.from_data(found["form"]) if found else None
    recorded = {kind: np.asarray(values, np.float64) for kind, values in found["recorded"].items()} if found else {}
    return {
        "name": name,
        "title": section.title,
        "equation": section.equation,
        "source": section.source,
        "given_by": "weight" if maps else _given_by(form, recorded),
        "native": next(({"name": one.name, "time": one.time} for one in maps if one.name == section.native), None),
        "maps": [{"name": map_.name, "time": map_.time, "b": map_.b} for map_ in maps],
        "eigenvalues": section.eigenvalues(width()),
        "parameters": section.parameters(width()),
        "start": None if form is None else _start(form, recorded),
        "gradient_over_weight": [] if form is None or form.map in NO_MAP else _ratios(form, recorded, maps),
        "run": small_run(name),
        "form_url": f"/new?layer={name}",
    }


def _given_by(form: Form | None, recorded: Mapping[str, Array]) -> str:
    """What determines eigenvalues that no map computes: "fixed", "input", or "weights" if the gate does not depend on the
    input."""
    if form is None or form.map != "gate":
        return "fixed" if form is not None and form.map == "fixed" else "input"
    return "weights" if (recorded["gate_min"] == recorded["gate_max"]).all() else "input"


def _start(form: Form, recorded: Mapping[str, Array]) -> dict[str, Any]:
    """The distance to the boundary of each shown eigenvalue, and the angle of each complex eigenvalue."""
    distance = form.derive("boundary_distance", recorded)
    phase = _phase(form, recorded)
    return {
        "distance": _rounded(distance),
        "phase": None if phase is None else _rounded(phase),
        "nearest": float(f"{distance.min():.4g}"),
        "farthest": float(f"{distance.max():.4g}"),
    }


def _phase(form: Form, recorded: Mapping[str, Array]) -> Array | None:
    """The angles of the eigenvalues; None if the eigenvalues are real. Modes that several channels share use the mean step
    size."""
    if form.complex:
        return form.derive("phase", recorded)
    if form.phase is None:
        return None
    turned = np.exp(1j * form.step_size(recorded) * recorded["phase_weight"])
    return np.asarray(np.angle(turned))


def _ratios(form: Form, recorded: Mapping[str, Array], maps: list[PossibleMap]) -> list[dict[str, Any]]:
    """G_f / |w| of the native map, and of `best` at the same eigenvalues if the layer can have the map `best`."""
    weight, map_ = recorded["weight"], formulas(form.map, form.time, np, a=form.a, b=form.b)
    with np.errstate(all="ignore"):
        native = np.where(weight == 0, map_.ratio_at_zero, map_.gradient_scale(weight) / np.abs(weight))
    found = [_spread(form.map, native)]
    best = next((one for one in maps if (one.name, one.time) == (BEST, form.time)), None)
    if best is not None and form.map != BEST:
        found.append(_spread(BEST, gradient_over_weight(BEST, form.time, map_.f(weight), b=best.b or form.b)))
    return found


def _spread(name: str, values: Array) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    low, middle, high = (float(f"{q:.4g}") for q in np.quantile(finite, [0, 0.5, 1])) if len(finite) else (None, None, None)
    return {"map": name, "min": low, "median": middle, "max": high, "finite": len(finite), "total": len(values)}


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


@cache
def _initial_eigenvalues() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("stablessm_core.theory") / "initial_eigenvalues.json").read_text())
    return found
