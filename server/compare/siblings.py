"""Siblings of a run: runs with the same task, model shape and number of steps, so that they can be compared step by step."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.compare.aggregation import final_loss
from server.database.models import NOT_IN_TRASH, Run
from server.lifecycle.forking import compare_url
from server.lifecycle.reported import REPORTED
from stablessm_core.spec.forking import summarize_changes
from stablessm_core.spec.paths import leaves, value_at

MAX_SIBLINGS = 20
MAX_READ = 500  # maximum number of candidates to read: runs of the same sweep first, then the newest runs
SAME = (  # configuration paths that must have the same value in both runs
    "task.name", "model.layer", "model.n_layers", "model.d_model", "model.d_state", "train.steps",
)  # fmt: skip
MAY_DIFFER = ("optimizer.", "model.reparameterization.", "train.seed")
IGNORED = ("name", "tags", "alerts.", "telemetry.", "train.device", "train.eval_every", "train.checkpoint_every",
                "train.execution", "train.fused", "train.scan_backend", "model.eigenvalue_range")  # fmt: skip


def siblings_json(session: Session, run: Run) -> list[dict[str, Any]]:
    """One SiblingAnswer per sibling, sorted by three criteria in this order: runs that finished with a finite loss first, runs
    of the same sweep first, runs with the fewest differences first."""
    if run.kind == REPORTED:
        return []  # nothing states that the models and data of two reported runs are the same
    conditions = [Run.config[tuple(path.split("."))].as_string() == str(value_at(run.config, path)) for path in SAME]
    alike = select(Run.id, Run.name, Run.status, Run.step, Run.sweep_id, Run.config, Run.result, Run.unstable).where(
        *conditions, Run.id != run.id, Run.forked_from.is_(None), NOT_IN_TRASH
    )
    own_sweep_first = (Run.sweep_id == run.sweep_id).desc() if run.sweep_id is not None else Run.id.desc()
    own, found = leaves(run.config), []
    for row in session.execute(alike.order_by(own_sweep_first, Run.id.desc()).limit(MAX_READ)):
        other = leaves(row.config)
        differs = {p: other.get(p) for p in own | other if own.get(p) != other.get(p) and not p.startswith(IGNORED)}
        if all(path.startswith(MAY_DIFFER) for path in differs):
            found.append((row, differs))
    found.sort(key=lambda one: (not _survived(one[0]), one[0].sweep_id != run.sweep_id, len(one[1]), -one[0].id))
    return [
        {
            "id": row.id,
            "url": f"/runs/{row.id}",
            "name": row.name,
            "status": row.status,
            "step": row.step,
            "differs": differs,
            "said": summarize_changes(differs) if differs else "nothing",
            "same_sweep": row.sweep_id is not None and row.sweep_id == run.sweep_id,
            "survived": _survived(row),
            "loss": (row.result or {}).get("train_loss"),
            "unstable": row.unstable,
            "compare_url": compare_url(run.id, row.id),
        }
        for row, differs in found[:MAX_SIBLINGS]
    ]


def _survived(row: Any) -> bool:
    losses = [final_loss(row.result), final_loss(row.result, "eval_loss")]
    return row.status == "finished" and losses[0] is not None and all(loss is None or math.isfinite(loss) for loss in losses)
