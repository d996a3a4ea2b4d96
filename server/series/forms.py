"""Which form a series has, and which forms the layers of a run have: every question about a run's maps is answered here.

A form (stablessm_core.forms) is stored with each series of a layer, and the distinct ones of a run in `runs.forms`. Runs that
were recorded before, or by an older worker, have none stored; each of their layers has the map of the run's configuration. So
has a run that has not started. A run without either has no forms.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, select
from sqlalchemy.orm import Session

from server.database.models import Run, SeriesRow
from stablessm_core.forms import Form
from stablessm_core.tasks.registry import TASKS
from stablessm_core.telemetry.series import LAYER_GROUPS

log = logging.getLogger("stablessm.server")

_RUN, _SERIES = Run.__table__.c, SeriesRow.__table__.c
CONFIGURED: Any = _RUN.config["model", "reparameterization"]
CONFIGURED_NAME: Any = _RUN.config["model", "reparameterization", "name"].as_string()
# in a query of series joined to their run: the configured map where a layer's series has no form, else NULL
MISSING = case((and_(_SERIES.form.is_(None), _SERIES.group_name.startswith(LAYER_GROUPS)), CONFIGURED))


def configured_form(map_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The form of every layer of a run with this `model.reparameterization` in its configuration."""
    if map_ is None:
        return None
    return Form.of_map(map_["name"], map_["time"], a=map_["a"], b=map_["b"]).data


def form_data(stored: dict[str, Any] | None, missing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The form of a series as plain data, from its `form` and MISSING; None for a series of no layer."""
    return stored if stored is not None else configured_form(missing)


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
    """The maps for people: "best", or "best, exp" where the layers have several."""
    return ", ".join(dict.fromkeys(str(form["map"]) for form in forms))


def distinct(forms: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Each form once, in order."""
    found: list[dict[str, Any]] = []
    for form in forms:
        if form is not None and form not in found:
            found.append(form)
    return found
