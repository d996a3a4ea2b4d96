"""Texts about overflow budgets and eigenvalues outside the stability boundary, for the alerts that contain these numbers."""

from __future__ import annotations

from stablessm_core.telemetry.boundary import is_capped, largest_overflow_distance
from stablessm_core.telemetry.detectors.rows import LayerRows
from stablessm_core.telemetry.stability import overflow_budget


def size_of_eigenvalue(distance: float) -> str:
    """|lambda_bar| with so many digits that it differs from 1. A cap is no value, but a lower bound."""
    if is_capped(distance):
        return f"more than {-distance:.1e}"
    return f"1 + {-distance:.3g}" if -1e-3 < distance < 0 else f"{1 - distance:.4g}"


def budget_text(length: int, distance: float) -> str:
    """The overflow budget of an eigenvalue with this distance."""
    return f"{'more than ' * is_capped(distance)}{float(overflow_budget(length, distance)):.3g}"


def at_which_gate(layer: LayerRows) -> str:
    """The step size or gate from which the layer's budget follows, if the layer has several."""
    if layer.form is None or not layer.form.gate or layer.form.map == "gate":
        return ""
    return " at the largest step size" if layer.form.channels else " at the mean gate"


def bound_text(layer: LayerRows, row: int, column: int, length: int) -> str:
    """The budget as if every gate were the one of the step that grows most; empty if the gates do not vary over time.

    The budget of the batch's worst sequence lies between the two. This bound alone raises no alert: in 180 runs of five layers
    with the map `direct`, it would have announced none of the 22 deaths that `overflow_near` missed, and 2 in runs that lived.
    """
    if layer.form is None or layer.recorded is None or not layer.form.gate or layer.form.channels:
        return ""
    distance = largest_overflow_distance(layer.form, {kind: values[row, column] for kind, values in layer.recorded.items()})
    return f" ({budget_text(length, float(distance))} if every gate were the largest of this step)"
