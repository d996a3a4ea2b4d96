"""What the note on a reported layer says about how far its recorded eigenvalues are those of its recurrence."""

from __future__ import annotations

UNCONFIRMED = "by parameter name, unconfirmed"
AT_GATE_ZERO = "at gate zero"


DECAY_ONLY = "decay factor only, at gate zero; the write strength beta turns the state too"
DIAGONAL_ONLY = "of the diagonal part only, without the low-rank part"
# part of a note -> what statements about the layer's eigenvalues take for granted
RESERVATIONS = {"unconfirmed": "assumed", "decay factor only": "decay", "diagonal part only": "diagonal"}


def reservation(note: str | None) -> str | None:
    """What a statement about the eigenvalues of a layer with this note takes for granted: "assumed" if only the names of the
    parameters suggest the map, "decay" or "diagonal" if only a part of the transition is recorded; None if nothing."""
    return next((kind for part, kind in RESERVATIONS.items() if part in (note or "")), None)


def is_assumed(note: str | None) -> bool:
    """True if the map of the layer is assumed: only the names of its parameters suggest it."""
    return reservation(note) == "assumed"
