"""Applies one action to many runs. The server accepts or refuses the action for each run separately and lists the refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.errors import ServiceError
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import clone_run, find_run
from server.http.api.trash import purge_now
from server.http.schemas.lists import BulkAction, BulkAnswer, BulkRequest
from server.keep.trash import move_to_trash, take_out
from server.lifecycle import transitions as lifecycle
from server.lifecycle.submitters import check_own
from stablessm_core.spec.errors import ConfigError

router = APIRouter(prefix="/api/bulk", tags=["runs"])


@router.post("/{action}", response_model=BulkAnswer)
def bulk(action: BulkAction, body: BulkRequest, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Cancel, clone, hide, show, delete (move to the trash) or restore many runs. `delete` and `restore` need the scope
    `admin`."""
    chosen = list(dict.fromkeys(body.runs))
    made: dict[int, int] = {}
    if action == "clone":

        def copy(run_id: int) -> None:
            made[run_id] = clone_run(database, settings, principal, run_id)

        done, refused = _each(chosen, copy)
    else:
        act = _ACTIONS[action]
        with database.write() as session:

            def act_on_one(run_id: int) -> None:
                with session.begin_nested():  # a savepoint, so that a refused run leaves no changes
                    act(session, principal, run_id)

            done, refused = _each(sorted(chosen), act_on_one)
        if action == "delete" and settings.trash_hours == 0:
            for run_id in done:
                purge_now(database, settings, run_id)
    return {"done": done, "made": made, "refused": refused}


def _each(runs: Sequence[int], act: Callable[[int], None]) -> tuple[list[int], list[dict[str, Any]]]:
    done, refused = [], []
    for run_id in runs:
        try:
            act(run_id)
        except ServiceError as error:
            refused.append({"run": run_id, "message": error.message})
        except (lifecycle.NotAllowed, LookupError, ConfigError) as error:
            refused.append({"run": run_id, "message": str(error)})
        else:
            done.append(run_id)
    return done, refused


def _cancel(session: Session, principal: Principal, run_id: int) -> None:
    check_own(principal, find_run(session, run_id))
    lifecycle.request_cancel(session, run_id)


def _delete(session: Session, principal: Principal, run_id: int) -> None:
    find_run(session, run_id)
    move_to_trash(session, run_id, by=principal.user or principal.name)


def _restore(session: Session, principal: Principal, run_id: int) -> None:
    take_out(session, run_id, by=principal.user or principal.name)


def _hide(session: Session, principal: Principal, run_id: int, hidden: bool = True) -> None:
    run = find_run(session, run_id)
    check_own(principal, run)
    run.hidden = hidden


def _show(session: Session, principal: Principal, run_id: int) -> None:
    _hide(session, principal, run_id, False)


_ACTIONS: dict[str, Callable[[Session, Principal, int], None]] = {
    "cancel": _cancel, "delete": _delete, "restore": _restore, "hide": _hide, "show": _show,
}  # fmt: skip
