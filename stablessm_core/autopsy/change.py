"""What a change is: the one thing that a trial of an autopsy does differently. The modules of `changes` are the changes.

This module does not import torch, because the server and the pages read the words of the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class NotPossible(Exception):
    """The change cannot be made to this run. The message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a run.

    name: identifies it in findings. label: names it in lists, such as "a tenth of the learning rate". how: continues the
    sentence "Trained again from step 4". line: the colour of its curve, a name in web/palette.py. make: the trial that begins
    with a `start.Start`; it raises NotPossible if there is none. place: its place among the changes for a kind of trouble
    (`words.KINDS`); small numbers are tried first, because the time may end before the last. harmless: True if the change
    should only keep a run alive for longer. If it dies earlier all the same, the control is trained again after the trials. late:
    True if the trial starts right before the fatal step instead of before the trouble.
    """

    name: str
    label: str
    how: str
    line: str
    make: Callable[[Any], tuple[Any, dict[str, Any]]]  # (Start) -> Trial; their module imports torch
    place: Callable[[str], float]
    harmless: bool = False
    late: bool = False


def usual_place(usual: float, **places: float) -> Callable[[str], float]:
    """A `place` that depends on nothing but the kind of trouble: its entry in `places`, otherwise `usual`."""
    return lambda kind: places.get(kind, usual)
