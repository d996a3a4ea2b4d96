"""Complete findings of an autopsy with every kind of number, for tests that store and read them."""

from __future__ import annotations

from typing import Any

PLACE: dict[str, Any] = {
    "step": None, "pass": "forward", "operation": "native_layer_norm", "module": "blocks.0.mlp.norm", "tensor": "output (4, 8)",
    "index": [1, 3], "count": 19, "value": "-Infinity", "dtype": "float16",
    "inputs": ["float32"], "largest_input": 6e19, "largest_before": 3.4e38, "layer": 0,
    "eigenvalue": 2,
}  # fmt: skip


def findings(**changes: Any) -> dict[str, Any]:
    """Findings as `perform` returns them, with the floats that JSON lacks."""
    inf, nan = float("inf"), float("nan")
    found: dict[str, Any] = {
        "step": 3, "from_step": 0, "bits_equal": True, "refused": None, "seconds": 0.1 + 0.2, "fatal": True, "loss": nan,
        "batch": {"largest_input": inf, "largest_target": None, "usual_input": 1.5, "usual_target": None, "nonfinite_input": 2,
                  "nonfinite_target": 0, "nonfinite": 2,
                  "classes": {"smallest": 0, "largest": 9, "ignored": 3, "count": 16, "of": 10}},
        "first_nonfinite": PLACE,
        "instruments": {"loss": nan, "agrees": True, "finite": False, "operations": 412},
        "modules": [{"module": "blocks.0.ssm", "pass": "forward", "largest": inf, "largest_float64": 1e39, "nonfinite": 7}],
        "float64": {"finite": True, "loss": 1.34, "largest": 1e39, "narrow": ["mse_loss"], "first_nonfinite": None},
        "onset": {"step": 3, "loss": nan, "loss_before": 1.0, "loss_again": nan, "output": inf, "output_before": 2.5,
                  "yardstick": None, "yardstick_before": None,
                  "batch": {"largest_input": 1.0, "largest_target": None, "usual_input": None, "usual_target": None,
                            "nonfinite_input": 0, "nonfinite_target": 0, "nonfinite": 0}},
        "gradient": {"step": 3, "norm": inf, "recorded": nan, "repeated": inf, "slope": None, "converged": False, "agrees": None,
                     "differs": "precision"},
        "form": [{"layer": 0, "agrees": False, "error": 0.5, "reason": None}],
        "hidden_state": "The loss function keeps a state.",
        "trouble": {"step": 2, "kind": "crossing", "shown": 3},
        "counterfactuals": [
            {"change": "tenth_of_rate", "settings": {"optimizer.lr": 0.01}, "from_step": 1, "lives": False, "step": 5, "until": 9,
             "reason": None, "comparable": True, "steps": [2, 3], "loss": [1.0, -inf]},
            {"change": "other_map", "settings": {}, "from_step": 1, "lives": None, "step": 1, "until": 9,
             "reason": "no layer has a map that can be chosen", "steps": [], "loss": []},
        ],
        "evidence_changed": None, "notes": ["The step cannot be computed twice."],
    }  # fmt: skip
    return found | changes
