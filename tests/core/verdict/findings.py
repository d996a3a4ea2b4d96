"""The findings of an autopsy, made of numbers, for sentences that rest on them."""

from __future__ import annotations

from typing import Any

NAN = float("nan")


def findings(step: int, **changes: Any) -> dict[str, Any]:
    """An autopsy of a step with an ordinary batch and ordinary numbers. The step was fatal."""
    usual: dict[str, Any] = {
        "step": step, "from_step": 0, "bits_equal": True, "refused": None, "seconds": 1.0, "fatal": True, "loss": NAN,
        "batch": {
            "largest_input": 3.2, "usual_input": 3.3, "largest_target": 3.9, "usual_target": 3.8, "nonfinite_input": 0,
            "nonfinite_target": 0, "nonfinite": 0,
        },
        "first_nonfinite": first(), "modules": modules(220.0),
        "float64": {"finite": True, "loss": 0.5, "largest": 220.0, "narrow": [], "first_nonfinite": None},
        "counterfactuals": [], "evidence_changed": None,
    }  # fmt: skip
    return usual | changes


def first(place: str = "forward", operation: str = "scan_states", module: str = "blocks.0.ssm", **changes: Any) -> dict[str, Any]:
    return {
        "pass": place, "operation": operation, "module": module, "tensor": "output", "index": [1, 98, 0], "count": 19,
        "value": "-Infinity", "largest_input": 12.0, "largest_before": 220.0, "layer": None, "eigenvalue": None,
    } | changes  # fmt: skip


def modules(largest: float) -> list[dict[str, Any]]:
    return [{"module": "blocks.0.ssm", "pass": "forward", "largest": 3e38, "largest_float64": largest, "nonfinite": 19}]


def counterfactual(change: str, lives: bool, step: int = 200, **settings: Any) -> dict[str, Any]:
    return {
        "change": change, "settings": {path.replace("__", "."): value for path, value in settings.items()}, "from_step": 2,
        "lives": lives, "step": step, "until": 200, "reason": None, "steps": [], "loss": [],
    }  # fmt: skip


def gradient(step: int, norm: float, slope: float, **changes: Any) -> dict[str, Any]:
    """A gradient whose slope has converged. They agree up to a difference of 5 %, and differ above 10 %."""
    off = abs(norm - slope) / max(norm, abs(slope))
    usual = {
        "step": step, "norm": norm, "slope": slope, "recorded": norm, "repeated": norm, "converged": True, "differs": None,
        "agrees": True if off <= 0.05 else False if off > 0.1 else None,
    }  # fmt: skip
    return usual | changes
