"""Whether the layers still compute their recorded form, with the weights of the fatal step.

A model's forms are checked when it is built, with its initial weights. A layer may depart from its form later, for example if it
treats large weights differently. Then its recorded eigenvalues say nothing about the run.
"""

from __future__ import annotations

from typing import Any

from stablessm_core.autopsy.bench import Bench
from stablessm_core.autopsy.repeat import unfused_model
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.form_probe import form_error
from stablessm_core.model import probed_layers
from stablessm_core.training.checkpoint import Checkpoint

AGREES, DIFFERS = 1e-3, 1e-2  # relative error of an eigenvalue: up to AGREES the form holds, above DIFFERS it does not


def measure_forms(bench: Bench, before: Checkpoint) -> list[dict[str, Any]]:
    """[{layer, agrees, error, reason}], one entry per layer. agrees: None if the layer cannot be probed; `reason` says why."""
    model = unfused_model(bench)
    model.load_state_dict({path: t.cpu() for path, t in before.under("model").items()})
    return [{"layer": i} | _measure(layer, width) for i, (layer, width) in enumerate(probed_layers(model, bench.config.model))]


def _measure(layer: WatchedLayer, width: int) -> dict[str, Any]:
    if not all(bool(p.isfinite().all()) for p in layer.parameters()):
        return {"agrees": None, "error": None, "reason": "its weights are not finite"}
    try:
        found = form_error(layer, width)
    except (RuntimeError, ValueError, TypeError) as failure:
        found = f"it cannot be probed: {type(failure).__name__}: {failure}"
    if isinstance(found, str):
        return {"agrees": None, "error": None, "reason": found}
    error, rounding = found
    if error <= AGREES or error - rounding > DIFFERS:
        return {"agrees": error <= AGREES, "error": error, "reason": None}
    reason = "rounding alone may make such an error" if error - rounding <= AGREES else None
    return {"agrees": None, "error": error, "reason": reason}
