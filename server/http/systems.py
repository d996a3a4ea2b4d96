"""What is known of every layer before it is trained: its map, where its eigenvalues start, and G_f over weight there.

Where eigenvalues start comes from web/initial_eigenvalues.json, which docs/initial_eigenvalues.py makes from real layers: the
server knows no torch. A layer that is not in there has no picture.
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

from stablessm_core.config import RunConfig
from stablessm_core.forms import NO_MAP, Form
from stablessm_core.layers.registry import LAYERS
from stablessm_core.maps import formulas
from stablessm_core.possible_maps import PossibleMap, layer_of, options_of, possible_maps, small_model
from stablessm_core.theory import gradient_over_weight

Array = NDArray[np.float64]
BEST = "best"


@cache
def systems() -> list[dict[str, Any]]:
    """SystemAnswer of every layer, in the order in which they are registered."""
    return [_system(name) for name in LAYERS]


def small_run(name: str) -> dict[str, Any]:
    """A configuration that trains this layer within a minute, as it is submitted by the page's button."""
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
    """For the form of a new run, the maps that each layer can have: [{when, native, maps: {name: {times, b}}}].

    The first whose `when`, values of some of the layer's options, holds is meant; the last holds always.
    """
    return {name: _choices(name) for name in LAYERS}


@cache
def section_defaults() -> dict[str, dict[str, Any]]:
    """Every layer's section of the configuration, as it is where nothing is said."""
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
        except ValidationError:  # it needs others beside it
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
    """`d_model` at which sizes are counted and eigenvalues were looked at."""
    return int(_file()["d_model"])


def _system(name: str) -> dict[str, Any]:
    section = layer_of({"layer": name, "d_model": width()})
    found = _file()["layers"].get(name)
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
    """What decides eigenvalues that no map gives: a gate that does not vary with the input is a function of the weights."""
    if form is None or form.map != "gate":
        return "fixed" if form is not None and form.map == "fixed" else "input"
    return "weights" if (recorded["gate_min"] == recorded["gate_max"]).all() else "input"


def _start(form: Form, recorded: Mapping[str, Array]) -> dict[str, Any]:
    """Distance to the boundary of each eigenvalue that is kept, and its angle where it is complex."""
    distance = form.derive("boundary_distance", recorded)
    phase = _phase(form, recorded)
    return {
        "distance": _short(distance),
        "phase": None if phase is None else _short(phase),
        "nearest": float(f"{distance.min():.4g}"),
        "farthest": float(f"{distance.max():.4g}"),
    }


def _phase(form: Form, recorded: Mapping[str, Array]) -> Array | None:
    """Angles; of modes that many channels share those with the mean step size. None for real eigenvalues."""
    if form.complex:
        return form.derive("phase", recorded)
    if form.phase is None:
        return None
    turned = np.exp(1j * form.step_size(recorded) * recorded["phase_weight"])
    return np.asarray(np.angle(turned))


def _ratios(form: Form, recorded: Mapping[str, Array], maps: list[PossibleMap]) -> list[dict[str, Any]]:
    """G_f / |w| of the native map at the weights, and of `best` at the same eigenvalues, where the layer can have it."""
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


def _short(values: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("web") / "initial_eigenvalues.json").read_text())
    return found
