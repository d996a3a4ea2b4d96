"""The fields of the form for a new run: their names, and the configuration that a posted form describes.

The name of a field is `<own><path>:<type>`. `own` is empty, or the task or layer that has the field, such as `digits-`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from stablessm_core.spec.axis_values import axis_values
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.paths import leaves, value_at, with_settings

JSON_FIELD = "json"
PLACE = ("queue", "priority", "gpu", "project")


def form_config(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(configuration without the settings that have their defaults, grid of the sweep) of a posted form."""
    typed = {name.rpartition(":")[0]: (name.rpartition(":")[2], text) for name, text in form.items() if ":" in name}
    typed = {name: typed[name] for name in typed if not name.startswith(("place.", "grid."))}
    task, layer = (typed.get(path, ("", ""))[1] for path in ("task.name", "model.layer.name"))
    inner = typed.get(f"{layer}-model.layer.inner.name", ("", ""))[1]
    settings: dict[str, Any] = {}
    for name, (kind, text) in typed.items():
        own, dash, path = name.rpartition("-")
        if dash and own not in (task, layer, f"{layer}-{inner}"):
            continue
        value = _value(kind, text)
        if value is not None or (path.startswith("alerts.") and kind != "list"):
            settings[path if dash else name] = value
    if layer == "stable_ssm" or settings.get("model.layers"):
        settings.pop("model.layer.name", None)
    defaults = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
    changed = {
        path: value
        for path, value in settings.items()
        if path.startswith(("task.", "model.layer.")) or value != value_at(defaults, path)
    }
    grid = {
        name.removeprefix("grid."): axis_values(text) for name, text in form.items() if name.startswith("grid.") and text.strip()
    }
    try:
        return with_settings({}, changed), {path: values for path, values in grid.items() if values}
    except ConfigError:  # the form was changed by hand
        return {}, {}


def form_place(form: Mapping[str, str]) -> dict[str, str]:
    """The queue, priority, GPU and project of a posted form, as texts."""
    given = {name.partition(":")[0]: text.strip() for name, text in form.items()}
    return {name: given.get(f"place.{name}", "") for name in PLACE}


def form_values(base: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each field of the form: the values of `base`, which may be invalid, and defaults for the others."""
    values: dict[str, Any] = copy.deepcopy(dict(defaults))
    for path, value in leaves(dict(base)).items():
        try:
            values = with_settings(values, {path: value})
        except ConfigError:
            continue  # the value of a section; the error beside the field says so
    model = base.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("layer"), str | dict):
        values["model"]["layer"] = model["layer"]
        if "reparameterization" not in model and model["layer"] != "stable_ssm":
            values["model"]["reparameterization"]["name"] = "native"
    if isinstance(base.get("task"), Mapping):
        values["task"] = {"name": "polynomial_memory"} | dict(base["task"])
    return values


def _value(kind: str, text: str) -> Any:
    """The value of a field's text. Text that is not a number stays text, and the configuration refuses it."""
    text = text.strip()
    if kind == "boolean":
        return text == "true"
    if text == "":
        return None
    if kind == "tags":
        return [tag.strip() for tag in text.split(",") if tag.strip()]
    if kind in ("list", "pair"):
        return axis_values(
            text.replace(";", ",") if kind == "list" else ",".join(text.replace(",", " ").replace(";", " ").split())
        )
    if kind in ("integer", "number"):
        values = axis_values(text)
        return values[0] if len(values) == 1 else text
    return text
