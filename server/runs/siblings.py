"""Siblings of a run: those with its task, model shape and number of steps, so that their steps stand beside its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run
from server.runs.forking import compare_url
from stablessm_core.forking import leaves, said

MAX_SIBLINGS = 20
LOOKED_AT = 500  # of the runs alike, the newest, the sweep's own first
SAME = (  # what must agree, by path
    ("task", "name"), ("model", "layer"), ("model", "n_layers"), ("model", "d_model"), ("model", "d_state"), ("train", "steps"),
)  # fmt: skip
MAY_DIFFER = ("optimizer.", "model.reparameterization.", "train.seed")
OF_NO_MATTER = ("name", "tags", "alerts.", "telemetry.", "train.device", "train.eval_every", "train.checkpoint_every",
                "train.execution", "train.fused", "train.scan_backend", "model.eigenvalue_range")  # fmt: skip


def siblings_of(session: Session, run: Run) -> list[dict[str, Any]]:
    """SiblingAnswer of each, those that survived first, of these the ones that differ in the least."""
    conditions = [Run.config[path].as_string() == str(_at(run.config, path)) for path in SAME]
    alike = select(Run.id, Run.name, Run.status, Run.step, Run.sweep_id, Run.config, Run.result, Run.unstable).where(
        *conditions, Run.id != run.id, Run.forked_from.is_(None), NOT_IN_TRASH
    )
    own_sweep_first = (Run.sweep_id == run.sweep_id).desc() if run.sweep_id is not None else Run.id.desc()
    own, found = leaves(run.config), []
    for row in session.execute(alike.order_by(own_sweep_first, Run.id.desc()).limit(LOOKED_AT)):
        other = leaves(row.config)
        differs = {p: other.get(p) for p in own | other if own.get(p) != other.get(p) and not p.startswith(OF_NO_MATTER)}
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
            "said": said(differs) if differs else "nothing",
            "same_sweep": row.sweep_id is not None and row.sweep_id == run.sweep_id,
            "survived": _survived(row),
            "loss": (row.result or {}).get("train_loss"),
            "unstable": row.unstable,
            "compare_url": compare_url(run.id, row.id),
        }
        for row, differs in found[:MAX_SIBLINGS]
    ]


def _survived(row: Any) -> bool:
    loss = (row.result or {}).get("train_loss")
    return row.status == "finished" and isinstance(loss, int | float) and math.isfinite(loss)


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        config = config.get(name, {}) if isinstance(config, Mapping) else {}
    return config
