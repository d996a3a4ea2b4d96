"""Findings of autopsies as `GET /api/runs/{id}/autopsy` returns them, for tests of the page."""

from __future__ import annotations

import math
from typing import Any

STATES = {
    "run_id": 7, "state": "none", "reason": None, "asked_step": None, "requested_at": None, "requested_by": None,
    "started_at": None, "ended_at": None,
}  # fmt: skip
FIELDS = (
    "step", "from_step", "bits_equal", "refused", "seconds", "fatal", "batch", "first_nonfinite", "modules", "float64", "trouble",
    "counterfactuals", "evidence_changed",
)  # fmt: skip
BLOCK = ("norm", "ssm.input", "ssm", "mlp.norm", "mlp.up", "mlp.down")


def answer(state: str, **fields: Any) -> dict[str, Any]:
    """An answer in this state; fields that are not named are null."""
    return STATES | dict.fromkeys(FIELDS) | {"state": state} | fields


def curve(change: str, lives: bool | None, step: int, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A counterfactual from step 30 whose loss falls, or rises until the run dies."""
    steps = list(range(31, step + 1)) if lives is not None else []
    fall = 40 + 12 * len(change)
    loss = [0.75 * math.exp(-(s - 30) / fall) if lives or s < 36 else 0.7 * math.exp((s - 35) ** 2 / 4) for s in steps]
    if steps and not lives:
        loss[-1] = math.nan
    return {
        "change": change, "settings": settings or {}, "from_step": 30, "lives": lives, "step": step, "until": 120, "reason": None,
        "steps": steps, "loss": loss,
    } | more  # fmt: skip


def first(**fields: Any) -> dict[str, Any]:
    return {
        "pass": "forward", "operation": "scan_states", "module": "blocks.0.ssm", "tensor": "states (16, 100, 16)",
        "index": [1, 98, 2], "count": 19, "value": "-Infinity", "largest_input": 3.1e37, "largest_before": 3.1e37,
        "layer": 0, "eigenvalue": 2,
    } | fields  # fmt: skip


def modules(blocks: int = 2) -> list[dict[str, Any]]:
    """The modules of a model whose first recurrence overflows."""
    names = ["embed", *(f"blocks.{block}.{part}" for block in range(blocks) for part in BLOCK), "norm", "head", ""]
    found = []
    for i, name in enumerate(names):
        after = i >= 3
        found.append({
            "module": name, "pass": "forward" if name else "loss", "nonfinite": (19 if i == 3 else 512) if after else 0,
            "largest": 3.3e38 if i == 3 else math.nan if after else [4.2, 3.1, 0.0][i],
            "largest_float64": 1.38e39 if i == 3 else 7.5 + i if name else 0.75,
        })  # fmt: skip
    return found


DONE = answer(
    "done",
    ended_at=1e9,
    step=38,
    from_step=30,
    bits_equal=True,
    seconds=2.4,
    fatal=True,
    batch={
        "largest_input": 3.42, "largest_target": 1.9, "usual_input": 3.3, "usual_target": 1.8, "nonfinite_input": 0,
        "nonfinite_target": 0, "nonfinite": 0,
    },
    first_nonfinite=first(),
    modules=modules(),
    float64={"finite": True, "loss": 0.75, "largest": 1.38e39, "narrow": ["mse_loss"], "first_nonfinite": None},
    trouble={"step": 36, "kind": "crossing"},
    counterfactuals=[
        curve("unchanged", False, 38),
        curve("recurrence_frozen", True, 120, {"optimizer.recurrent_lr": 0}),
        curve("batch_left_out", False, 40),
        curve("tenth_of_rate", True, 120, {"optimizer.lr": 0.02}),
        curve("other_map", True, 120, {"model.reparameterization.name": "best"}),
        curve("scaled_norm", None, 30, reason="the model has no norm that squares"),
    ],
)  # fmt: skip
REFUSED = answer("done", ended_at=1e9, step=38, from_step=30, bits_equal=False, seconds=1.5,
                 refused="The repeated loss of step 33 is 0.7512, but the recorded loss is 0.7511")  # fmt: skip
