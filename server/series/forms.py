"""The forms of series and of runs. All code that needs the maps of a run uses this file.

Each series of a layer is stored with its form (telemetry/forms.py); `runs.forms` contains the distinct forms of a run. A run that
has not started has no forms yet; pages show the map in its configuration, if there is one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Run
from stablessm_core.maps import MAPS
from stablessm_core.spec.tasks import TASKS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import how_of

log = logging.getLogger("stablessm.server")

_RUN = Run.__table__.c
CONFIGURED: Any = _RUN.config["model", "reparameterization"]
CONFIGURED_NAME: Any = _RUN.config["model", "reparameterization", "name"].as_string()


def configured_form(map_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The form that a run with this `model.reparameterization` will have; None if its layers determine the form."""
    if map_ is None or map_["name"] not in MAPS or map_["time"] is None:
        return None
    return Form.of_map(map_["name"], map_["time"], a=map_["a"], b=map_["b"]).data


def readable_form(data: Mapping[str, Any] | None) -> Form | None:
    """The form for deriving series; None if there is no form, or if this version does not support it."""
    if data is None:
        return None
    try:
        return Form.from_data(data)
    except ValueError as error:
        log.warning("unknown form; the series derived from it are left out: %s", error)
        return None


def run_forms_json(run: Run) -> list[dict[str, Any]]:
    """The distinct forms of the run's layers, in the order of the layers."""
    if run.forms is not None:
        return run.forms
    form = configured_form(run.config.get("model", {}).get("reparameterization"))
    return [] if form is None else [form]


def forms_json_text(stored: str | None, configured: str | None) -> str:
    """The result of `run_forms_json` as JSON text, from the texts of `runs.forms` and CONFIGURED."""
    if stored is not None:
        return stored
    form = configured_form(None if configured is None else json.loads(configured))
    return json.dumps([] if form is None else [form])


def configured_recording(session: Session, run_id: int) -> tuple[int | None, int]:
    """(sequence length, steps between two recorded steps) of the run, with the defaults None and 1.

    This is needed for runs of older versions, whose catalogues lack these numbers, and for reported runs.
    """
    stored = session.execute(select(Run.config, Run.how).where(Run.id == run_id)).one_or_none()
    if stored is not None and stored.how is not None:
        how = how_of(stored)
        return how.length, how.every or 1
    config = stored.config if stored is not None else {}
    every = int(config.get("telemetry", {}).get("every", 1))
    section = TASKS.get(config.get("task", {}).get("name", ""))
    if section is None:
        return None, every
    try:
        return section.model_validate(config["task"]).sequence_length(), every
    except (ValueError, NotImplementedError) as error:
        log.warning("cannot determine the sequence length of run %d: %s", run_id, error)
        return None, every


def map_names(forms: Iterable[Mapping[str, Any]]) -> str:
    """The names of the maps as text: "best", or "best, exp" for several. The map "none" is left out if there is another map."""
    names = list(dict.fromkeys(str(form["map"]) for form in forms))
    return ", ".join([name for name in names if name != "none"] or names)


def other_maps(forms: Iterable[Mapping[str, Any]]) -> list[str]:
    """Maps that could replace the maps of a run's layers; empty if no layer maps weights to eigenvalues."""
    mapped = [form for form in forms if form["map"] in MAPS]
    times, own = {form["time"] for form in mapped}, {form["map"] for form in mapped}
    return [name for name, map_ in MAPS.items() if mapped and times <= map_.forms.keys() and own != {name}]


def freezable(forms: Sequence[Mapping[str, Any]]) -> bool:
    """True if some eigenvalues are trained weights, so that their learning rate can be set to 0, or if no form is known yet."""
    return not forms or any(form["map"] not in ("fixed", "gate") for form in forms)


def distinct(forms: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The distinct forms, in order."""
    found: list[dict[str, Any]] = []
    for form in forms:
        if form is not None and form not in found:
            found.append(form)
    return found
