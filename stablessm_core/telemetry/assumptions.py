"""What the note on a reported layer says about how far its recorded eigenvalues are those of its recurrence."""

from __future__ import annotations

UNCONFIRMED = "by parameter name, unconfirmed"
AT_GATE_ZERO = "at gate zero"


def is_assumed(note: str | None) -> bool:
    """True if the map of the layer is assumed: only the names of its parameters suggest it."""
    return "unconfirmed" in (note or "")
