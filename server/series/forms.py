"""Which form a series has, and which forms the layers of a run have: every question about a run's maps is answered here.

A form (stablessm_core.forms) is stored with each series of a layer, and the distinct ones of a run in `runs.forms`. A run that
has not started has none yet; it is shown with the map of its configuration, where that says one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Run
from stablessm_core.forms import Form
from stablessm_core.maps import MAPS
from stablessm_core.tasks.registry import TASKS

log = logging.getLogger("stablessm.server")

_RUN = Run.__table__.c
CONFIGURED: Any = _RUN.config["model", "reparameterization"]
CONFIGURED_NAME: Any = _RUN.config["model", "reparameterization", "name"].as_string()


def configured_form(map_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The form that a run with this `model.reparameterization` in its configuration will have; None where its layers say that."""
    if map_ is None or map_["name"] not in MAPS or map_["time"] is None:
        return None
    return Form.of_map(map_["name"], map_["time"], a=map_["a"], b=map_["b"]).data


def readable_form(data: Mapping[str, Any] | None) -> Form | None:
    """The form to derive with; None where there is none, or none that this version knows."""
    if data is None:
        return None
    try:
        return Form.from_data(data)
    except ValueError as error:
        log.warning("a form is not known here, so the series derived from it are left out: %s", error)
        return None


def forms_of_run(run: Run) -> list[dict[str, Any]]:
    """The distinct forms of the run's layers, in the order of the layers."""
    if run.forms is not None:
        return run.forms
    form = configured_form(run.config.get("model", {}).get("reparameterization"))
    return [] if form is None else [form]


def forms_json(stored: str | None, configured: str | None) -> str:
    """The same as JSON text, from the texts of `runs.forms` and CONFIGURED."""
    if stored is not None:
        return stored
    form = configured_form(None if configured is None else json.loads(configured))
    return json.dumps([] if form is None else [form])


def configured_recording(session: Session, run_id: int) -> tuple[int | None, int]:
    """Sequence length and steps between recorded ones, from the run's configuration; (None, 1) where that does not say.

    For runs whose catalogue does not have them: recorded before, or by an older worker.
    """
    config = session.scalar(select(Run.config).where(Run.id == run_id)) or {}
    every = int(config.get("telemetry", {}).get("every", 1))
    section = TASKS.get(config.get("task", {}).get("name", ""))
    if section is None:
        return None, every
    try:
        return section.model_validate(config["task"]).sequence_length(), every
    except (ValueError, NotImplementedError) as error:
        log.warning("the sequence length of run %d is not known: %s", run_id, error)
        return None, every


def map_names(forms: Iterable[Mapping[str, Any]]) -> str:
    """The maps for people: "best", or "best, exp" where the layers have several. Weights without an eigenvalue have none."""
    names = list(dict.fromkeys(str(form["map"]) for form in forms))
    return ", ".join([name for name in names if name != "none"] or names)


def other_maps(forms: Iterable[Mapping[str, Any]]) -> list[str]:
    """Maps that the layers of a run could have instead of theirs; none where no map leads from a weight to an eigenvalue."""
    mapped = [form for form in forms if form["map"] in MAPS]
    times, own = {form["time"] for form in mapped}, {form["map"] for form in mapped}
    return [name for name, map_ in MAPS.items() if mapped and times <= map_.forms.keys() and own != {name}]


def freezable(forms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an eigenvalue has a weight of its own, whose learning rate can be 0; assumed while no form is known."""
    return not forms or any(form["map"] not in ("fixed", "gate") for form in forms)


def distinct(forms: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Each form once, in order."""
    found: list[dict[str, Any]] = []
    for form in forms:
        if form is not None and form not in found:
            found.append(form)
    return found
