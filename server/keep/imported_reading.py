"""Reads a stored run as the pages and the API read it, so that an import can refuse a run that they could not show."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.database.models import Run
from server.keep.archive import ArchiveError
from server.lifecycle.answers import run_row, runs_json
from server.lifecycle.forking import died_at, forks_json, trouble_of
from server.lifecycle.history import history_json
from server.lifecycle.verdicts import judge_run
from server.series.catalogue import catalogue_snapshot
from server.series.catalogue_rules import compute_every_series
from server.series.forms import freezable, map_names, other_maps, run_forms_json
from server.series.layout import Layout
from server.series.records import records_of


def read_back(session: Session, run_id: int, number: int) -> None:
    """Read what is shown of a run. Raises an ArchiveError that names the run by its `number` in the archive."""
    try:
        _read(session, run_id)
    except SQLAlchemyError:
        raise
    except Exception as error:  # whatever a reader raises would be an error of the server on a page
        raise ArchiveError(f"run {number} cannot be shown: {type(error).__name__}: {str(error)[:200]}") from error


def _read(session: Session, run_id: int) -> None:
    run, row = session.get_one(Run, run_id), run_row(session, run_id)
    runs_json(session, [row] if row is not None else [], 1.0)
    _, layers, known = catalogue_snapshot(session, run_id)
    records_of(((one.name, one.group, one.width, one.form) for one in known), layers)
    compute_every_series(Layout(session, run_id))
    history_json(session, run_id)
    died_at(session, run)
    forks_json(session, run, trouble_of(session, run))
    forms = run_forms_json(run)
    map_names(forms), other_maps(forms), freezable(forms)
    judge_run(session, run)
